"""Controls: substitutes for a task's own tips, to measure how much of an effect their content has.

Source: "Privileged Solutions or Context-Induced Teacher Behavior?" (arXiv 2608.09228), which finds text about other
problems nearly as good a teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from trailnotes.memory.scope import TaskInfo, TipFilter
from trailnotes.memory.store import TipStore
from trailnotes.memory.tip_stats import TipEffect
from trailnotes.memory.tips import TipMemory
from trailnotes.types import Task, Tip, Trajectory, derive_seed, replace_surrogates

EMPTY_TEXT: Final = "none"  # prompts show no tip without a letter
ControlKind = Literal["other", "empty"]
TipSource = Literal["own"] | ControlKind


class ControlMemory(TipMemory):
    """A view of `memory` on the same rows that retrieves something else, and never more tips than `memory` would.

    "other" retrieves the best tips of another task, of another family where one has any; with a scope beyond
    the task, those of another family's tasks. "empty" retrieves the tips of `memory` with their scores, without words
    and action: a turn shows a text once, so that is one line (without `memory.repeat_shown`).
    """

    def __init__(self, memory: TipMemory, show: ControlKind) -> None:
        super().__init__(memory.store, memory.embedder, memory.config)
        self.show = show

    def search(
        self, namespace: str, query: str, top_k: int, *, filters: Mapping[str, str | float] | None = None
    ) -> list[Tip]:
        return self._substitute(namespace, super().search(namespace, query, top_k, filters=filters))

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        return self._substitute(namespace, await super().search_async(namespace, query, top_k))

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        """Record where tasks belong, whatever the scope: "other" must know their families."""
        new = super().register_tasks(tasks)
        return self.store.tasks.register(tasks) or new if self.show == "other" else new

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """Count no readers: their results say nothing about the tips that were substituted."""

    def record_effects(self, readings: Sequence[TipEffect]) -> None: ...

    def _substitute(self, namespace: str, own: Sequence[Tip]) -> list[Tip]:
        if self.show == "empty":
            return blank_tips(own)
        namespace = replace_surrogates(namespace)
        other: str | TipFilter | None = None
        if own and self.config.scope == "task":
            other = pick_other_namespace(self.store, namespace)
        elif own:
            other = pick_other_filter(self.store, namespace, self.config.shared_split)
        if other is None:
            return []
        page = self._load_page(other)
        return self._fetch_distinct(page, range(len(page.ids)), len(own))


def blank_tips(tips: Sequence[Tip]) -> list[Tip]:
    return [replace(tip, text=EMPTY_TEXT, action="") for tip in tips]


def pick_other_namespace(store: TipStore, namespace: str) -> str | None:
    """Pick the task whose tips replace those of `namespace`, of another family where one has any."""
    others = [name for name in store.sizes() if name != namespace]  # of enabled tips
    own = _get_family(store, namespace)
    foreign = [name for name in others if _get_family(store, name) != own] or others
    return min(foreign, key=lambda name: derive_seed("other tips", namespace, name), default=None)


def pick_other_filter(store: TipStore, namespace: str, shared_split: str) -> str | TipFilter | None:
    """Pick the family whose tips replace those of the scope of `namespace`; another task where there is no other."""
    place, own = store.tasks.get_search_filter(namespace, "all", shared_split), store.tasks.get_info(namespace)
    if place is None or own is None:
        return None
    if families := [family for family in store.tasks.list_families(place) if family != (own.env, own.family)]:
        drawn = min(families, key=lambda family: derive_seed("other tips", own.env, own.family, *family))
        return store.tasks.build_search_filter(TaskInfo(*drawn, own.split), "family", shared_split)
    allowed = store.count_by_namespace(place)
    others = [name for name in store.sizes() if name != namespace and name in allowed]
    return min(others, key=lambda name: derive_seed("other tips", namespace, name), default=None)


def _get_family(store: TipStore, namespace: str) -> str:
    met = store.tasks.get_info(namespace)
    return (met and met.family) or namespace.rpartition("/")[0]


def make_prompt_memory(memory: TipMemory, show: TipSource) -> TipMemory:
    return memory if show == "own" else ControlMemory(memory, show)
