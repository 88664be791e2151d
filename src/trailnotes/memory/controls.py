"""Controls: what is shown in place of a task's own tips, to learn how much of an effect lies in what they say.

Source: "Privileged Solutions or Context-Induced Teacher Behavior?" (arXiv 2608.09228), which finds what was written
about other problems nearly as good a teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from trailnotes.errors import ConfigError
from trailnotes.memory.schema import replace_surrogates
from trailnotes.memory.scope import TaskInfo, TipFilter
from trailnotes.memory.store import TipStore
from trailnotes.memory.tip_stats import TipEffect
from trailnotes.memory.tips import TipMemory
from trailnotes.seeds import derive_seed
from trailnotes.types import Task, Tip, Trajectory

if TYPE_CHECKING:
    from trailnotes.config.schema import Config

EMPTY_TEXT: Final = "none"  # prompts show no tip without a letter
ControlKind = Literal["other", "empty"]
TipSource = Literal["own"] | ControlKind


class ControlMemory(TipMemory):
    """A view of `memory` on the same rows, which finds something else: never more tips than `memory` would.

    Args:
        memory: is written and saved; this is only searched.
        show: "other" finds the best tips of another task, of another family where one has any: always the same one
            while no better drawn comes along. Beyond the task (`memory.scope`) these are the best of another family's
            tasks. "empty" finds what `memory` does, with the scores, without words and action. A turn shows a text
            once, so that is one line: the first.
    """

    def __init__(self, memory: TipMemory, show: ControlKind) -> None:
        super().__init__(memory.store, memory.embedder, memory.config)
        self.show = show

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """As many tips as `TipMemory.search` finds, or fewer."""
        return self._substitute(namespace, super().search(namespace, query, top_k))

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """`search` for an event loop. What has been exchanged once may be so again: it stays the same."""
        return self._substitute(namespace, await super().search_async(namespace, query, top_k))

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        """As `TipMemory.register_tasks`; which task is of another family must be known whatever the scope."""
        new = super().register_tasks(tasks)
        return self.store.register_tasks(tasks) or new if self.show == "other" else new

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """Count nobody: what became of readers is no word on tips that stood in for others."""

    def record_effects(self, readings: Sequence[TipEffect], *, once: str = "") -> None:
        """Measure nothing, for the same reason."""

    def _substitute(self, namespace: str, own: Sequence[Tip]) -> list[Tip]:
        if self.show == "empty":
            return blank_tips(own)
        other = self._pick_other(replace_surrogates(namespace)) if own else None
        if other is None:
            return []
        page = self._load_sorted_page(other)
        return self.store.fetch(page, range(min(len(own), len(page.ids))))

    def _pick_other(self, namespace: str) -> str | TipFilter | None:
        if self.config.scope == "task":
            return pick_other_namespace(self.store, namespace)
        return pick_other_filter(self.store, namespace, self.config.open_split)


def blank_tips(tips: Sequence[Tip]) -> list[Tip]:
    """`tips` with their scores, without words and action."""
    return [replace(tip, text=EMPTY_TEXT, action="") for tip in tips]


def pick_other_namespace(store: TipStore, namespace: str) -> str | None:
    """The task whose tips stand in for those of `namespace`, of another family where one has any; None for no other.

    Where nobody has said a task's family, it is what its id has before the last "/".
    """
    others = [name for name, count in store.count_by_namespace().items() if count and name != namespace]
    own = _get_family(store, namespace)
    foreign = [name for name in others if _get_family(store, name) != own] or others
    return min(foreign, key=lambda name: derive_seed("other tips", namespace, name), default=None)


def pick_other_filter(store: TipStore, namespace: str, open_split: str) -> str | TipFilter | None:
    """The family whose tips stand in for what `namespace` finds beyond itself; another task where there is no other.

    None for neither: all are of tasks that this one may not read, or nobody knows where it belongs.
    """
    place, own = store.get_search_filter(namespace, "all", open_split), store.get_task_info(namespace)
    if place is None or own is None:
        return None
    if families := [family for family in store.list_families(place) if family != (own.env, own.family)]:
        drawn = min(families, key=lambda family: derive_seed("other tips", own.env, own.family, *family))
        return store.build_search_filter(TaskInfo(*drawn, own.split), "family", open_split)
    others = [name for name in store.count_by_namespace(place) if name != namespace]
    return min(others, key=lambda name: derive_seed("other tips", namespace, name), default=None)


def _get_family(store: TipStore, namespace: str) -> str:
    met = store.get_task_info(namespace)
    return (met and met.family) or namespace.rpartition("/")[0]


def require_own_tips(config: Config) -> None:
    """Raise `ConfigError` where the config asks a method without tips for a control."""
    if config.eval.show_tips != "own":
        raise ConfigError(f'{config.algorithm.name} shows no tips: set eval.show_tips = "own"')


def make_prompt_memory(memory: TipMemory, show: TipSource) -> TipMemory:
    """What of `memory` prompts are to show: itself, or a control."""
    return memory if show == "own" else ControlMemory(memory, show)
