"""vLLM as the engine, in processes of its own: started here, or on other machines."""

from trailnotes.policies.vllm.building import make_vllm_policy
from trailnotes.policies.vllm.policy import VLLMPolicy

__all__ = ["VLLMPolicy", "make_vllm_policy"]
