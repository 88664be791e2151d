"""Parameter counts and shapes of a model, without loading or downloading it."""

from __future__ import annotations

import math
import re
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

# Of Qwen2.5, by size in billions: layers, hidden, intermediate, heads, heads of keys and values, vocabulary.
QWEN_SHAPES = {
    0.5: (24, 896, 4864, 14, 2, 151936),
    1.5: (28, 1536, 8960, 12, 2, 151936),
    3: (36, 2048, 11008, 16, 2, 151936),
    7: (28, 3584, 18944, 28, 4, 152064),
    14: (48, 5120, 13824, 40, 8, 152064),
    32: (64, 5120, 27648, 40, 8, 152064),
    72: (80, 8192, 29568, 64, 8, 152064),
}
MAX_TIED_SIZE = 3  # billions up to which the output embedding is the input's
_SIZE = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Parameter counts of a model, and the widths of its activations."""

    source: str
    scale: float  # parameters that the name states, over those of the model that stands in for it
    whole: float  # parameters, adapters left out
    adapters: float  # parameters of theirs; 0 without
    block: float  # parameters of the largest layer
    around: float  # parameters outside the layers: embeddings, the last norm, the head
    head: float  # parameters of the output embedding
    linear: float  # parameters of the matrices that `model.load_in_4bit` quantizes
    layers: int
    hidden: int
    queries: int  # width of a token's queries in one layer
    keys: int  # width of a token's keys, and of its values, in one layer
    intermediate: int
    vocabulary: int
    positions: int  # tokens of its context
    text: Any  # transformers' config of the decoder


def infer_model_shape(config: ModelConfig) -> ModelShape | None:
    """Infer the shape of `config.path`; None where neither a config.json nor the name tells it."""
    architecture, source, stated = _find_architecture(config)
    if architecture is None:
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
    scale = stated / whole if stated else 1.0
    text = architecture.get_text_config(decoder=True)
    heads = text.num_attention_heads
    channels = getattr(text, "head_dim", None) or text.hidden_size // heads
    return ModelShape(
        source=source, scale=scale, whole=whole * scale, adapters=adapters * scale,
        block=max(blocks, default=0) * scale, around=(whole - sum(blocks)) * scale,
        head=0 if output is None else output.weight.numel() * scale, linear=linear * scale,
        layers=text.num_hidden_layers, hidden=text.hidden_size, queries=heads * channels,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * channels,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size, vocabulary=text.vocab_size,
        positions=getattr(text, "max_position_embeddings", None) or 1 << 30, text=text,
    )  # fmt: skip


def _count_parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _find_architecture(config: ModelConfig) -> tuple[Any, str, float]:
    """Find the architecture (None: unknown), its source, and the parameter count that only its name states, else 0."""
    try:
        return load_architecture(config, download=False), "by its config.json", 0.0
    except PolicyError:
        size = _SIZE.search(config.path.rpartition("/")[2])
    if size is None:
        return None, "", 0.0
    wanted = float(size[1]) / (1 if size[2].lower() == "b" else 1000)
    near = min(QWEN_SHAPES, key=lambda known: abs(math.log(known / wanted)))
    layers, hidden, intermediate, heads, kv_heads, vocabulary = QWEN_SHAPES[near]
    shape = transformers.Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=near <= MAX_TIED_SIZE,
        max_position_embeddings=1 << 15,
    )  # fmt: skip
    if near == wanted and "qwen2" in config.path.lower():
        return shape, "its shape is known by its name", 0.0
    return shape, f"guessed from its name, by the shape of Qwen2.5-{near:g}B", wanted * 1e9
