"""The embedded engine: any causal LM of transformers, with continuous batching and a KV cache for each episode."""

from trailnotes.policies.hf.policy import HFPolicy, get_context_length, load_model

__all__ = ["HFPolicy", "get_context_length", "load_model"]
