"""Suggestions for a run that does not fit its devices: settings that make the estimate fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from trailnotes.config.presets import PRESETS, VARIANTS
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.estimate.footprint import GIB, Footprint, count_conversations, estimate_for_shape
from trailnotes.estimate.model_shape import ModelShape, infer_model_shape

BASE_PRESETS = tuple(name for name in PRESETS if f"{name}-lora" in PRESETS)
MAX_ASSUMED_DEVICES = 8  # devices for ranks, and as many for engines, where none is here
FALLBACK_ADVICE = "set model.path to a smaller model"


class ConfigChange(NamedTuple):
    """Changed settings, and the change in words."""

    config: Config
    words: str


ChangeGenerator = Callable[[Config], list[ConfigChange]]  # changes of the same thing, from the smallest to the largest


def validate_footprint(config: Config, found: Footprint) -> None:
    """Refuse a run that does not fit its devices.

    Raises:
        ConfigError: the text has the settings to change.
    """
    if not found.fits:
        raise ConfigError(f"about {found.peak / GIB:,.1f} GiB do not fit {found.device}: {suggest_changes(config)}")


def suggest_changes(config: Config) -> str:
    """Suggest each single change after which the run fits, or several that do it together.

    Where these need more devices, also those that do it without.
    """
    fits = _FitCheck(config)
    alone = [next(filter(fits, changes(config)), None) for changes in CHANGE_GENERATORS]
    if any(alone):
        return ", or ".join(change.words for change in alone if change)
    ways = [
        combine_changes(config),
        combine_changes(config, [kind for kind in CHANGE_GENERATORS if kind not in NEED_DEVICES]),
    ]
    told = dict.fromkeys(", and ".join(change.words for change in way) for way in ways if way)
    return "; or else ".join(told) or FALLBACK_ADVICE


def combine_changes(config: Config, kinds: Sequence[ChangeGenerator] | None = None) -> list[ConfigChange]:
    """Combine a minimal set of changes after which the run fits; [] where all do not suffice.

    They build on each other: the last one's settings have them all. `kinds` are the allowed ones, by default all.
    """
    kinds = CHANGE_GENERATORS if kinds is None else kinds
    fits = _FitCheck(config)
    taken: dict[int, int] = dict.fromkeys(range(len(kinds)), -1)  # of each kind the strongest
    if not fits(_apply_changes(config, taken, kinds)[-1]):
        return []
    for kind in reversed(taken):  # what changes most is left out first
        for index in (None, *range(len(kinds[kind](config)))):
            fewer = {name: at for name, at in (taken | {kind: index}).items() if at is not None}
            if fits(_apply_changes(config, fewer, kinds)[-1]):
                taken = fewer
                break
    return _apply_changes(config, taken, kinds)[1:]


def _apply_changes(config: Config, taken: Mapping[int, int], kinds: Sequence[ChangeGenerator]) -> list[ConfigChange]:
    """Return the settings as they are, and after each change: kind -> index of its change."""
    steps = [ConfigChange(config, "")]
    for kind in sorted(taken):
        found = kinds[kind](steps[-1].config)
        if found:
            steps.append(found[max(-1, min(taken[kind], len(found) - 1))])
    return steps


class _FitCheck:
    def __init__(self, config: Config) -> None:
        self._shapes: dict[bool, ModelShape | None] = {config.model.lora.enabled: infer_model_shape(config.model)}

    def __call__(self, change: ConfigChange) -> bool:
        model = change.config.model
        if model.lora.enabled not in self._shapes:
            self._shapes[model.lora.enabled] = infer_model_shape(model)
        shape = self._shapes[model.lora.enabled]
        return shape is not None and estimate_for_shape(change.config, shape).fits


# -- kinds of changes, each from the smallest to the largest


def _suggest_setting(
    config: Config, helps: bool, section: str, name: str, value: bool | int | str
) -> list[ConfigChange]:
    return [_change_setting(config, section, name, value)] if helps else []


def _suggest_halving(config: Config, section: str, name: str, now: int, least: int) -> list[ConfigChange]:
    found = []
    while now > least:
        now = max(now // 2, least)
        found.append(_change_setting(config, section, name, now))
    return found


def _suggest_world_size(config: Config) -> list[ConfigChange]:
    if config.model.device not in ("auto", "cuda") or config.model.load_in_4bit:
        return []  # one device, or the memory of one host
    most = torch.cuda.device_count() or MAX_ASSUMED_DEVICES
    if config.preset in BASE_PRESETS and config.learner.world_size < 8 <= most:
        return [_change_variant(config, "8gpu")]
    worlds = [world for world in (2, 4, 8, 16, 32, 64) if config.learner.world_size < world <= most]
    return [_change_setting(config, "learner", "world_size", world) for world in worlds]


def _suggest_engine(config: Config) -> list[ConfigChange]:
    """Suggest an engine on devices without ranks, spread over as many as its weights need."""
    engine, world = config.engine, config.learner.world_size
    is_bound = config.model.load_in_4bit or config.model.device not in ("auto", "cuda")
    if engine.devices or engine.urls or engine.replicas > 1 or is_bound:
        return []
    found = []
    for spread in (1, 2, 4, 8):
        if world + spread <= (torch.cuda.device_count() or 2 * MAX_ASSUMED_DEVICES):
            places = ",".join(str(world + place) for place in range(spread))
            changed = _copy_with(config, {"engine": {"name": "vllm", "devices": (places,)}})
            found.append(ConfigChange(changed, f'set engine.name = "vllm" and engine.devices = ["{places}"]'))
    return found


def _suggest_adapters(config: Config) -> list[ConfigChange]:
    if config.model.lora.enabled:
        return []
    if config.preset in BASE_PRESETS:
        return [_change_variant(config, "lora")]
    changed = _copy_with(config, {"model": {"lora": {"enabled": True}}})
    return [ConfigChange(changed, "train adapters by model.lora.enabled = true")]


# From those that change no result, over those that need more devices, to those that change what is learned.
CHANGE_GENERATORS: tuple[ChangeGenerator, ...] = (
    lambda c: _suggest_setting(c, not c.model.gradient_checkpointing, "model", "gradient_checkpointing", True),
    # A long row goes alone, however small the budget is.
    lambda c: _suggest_halving(
        c, "optim", "microbatch_tokens", c.optim.microbatch_tokens, c.rollout.max_context_tokens
    ),
    lambda c: _suggest_halving(c, "optim", "logprob_chunk", c.optim.logprob_chunk, 128),
    lambda c: _suggest_halving(c, "env", "max_envs", count_conversations(c), 1),
    lambda c: _suggest_setting(c, c.rollout.max_async_iterations > 0, "rollout", "max_async_iterations", 0),
    _suggest_world_size,
    _suggest_engine,
    lambda c: _suggest_setting(c, c.model.dtype == "float32", "model", "dtype", "bfloat16"),
    lambda c: _suggest_setting(c, c.learner.world_size > 1 and not c.learner.offload, "learner", "offload", True),
    _suggest_adapters,
)
NEED_DEVICES = (_suggest_world_size, _suggest_engine)


def _change_setting(config: Config, section: str, name: str, value: bool | int | str) -> ConfigChange:
    told = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    return ConfigChange(_copy_with(config, {section: {name: value}}), f"set {section}.{name} = {told}")


def _change_variant(config: Config, name: str) -> ConfigChange:
    preset = f"{config.preset}-{name}"
    how = "train adapters by" if name == "lora" else "share the update out by"
    return ConfigChange(_copy_with(config, {**VARIANTS[name], "preset": preset}), f"{how} --preset {preset}")


def _copy_with(section: Any, values: Mapping[str, Any]) -> Any:
    changed = {
        name: _copy_with(getattr(section, name), value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return section.model_copy(update=changed)
