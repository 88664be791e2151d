"""The event engine: what was noticed in a step, and what a task file makes of it.

Sources notice lines of the log, views, texts and responses. Slots, which are trees, make events of these; each listener
is such a tree, and what it gives is a reward, an instruction, or the end.

Source: ``event_listeners.py`` and ``task_manager.py`` of X-LANCE/Mobile-Env (commit 976145e), whose order of evaluation
is kept: within a step every slot is asked once, and an OR asks all of its inputs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

from trailnotes.errors import EnvError
from trailnotes_worlds.wikihow.matching import MAX_TEXT
from trailnotes_worlds.wikihow.selectors import LocatedView, locate_views
from trailnotes_worlds.wikihow.taskfile import (
    EventSlot,
    EventSource,
    LogSource,
    Repeats,
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
    """A line of the phone's log."""

    tag: str
    level: str  # one of V, D, I, W, E, F
    text: str


class StepSignals(NamedTuple):
    """What there was to notice in a step."""

    log: Sequence[LogLine] = ()
    screen: View | None = None
    responses: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step has come to."""

    reward: float = 0.0
    is_over: bool = False
    has_failed: bool = False  # it is over, and the task file says that this is no success
    instructions: tuple[str, ...] = ()


class _Event(Protocol):
    """A source or a slot, within a step."""

    def is_set(self) -> bool: ...

    def values(self) -> list[Any]: ...

    def was_ever_set(self) -> bool: ...


class EventEngine:
    """Follows one episode of a task.

    Args:
        task: its file.
        reads_screen: whether texts on the screen are events, as with a recogniser of texts. Published runs had none.

    ::

        engine = Engine(task)
        outcome = engine.step(StepSignals(log=[LogLine("jd", "D", "mUrl is: https://www.wikihow.com/Boil-an-Egg")]))
    """

    def __init__(self, task: TaskFile, *, reads_screen: bool = False) -> None:
        self._reads_screen = reads_screen
        self._sources = [_SourceState(each) for each in task.sources]
        self._events: dict[int, _Event] = {each.spec.id: each for each in self._sources if each.spec.id}
        self._slots = {id(slot): _SlotState(slot, self) for slot in iter_slots(task.slots.values())}
        self._events |= {each.spec.id: each for each in self._slots.values() if each.spec.id}
        self._listeners = {name: self._slots[id(slot)] for name, slot in task.slots.items()}
        self._filters = [text for each in task.sources if isinstance(each.looks_for, LogSource)
                         for text in each.looks_for.filters]  # fmt: skip
        self._score = 0.0
        for name, listener in self._listeners.items():
            listener.combine = _COMBINERS.get(name, _take_last)
        for each in self._slots.values():
            for other in each.spec.waits_for:
                if other != -1 and isinstance(waited := self._events[other], _SlotState):
                    waited.waited_by.append(each)

    def get_event(self, of: int | EventSlot) -> _Event:
        """The event of an input of a slot."""
        return self._events[of] if isinstance(of, int) else self._slots[id(of)]

    def step(self, noticed: StepSignals) -> StepOutcome:
        """Take in what was noticed.

        Raises:
            EnvError: an event is worth something that the task file cannot mean, such as a reward that is no number.
        """
        self._record_signals(noticed)
        for source in self._sources:
            source.begin_step()
        self._has_fired("null")  # being asked is what triggers an event
        reward = self._compute_reward()
        self._has_fired("extra")
        self._has_fired("json_extra")
        instructions = self._listeners["instruction"].values()[0] if self._has_fired("instruction") else []
        ending = self._listeners["episode_end"].values()[0] if self._has_fired("episode_end") else None
        for slot in self._slots.values():
            slot.end_step()
        return StepOutcome(reward, ending is not None, ending is False, tuple(map(str, instructions)))

    def _has_fired(self, name: str) -> bool:
        return name in self._listeners and self._listeners[name].is_set()

    def _compute_reward(self) -> float:
        reward = 0.0
        if self._has_fired("score"):
            score = self._listeners["score"].values()[0]
            reward, self._score = score - self._score, score
        return reward + self._listeners["reward"].values()[0] if self._has_fired("reward") else reward

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
    """What has been noticed of one source."""

    def __init__(self, spec: EventSource) -> None:
        self.spec = spec
        self._last: Any = None
        self._known: set[Any] = set()  # inputs that triggered it
        self._coming: list[Any] = []  # for the step that is being noticed
        self._values: list[Any] = []
        self._ever = False

    def record(self, given: Any, value: Any) -> None:
        """Take one input, and what it means: None for nothing."""
        repeated: Mapping[Repeats, bool] = {
            "NONE": given in self._known,
            "LAST": given == self._last,
            "UNLIMITED": False,
        }
        if repeated[self.spec.repeats]:
            return
        self._last = given
        if value is not None:
            self._known.add(given)
            self._coming.append(value)
            self._ever = True

    def begin_step(self) -> None:
        """What was noticed is this step's."""
        self._values, self._coming = self._coming, []

    def is_set(self) -> bool:
        return bool(self._values)

    def values(self) -> list[Any]:
        return self._values

    def was_ever_set(self) -> bool:
        return self._ever


class _SlotState:
    """One slot, asked once a step; later answers of the step are the first one."""

    def __init__(self, spec: EventSlot, engine: EventEngine) -> None:
        self.spec = spec
        self.waited_by: list[_SlotState] = []
        self.combine: Callable[[list[Any]], Any] = _take_last  # of what its inputs give
        self._engine = engine
        self._is_new = True  # not asked in this step
        self._set = self._last = self._ever = self._allowed = False
        self._values: list[Any] = []
        self._is_cleared = True  # whether this step may unset it
        self._is_ready = self._starts_ready = -1 not in spec.waits_for

    def end_step(self) -> None:
        """The step is over."""
        self._is_new = True
        self._is_cleared = not self._set or self._is_ready
        self._is_ready = self._starts_ready

    def is_set(self) -> bool:
        if self._is_new:
            self._evaluate()
            for waiting in self.waited_by:
                waiting.update_readiness(self._set)
            self._is_new = False
        return self._set

    def update_readiness(self, is_set: bool) -> None:
        """One of those that it waits for is set, or is not."""
        self._is_ready = self._is_ready and is_set

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
        if not self._may_trigger() or not self._is_triggered(inputs):
            return
        counts: Mapping[Repeats, bool] = {"UNLIMITED": True, "LAST": not before, "NONE": not self._ever}
        self._set = counts[self.spec.repeats]
        self._ever = self._last = True
        if self._set:
            self._values = self._combine_values(inputs)

    def _may_trigger(self) -> bool:
        if not self._allowed:
            self._allowed = all(self._engine.get_event(each).was_ever_set() for each in self.spec.prerequisites)
        return self._allowed

    def _is_triggered(self, inputs: Sequence[_Event]) -> bool:
        if self.spec.type == "SINGLE":
            return inputs[0].is_set()
        answers = [each.is_set() for each in inputs]  # all are asked, so that each of them notices
        return all(answers) if self.spec.type == "AND" else any(answers)

    def _combine_values(self, inputs: Sequence[_Event]) -> list[Any]:
        """What it gives: one value, combined of those that its inputs give; AND makes one of all of them."""
        if self.spec.type == "AND":
            return [self.combine([self._transform([each.values() for each in inputs])])]
        given = inputs[:1] if self.spec.type == "SINGLE" else inputs
        return [
            self.combine([self._transform(value) for value in chain.from_iterable(each.values() for each in given)])
        ]

    def _transform(self, seen: Any) -> Any:
        try:
            return self.spec.transformation.apply(seen)
        except (LookupError, TypeError) as error:
            raise EnvError(f"event {self.spec.id} of the task has no such part of what it has seen: {error}") from error


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


_COMBINERS: Final[Mapping[str, Callable[[list[Any]], Any]]] = {  # by listener; of the others the last value counts
    "score": lambda values: _to_number(values[-1]),
    "reward": lambda values: sum(map(_to_number, values)),
    "instruction": lambda values: [
        text for value in values for text in (value if isinstance(value, list) else [value])
    ],
}


def _matches_filter(log_filter: str, line: LogLine) -> bool:
    """Whether a filter ``TAG:LEVEL`` lets a line through: of this tag, and at least as important."""
    tag, _, level = log_filter.partition(":")
    return tag in (line.tag, "*") and _LEVELS.find(level or "V") <= _LEVELS.find(line.level) and level != "S"


def _get_attribute(each: LocatedView, name: str) -> str | float:
    """A property of a view; where its edges are is told in shares of the screen."""
    if name in ("left", "right"):
        return float(getattr(each.view.box, name)) / WIDTH
    if name in ("top", "bottom"):
        return float(getattr(each.view.box, name)) / HEIGHT
    return each.get_attribute(name)


def _matches_property(wanted: ViewProperty, actual: str | float) -> bool:
    if wanted.wanted is None:
        return True
    if not isinstance(wanted.wanted, int | float):
        return wanted.wanted.search(str(actual)[:MAX_TEXT]) is not None
    try:
        return _COMPARATORS[wanted.sign](wanted.wanted, float(actual))  # the number of the file comes first, as there
    except ValueError:
        return wanted.sign == "NE"


def _find_texts(source: TextSource, shown: Sequence[Leaf]) -> list[str]:
    """The texts whose middle is in the region."""
    left, top, right, bottom = source.region
    texts = [
        leaf.view.text
        for leaf in shown
        if leaf.view.text
        and left <= (leaf.view.box.left + leaf.view.box.right) / 2 / WIDTH <= right
        and top <= (leaf.view.box.top + leaf.view.box.bottom) / 2 / HEIGHT <= bottom
    ]
    return texts if source.detects or not texts else [" ".join(texts)]
