"""What a training run will take of its device's memory, from the shape of its model: nothing is loaded or downloaded.

While it acts, a run holds weights, optimiser and the cache of all conversations; while it learns, the same with the
activations of one micro-batch in the cache's place. What is saved for a backward pass was counted in a layer of Qwen2
(`SAVED`); other layers differ, and so do kernels: an estimate, to be trusted within a quarter.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from trailnotes.config.model_schema import ModelConfig
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.policies.hf.adapters import new_adapters
from trailnotes.policies.hf.network import SlotCache
from trailnotes.policies.hf.policy import architecture_of, device_of

GIB = 1 << 30
COMMON_GPU = 80e9  # bytes, where no GPU is here
OVERHEAD = 0.1  # of the peak: kernels, fragments, an embedder
FLOAT32 = 4
# Bytes that one layer saves for each token, for each unit of hidden and of intermediate width: (size of a number,
# whether adapters are trained) -> both. Adapters are float32, and keep a copy of their input where that is not.
SAVED = {(4, False): (40, 16), (2, False): (24, 8), (4, True): (32, 16), (2, True): (40, 10)}
# Bytes of one logit at the peak of `TokenScorer.divergence`: both distributions, what lies between them, and a mask.
# Measured: 29.1 and 29.0 with weights in float32 and bfloat16; episodes take 8.
HELD_LOGIT = 7 * FLOAT32 + 1
# Of Qwen2.5, by size in billions: layers, hidden, intermediate, heads, heads of keys and values, vocabulary.
SHAPES = {
    0.5: (24, 896, 4864, 14, 2, 151936),
    1.5: (28, 1536, 8960, 12, 2, 151936),
    3: (36, 2048, 11008, 16, 2, 151936),
    7: (28, 3584, 18944, 28, 4, 152064),
    14: (48, 5120, 13824, 40, 8, 152064),
    32: (64, 5120, 27648, 40, 8, 152064),
    72: (80, 8192, 29568, 64, 8, 152064),
}
TIED = 3  # billions up to which the output embedding is the input's
_SIZE = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes, by what they are for, and what they must fit into."""

    model: str  # and where its shape is from
    held: Mapping[str, float]  # all the time
    acting: Mapping[str, float]  # besides, while episodes are played
    learning: Mapping[str, float]  # besides, while the learner updates
    device: str
    room: float

    @property
    def peak(self) -> float:
        """At most at a time, with what kernels and fragments take."""
        return (sum(self.held.values()) + max(sum(p.values()) for p in (self.acting, self.learning))) * (1 + OVERHEAD)

    @property
    def fits(self) -> bool:
        """Whether the device has the room."""
        return self.peak <= self.room

    def report(self) -> str:
        """A table for people."""
        rows = {**self.held}
        rows |= {f"acting: {name}": size for name, size in self.acting.items()}
        rows |= {f"learning: {name}": size for name, size in self.learning.items()}
        rows[f"peak, with {OVERHEAD:.0%} for kernels and fragments"] = self.peak
        width = max(map(len, rows))
        lines = [f"  {name:<{width}} {_gib(size):>7}" for name, size in rows.items()]
        verdict = f"it {'fits' if self.fits else 'does not fit'} {self.device}"
        return "\n".join([f"device memory, estimated for {self.model}, in GiB", *lines, verdict]) + "\n"


def footprint(config: Config) -> Footprint | None:
    """The estimate for a training run; None where neither a config.json of this machine nor a name tells the shape.

    Raises:
        ConfigError: `model.device` or `model.lora` cannot be used.
    """
    found = _shape(config.model)
    if found is None:
        return None
    shape, source, stated = found
    counted, trained = _parameters(shape, config.model)
    scale = stated / counted if stated else 1.0
    whole, trained = counted * scale, trained * scale
    number = FLOAT32 if config.model.dtype == "float32" else 2
    learning = _learning(shape, config, number)
    if not config.model.lora.enabled and number != FLOAT32:
        learning = {f"{config.model.dtype} gradients": whole * number} | learning
    device, room = _room(config.model.device)
    size = f"{whole / 1e9:.2f} billion" if whole >= 1e9 else f"{whole / 1e6:.1f} million"
    return Footprint(
        model=f"{config.model.path} ({size} parameters; {source})",
        held=_held(config, number, whole, trained),
        acting=_acting(config, _cache(shape, config, number) * scale),
        learning=learning,
        device=device,
        room=room,
    )


def refuse_too_large(config: Config, found: Footprint) -> None:
    """Refuse a run that does not fit its device.

    Raises:
        ConfigError: the text has the setting to begin with.
    """
    if found.fits:
        return
    transient = max((found.acting, found.learning), key=lambda part: sum(part.values()))
    if not config.model.lora.enabled:
        preset = f"--preset {config.preset}-lora" if config.preset else "model.lora.enabled = true"
        advice = f"train adapters by {preset}"
    elif sum(found.held.values()) > found.room / 2:
        advice = "set model.path to a smaller model"
    elif transient is found.acting:
        advice = f"lower env.max_envs, now {config.env.max_envs or 'as many as there are episodes'}"
    elif not config.model.gradient_checkpointing:
        advice = "set model.gradient_checkpointing = true"
    else:
        advice = f"lower optim.microbatch_tokens, now {config.optim.microbatch_tokens}"
    raise ConfigError(f"about {_gib(found.peak)} GiB do not fit {found.device}: {advice}")


def _shape(config: ModelConfig) -> tuple[Any, str, float] | None:
    """The architecture, where it is from, and the number of parameters if another one is stated, else 0."""
    try:
        return architecture_of(config, download=False), "by its config.json", 0.0
    except PolicyError:
        size = _SIZE.search(config.path.rpartition("/")[2])
    if size is None:
        return None
    wanted = float(size[1]) / (1 if size[2].lower() == "b" else 1000)
    near = min(SHAPES, key=lambda known: abs(math.log(known / wanted)))
    layers, hidden, intermediate, heads, kv_heads, vocabulary = SHAPES[near]
    shape = transformers.Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=near <= TIED,
        max_position_embeddings=1 << 15,
    )
    if near == wanted and "qwen2" in config.path.lower():
        return shape, "its shape is known by its name", 0.0
    return shape, f"guessed from its name, by the shape of Qwen2.5-{near:g}B", wanted * 1e9


def _parameters(shape: Any, config: ModelConfig) -> tuple[float, float]:
    """Of the model and of its adapters (0 without), counted on tensors that have a shape and no memory."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(shape)
        whole = sum(parameter.numel() for parameter in model.parameters())
        if not config.lora.enabled:
            return whole, 0
        adapted = new_adapters(model, config.lora, base="")
    return whole, sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)


def _held(config: Config, number: int, whole: float, trained: float) -> dict[str, float]:
    """Weights, what the optimiser keeps (gradients too, between its steps), and the reference."""
    parts = {f"weights, {config.model.dtype}": whole * number}
    if config.model.lora.enabled:
        parts["adapters, their gradients and two moments, float32"] = trained * 4 * FLOAT32
        parts["reference: the adapters of the start"] = trained * FLOAT32
        return parts
    copies = 3 if number == FLOAT32 else 4  # weights of lower precision have a float32 copy besides
    named = "float32 gradients" if number == FLOAT32 else "float32 copy and gradients"
    parts[f"optimiser: {named}, two moments"] = whole * copies * FLOAT32
    if config.holds:
        parts["reference: the weights of the start"] = whole * number
    return parts


def _acting(config: Config, cache: float) -> dict[str, float]:
    """The caches: of the policy and, where another model writes the tips, of that one."""
    own = config.algorithm.author == "start" and config.holds and not config.model.lora.enabled
    return {_cache_of(config): cache} | ({"the same of the author of the tips": cache} if own else {})


def _conversations(config: Config) -> int:
    episodes = config.rollout.num_tasks * config.rollout.group_size
    return min(config.env.max_envs or episodes, episodes)


def _cache_of(config: Config) -> str:
    return f"cache of {_conversations(config)} conversations of {config.rollout.max_context_tokens:,} tokens"


def _cache(shape: Any, config: Config, number: int) -> float:
    """Keys and values of all conversations, and those of one layer repeated for all heads while prompts are read."""
    text = shape.get_text_config(decoder=True)
    heads, kv_heads = text.num_attention_heads, getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    columns = min(config.rollout.max_context_tokens, getattr(text, "max_position_embeddings", None) or 1 << 30)
    grown = SlotCache()  # it grows in steps
    grown.reserve(_conversations(config), columns)
    kept = 2 * grown.num_slots * grown.capacity * kv_heads * head * text.num_hidden_layers
    repeated = 2 * _conversations(config) * columns * heads * head if kv_heads < heads else 0
    return float(kept + repeated) * number


def _learning(shape: Any, config: Config, number: int) -> dict[str, float]:
    """What one micro-batch takes: saved activations, the layer in work, and the logits of a chunk in each direction."""
    text = shape.get_text_config(decoder=True)
    tokens = max(config.optim.microbatch_tokens, config.rollout.max_context_tokens)  # a long row goes alone
    hidden, layers = text.hidden_size, text.num_hidden_layers
    intermediate = getattr(text, "intermediate_size", None) or 4 * hidden
    per_hidden, per_intermediate = SAVED[number, config.model.lora.enabled]
    layer = tokens * (per_hidden * hidden + per_intermediate * intermediate)
    again = config.model.gradient_checkpointing
    saved = layers * tokens * hidden * number + layer if again else layers * layer
    chunk = min(config.optim.logprob_chunk, tokens)
    logit = HELD_LOGIT if config.holds_rows else 3.0 * FLOAT32 + 2 * number
    return {
        f"activations of {tokens:,} tokens": float(saved + layer),
        f"logits of {chunk:,} tokens": chunk * text.vocab_size * float(logit),
    }


def _room(name: str) -> tuple[str, float]:
    """The device in words, and its bytes."""
    device = device_of(name)
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        return f"{about.name} ({_gib(about.total_memory)} GiB)", float(about.total_memory)
    if name == "auto":
        return f"a GPU of {COMMON_GPU / 1e9:.0f} GB ({_gib(COMMON_GPU)} GiB); none is here", COMMON_GPU
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return f"this machine's memory ({_gib(memory)} GiB)", memory


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f}" if size >= GIB / 10 else f"{size / GIB:.3f}"
