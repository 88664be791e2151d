"""Memory of one rank of the learner, by part: all the time, and in the middle of an update.

`SAVED_BYTES`, kept for a backward pass, were counted in a layer of Qwen2; other layers differ. Attention that writes
out its scores (`eager`) takes more.
"""

from __future__ import annotations

from collections.abc import Mapping

from trailnotes.config.schema import Config
from trailnotes.policies.hf.policy import resolve_device
from trailnotes.runs.estimate.model_shape import ModelShape

MemoryParts = Mapping[str, float]  # bytes, by what they are for

FLOAT32 = 4
# Bytes that a layer saves for each token: (size of a number, whether adapters are trained) -> for each unit of the
# hidden width, of the queries, the keys, the intermediate width. Adapters compute in the precision of their base.
SAVED_BYTES = {
    (4, False): (24, 8, 8, 16),
    (2, False): (16, 4, 4, 8),
    (4, True): (16, 8, 8, 16),
    (2, True): (12, 4, 4, 8),
}
LOGIT_BYTES = 2 * FLOAT32  # bytes of one logit, forwards and backwards
# The same in `Learner._compute_terms`: both distributions, what lies between them, their gradients, and a mask.
ANCHOR_LOGIT_BYTES = 7 * FLOAT32 + 1
NF4_BYTES = 0.5 + (1 + 4 / 256) / 64  # bytes of a weight in 4 bits: scales of 64 in 8 bits, and of 256 of these in 32
SHARED_REPEATS = 2.0  # tokens of all rows over those that are computed once, as groups of eight have them
GATHERED_LAYERS = 3  # layers whose weights are whole at a time: that in work, the next, and the buffer it arrives in


def get_dtype_size(config: Config) -> int:
    return FLOAT32 if config.model.dtype == "float32" else 2


def estimate_frozen_weights(config: Config, shape: ModelShape) -> float:
    """Estimate the bytes of all weights but adapters, in a process of their own."""
    number = get_dtype_size(config)
    return shape.whole * number - shape.linear * (number - NF4_BYTES) * config.model.load_in_4bit


def is_on_cpu(config: Config) -> bool:
    """Return whether the device is the host's memory; "auto" plans for a GPU, even without one."""
    return config.model.device != "auto" and resolve_device(config.model.device).type != "cuda"


def estimate_static_parts(config: Config, shape: ModelShape) -> MemoryParts:
    """Estimate the bytes that a learner's rank holds all the time."""
    world, number, dtype = config.learner.world_size, get_dtype_size(config), config.model.dtype
    each = "" if world == 1 else f", 1/{world}"
    if world > 1 and config.learner.offload and not is_on_cpu(config):
        return {}
    if config.model.lora.enabled:
        trained, stored = shape.adapters / world, "4 bits" if config.model.load_in_4bit else dtype
        return {
            f"weights, {stored}{each}": estimate_frozen_weights(config, shape) / world,
            f"adapters, float32{each}": trained * FLOAT32,
            f"gradients, float32{each}": trained * FLOAT32,
            f"moments, float32{each}": trained * 2 * FLOAT32,
            f"reference: the adapters of the start{each}": trained * FLOAT32,
        }
    trained = shape.whole / world
    # Several ranks compute in copies of the masters, which exist for a pass only.
    weights = {f"weights, {dtype}": trained * number} if world == 1 or number == FLOAT32 else {}
    masters = {f"masters, float32{each}": trained * FLOAT32} if number < FLOAT32 else {}
    reference = {f"reference: the weights of the start{each}": trained * number} if config.has_reference_model else {}
    return {
        **{name + each: size for name, size in weights.items()},
        **masters,
        f"gradients, float32{each}": trained * FLOAT32,
        f"moments, float32{each}": trained * 2 * FLOAT32,
        **reference,
    }


def estimate_update_peak(config: Config, shape: ModelShape) -> MemoryParts:
    """Estimate the bytes that a learner's rank takes besides, at the peak of an update.

    That is at the logits, at the head, in a layer, or at the end of a backward pass.
    """
    number, whole = get_dtype_size(config), not config.model.lora.enabled
    gathered, layer_gradients, last = _estimate_gathered(config, shape)
    tokens = max(config.optim.microbatch_tokens, config.rollout.max_context_tokens)  # a long row goes alone
    kept, again = _estimate_activations(config, shape, tokens)
    saved = {f"activations of {tokens:,} tokens": kept}
    if config.model.load_in_4bit:
        saved["a matrix of 4 bits, unpacked"] = float(number * shape.hidden * max(shape.intermediate, shape.queries))
    chunk = min(config.optim.logprob_chunk, tokens)
    logits, of_logits = float(chunk * shape.vocabulary), f"logits of {chunk:,} tokens"
    head = {"gradient of the output embedding": shape.head * number} if whole else {}
    added = {name: 2.0 * size for name, size in head.items()}  # that of this chunk to that of those before
    backwards = again + tokens * number * 2.0 * (shape.hidden + shape.intermediate)
    logit_bytes = ANCHOR_LOGIT_BYTES if config.has_anchor_rows else LOGIT_BYTES
    stages: list[MemoryParts] = [
        {**saved, **gathered, of_logits: logits * logit_bytes, **head},
        {**saved, **gathered, of_logits: logits * LOGIT_BYTES / 2, **added},
        {**saved, **gathered, "backward pass of a layer": backwards, **layer_gradients, **head},
        {**gathered, **last},
    ]
    return max(stages, key=lambda parts: sum(parts.values()))


def _estimate_gathered(config: Config, shape: ModelShape) -> tuple[MemoryParts, MemoryParts, MemoryParts]:
    """Estimate gathered weights, the gradients of a layer, and those at the end of the pass."""
    number, whole, world = get_dtype_size(config), not config.model.lora.enabled, config.learner.world_size
    if world == 1:
        if number == FLOAT32 or not whole:
            return {}, {}, {"gradients of the embeddings": 2 * shape.head * number * whole}
        return {}, {}, {f"gradients, {config.model.dtype}": shape.whole * number + shape.head * FLOAT32}
    gathered = {"weights gathered for a pass": (shape.around + GATHERED_LAYERS * shape.block) * number}
    if config.has_reference_model and whole:
        gathered["the reference's gathered"] = shape.around * number
    if not whole:
        return gathered, {}, {}
    one = {"gradients of two layers, to be summed": shape.block * (number + 2 * FLOAT32)}
    return gathered, one, {"gradients of the embeddings, to be summed": shape.around * (number + FLOAT32)}


def _estimate_activations(config: Config, shape: ModelShape, tokens: int) -> tuple[float, float]:
    """Estimate activations that are kept for the backward pass, and those recomputed in it."""
    number = get_dtype_size(config)
    widths = (shape.hidden, shape.queries, shape.keys, shape.intermediate)
    saved = SAVED_BYTES[number, config.model.lora.enabled]
    layer = float(tokens * sum(size * width for size, width in zip(saved, widths, strict=True)))
    if config.learner.packed == "always" and not config.model.attn_implementation.startswith(("flash", "flex")):
        layer += float(tokens) ** 2 * number  # a mask that says which row is whose
    if config.learner.packed == "shared":  # what attention sees of each row, beside what the rows share
        layer += SHARED_REPEATS * tokens * 2.0 * (shape.queries + shape.keys) * number
    if not config.model.gradient_checkpointing:
        return shape.layers * layer, 0.0
    return shape.layers * tokens * shape.hidden * float(number), layer
