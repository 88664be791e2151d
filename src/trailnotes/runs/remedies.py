"""What mends a run that does not fit its devices: each setting is tried in the estimate before it is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from trailnotes.config.presets import PRESETS, VARIANTS
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.runs.footprint import GIB, Footprint, conversations, estimate
from trailnotes.runs.shapes import Shape, shape_of

BASES = tuple(name for name in PRESETS if f"{name}-lora" in PRESETS)
MANY = 8  # devices that ranks may be told to use, and engines besides, where it is not known how many there are
SMALLER = "set model.path to a smaller model"


class Remedy(NamedTuple):
    """A change of the settings."""

    kind: str  # those of one kind change the same, by more and more
    words: str
    config: Config


def refuse_too_large(config: Config, found: Footprint) -> None:
    """Refuse a run that does not fit its devices.

    Raises:
        ConfigError: the text has the settings to change.
    """
    if not found.fits:
        raise ConfigError(f"about {found.peak / GIB:,.1f} GiB do not fit {found.device}: {advice(config)}")


def advice(config: Config) -> str:
    """Each single change after which the run fits; or, where none does it alone, several that do it together."""
    shape = shape_of(config.model)
    if shape is None:
        return SMALLER
    alone: dict[str, str] = {}
    for remedy in remedies(config):
        if remedy.kind not in alone and _fits(remedy, shape):
            alone[remedy.kind] = remedy.words
    if alone:
        return ", or ".join(alone.values())
    several = together(config, shape)
    return ", and ".join(remedy.words for remedy in several) if several else SMALLER


def _fits(remedy: Remedy, shape: Shape) -> bool:
    return estimate(remedy.config, _shape_for(remedy.config, shape)).fits


def _shape_for(config: Config, shape: Shape) -> Shape:
    """The same model, with adapters where it did not have any and now has."""
    if config.model.lora.enabled and not shape.adapters:
        return shape_of(config.model) or shape
    return shape


def together(config: Config, shape: Shape) -> list[Remedy]:
    """Changes to make one after the other until it fits, the most helpful first; [] where all of them do not do it."""
    taken: list[Remedy] = []
    now = estimate(config, shape)
    while not now.fits:
        tried = [(estimate(r.config, _shape_for(r.config, shape)), r) for r in remedies(config)]
        fitting = [pair for pair in tried if pair[0].fits]
        best = fitting[0] if fitting else min(tried, key=lambda pair: pair[0].peak, default=None)
        if best is None or best[0].peak >= now.peak:
            return []
        now, remedy = best
        config, shape = remedy.config, _shape_for(remedy.config, shape)
        taken.append(remedy)
    return taken


def remedies(config: Config) -> Iterator[Remedy]:
    """Changes to try, from those that change no result to those that do."""
    model, learner, optim = config.model, config.learner, config.optim
    if not model.gradient_checkpointing:
        yield _set(config, "model", gradient_checkpointing=True)
    tokens = optim.microbatch_tokens
    while tokens > config.rollout.max_context_tokens:
        tokens = max(tokens // 2, config.rollout.max_context_tokens)
        yield _set(config, "optim", microbatch_tokens=tokens)
    chunk = optim.logprob_chunk
    while chunk > 128:
        chunk = max(chunk // 2, 128)
        yield _set(config, "optim", logprob_chunk=chunk)
    alive = conversations(config)
    while alive > 1:
        alive //= 2
        yield _set(config, "env", max_envs=alive)
    if config.rollout.ahead:
        yield _set(config, "rollout", ahead=0)
    if config.model.device in ("auto", "cuda"):  # else it is one device, or the one memory of a host
        yield from _more_devices(config)
        yield from _engines_apart(config)
    if learner.world_size > 1 and not learner.offload:
        yield _set(config, "learner", offload=True)
    if model.dtype == "float32":
        yield _set(config, "model", dtype="bfloat16")
    if not model.lora.enabled:
        yield _variant(config, "lora") if config.preset in BASES else _adapters(config)


def _more_devices(config: Config) -> Iterator[Remedy]:
    """The update by more processes, where there may be a device for each."""
    most = torch.cuda.device_count() or MANY
    for world in (2, 4, 8, 16, 32, 64):
        if config.learner.world_size < world <= most:
            if world == MANY and config.preset in BASES:
                yield _variant(config, "8gpu")
            else:
                yield _set(config, "learner", world_size=world)


def _engines_apart(config: Config) -> Iterator[Remedy]:
    """An engine on devices that no rank has, spread over as many as its weights need."""
    if config.engine.devices or config.engine.urls or config.engine.replicas > 1:
        return
    world = config.learner.world_size
    most = torch.cuda.device_count() or 2 * MANY
    for spread in (1, 2, 4, 8):
        if world + spread <= most:
            places = ",".join(str(world + place) for place in range(spread))
            changed = _with(config, {"engine": {"name": "vllm", "devices": (places,)}})
            yield Remedy("engine", f'set engine.name = "vllm" and engine.devices = ["{places}"]', changed)


def _set(config: Config, section: str, **values: Any) -> Remedy:
    (name, value), *_ = values.items()
    told = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    return Remedy(f"{section}.{name}", f"set {section}.{name} = {told}", _with(config, {section: values}))


def _adapters(config: Config) -> Remedy:
    words = "train adapters by model.lora.enabled = true"
    return Remedy("lora", words, _with(config, {"model": {"lora": {"enabled": True}}}))


def _variant(config: Config, name: str) -> Remedy:
    preset = f"{config.preset}-{name}"
    how = "train adapters by" if name == "lora" else "share the update out by"
    return Remedy(name, f"{how} --preset {preset}", _with(config, {**VARIANTS[name], "preset": preset}))


def _with(config: Config, values: Mapping[str, Any]) -> Config:
    """The same settings with others here and there; nothing is checked again."""
    changed = {
        name: _with(getattr(config, name), value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return config.model_copy(update=changed)
