"""What mends a run that does not fit its devices: each change of the settings is tried in the estimate first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from trailnotes.config.presets import PRESETS, VARIANTS
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.estimate.footprint import GIB, Footprint, conversations, estimate
from trailnotes.estimate.model_shape import Shape, shape_of

BASES = tuple(name for name in PRESETS if f"{name}-lora" in PRESETS)
MANY = 8  # devices that ranks may be told to use, and engines besides, where it is not known how many there are
SMALLER = "set model.path to a smaller model"


class Change(NamedTuple):
    """Settings with a change, and the change in words."""

    config: Config
    words: str


Kind = Callable[[Config], list[Change]]  # changes of the same thing, from the smallest to the largest


def refuse_too_large(config: Config, found: Footprint) -> None:
    """Refuse a run that does not fit its devices.

    Raises:
        ConfigError: the text has the settings to change.
    """
    if not found.fits:
        raise ConfigError(f"about {found.peak / GIB:,.1f} GiB do not fit {found.device}: {advice(config)}")


def advice(config: Config) -> str:
    """Each single change after which the run fits; or, where none does it alone, several that do it together.

    Where these need more devices, also those that do it without.
    """
    fits = _Trial(config)
    alone = [next(filter(fits, changes(config)), None) for changes in KINDS]
    if any(alone):
        return ", or ".join(change.words for change in alone if change)
    ways = [together(config), together(config, [kind for kind in KINDS if kind not in NEED_DEVICES])]
    told = dict.fromkeys(", and ".join(change.words for change in way) for way in ways if way)
    return "; or else ".join(told) or SMALLER


def together(config: Config, kinds: Sequence[Kind] | None = None) -> list[Change]:
    """Changes after which it fits, none of which could be left out or be smaller; [] where all do not suffice.

    They build on each other: the last one's settings have them all. `kinds` are those to choose from, all by default.
    """
    kinds = KINDS if kinds is None else kinds
    fits = _Trial(config)
    taken: dict[int, int] = dict.fromkeys(range(len(kinds)), -1)  # of each kind the strongest
    if not fits(_all(config, taken, kinds)[-1]):
        return []
    for kind in reversed(taken):  # what changes most is left out first
        for index in (None, *range(len(kinds[kind](config)))):
            fewer = {name: at for name, at in (taken | {kind: index}).items() if at is not None}
            if fits(_all(config, fewer, kinds)[-1]):
                taken = fewer
                break
    return _all(config, taken, kinds)[1:]


def _all(config: Config, taken: Mapping[int, int], kinds: Sequence[Kind]) -> list[Change]:
    """The settings as they are, and after each change: kind -> which of its changes."""
    steps = [Change(config, "")]
    for kind in sorted(taken):
        found = kinds[kind](steps[-1].config)
        if found:
            steps.append(found[max(-1, min(taken[kind], len(found) - 1))])
    return steps


class _Trial:
    """Whether a run fits with a change."""

    def __init__(self, config: Config) -> None:
        self._shapes: dict[bool, Shape | None] = {config.model.lora.enabled: shape_of(config.model)}

    def __call__(self, change: Change) -> bool:
        model = change.config.model
        if model.lora.enabled not in self._shapes:
            self._shapes[model.lora.enabled] = shape_of(model)
        shape = self._shapes[model.lora.enabled]
        return shape is not None and estimate(change.config, shape).fits


# -- kinds of changes, each from the smallest to the largest


def _recompute(config: Config) -> list[Change]:
    return [] if config.model.gradient_checkpointing else [_set(config, "model", "gradient_checkpointing", True)]


def _halves(config: Config, section: str, name: str, now: int, least: int) -> list[Change]:
    """Half of a number, a quarter, and so on until `least`."""
    found = []
    while now > least:
        now = max(now // 2, least)
        found.append(_set(config, section, name, now))
    return found


def _microbatch(config: Config) -> list[Change]:
    least = config.rollout.max_context_tokens  # a long row goes alone, however small the budget is
    return _halves(config, "optim", "microbatch_tokens", config.optim.microbatch_tokens, least)


def _chunk(config: Config) -> list[Change]:
    return _halves(config, "optim", "logprob_chunk", config.optim.logprob_chunk, 128)


def _conversations(config: Config) -> list[Change]:
    return _halves(config, "env", "max_envs", conversations(config), 1)


def _turns(config: Config) -> list[Change]:
    return [_set(config, "rollout", "ahead", 0)] if config.rollout.ahead else []


def _world(config: Config) -> list[Change]:
    """More processes for the update, where there may be a device for each."""
    if config.model.device not in ("auto", "cuda"):
        return []  # one device, or the memory of one host
    most = torch.cuda.device_count() or MANY
    if config.preset in BASES and config.learner.world_size < 8 <= most:
        return [_variant(config, "8gpu")]
    worlds = [world for world in (2, 4, 8, 16, 32, 64) if config.learner.world_size < world <= most]
    return [_set(config, "learner", "world_size", world) for world in worlds]


def _offload(config: Config) -> list[Change]:
    learner = config.learner
    return [_set(config, "learner", "offload", True)] if learner.world_size > 1 and not learner.offload else []


def _engine(config: Config) -> list[Change]:
    """An engine on devices that no rank has, spread over as many as its weights need."""
    engine, world = config.engine, config.learner.world_size
    if engine.devices or engine.urls or engine.replicas > 1 or config.model.device not in ("auto", "cuda"):
        return []
    found = []
    for spread in (1, 2, 4, 8):
        if world + spread <= (torch.cuda.device_count() or 2 * MANY):
            places = ",".join(str(world + place) for place in range(spread))
            changed = _with(config, {"engine": {"name": "vllm", "devices": (places,)}})
            found.append(Change(changed, f'set engine.name = "vllm" and engine.devices = ["{places}"]'))
    return found


def _dtype(config: Config) -> list[Change]:
    return [_set(config, "model", "dtype", "bfloat16")] if config.model.dtype == "float32" else []


def _adapters(config: Config) -> list[Change]:
    if config.model.lora.enabled:
        return []
    if config.preset in BASES:
        return [_variant(config, "lora")]
    changed = _with(config, {"model": {"lora": {"enabled": True}}})
    return [Change(changed, "train adapters by model.lora.enabled = true")]


# From those that change no result, over those that need more devices, to those that change what is learned.
KINDS: tuple[Kind, ...] = (
    _recompute, _microbatch, _chunk, _conversations, _turns, _world, _engine, _dtype, _offload, _adapters,
)  # fmt: skip
NEED_DEVICES = (_world, _engine)


def _set(config: Config, section: str, name: str, value: bool | int | str) -> Change:
    told = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    return Change(_with(config, {section: {name: value}}), f"set {section}.{name} = {told}")


def _variant(config: Config, name: str) -> Change:
    preset = f"{config.preset}-{name}"
    how = "train adapters by" if name == "lora" else "share the update out by"
    return Change(_with(config, {**VARIANTS[name], "preset": preset}), f"{how} --preset {preset}")


def _with(section: Any, values: Mapping[str, Any]) -> Any:
    """The same settings with others here and there; nothing is checked again."""
    changed = {
        name: _with(getattr(section, name), value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return section.model_copy(update=changed)
