"""Conversion between texts and a server's JSON: actions by its schema, and observations, validated."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trailnotes.errors import EnvError
from trailnotes.storage.files import parse_json
from trailnotes.types import replace_surrogates

_ACTION_LIST_FIELDS: Final = ("actions", "legal_actions", "available_actions", "admissible_actions", "valid_actions")
_RESERVED_FIELDS: Final = {"instruction", "success", "score", "max_score", "truncated", "metadata", "done", "reward"}
_MAX_ACTIONS: Final = 1_000  # of a list of admissible actions; a longer one is ignored
_MISSING: Final = object()
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
    "array": (list,),
}  # fmt: skip


@dataclass(frozen=True)
class ActionForm:
    """Form of a server's actions, by which a text becomes a JSON object."""

    name: str
    kind: str = "string"
    rest: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[str, ...] = ()

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any], wish: str, rest: Mapping[str, Any]) -> ActionForm:
        properties = {
            name: each for name, each in schema.get("properties", {}).items() if name not in {"metadata", *rest}
        }
        if wish == "json":
            return cls("", rest=rest)
        required = [name for name in properties if name in schema.get("required", ())]
        only = next((names[0] for names in (required, [*properties]) if len(names) == 1), "")
        name = only if wish == "auto" else wish
        described = properties.get(name, {})
        kinds = [part.get("type") for part in (described, *described.get("anyOf", ()))]
        kind = next((kind for kind in kinds if kind in _TYPES), "string")
        return cls(name, kind, rest, _parse_actions(described.get("enum")))

    def build_action(self, text: str) -> dict[str, Any] | None:
        """Build the object for one action; None if its text does not fit."""
        value: Any = replace_surrogates(text)
        if not self.name or self.kind != "string":
            value = _parse_value(value, self.kind if self.name else "object")
        if value is _MISSING:
            return None
        return {**self.rest, **({self.name: value} if self.name else value)}


def _parse_value(text: str, kind: str) -> Any:
    try:
        value = parse_json(text, "refuse")
    except ValueError:
        return _MISSING
    wanted = _TYPES[kind]
    fits = isinstance(value, wanted) and (bool in wanted or not isinstance(value, bool))
    return value if fits else _MISSING


class ServerObservation(NamedTuple):
    """Observation of a server, validated."""

    text: str
    reward: float
    done: bool
    truncated: bool
    actions: tuple[str, ...] | None
    instruction: str
    success: bool | None  # None: the server does not say
    score: tuple[float, float] | None  # so far, and the highest; None: the server does not say


def parse_observation(data: Mapping[str, Any], name: str, text_field: str, actions_field: str) -> ServerObservation:
    seen = data.get("observation")
    if not isinstance(seen, dict):
        other = "none" if seen is None else type(seen).__name__
        raise EnvError(f"{name} answered without an observation (a JSON object), but with {other}")
    done = data.get("done", False)
    if not isinstance(done, bool):
        raise EnvError(f"{name} answered with done = {str(done)[:40]!r}: it must be true or false")
    reward = data.get("reward")
    fields = _ACTION_LIST_FIELDS if actions_field == "auto" else (actions_field,)
    listed = next((seen[key] for key in fields if key in seen), None)
    success = seen.get("success")
    return ServerObservation(
        text=replace_surrogates(_get_text(seen, name, text_field)),
        reward=0.0 if reward is None else _parse_number(reward, name),
        done=done,
        truncated=done and seen.get("truncated") is True,
        actions=_parse_actions(listed) or None,
        instruction=replace_surrogates(str(seen.get("instruction") or "")),
        success=success if isinstance(success, bool) else None,
        score=_parse_score(seen),
    )


def _get_text(seen: Mapping[str, Any], name: str, text_field: str) -> str:
    if text_field != "auto":
        if text_field not in seen:
            wanted = f"env.options.observation_field = {text_field!r}"
            raise EnvError(f"{name} answered without {wanted}, but with {list(seen)}")
        return _format_value(seen[text_field])
    if isinstance(seen.get("text"), str):
        return str(seen["text"])
    reserved = _RESERVED_FIELDS.union(_ACTION_LIST_FIELDS)
    fields = {key: value for key, value in seen.items() if key not in reserved}
    texts = [value for value in fields.values() if isinstance(value, str)]
    if len(texts) == 1:
        return texts[0]
    filled = ((key, value) for key, value in fields.items() if value not in (None, "", [], {}))
    return "\n".join(f"{key}: {_format_value(value)}" for key, value in filled)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_number(reward: object, name: str) -> float:
    if isinstance(reward, bool | int | float) and math.isfinite(reward):
        return float(reward)
    raise EnvError(f"{name} answered with the reward {str(reward)[:40]!r}: it must be a finite number")


def _parse_score(seen: Mapping[str, Any]) -> tuple[float, float] | None:
    """Parse the score only if both numbers fit together: many games call something else their score."""
    match seen.get("score"), seen.get("max_score"):
        case (int() | float() as score, int() | float() as most) if 0 < most < math.inf and -math.inf < score <= most:
            return float(score), float(most)
    return None


def _parse_actions(listed: object) -> tuple[str, ...]:
    """Convert a list of names or numbers to texts; () for anything else."""
    if not isinstance(listed, list) or len(listed) > _MAX_ACTIONS:
        return ()
    if not all(isinstance(each, str | int) and not isinstance(each, bool) and str(each).strip() for each in listed):
        return ()
    return tuple(replace_surrogates(str(each)) for each in listed)
