"""vLLM as the engine, in processes of its own: started here, or on other machines."""

from trailnotes.policies.vllm.building import vllm_policy
from trailnotes.policies.vllm.policy import VLLMPolicy

__all__ = ["VLLMPolicy", "vllm_policy"]
