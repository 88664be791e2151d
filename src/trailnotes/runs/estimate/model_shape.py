"""Parameter counts and shapes of a model, without loading or downloading it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.pytorch_utils import Conv1D

from trailnotes.config.model_schema import ModelConfig
from trailnotes.errors import PolicyError
from trailnotes.learner.sharding import find_blocks
from trailnotes.policies.hf.adapters import add_adapters
from trailnotes.policies.hf.policy import load_architecture

# Settings of models in transformers that scale or cap the output of the head, as `split_model` would find out.
LOGIT_SCALINGS = (
    "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap", "logits_scaling", "logit_scale",
    "lm_head_multiplier",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Parameter counts of a model, and the widths of its activations."""

    whole: int  # parameters, adapters left out
    adapters: int  # parameters of theirs; 0 without
    block: int  # parameters of the largest layer
    around: int  # parameters outside the layers: embeddings, the last norm, the head
    head: int  # parameters of the output embedding
    linear: int  # parameters of the matrices that `model.load_in_4bit` quantizes
    layers: int
    hidden: int
    queries: int  # width of a token's queries in one layer
    keys: int  # width of a token's keys, and of its values, in one layer
    intermediate: int
    vocabulary: int
    positions: int  # tokens of its context
    scales_logits: bool  # the learner and the engine compute the logits of all tokens
    text: Any  # transformers' config of the decoder


def infer_model_shape(config: ModelConfig) -> ModelShape | None:
    """Infer the shape of `config.path` from its config.json; None where that is not on this machine."""
    try:
        architecture = load_architecture(config, download=False)
    except PolicyError:
        return None
    with torch.device("meta"):  # tensors that have a shape and no memory
        model = transformers.AutoModelForCausalLM.from_config(architecture, trust_remote_code=False)
        whole, blocks = _count_parameters(model), [_count_parameters(block) for block in find_blocks(model)]
        output = model.get_output_embeddings()
        matrices = [
            each for each in model.modules() if isinstance(each, (torch.nn.Linear, Conv1D)) and each is not output
        ]
        linear = sum(each.weight.numel() for each in matrices)
        adapted = add_adapters(model, config.lora, base="") if config.lora.enabled else None
    adapters = sum(p.numel() for p in adapted.parameters() if p.requires_grad) if adapted is not None else 0
    text = architecture.get_text_config(decoder=True)
    heads = text.num_attention_heads
    channels = getattr(text, "head_dim", None) or text.hidden_size // heads
    return ModelShape(
        whole=whole, adapters=adapters, block=max(blocks, default=0), around=whole - sum(blocks),
        head=0 if output is None else output.weight.numel(), linear=linear,
        layers=text.num_hidden_layers, hidden=text.hidden_size, queries=heads * channels,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * channels,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size, vocabulary=text.vocab_size,
        positions=getattr(text, "max_position_embeddings", None) or 1 << 30, text=text,
        scales_logits=any(getattr(text, name, None) not in (None, 1) for name in LOGIT_SCALINGS),
    )  # fmt: skip


def _count_parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
