"""vLLM as the engine, in processes of its own: started here, or on other machines."""

from trailnotes.policies.vllm.policy import VLLMPolicy, make_vllm_policy

__all__ = ["VLLMPolicy", "make_vllm_policy"]
