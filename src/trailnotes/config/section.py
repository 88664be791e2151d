"""Base class of all sections, their keys, and the sources that keys cite."""

from __future__ import annotations

import json
import logging
import types
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from trailnotes.errors import ConfigError

logger = logging.getLogger(__name__)
PAPER = "EMPO2, arXiv 2602.23008"
RELEASE = "EMPO2 release 0b40cb72"


def key(default: Any, doc: str, source: str = "", needs: str = "", **limits: Any) -> Any:
    """Declare a setting: its default, its meaning, its source, and what it needs to have an effect (`unused.py`)."""
    extra: dict[str, Any] = {name: text for name, text in {"source": source, "needs": needs}.items() if text}
    if callable(default):
        return Field(default_factory=default, description=doc, json_schema_extra=extra or None, **limits)
    return Field(default, description=doc, json_schema_extra=extra or None, **limits)


RENAMED_KEYS: Final = {  # former -> present; the former are read, with a warning, until 1.0
    "rollout.ahead": "rollout.max_async_iterations",
    "engine.tolerance": "engine.max_logprob_mismatch",
    "memory.open_split": "memory.shared_split",
    "warmstart.obey": "warmstart.p_follow_tip",
    "warmstart.read": "warmstart.p_explore",
    "warmstart.whole": "warmstart.p_full_loss",
    "warmstart.exact": "warmstart.lossless_vocab",
}
REMOVED_KEYS: Final[Mapping[str, tuple[Any, str]]] = {  # former -> (its former default, as TOML reads it; a hint)
    "algorithm.anchor_reading_weight": (0.1, ""),
    "algorithm.anchor_weight": (0.4, ""),
    "algorithm.draw": ("stratified", ""),
    "algorithm.invalid": ("format", ""),
    "algorithm.penalty_stage": ("before", ""),
    "endpoint.log_prompts": (False, "trajectories.jsonl has what was seen and answered"),
    "env.max_replacements": (2, ""),
    "gigpo.ddof": (1, ""),
    "gigpo.dedup": (False, ""),
    "gigpo.statistics": ("trajectories", ""),
    "gigpo.std_floor": (0.0, ""),
    "memory.distilled_readers": (4, ""),
    "memory.merge_similarity": (0.9, ""),
    "notebook.capacity": (100, ""),
    "notebook.retrieved": (1, ""),
    "opid.clip": (0.0, ""),
    "opsd.beta": (5.0, ""),
    "opsd.clip": (5.0, ""),
    "opsd.teacher": ("form", 'opsd.form = "opcd" is the one with the initial model as teacher'),
    "optim.betas": ([0.9, 0.999], ""),
    "optim.weight_decay": (0.0, ""),
    "reflexion.window": (3, ""),
    "rehearsal.num_samples": (1, ""),
    "rehearsal.trials": (1, ""),
    "rememberer.action_capacity": (20, ""),
    "rememberer.bad": (0.0, ""),
    "rememberer.double_q": (False, ""),
    "rememberer.examples": (2, ""),
    "rememberer.good": (0.0, ""),
    "rememberer.history": (5, ""),
    "rememberer.lr": (0.0, "a value is always the mean of its targets"),
    "rememberer.random_advice": (True, ""),
    "rememberer.record_capacity": (500, ""),
    "rememberer.task_weight": (0.5, ""),
    "retrospex.batch_size": (128, ""),
    "retrospex.embed_size": (64, ""),
    "retrospex.encoder": ("gru", ""),
    "retrospex.expectile": (0.7, ""),
    "retrospex.gamma": (0.99, ""),
    "retrospex.held_out": (0.2, ""),
    "retrospex.heuristics": ([], ""),
    "retrospex.hidden_size": (128, ""),
    "retrospex.lr": (1e-4, ""),
    "retrospex.score_clip": (0.0, ""),
    "retrospex.target_rate": (0.005, ""),
    "retrospex.temperature": (0.9, ""),
    "retrospex.top_p": (0.95, ""),
    "rollout.max_staleness_weight": (2.0, ""),
    "rollout.top_k": (0, "an endpoint gets it as endpoint.extra = { top_k = ... }"),
    "run.tensorboard": (False, 'set run.trackers = ["tensorboard"]'),
    "train.eval_notes_every": (0, "trailnotes adapt --method empo2-tips plays with tips"),
    "train.eval_notes_trials": (2, "trailnotes adapt --method empo2-tips plays with tips"),
    "train.eval_tips_every": (0, "trailnotes adapt --method empo2-tips plays with tips"),
    "train.new_split": ("", "trailnotes adapt --method empo2-tips --eval.split plays such games"),
    "ucob.beta": (5.0, ""),
    "ucob.margin": (0.05, ""),
    "ucob.max_pairs": (2, ""),
    "ucob.tau": (0.2, ""),
    "ucob.weight_max": (2.0, ""),
}
"""Settings that are constants now. A key at its former default is dropped; another value is refused with the hint."""
_warned_keys: set[str] = set()


def rename_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replace former keys in a tree of sections, with one warning per process for each.

    Raises:
        ConfigError: a setting is given under both of its names.
    """
    renamed = {name: {**value} if isinstance(value, Mapping) else value for name, value in tree.items()}
    found = []
    for former, present in RENAMED_KEYS.items():
        section, _, name = former.partition(".")
        values = renamed.get(section)
        if isinstance(values, dict) and name in values:
            new_name = present.partition(".")[2]
            if new_name in values:
                raise ConfigError(f"{former} is the former name of {present}, which is set too: leave {former} out")
            values[new_name] = values.pop(name)
            found.append(former)
    if unseen := [former for former in found if former not in _warned_keys]:
        _warned_keys.update(unseen)
        pairs = ", ".join(f"{former} is now {RENAMED_KEYS[former]}" for former in unseen)
        logger.warning("settings have new names, and 1.0 will refuse the former: %s", pairs)
    return renamed


def has_former_default(name: str, value: Any) -> bool:
    """Tell whether a key was removed, and `value` is what it does without."""
    return name in REMOVED_KEYS and REMOVED_KEYS[name][0] == value


def drop_removed_keys(tree: Mapping[str, Any], origin: str, prefix: str = "") -> dict[str, Any]:
    """Drop removed keys at their former defaults from a tree of sections, and sections that become empty by it.

    Raises:
        ConfigError: a removed key has another value; the text names the origin and what replaces the key.
    """
    kept: dict[str, Any] = {}
    for name, value in tree.items():
        dotted = prefix + name
        if dotted in REMOVED_KEYS:
            if not has_former_default(dotted, value):
                default, hint = REMOVED_KEYS[dotted]
                hint = hint or f"it is always {json.dumps(default)}"
                raise ConfigError(f"{origin}: {dotted} is no longer a setting: {hint}")
            continue
        kept[name] = drop_removed_keys(value, origin, f"{dotted}.") if isinstance(value, Mapping) else value
        if value and kept[name] == {}:
            del kept[name]
    return kept


class Section(BaseModel):
    """Base of all sections: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Accept former keys from Python. JSON comes from `resolve_config`, which has renamed them."""
        schema = handler(source)
        present = (name.split(".") for name in RENAMED_KEYS.values())
        section = next((section for section, name in present if name in cls.model_fields), "")
        if not section:
            return schema

        def rename(values: Any) -> Any:
            return rename_keys({section: values})[section]

        renaming = core_schema.no_info_before_validator_function(rename, schema)
        return core_schema.json_or_python_schema(json_schema=schema, python_schema=renaming)


def require_secret_free_url(setting: str, value: str, variable: str) -> None:
    """Refuse an address with a name or password before its host, since logs and run directories keep addresses.

    `value` may be a text that ends with the address; `variable` is the environment variable for a key instead.

    Raises:
        ConfigError: there is one; the text does not repeat it.
    """
    if "@" in value.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            f"{setting} must hold no name or password, since addresses are logged and kept with a run: leave out the "
            f"part before the @ of the host, and put a key into the environment variable {variable}"
        )


def describe_allowed(field: FieldInfo) -> str:
    """Describe the values of a key: ``one of "auto", "step"``, ``any of ...``, ``>= 1``; "" if its type says all."""
    if choices := _extract_choices(field.annotation):
        words = ", ".join(f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices)
        return f"{'one' if get_origin(field.annotation) is Literal else 'any'} of {words}"
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = [(sign, getattr(m, name)) for m in field.metadata for name, sign in signs.items() if hasattr(m, name)]
    return " and ".join(f"{sign} {limit:g}" for sign, limit in limits)


def _extract_choices(annotation: Any) -> tuple[Any, ...]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return inner
    if origin in {tuple, types.UnionType}:
        return next((found for part in inner if (found := _extract_choices(part))), ())
    return ()
