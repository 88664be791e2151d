"""Event engine: notices signals in a step and evaluates a task file on them.

Sources notice lines of the log, views, texts and responses. Slots, which are trees, combine these into events; each
listener is such a tree, and its value is a reward, an instruction, or the end.

Source: ``event_listeners.py`` and ``task_manager.py`` of X-LANCE/Mobile-Env (commit 976145e), with their order of
evaluation: within a step every slot is evaluated once, and an OR evaluates all of its inputs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

from trailnotes.errors import EnvError
from trailnotes_worlds.wikihow.matching import MAX_TEXT, LocatedView, locate_views
from trailnotes_worlds.wikihow.taskfile import (
    EventSlot,
    EventSource,
    LogSource,
    ResponseSource,
    TaskFile,
    TextSource,
    ViewProperty,
    ViewSource,
    iter_slots,
)
from trailnotes_worlds.wikihow.views import HEIGHT, WIDTH, Leaf, View, list_leaves

_LEVELS: Final = "VDIWEF"  # of a log, the least important one first
_COMPARATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "EQ": operator.eq, "NE": operator.ne, "LE": operator.le, "LT": operator.lt, "GE": operator.ge, "GT": operator.gt,
}  # fmt: skip


class LogLine(NamedTuple):
    """Line of the phone's log."""

    tag: str
    level: str  # one of V, D, I, W, E, F
    text: str


class StepSignals(NamedTuple):
    """Signals that sources may notice in a step."""

    log: Sequence[LogLine] = ()
    screen: View | None = None
    responses: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of a step for the agent."""

    reward: float = 0.0
    is_over: bool = False
    has_failed: bool = False  # the task file ends it without success
    instructions: tuple[str, ...] = ()


class _Event(Protocol):
    def is_set(self) -> bool: ...

    def values(self) -> list[Any]: ...

    def was_ever_set(self) -> bool: ...


class EventEngine:
    """Evaluation of a task file over one episode.

    Args:
        task: its file.
        reads_screen: whether texts on the screen are events, as with a text recogniser. Published runs had none.

    ::

        engine = EventEngine(task)
        outcome = engine.step(StepSignals(log=[LogLine("jd", "D", "mUrl is: https://www.wikihow.com/Boil-an-Egg")]))
    """

    def __init__(self, task: TaskFile, *, reads_screen: bool = False) -> None:
        self._reads_screen = reads_screen
        self._sources = [_SourceState(each) for each in task.sources]
        self._events: dict[int, _Event] = {each.spec.id: each for each in self._sources if each.spec.id}
        self._slots = {id(slot): _SlotState(slot, self) for slot in iter_slots(task.slots.values())}
        self._events |= {each.spec.id: each for each in self._slots.values() if each.spec.id}
        self._listeners = {name: self._slots[id(slot)] for name, slot in task.slots.items()}
        logs = [each.looks_for for each in task.sources if isinstance(each.looks_for, LogSource)]
        self._filters = [text for log in logs for text in log.filters]
        self._score = 0.0
        for name, listener in self._listeners.items():
            listener.combine = _COMBINERS.get(name, _take_last)
        for each in self._slots.values():
            for other in each.spec.waits_for:
                if other != -1 and isinstance(waited := self._events[other], _SlotState):
                    waited.waited_by.append(each)

    def get_event(self, of: int | EventSlot) -> _Event:
        """Return the event of an input of a slot."""
        return self._events[of] if isinstance(of, int) else self._slots[id(of)]

    def step(self, noticed: StepSignals) -> StepOutcome:
        """Evaluate the signals of a step.

        Raises:
            EnvError: the task file gives an impossible value, such as a reward that is no number.
        """
        self._record_signals(noticed)
        for source in self._sources:
            source.begin_step()
        self._has_fired("null")  # the query itself triggers an event
        reward = 0.0
        if self._has_fired("score"):
            score = self._listeners["score"].values()[0]
            reward, self._score = score - self._score, score
        if self._has_fired("reward"):
            reward += self._listeners["reward"].values()[0]
        self._has_fired("extra")
        self._has_fired("json_extra")
        instructions = self._listeners["instruction"].values()[0] if self._has_fired("instruction") else []
        ending = self._listeners["episode_end"].values()[0] if self._has_fired("episode_end") else None
        for slot in self._slots.values():
            slot.end_step()
        return StepOutcome(reward, ending is not None, ending is False, tuple(map(str, instructions)))

    def _has_fired(self, name: str) -> bool:
        return name in self._listeners and self._listeners[name].is_set()

    def _record_signals(self, noticed: StepSignals) -> None:
        lines = [
            line.text[:MAX_TEXT] for line in noticed.log if any(_matches_filter(each, line) for each in self._filters)
        ]
        screen, looks = noticed.screen, {type(source.spec.looks_for) for source in self._sources}
        views = locate_views(screen) if screen is not None and ViewSource in looks else []
        shown = list_leaves(screen) if screen is not None and TextSource in looks else ()
        for source in self._sources:
            looks_for = source.spec.looks_for
            if isinstance(looks_for, LogSource):
                for line in lines:
                    found = looks_for.pattern.search(line)
                    source.record(line, None if found is None else list(found.groups()))
            elif isinstance(looks_for, ResponseSource):
                for text in noticed.responses:
                    source.record(text, looks_for.matcher.match(text))
            elif isinstance(looks_for, ViewSource):
                for view in looks_for.selector.select(views):
                    values = [_get_attribute(view, each.name) for each in looks_for.properties]
                    fits = all(map(_matches_property, looks_for.properties, values))
                    source.record(tuple(values), values if fits else None)
            elif isinstance(looks_for, TextSource) and self._reads_screen:
                for text in _find_texts(looks_for, shown):
                    source.record(text, looks_for.matcher.match(text))


class _SourceState:
    def __init__(self, spec: EventSource) -> None:
        self.spec = spec
        self._last: Any = None
        self._known: set[Any] = set()  # inputs that triggered it
        self._coming: list[Any] = []  # of the next step
        self._values: list[Any] = []
        self._ever = False

    def record(self, given: Any, value: Any) -> None:
        repeats = self.spec.repeats
        if (repeats == "NONE" and given in self._known) or (repeats == "LAST" and given == self._last):
            return
        self._last = given
        if value is not None:
            self._known.add(given)
            self._coming.append(value)
            self._ever = True

    def begin_step(self) -> None:
        self._values, self._coming = self._coming, []

    def is_set(self) -> bool:
        return bool(self._values)

    def values(self) -> list[Any]:
        return self._values

    def was_ever_set(self) -> bool:
        return self._ever


class _SlotState:
    """Slot that is evaluated once a step, at its first query."""

    def __init__(self, spec: EventSlot, engine: EventEngine) -> None:
        self.spec = spec
        self.waited_by: list[_SlotState] = []
        self.combine: Callable[[list[Any]], Any] = _take_last  # the values of its inputs
        self._engine = engine
        self._is_new = True  # not evaluated in this step
        self._set = self._last = self._ever = self._allowed = False
        self._values: list[Any] = []
        self._is_cleared = True  # whether this step may unset it
        self.is_ready = self._starts_ready = -1 not in spec.waits_for

    def end_step(self) -> None:
        self._is_new = True
        self._is_cleared = not self._set or self.is_ready
        self.is_ready = self._starts_ready

    def is_set(self) -> bool:
        if self._is_new:
            self._evaluate()
            for waiting in self.waited_by:
                waiting.is_ready &= self._set
            self._is_new = False
        return self._set

    def values(self) -> list[Any]:
        self.is_set()
        return self._values

    def was_ever_set(self) -> bool:
        return self._ever or self.is_set()

    def _evaluate(self) -> None:
        inputs = [self._engine.get_event(each) for each in self.spec.inputs]
        if not inputs:
            return
        if not self._is_cleared:
            if self._is_triggered(inputs):
                self._values = self._combine_values(inputs)
            return
        before, self._last, self._set, self._values = self._last, False, False, []
        if not self._allowed:
            self._allowed = all(self._engine.get_event(each).was_ever_set() for each in self.spec.prerequisites)
        if not self._allowed or not self._is_triggered(inputs):
            return
        self._set = {"UNLIMITED": True, "LAST": not before, "NONE": not self._ever}[self.spec.repeats]
        self._ever = self._last = True
        if self._set:
            self._values = self._combine_values(inputs)

    def _is_triggered(self, inputs: Sequence[_Event]) -> bool:
        if self.spec.type == "SINGLE":
            return inputs[0].is_set()
        answers = [each.is_set() for each in inputs]  # evaluates all of them
        return all(answers) if self.spec.type == "AND" else any(answers)

    def _combine_values(self, inputs: Sequence[_Event]) -> list[Any]:
        given = [each.values() for each in (inputs[:1] if self.spec.type == "SINGLE" else inputs)]
        seen: Any = [given] if self.spec.type == "AND" else [*chain.from_iterable(given)]
        try:
            values = [self.spec.transformation.apply(value) for value in seen]
        except (LookupError, TypeError) as error:
            raise EnvError(f"event {self.spec.id} of the task has no such part of its input: {error}") from error
        return [self.combine(values)]


def _take_last(values: list[Any]) -> Any:
    return values[-1]


def _to_number(value: Any) -> float:
    try:
        number = float(value[0] if isinstance(value, list) and len(value) == 1 else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise EnvError(f"the task file gives {value!r:.60} as a reward or a score, which is no number")
    return number


_COMBINERS: Final[Mapping[str, Callable[[list[Any]], Any]]] = {  # by listener; the default is the last value
    "score": lambda values: _to_number(values[-1]),
    "reward": lambda values: sum(map(_to_number, values)),
    "instruction": lambda values: [
        text for value in values for text in (value if isinstance(value, list) else [value])
    ],
}


def _matches_filter(log_filter: str, line: LogLine) -> bool:
    # A filter ``TAG:LEVEL`` passes lines of this tag that are at least as important.
    tag, _, level = log_filter.partition(":")
    return tag in (line.tag, "*") and _LEVELS.find(level or "V") <= _LEVELS.find(line.level) and level != "S"


def _get_attribute(each: LocatedView, name: str) -> str | float:
    if name in ("left", "right", "top", "bottom"):  # shares of the screen
        return float(getattr(each.view.box, name)) / (WIDTH if name in ("left", "right") else HEIGHT)
    return each.get_attribute(name)


def _matches_property(wanted: ViewProperty, actual: str | float) -> bool:
    if wanted.wanted is None:
        return True
    if not isinstance(wanted.wanted, int | float):
        return wanted.wanted.search(str(actual)[:MAX_TEXT]) is not None
    try:
        return _COMPARATORS[wanted.sign](wanted.wanted, float(actual))  # in Mobile-Env's order
    except ValueError:
        return wanted.sign == "NE"


def _find_texts(source: TextSource, shown: Sequence[Leaf]) -> list[str]:
    left, top, right, bottom = source.region
    texts = []
    for view in (leaf.view for leaf in shown if leaf.view.text):
        x, y = (view.box.left + view.box.right) / 2 / WIDTH, (view.box.top + view.box.bottom) / 2 / HEIGHT
        if left <= x <= right and top <= y <= bottom:
            texts.append(view.text)
    return texts if source.detects or not texts else [" ".join(texts)]
