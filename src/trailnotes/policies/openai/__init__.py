"""Any OpenAI-compatible chat endpoint: it acts, writes tips and adapts, and cannot be trained."""

from trailnotes.policies.openai.policy import OpenAIPolicy

__all__ = ["OpenAIPolicy"]
