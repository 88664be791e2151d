"""Controls: what is shown in place of a task's own tips, to learn how much of an effect lies in what they say.

Source: "Privileged Solutions or Context-Induced Teacher Behavior?" (arXiv 2608.09228), which finds what was written
about other problems nearly as good a teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from trailnotes.errors import ConfigError
from trailnotes.memory.schema import encodable
from trailnotes.memory.scope import Met, Place
from trailnotes.memory.store import TipStore
from trailnotes.memory.tip_stats import Lead
from trailnotes.memory.tips import TipMemory
from trailnotes.seeds import derive_seed
from trailnotes.types import Task, Tip, Trajectory

if TYPE_CHECKING:
    from trailnotes.config.schema import Config

NO_WORDS: Final = "none"  # prompts show no tip without a letter
StandIn = Literal["other", "empty"]
Shown = Literal["own"] | StandIn


class Control(TipMemory):
    """A view of `memory` on the same rows, which finds something else: never more tips than `memory` would.

    Args:
        memory: is written and saved; this is only searched.
        show: "other" finds the best tips of another task, of another family where one has any: always the same one
            while no better drawn comes along. Beyond the task (`memory.scope`) these are the best of another family's
            tasks. "empty" finds what `memory` does, with the scores, without words and action. A turn shows a text
            once, so that is one line: the first.
    """

    def __init__(self, memory: TipMemory, show: StandIn) -> None:
        super().__init__(memory.store, memory.embedder, memory.config)
        self.show = show

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """As many tips as `TipMemory.search` finds, or fewer."""
        return self._instead(namespace, super().search(namespace, query, top_k))

    async def find(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """`search` for an event loop. What has been exchanged once may be so again: it stays the same."""
        return self._instead(namespace, await super().find(namespace, query, top_k))

    def meet(self, tasks: Sequence[Task]) -> bool:
        """As `TipMemory.meet`; which task is of another family must be known whatever the scope."""
        new = super().meet(tasks)
        return self.store.meet(tasks) or new if self.show == "other" else new

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """Count nobody: what became of readers is no word on tips that stood in for others."""

    def measure(self, readings: Sequence[Lead], *, once: str = "") -> None:
        """Measure nothing, for the same reason."""

    def _instead(self, namespace: str, own: Sequence[Tip]) -> list[Tip]:
        if self.show == "empty":
            return emptied(own)
        other = self._other(encodable(namespace)) if own else None
        if other is None:
            return []
        page = self._sorted_page(other)
        return self.store.fetch(page, range(min(len(own), len(page.ids))))

    def _other(self, namespace: str) -> str | Place | None:
        if self.config.scope == "task":
            return other_namespace(self.store, namespace)
        return other_place(self.store, namespace, self.config.open_split)


def emptied(tips: Sequence[Tip]) -> list[Tip]:
    """`tips` with their scores, without words and action."""
    return [replace(tip, text=NO_WORDS, action="") for tip in tips]


def other_namespace(store: TipStore, namespace: str) -> str | None:
    """The task whose tips stand in for those of `namespace`, of another family where one has any; None for no other.

    Where nobody has said a task's family, it is what its id has before the last "/".
    """
    others = [name for name, count in store.namespaces().items() if count and name != namespace]
    own = _family(store, namespace)
    foreign = [name for name in others if _family(store, name) != own] or others
    return min(foreign, key=lambda name: derive_seed("other tips", namespace, name), default=None)


def other_place(store: TipStore, namespace: str, open_split: str) -> str | Place | None:
    """The family whose tips stand in for what `namespace` finds beyond itself; another task where there is no other.

    None for neither: all are of tasks that this one may not read, or nobody knows where it belongs.
    """
    place, own = store.place(namespace, "all", open_split), store.met(namespace)
    if place is None or own is None:
        return None
    if families := [family for family in store.families(place) if family != (own.env, own.family)]:
        drawn = min(families, key=lambda family: derive_seed("other tips", own.env, own.family, *family))
        return store.place_of(Met(*drawn, own.split), "family", open_split)
    others = [name for name in store.namespaces(place) if name != namespace]
    return min(others, key=lambda name: derive_seed("other tips", namespace, name), default=None)


def _family(store: TipStore, namespace: str) -> str:
    met = store.met(namespace)
    return (met and met.family) or namespace.rpartition("/")[0]


def refuse_control(config: Config) -> None:
    """Raise `ConfigError` where the config asks a method without tips for a control."""
    if config.eval.show_tips != "own":
        raise ConfigError(f'{config.algorithm.name} shows no tips: set eval.show_tips = "own"')


def shown(memory: TipMemory, show: Shown) -> TipMemory:
    """What of `memory` prompts are to show: itself, or a control."""
    return memory if show == "own" else Control(memory, show)
