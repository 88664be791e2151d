"""Memory of a training run on each device, by part, estimated from the shape of its model.

A device holds some parts all the time, and others in two phases, acting and learning, of which the larger counts.
`SAVED_BYTES`, kept for a backward pass, were counted in a layer of Qwen2; other layers differ, and attention that
writes out its scores (`eager`) takes more. `benchmarks/footprint.py` compares the learner's part with measured peaks.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import torch

from trailnotes.config.schema import Config
from trailnotes.envs import load_env_class
from trailnotes.errors import ConfigError
from trailnotes.policies.hf.cache import SlotCache
from trailnotes.policies.hf.decoder import MAX_TOKENS
from trailnotes.policies.hf.policy import choose_dtype, resolve_device
from trailnotes.policies.vllm.server import DEDICATED_GPU_FRACTION, SHARED_GPU_FRACTION, compute_cache_bytes
from trailnotes.runs.estimate.model_shape import ModelShape, infer_model_shape

logger = logging.getLogger(__name__)
MemoryParts = Mapping[str, float]  # bytes, by what they are for
GIB = 1 << 30
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
# Copies of tokens x vocabulary, in the model's precision, where the logits cannot be computed in chunks: counted with
# every other token trained. Forwards, backwards, of the trained tokens alone, and what the cap keeps; and a teacher's.
WHOLE_LOGIT_COPIES, WHOLE_ANCHOR_LOGIT_COPIES = 4.0, 4.5
ACTING_LOGIT_COPIES = 2  # of the same while acting
NF4_BYTES = 0.5 + (1 + 4 / 256) / 64  # bytes of a weight in 4 bits: scales of 64 in 8 bits, and of 256 of these in 32
SHARED_REPEATS = 2.0  # tokens of all rows over those that are computed once, as groups of eight have them
GATHERED_LAYERS = 3  # layers whose weights are whole at a time: that in work, the next, and the buffer it arrives in
MICROBATCH_TOKENS = tuple(1 << power for power in range(17, 9, -1))  # what is tried on a GPU, 131,072 to 1,024
ADVICE = (
    "lower optim.microbatch_tokens, env.max_envs or engine.device_memory, turn on model.gradient_checkpointing, train "
    "adapters (model.lora.enabled = true), use more devices (learner.world_size, engine.devices) or a smaller model"
)
DEFAULT_GPU_BYTES = 80e9  # bytes, where no GPU is here
OVERHEAD = 0.1  # of the peak: kernels, fragments, an embedder
PROCESS_BYTES = 0.6e9  # bytes of Python, torch and transformers, beside what they compute
CPU_ENGINE_BYTES = 0.7e9  # bytes of an engine's process on a CPU, without weights and cache
SLEEPING_ENGINE_BYTES = 2e9  # context and compiled graphs that a sleeping engine keeps on a GPU (not measured)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of one device, or of one process in the host's memory."""

    name: str
    count: int  # devices like this one
    static: MemoryParts  # all the time
    phases: Mapping[str, MemoryParts] = field(default_factory=dict)  # besides, one after the other
    overhead: float = OVERHEAD

    @property
    def peak_without_overhead(self) -> float:
        return sum(self.static.values()) + max((sum(parts.values()) for parts in self.phases.values()), default=0.0)

    @property
    def peak(self) -> float:
        return self.peak_without_overhead * (1 + self.overhead)

    def rows(self) -> dict[str, float]:
        phases = {f"{phase}: {part}": size for phase, parts in self.phases.items() for part, size in parts.items()}
        return {**self.static, **phases}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory that all devices need, and that they have."""

    model: str  # with its parameters
    devices: tuple[DeviceMemory, ...]
    device: str  # description of each device
    room: float  # bytes of each, or of all together
    together: bool = False  # all are processes in the memory of one host
    host: MemoryParts = field(default_factory=dict)  # further parts, where all are together

    @property
    def peak(self) -> float:
        if self.together:
            return sum(device.peak * device.count for device in self.devices) + sum(self.host.values())
        return max(device.peak for device in self.devices)

    @property
    def fits(self) -> bool:
        return self.peak <= self.room

    def require_fit(self) -> None:
        """Raise `ConfigError` if it does not fit, which names the largest parts of the fullest device."""
        if not self.fits:
            fullest = max(self.devices, key=lambda each: each.peak)
            parts = sorted(fullest.rows().items(), key=lambda row: -row[1])[:4]
            named = ", ".join(f"{name} {_format_gib(size)}" for name, size in parts)
            raise ConfigError(f"about {_format_gib(self.peak)} GiB do not fit {self.device} ({named}): {ADVICE}")

    def report(self) -> str:
        columns = [device.rows() for device in self.devices]
        names = list(dict.fromkeys(name for rows in columns for name in rows))
        lines = [[name, *(_format_gib(rows[name]) if name in rows else "" for rows in columns)] for name in names]
        total = f"peak, with {OVERHEAD:.0%} for kernels and fragments"
        lines.append([total, *(_format_gib(device.peak) for device in self.devices)])
        if sum(device.count for device in self.devices) > 1:
            lines.insert(0, ["", *(device.name for device in self.devices)])
        texts = [f"device memory, estimated for {self.model}, in GiB", *_align_columns(lines)]
        if self.together:
            texts += _align_columns([[name, _format_gib(size)] for name, size in self.host.items()])
            texts.append(f"all together {_format_gib(self.peak)} GiB")
        texts.append(f"it {'fits' if self.fits else 'does not fit'} {self.device}")
        return "\n".join(texts) + "\n"


def estimate_footprint(config: Config) -> Footprint | None:
    """Estimate a training's memory; None where the model's config.json is not on this machine."""
    shape = infer_model_shape(config.model)
    if shape is None:
        return None
    size = f"{shape.whole / 1e9:.2f} billion" if shape.whole >= 1e9 else f"{shape.whole / 1e6:.1f} million"
    config = fit_microbatch(config, shape)
    device, room = _detect_device(config)
    host = {"Python and its libraries": PROCESS_BYTES * config.learner.world_size}
    if each := getattr(load_env_class(config.env.name), "memory_bytes", 0):  # where the class states it
        host[f"{count_conversations(config)} environments"] = count_conversations(config) * float(each)
    return Footprint(
        model=f"{config.model.path} ({size} parameters)",
        devices=tuple(_estimate_devices(config, shape, room)), device=device, room=room, together=is_on_cpu(config),
        host=host if is_on_cpu(config) else {},
    )  # fmt: skip


def warn_of_memory(config: Config) -> None:
    """Warn of a CPU with too little free memory for a training; raise `ConfigError` for `engine.shared_card`'s GPU."""
    if resolve_device(config.model.device).type == "cuda" or config.is_hosted or config.cluster.address:
        if config.engine.shared_card and config.has_shared_gpu and (footprint := estimate_footprint(config)):
            footprint.require_fit()
        return
    on_cpu = config.model_copy(update={"model": config.model.model_copy(update={"device": "cpu"})})
    footprint, free = estimate_footprint(on_cpu), _read_free_memory()
    if footprint is not None and footprint.peak > free:
        logger.warning(
            "this run takes about %s GiB of memory, and %s GiB are free: the system may kill it without a word. Lower "
            "optim.microbatch_tokens or env.max_envs, or free memory; --dry-run lists the parts",
            _format_gib(footprint.peak), _format_gib(free),
        )  # fmt: skip


def fit_microbatch(config: Config, shape: ModelShape | None = None) -> Config:
    """Set `optim.microbatch_tokens` where it is 0, on a GPU to the largest power of two that fits by the estimate."""
    shape = shape or infer_model_shape(config.model)
    if config.optim.microbatch_tokens or shape is None or is_on_cpu(config):
        return config
    room, fitted = _detect_device(config)[1], config
    for tokens in MICROBATCH_TOKENS:
        fitted = config.model_copy(update={"optim": config.optim.model_copy(update={"microbatch_tokens": tokens})})
        if max(device.peak for device in _estimate_devices(fitted, shape, room)) <= room:
            break
    return fitted


def has_room_to_fold(config: Config) -> bool:
    """Return whether the copy of the weights of `engine.fold_adapters` fits by the estimate; warn where it does not."""
    footprint = estimate_footprint(config)
    if footprint is None or footprint.fits:
        return True
    logger.warning("engine.fold_adapters is left out: with its copy of the weights the run does not fit %s",
                   footprint.device)  # fmt: skip
    return False


# -- parts of each device


def _estimate_devices(config: Config, shape: ModelShape, room: float) -> list[DeviceMemory]:
    world, local = config.learner.world_size, is_on_cpu(config)
    engines = [names.split(",") for names in config.engine.devices]
    starts_engines = config.engine.name == "vllm" and not config.engine.urls
    shares = config.has_shared_gpu and not local
    first = resolve_device(config.model.device).index or 0
    # On a cluster `engine.devices` only counts the GPUs of an engine; Ray gives it none of the ranks' GPUs.
    of_ranks = set() if config.cluster.address else {str(first + rank) for rank in range(world)}
    ranks = []
    for rank in range(world):
        static, learning = dict(estimate_static_parts(config, shape)), dict(estimate_update_peak(config, shape))
        acting: dict[str, float] = {}
        if rank == 0:
            acting = _estimate_caches(config, shape)
            static |= _estimate_acting_weights(config, shape) | (estimate_weight_copies(config, shape) if local else {})
        if rank == 0 and shares:
            engine = _estimate_engine(config, shape, room)
            acting |= {part: size * config.engine.replicas for part, size in engine.items()}
            if not config.rollout.max_async_iterations:
                learning |= {"engine, asleep": SLEEPING_ENGINE_BYTES * config.engine.replicas}
        for names in engines if starts_engines and not local else ():
            if str(first + rank) in of_ranks.intersection(names):
                static |= _estimate_engine(config, shape, room, len(names))
        phases: dict[str, MemoryParts] = {"acting": acting, "learning": learning}
        if config.rollout.max_async_iterations or config.engine.graphs:  # its cache stays where it is
            phases = {"acting and learning": {**acting, **learning}}
        ranks.append(DeviceMemory("rank", 1, static, {name: parts for name, parts in phases.items() if parts}))
    separate = [len(names) for names in engines for name in names if name not in of_ranks]
    if starts_engines and not (separate or shares or engines):
        separate = [1] * config.engine.replicas
    overhead = OVERHEAD if local else 0.0  # a share of a GPU holds all that the engine takes
    own = [DeviceMemory("engine", 1, _estimate_engine(config, shape, room, n), {}, overhead) for n in separate]
    return _merge_equal_devices(ranks) + _merge_equal_devices(own)


def _merge_equal_devices(devices: Sequence[DeviceMemory]) -> list[DeviceMemory]:
    merged: list[DeviceMemory] = []
    start = 0
    for _, group in groupby(devices, key=lambda device: device.rows()):
        first, *others = group
        name = f"{first.name}s {start} to {start + len(others)}" if others else f"{first.name} {start}"
        merged.append(replace(first, name=name, count=1 + len(others)))
        start += 1 + len(others)
    return merged


def _detect_device(config: Config) -> tuple[str, float]:
    device = resolve_device(config.model.device)
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        return f"{about.name} ({_format_gib(about.total_memory)} GiB)", float(about.total_memory)
    if not is_on_cpu(config):
        name = f"a GPU of {DEFAULT_GPU_BYTES / 1e9:.0f} GB ({_format_gib(DEFAULT_GPU_BYTES)} GiB); none is here"
        return name, DEFAULT_GPU_BYTES
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return f"this machine's memory ({_format_gib(memory)} GiB)", memory


def _read_free_memory() -> float:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable"):
                return 1024.0 * int(line.split()[1])
    return math.inf


# -- learning


def get_dtype_size(config: Config) -> int:
    dtype: torch.dtype = choose_dtype(config.model) if is_on_cpu(config) else getattr(torch, config.model.dtype)
    return dtype.itemsize


def estimate_frozen_weights(config: Config, shape: ModelShape) -> float:
    number = get_dtype_size(config)
    return shape.whole * number - shape.linear * (number - NF4_BYTES) * config.model.load_in_4bit


def is_on_cpu(config: Config) -> bool:
    # "auto" plans for a GPU, even without one.
    return config.model.device != "auto" and resolve_device(config.model.device).type != "cuda"


def estimate_static_parts(config: Config, shape: ModelShape) -> MemoryParts:
    """Estimate the bytes that a learner's rank holds all the time."""
    world, number = config.learner.world_size, get_dtype_size(config)
    dtype = "float32" if number == FLOAT32 else config.model.dtype
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
    """Estimate the bytes that a rank takes besides at the peak of an update: at logits, head, a layer, or the end."""
    number, whole = get_dtype_size(config), not config.model.lora.enabled
    gathered, layer_gradients, last = _estimate_gathered(config, shape)
    tokens = max(config.optim.pass_tokens, config.rollout.max_context_tokens)  # a long row goes alone
    kept, again = _estimate_activations(config, shape, tokens)
    saved = {f"activations of {tokens:,} tokens": kept}
    if config.model.load_in_4bit:
        saved["a matrix of 4 bits, unpacked"] = float(number * shape.hidden * max(shape.intermediate, shape.queries))
    chunk = tokens if shape.scales_logits else min(config.optim.logprob_chunk, tokens)
    logits, of_logits = float(chunk * shape.vocabulary), f"logits of {chunk:,} tokens"
    head = {"gradient of the output embedding": shape.head * number} if whole else {}
    added = {name: 2.0 * size for name, size in head.items()}  # that of this chunk to that of those before
    backwards = again + tokens * number * 2.0 * (shape.hidden + shape.intermediate)
    logit_bytes: float = ANCHOR_LOGIT_BYTES if config.has_anchor_rows else LOGIT_BYTES
    if shape.scales_logits:
        logit_bytes = number * (WHOLE_ANCHOR_LOGIT_COPIES if config.has_anchor_rows else WHOLE_LOGIT_COPIES)
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


# -- acting


def _estimate_acting_weights(config: Config, shape: ModelShape) -> dict[str, float]:
    number, world = get_dtype_size(config), config.learner.world_size
    parts: dict[str, float] = {}
    if config.engine.name == "hf" and (world > 1 or config.rollout.max_async_iterations):
        parts["weights of the model that acts"] = estimate_frozen_weights(config, shape) + 2 * shape.adapters * FLOAT32
    if config.engine.name == "hf" and config.engine.fold_adapters and config.model.lora.enabled:
        parts["a copy of the weights, adapters folded in"] = shape.linear * number
    if config.has_separate_author and (world > 1 or not config.has_reference_model):  # else the learner's reference
        parts["weights of the author of the tips"] = shape.whole * number
    return parts


def _estimate_caches(config: Config, shape: ModelShape) -> dict[str, float]:
    number, conversations = get_dtype_size(config), count_conversations(config)
    columns = min(config.rollout.max_context_tokens, shape.positions)
    slots = SlotCache()  # it grows in steps
    slots.reserve(conversations, columns)
    kept = 2 * slots.num_slots * slots.capacity * shape.keys * shape.layers
    # During a prefill the keys and values of one layer are repeated for all heads.
    repeated = 2 * conversations * columns * shape.queries if shape.keys < shape.queries else 0
    cache, parts = float(kept + repeated) * number, {}
    if config.engine.name == "hf":
        parts = {f"cache of {conversations} conversations of {config.rollout.max_context_tokens:,} tokens": cache}
        logits = ACTING_LOGIT_COPIES * shape.vocabulary * shape.scales_logits
        widths = 3.0 * (shape.hidden + shape.intermediate)
        parts[f"pass of {MAX_TOKENS:,} tokens"] = MAX_TOKENS * number * (widths + logits)
    return parts | ({"cache of the author of the tips": cache} if config.has_separate_author else {})


def count_conversations(config: Config) -> int:
    episodes = config.rollout.num_tasks * config.rollout.group_size
    return min(config.env.max_envs or episodes, episodes)


def _estimate_engine(config: Config, shape: ModelShape, room: float, spread: int = 1) -> dict[str, float]:
    number, engine = get_dtype_size(config), config.engine
    weights = shape.whole * number / spread
    context = min(config.rollout.max_context_tokens, shape.positions)
    if is_on_cpu(config):
        cache = compute_cache_bytes(shape.text, config, context)
        return {"engine: weights": weights, "engine: cache": cache, "engine": CPU_ENGINE_BYTES}
    is_alone = engine.devices or config.cluster.address
    fraction = engine.device_memory or (DEDICATED_GPU_FRACTION if is_alone else SHARED_GPU_FRACTION)
    share = fraction if is_alone else fraction / engine.replicas
    conversation = 2.0 * shape.keys * shape.layers * number * context / spread
    rest = max(share * room - weights, conversation + SLEEPING_ENGINE_BYTES)
    return {"engine: weights": weights, "engine: cache and graphs": rest}


# -- the host


def estimate_weight_copies(config: Config, shape: ModelShape) -> dict[str, float]:
    """Estimate the copies of trained weights that rank 0 has in the host's memory at most.

    They are the newest, the one that plays until the next is loaded, one in between with `rollout.max_async_iterations`
    above 1, and the initial one if the policy is set back to it to write tips. vLLM has files of the newest and the
    last weights.
    """
    lora, ahead = config.model.lora.enabled, config.rollout.max_async_iterations
    copies = 2 + (ahead > 1) + (config.has_frozen_author and not config.has_separate_author)
    if config.engine.name == "hf" and not ahead and config.learner.world_size == 1:
        copies = 0
    trained = shape.adapters if lora else shape.whole
    parts: dict[str, float] = {
        "weights handed to the policy": copies * trained * (FLOAT32 if lora else get_dtype_size(config))
    }
    if config.engine.name == "vllm":
        parts["the same in files"] = 2 * trained * get_dtype_size(config)
    return parts if copies else {}


# -- text


def _align_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    numbers = [" ".join(f"{cell:>{width}}" for cell, width in zip(line[1:], widths, strict=True)) for line in lines]
    return [f"  {line[0]:<{first}} {rest}".rstrip() for line, rest in zip(lines, numbers, strict=True)]


def _format_gib(size: float) -> str:
    return f"{size / GIB:,.1f}" if size >= GIB / 10 else f"{size / GIB:.3f}"
