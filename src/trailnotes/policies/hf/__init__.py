"""The embedded engine: any causal LM of transformers, batched continuously, with a KV cache as long as the episode."""

from trailnotes.policies.hf.policy import HFPolicy, get_context_length, load_model

__all__ = ["HFPolicy", "get_context_length", "load_model"]
