"""What a training run will take of the memory of each device, by part, from the shape of its model.

A device holds some parts all the time, and others in phases: while episodes are played, and while it is learned from
them, of which the largest moment counts. `benchmarks/footprint.py` holds the learner's part against measured peaks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch

from trailnotes.config.schema import Config
from trailnotes.estimate.memory_model import FLOAT32, Parts, held_parts, learning_parts, number_of, on_cpu
from trailnotes.estimate.model_shape import Shape, shape_of
from trailnotes.policies.hf.decoder import MAX_TOKENS
from trailnotes.policies.hf.network import SlotCache
from trailnotes.policies.hf.policy import device_of
from trailnotes.policies.vllm.building import ALONE, SHARED, cache_bytes

GIB = 1 << 30
COMMON_GPU = 80e9  # bytes, where no GPU is here
OVERHEAD = 0.1  # of the peak: kernels, fragments, an embedder
ENGINE = 0.7e9  # bytes of an engine's process on a CPU, without weights and cache
ASLEEP = 2e9  # bytes that a sleeping engine keeps of a GPU: its context and compiled graphs (not measured)


@dataclass(frozen=True, slots=True)
class Device:
    """Bytes of one device, or of one process where all share the host's memory, by what they are for."""

    name: str
    count: int  # devices like this one
    held: Parts  # all the time
    phases: Mapping[str, Parts] = field(default_factory=dict)  # besides, one after the other
    overhead: float = OVERHEAD

    @property
    def counted(self) -> float:
        """What the parts add up to at the largest moment."""
        return sum(self.held.values()) + max((sum(parts.values()) for parts in self.phases.values()), default=0.0)

    @property
    def peak(self) -> float:
        """The same with what kernels and fragments take."""
        return self.counted * (1 + self.overhead)

    def rows(self) -> dict[str, float]:
        """The parts, each with its phase."""
        phases = {f"{phase}: {part}": size for phase, parts in self.phases.items() for part, size in parts.items()}
        return {**self.held, **phases}


@dataclass(frozen=True, slots=True)
class Footprint:
    """What all devices need, and what they have."""

    model: str  # and where its shape is from
    devices: tuple[Device, ...]
    device: str  # what each of them is
    room: float  # of each, or of all together
    together: bool = False  # all are processes in the memory of one host
    host: Parts = field(default_factory=dict)  # of the host's memory, where that is another

    @property
    def peak(self) -> float:
        """Of the fullest device, or of all together."""
        peaks = [device.peak * (device.count if self.together else 1) for device in self.devices]
        return sum(peaks) if self.together else max(peaks)

    @property
    def fits(self) -> bool:
        """Whether every device has the room."""
        return self.peak <= self.room

    def report(self) -> str:
        """A table for people: a line for each part, a column for each kind of device."""
        columns = [device.rows() for device in self.devices]
        names = list(dict.fromkeys(name for rows in columns for name in rows))
        lines = [[name, *(_gib(rows[name]) if name in rows else "" for rows in columns)] for name in names]
        told = f"peak, with {OVERHEAD:.0%} for kernels and fragments"
        lines.append([told, *(_gib(device.peak) for device in self.devices)])
        head = [["", *(device.name for device in self.devices)]] if sum(d.count for d in self.devices) > 1 else []
        texts = [f"device memory, estimated for {self.model}, in GiB", *_aligned(head + lines)]
        if self.together and head:
            texts.append(f"all together {_gib(self.peak)} GiB")
        texts.append(f"it {'fits' if self.fits else 'does not fit'} {self.device}")
        if self.host:
            texts.append(f"memory of the host, in GiB (this one has {_gib(_memory())})")
            texts += _aligned([[name, _gib(size)] for name, size in self.host.items()])
        return "\n".join(texts) + "\n"


def footprint(config: Config) -> Footprint | None:
    """The estimate for a training run; None where neither a config.json of this machine nor a name tells the shape.

    Raises:
        ConfigError: `model.device` or `model.lora` cannot be used.
    """
    shape = shape_of(config.model)
    return None if shape is None else estimate(config, shape)


def estimate(config: Config, shape: Shape) -> Footprint:
    """The estimate for a training run of a model of this shape."""
    size = f"{shape.whole / 1e9:.2f} billion" if shape.whole >= 1e9 else f"{shape.whole / 1e6:.1f} million"
    device, room = _room(config)
    return Footprint(
        model=f"{config.model.path} ({size} parameters; {shape.source})",
        devices=tuple(_devices(config, shape, room)),
        device=device,
        room=room,
        together=on_cpu(config),
        host={} if on_cpu(config) else _host(config, shape),
    )


# -- who is where


def _devices(config: Config, shape: Shape, room: float) -> list[Device]:
    """Ranks of the learner, with what else is on their devices; then the engines that have devices of their own."""
    world, local = config.learner.world_size, on_cpu(config)
    own = [names.split(",") for names in config.engine.devices]
    starts_engines = config.engine.name == "vllm" and not config.engine.urls
    shares = _shares(config)
    first = device_of(config.model.device).index or 0
    # On a cluster `engine.devices` only counts the GPUs of an engine, and Ray gives it none of the ranks'.
    taken = set() if config.cluster.address else {str(first + rank) for rank in range(world)}
    ranks = []
    for rank in range(world):
        held, acting, learning = dict(held_parts(config, shape)), {}, dict(learning_parts(config, shape))
        if rank == 0:
            acting = _acting(config, shape)
            held |= _model_that_acts(config, shape) | (handed_over(config, shape) if local else {})
        if rank == 0 and shares:
            engine = _engine(config, shape, room)
            acting |= {part: size * config.engine.replicas for part, size in engine.items()}
            learning |= {"engine, asleep": ASLEEP * config.engine.replicas} if _sleeps(config) else {}
        for names in own if starts_engines and not local else ():
            if str(first + rank) in taken.intersection(names):
                held |= _engine(config, shape, room, len(names))
        phases: dict[str, Parts] = {"acting": acting, "learning": learning}
        if config.rollout.ahead:
            phases = {"acting and learning": {**acting, **learning}}
        if local and world > 1:
            phases["starting"] = {"the whole model, before it is split": _loaded(config, shape)}
        ranks.append(Device("rank", 1, held, {name: parts for name, parts in phases.items() if parts}))
    apart = [len(names) for names in own for name in names if name not in taken]
    if starts_engines and not (apart or shares or own):
        apart = [1] * config.engine.replicas
    overhead = OVERHEAD if local else 0.0  # a share of a GPU holds all that the engine takes
    engines = [Device("engine", 1, _engine(config, shape, room, n), {}, overhead) for n in apart]
    return _alike(ranks) + _alike(engines)


def _shares(config: Config) -> bool:
    """Whether engines are on the device of the first rank."""
    return config.engines_share and not on_cpu(config)


def _sleeps(config: Config) -> bool:
    """Whether they leave it while it is learned."""
    return _shares(config) and not config.rollout.ahead


def _alike(devices: Sequence[Device]) -> list[Device]:
    """Neighbours that hold the same, as one, by their places."""
    found: list[Device] = []
    start = 0
    for _, same in groupby(devices, key=lambda device: device.rows()):
        first, *others = same
        name = f"{first.name} {start}" if not others else f"{first.name}s {start} to {start + len(others)}"
        found.append(replace(first, name=name, count=1 + len(others)))
        start += 1 + len(others)
    return found


def _room(config: Config) -> tuple[str, float]:
    """The device in words, and its bytes."""
    device = device_of(config.model.device)
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        return f"{about.name} ({_gib(about.total_memory)} GiB)", float(about.total_memory)
    if not on_cpu(config):
        return f"a GPU of {COMMON_GPU / 1e9:.0f} GB ({_gib(COMMON_GPU)} GiB); none is here", COMMON_GPU
    return f"this machine's memory ({_gib(_memory())} GiB)", _memory()


def _memory() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


# -- acting


def _model_that_acts(config: Config, shape: Shape) -> dict[str, float]:
    """Where it is not the one that learns; and that of the author of the tips."""
    number, world = number_of(config), config.learner.world_size
    parts: dict[str, float] = {}
    if config.engine.name == "hf" and (world > 1 or config.rollout.ahead):
        parts["weights of the model that acts"] = shape.whole * number + 2 * shape.adapters * FLOAT32
    if config.author_apart and (world > 1 or not config.holds):  # else it is the learner's reference
        parts["weights of the author of the tips"] = shape.whole * number
    return parts


def _acting(config: Config, shape: Shape) -> dict[str, float]:
    """The caches: of the policy and, where another model writes the tips, of that one."""
    cache, parts = _cache(config, shape), {}
    if config.engine.name == "hf":
        size = MAX_TOKENS * number_of(config) * 3.0 * (shape.hidden + shape.intermediate)
        told = f"{conversations(config)} conversations of {config.rollout.max_context_tokens:,} tokens"
        parts = {f"cache of {told}": cache, f"pass of {MAX_TOKENS:,} tokens": size}
    return parts | ({"cache of the author of the tips": cache} if config.author_apart else {})


def conversations(config: Config) -> int:
    """Episodes, and tips being written, alive at a time."""
    episodes = config.rollout.num_tasks * config.rollout.group_size
    return min(config.env.max_envs or episodes, episodes)


def _cache(config: Config, shape: Shape) -> float:
    """Keys and values of all conversations, and those of one layer repeated for all heads while prompts are read."""
    columns = min(config.rollout.max_context_tokens, shape.positions)
    grown = SlotCache()  # it grows in steps
    grown.reserve(conversations(config), columns)
    kept = 2 * grown.num_slots * grown.capacity * shape.keys * shape.layers
    repeated = 2 * conversations(config) * columns * shape.queries if shape.keys < shape.queries else 0
    return float(kept + repeated) * number_of(config) * shape.scale


def _engine(config: Config, shape: Shape, room: float, spread: int = 1) -> dict[str, float]:
    """An engine of vLLM, on each of the devices that it is spread over."""
    number, engine = number_of(config), config.engine
    weights = shape.whole * number / spread
    context = min(config.rollout.max_context_tokens, shape.positions)
    if on_cpu(config):
        return {"engine: weights": weights, "engine: cache": cache_bytes(shape.text, config, context), "engine": ENGINE}
    share = engine.device_memory or (ALONE if engine.devices or config.cluster.address else SHARED / engine.replicas)
    least = 2.0 * shape.keys * shape.layers * number * context / spread  # one whole conversation
    return {"engine: weights": weights, "engine: cache and graphs": max(share * room - weights, least + ASLEEP)}


# -- the host


def _loaded(config: Config, shape: Shape) -> float:
    """The whole models that a rank loads before it keeps its part."""
    models = 2 if config.holds and not config.model.lora.enabled else 1
    return shape.whole * number_of(config) * models


def _host(config: Config, shape: Shape) -> Parts:
    """What passes through the memory of the host, where devices have their own; all ranks are on one host."""
    world, trained = config.learner.world_size, shape.adapters if config.model.lora.enabled else shape.whole
    parts: dict[str, float] = {f"{world} ranks load the whole model each": world * _loaded(config, shape)}
    if world == 1:
        parts = {"a checkpoint, as it is written": trained * 3 * FLOAT32}
    elif config.learner.offload:
        here = config.model_copy(update={"learner": config.learner.model_copy(update={"offload": False})})
        parts["weights, gradients and moments of the ranks"] = world * sum(held_parts(here, shape).values())
    if _sleeps(config):
        parts["weights of engines that sleep"] = config.engine.replicas * shape.whole * number_of(config)
    return parts | handed_over(config, shape)


def copies_handed_over(config: Config) -> int:
    """How many copies of what is trained rank 0 has in the host's memory at most, for what acts with its own weights.

    The newest, the one that is acted with until the next is taken over, with `rollout.ahead` above 1 one in between,
    and that of the start where it is set back to that to write the tips. What acts in the process of several ranks, in
    turns with them, gets its weights at once.
    """
    if config.engine.name == "hf" and not config.rollout.ahead:
        return int(config.learner.world_size > 1)
    return 2 + (config.rollout.ahead > 1) + (config.start_writes and not config.author_apart)


def handed_over(config: Config, shape: Shape) -> dict[str, float]:
    """Those copies, and for vLLM the files of the newest and of the one before, in memory if there is room."""
    copies, lora = copies_handed_over(config), config.model.lora.enabled
    trained = shape.adapters if lora else shape.whole
    parts = {"weights handed to what acts": copies * trained * (FLOAT32 if lora else number_of(config))}
    if config.engine.name == "vllm":
        parts["the same in files"] = 2 * trained * number_of(config)
    return parts if copies else {}


# -- words


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns, the first to the left, the others to the right."""
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    numbers = [" ".join(f"{cell:>{width}}" for cell, width in zip(line[1:], widths, strict=True)) for line in lines]
    return [f"  {line[0]:<{first}} {rest}".rstrip() for line, rest in zip(lines, numbers, strict=True)]


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f}" if size >= GIB / 10 else f"{size / GIB:.3f}"
