"""What a server means: an action's text as the JSON that it wants, and its answers as values that can be trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trailnotes.errors import EnvError
from trailnotes.storage.parsing import parse_json
from trailnotes.types import replace_surrogates

_ACTION_LIST_FIELDS: Final = ("actions", "legal_actions", "available_actions", "admissible_actions", "valid_actions")
_RESERVED_FIELDS: Final = frozenset(
    {"instruction", "success", "score", "max_score", "truncated", "metadata", "done", "reward"}
)
_MAX_ACTIONS: Final = 1_000  # that are offered; a longer list is not
_MISSING: Final = object()
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
    "array": (list,),
}  # fmt: skip


@dataclass(frozen=True)
class ActionForm:
    """How the text of an action becomes the JSON object that a server wants.

    Args:
        name: of the field that holds the text; "" where the text itself is to be the object.
        kind: JSON type of that field.
        rest: other fields, the same in each action.
        choices: all values of that field, where the server lists them.
    """

    name: str
    kind: str = "string"
    rest: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[str, ...] = ()

    @classmethod
    def from_schema(cls, schema: object, wish: str, rest: Mapping[str, Any]) -> ActionForm:
        """From a server's JSON schema of actions, as far as it has one.

        Args:
            schema: what it says.
            wish: the field that the user names; "json" for the whole object, "auto" for the only field that is
                required, or the only one.
            rest: see the class.
        """
        known = schema.get("properties") if isinstance(schema, dict) else None
        properties = {
            name: each
            for name, each in (known if isinstance(known, dict) else {}).items()
            if isinstance(each, dict) and name != "metadata" and name not in rest
        }
        if wish == "json":
            return cls("", rest=rest)
        name = _find_only_field(schema, properties) if wish == "auto" else wish
        described = properties.get(name, {})
        choices = described.get("enum")
        return cls(name, _get_json_type(described), rest, _parse_actions(choices) if choices else ())

    def build_action(self, text: str) -> dict[str, Any] | None:
        """The object for one action; None where its text cannot be one."""
        text = replace_surrogates(text)
        value: Any = (
            text if self.name and self.kind == "string" else _parse_value(text, self.kind if self.name else "object")
        )
        if value is _MISSING:
            return None
        return {**self.rest, **({self.name: value} if self.name else value)}


def _get_json_type(described: Mapping[str, Any]) -> str:
    """The JSON type that a schema gives a value, of several the first that is known here; "string" if none is."""
    several = described.get("anyOf")
    parts = [described, *(several if isinstance(several, list) else [])]
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    return next((kind for kind in kinds if isinstance(kind, str) and kind in _TYPES), "string")


def _find_only_field(schema: object, properties: Mapping[str, Any]) -> str:
    required = schema.get("required") if isinstance(schema, dict) else None
    needed = [name for name in properties if isinstance(required, list) and name in required]
    for names in (needed, list(properties)):
        if len(names) == 1:
            return names[0]
    return ""


def _parse_value(text: str, kind: str) -> Any:
    """The text as a value of that JSON type; `_MISSING` where it is none."""
    try:
        value = parse_json(text, "refuse")
    except ValueError:
        return _MISSING
    wanted = _TYPES[kind]
    fits = isinstance(value, wanted) and (bool in wanted or not isinstance(value, bool))
    return value if fits else _MISSING


class ServerObservation(NamedTuple):
    """One observation of a server, checked."""

    text: str
    reward: float
    done: bool
    truncated: bool
    actions: tuple[str, ...] | None
    instruction: str
    success: bool | None  # None: the server does not say
    score: tuple[float, float] | None  # so far, and the highest; None: the server does not say


def parse_observation(data: Mapping[str, Any], name: str, text_field: str, actions_field: str) -> ServerObservation:
    """Read the data of an observation.

    Args:
        data: ``{"observation": {...}, "reward": number | bool | null, "done": bool}``.
        name: of the server, for errors.
        text_field: of the observation, that is shown; "auto" shows ``text``, or the only text, or all there is.
        actions_field: of the observation, that lists the admissible actions; "auto" knows the usual names.

    Raises:
        EnvError: a value is not of its type.
    """
    seen = data.get("observation")
    if not isinstance(seen, dict):
        raise EnvError(f"{name} answered without an observation (a JSON object), but with {_describe_type(seen)}")
    done = data.get("done", False)
    if not isinstance(done, bool):
        raise EnvError(f"{name} answered with done = {str(done)[:40]!r}: it must be true or false")
    reward = data.get("reward")
    listed = next(
        (seen[key] for key in (_ACTION_LIST_FIELDS if actions_field == "auto" else (actions_field,)) if key in seen),
        None,
    )
    success = seen.get("success")
    return ServerObservation(
        text=replace_surrogates(_get_text(seen, name, text_field)),
        reward=0.0 if reward is None else _parse_number(reward, name),
        done=done,
        truncated=done and seen.get("truncated") is True,
        actions=_parse_actions(listed) or None,
        instruction=replace_surrogates(told) if isinstance(told := seen.get("instruction"), str) else "",
        success=success if isinstance(success, bool) else None,
        score=_parse_score(seen),
    )


def _get_text(seen: Mapping[str, Any], name: str, text_field: str) -> str:
    if text_field != "auto":
        if text_field not in seen:
            raise EnvError(
                f"{name} answered without env.options.observation_field = {text_field!r}, but with {list(seen)}"
            )
        return _format_value(seen[text_field])
    if isinstance(seen.get("text"), str):
        return str(seen["text"])
    fields = {
        key: value for key, value in seen.items() if key not in _RESERVED_FIELDS and key not in _ACTION_LIST_FIELDS
    }
    texts = [value for value in fields.values() if isinstance(value, str)]
    if len(texts) == 1:
        return texts[0]
    return "\n".join(
        f"{key}: {_format_value(value)}" for key, value in fields.items() if value not in (None, "", [], {})
    )


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_number(value: object, name: str) -> float:
    try:
        number = float(value) if isinstance(value, bool | int | float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise EnvError(f"{name} answered with the reward {str(value)[:40]!r}: it must be a finite number")
    return number


def _parse_score(seen: Mapping[str, Any]) -> tuple[float, float] | None:
    """Only where both numbers are there and fit together: many a game calls something else its score."""
    told: list[Any] = [seen.get("score"), seen.get("max_score")]
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in told):
        return None
    try:
        score, most = (float(each) for each in told)
    except OverflowError:
        return None
    fits = math.isfinite(score) and math.isfinite(most) and most > 0 and score <= most
    return (score, most) if fits else None


def _parse_actions(listed: object) -> tuple[str, ...]:
    """Actions as texts; () where what is listed is no list of names or numbers."""
    if not isinstance(listed, list) or len(listed) > _MAX_ACTIONS:
        return ()
    if not all(isinstance(each, str | int) and not isinstance(each, bool) and str(each).strip() for each in listed):
        return ()
    return tuple(replace_surrogates(str(each)) for each in listed)


def _describe_type(value: object) -> str:
    return "none" if value is None else type(value).__name__
