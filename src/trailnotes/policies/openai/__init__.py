"""Any OpenAI-compatible chat endpoint as a policy: it acts, writes tips and adapts, and cannot be trained."""

from trailnotes.policies.openai.policy import OpenAIPolicy

__all__ = ["OpenAIPolicy"]
