"""WikiHow as an environment: an app of articles on a simulated phone, pages to be reached, fifteen actions.

Source: Zhang et al. 2023, "Mobile-Env: An Evaluation Platform and Benchmark for Interactive Agents in LLM Era" (arXiv
2305.08144), and the protocol of REMEMBERER (arXiv 2306.07929). See ``docs/envs/wikihow.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from trailnotes.envs.options import names, of_kind, one_of, whole
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import NO_OP, Observation, Task
from trailnotes_worlds.wikihow.actions import FORMATS, read_action
from trailnotes_worlds.wikihow.app import App, Visit
from trailnotes_worlds.wikihow.events import Engine, Noticed
from trailnotes_worlds.wikihow.goals import Goal
from trailnotes_worlds.wikihow.library import Library
from trailnotes_worlds.wikihow.pages import PER_SEARCH
from trailnotes_worlds.wikihow.protocols import SPLITS, Choice, Splits, identity_of, splits_of, tasks_in
from trailnotes_worlds.wikihow.screens import VIEWS, offers
from trailnotes_worlds.wikihow.synthetic import open_library
from trailnotes_worlds.wikihow.taskfile import TaskFile, highest_reward, instructions_of, read_task, task_of

__all__ = ["SPLITS", "WikiHowEnv", "opened", "wikihow_tasks"]

MAX_STEPS: Final = 15
_SEARCHED: Final = re.compile(r"how to (.+?)\.?\s*$", re.IGNORECASE | re.MULTILINE)


@lru_cache(4)
def opened(library: str) -> Library:
    """The library of a folder, or "synthetic", once in each process."""
    return open_library(library)


def wikihow_tasks(
    split: str,
    library: str = "synthetic",
    tasks: str = "",
    protocol: str = "by-article",
    dataset_seed: int = 0,
    train_set: str = "S0",
    templates: Sequence[str] = (),
) -> list[Task]:
    """The goals of one split, in the protocol's order: a pure function of the library, the files and the arguments.

    Args:
        split: train, validation or test.
        library: folder, or "synthetic".
        tasks: folder of task files in Mobile-Env's format; "" takes goals of our own.
        protocol: "by-article" or "rememberer".
        dataset_seed: another one draws other templates for our goals.
        train_set: "S0" or "S1", of the protocol rememberer.
        templates: of our goals those alone, see `Goal.kind`; () takes all.

    Raises:
        ConfigError: an unknown name, a value of the wrong kind, no library, no task files, or a split without goals.
    """
    choice = _choice(tasks, protocol, dataset_seed, train_set, templates)
    return tasks_in(_splits(opened(of_kind(str, "library", library)), choice), split, choice)


def _choice(tasks: object, protocol: object, dataset_seed: object, train_set: object, templates: object) -> Choice:
    return Choice(
        of_kind(str, "protocol", protocol), of_kind(str, "tasks", tasks), of_kind(int, "dataset_seed", dataset_seed),
        of_kind(str, "train_set", train_set), names("templates", templates),
    )  # fmt: skip


@lru_cache(8)
def _splits(library: Library, choice: Choice) -> Splits:
    return splits_of(library, choice)


class WikiHowEnv:
    """Plays WikiHow: articles on a simulated phone. Environments of one process share one open library."""

    def __init__(  # noqa: PLR0913 (the user's options, by their names)
        self,
        *,
        library: str = "synthetic",
        tasks: str = "",
        protocol: str = "by-article",
        dataset_seed: int = 0,
        train_set: str = "S0",
        templates: Sequence[str] = (),
        view: str = "html",
        results_per_page: int = PER_SEARCH,
        max_text: int = 500,
        max_steps: int = MAX_STEPS,
        free_nothing: bool = False,
        text_events: bool = False,
        actions: bool = True,
    ) -> None:
        """Choose how it is played.

        Args:
            library: folder that `trailnotes wikihow import` has written; "synthetic" is ours.
            tasks: folder of task files in Mobile-Env's format; "" plays goals of our own.
            protocol: read by `tasks` only.
            dataset_seed: read by `tasks` only.
            train_set: read by `tasks` only.
            templates: read by `tasks` only.
            view: "html", REMEMBERER's lines, or "short".
            results_per_page: articles that a search shows before `Next >`.
            max_text: characters of one text on the screen.
            max_steps: actions until the episode is truncated.
            free_nothing: an empty action, which is what becomes of an answer that cannot be read, costs no step, up to
                `max_steps` of them; so REMEMBERER counts.
            text_events: texts on the screen are events, as with a recogniser of texts; published runs had none.
            actions: offer the admissible actions with each observation.
        """
        del protocol, dataset_seed, train_set, templates
        self._place = of_kind(str, "library", library)
        self._files = of_kind(str, "tasks", tasks)
        self._view = VIEWS[one_of("view", view, VIEWS)]
        self._worded: Callable[[str], str] = str.lower if view == "short" else str
        self._per_search = whole("results_per_page", results_per_page)
        self._max_text = whole("max_text", max_text)
        self._max_steps = whole("max_steps", max_steps)
        self._free_nothing = of_kind(bool, "free_nothing", free_nothing)
        self._reads_screen = of_kind(bool, "text_events", text_events)
        self._offers = of_kind(bool, "actions", actions)
        self._app: App | None = None
        self._hidden: frozenset[str] = frozenset()
        self._engine: Engine | None = None
        self._visit = Visit()
        self._steps_left = self._free_left = 0
        self._total = self._highest = 0.0
        self._told = self._words = ""

    tasks = staticmethod(wikihow_tasks)

    @staticmethod
    def identity(
        library: str = "synthetic",
        tasks: str = "",
        protocol: str = "by-article",
        dataset_seed: int = 0,
        train_set: str = "S0",
        templates: Sequence[str] = (),
        text_events: bool = False,
    ) -> dict[str, Any]:
        """What must be the same for two results to be comparable, as JSON: library, protocol, goals of each split."""
        choice = _choice(tasks, protocol, dataset_seed, train_set, templates)
        pages = opened(of_kind(str, "library", library))
        return {"library": pages.name, **identity_of(_splits(pages, choice), choice), "text_events": text_events}

    @property
    def app(self) -> App:
        """The app, opened when it is first asked for."""
        if self._app is None:
            library = self.library.without(self._hidden) if self._hidden else self.library
            self._app = App(library, self._per_search)
        return self._app

    @property
    def library(self) -> Library:
        """All pages, hidden or not."""
        return opened(self._place)

    def hide(self, paths: Iterable[str]) -> None:
        """Play the next episodes as if the library lacked the articles at `paths`: no page lists or shows them."""
        self._hidden |= frozenset(paths)
        self._app = None

    @property
    def visit(self) -> Visit:
        """Where the episode is."""
        return self._visit

    def reset(self, task: Task) -> Observation:
        """Open the app at its first page, to do `task`."""
        self._steps_left = 0
        judged = self._judged_by(task)
        self._engine = Engine(judged, reads_screen=self._reads_screen)
        self._visit, self._total, self._highest = Visit(), 0.0, highest_reward(judged)
        self._told = ""
        found = _SEARCHED.search("\n".join(judged.commands))
        self._words = found[1] if found else judged.commands[0]
        self._steps_left = self._free_left = self._max_steps
        return Observation(
            self._text(),
            actions=self._admissible(),
            instruction=self._worded(instructions_of(judged)),
            max_score=self._highest,
            briefing={"action_formats": list(FORMATS)},
        )

    def step(self, action: str) -> Observation:
        """Take one action.

        ``info``: ``action_refused`` with ``refused``, which says why, when nothing was done; ``instruction``, the words
        of what is to be done next.
        """
        if not self._steps_left:
            raise EnvError("the episode is over, or none has begun: call reset before step")
        assert self._engine is not None
        if action == NO_OP and self._free_nothing and self._free_left:
            self._free_left -= 1
        else:
            self._steps_left -= 1
        turn = self.app.step(self._visit, read_action(action))
        self._visit = turn.visit
        outcome = self._engine.step(Noticed(turn.log, self.app.screen(turn.visit)))
        self._told = outcome.instructions[-1] if outcome.instructions else self._told
        self._total += outcome.reward
        truncated = not outcome.is_over and not self._steps_left
        if outcome.is_over:
            self._steps_left = 0
        info: dict[str, Any] = {"action_refused": True, "refused": turn.refused} if turn.refused else {}
        score = min(self._total, self._highest)
        return Observation(
            self._text(),
            reward=outcome.reward,
            terminated=outcome.is_over,
            truncated=truncated,
            actions=self._admissible(),
            success=outcome.is_over and not outcome.has_failed and score > 0,
            score=score,
            max_score=self._highest,
            info={**info, "instruction": self._told} if self._told else info,
        )

    def close(self) -> None:
        """Leave the app; the library stays open for the next one of this process."""
        self._steps_left = 0
        self._app = self._engine = None

    def _judged_by(self, task: Task) -> TaskFile:
        name = task.options.get("file")
        if isinstance(name, str):
            return _of_file(_inside(self._files, name))
        try:
            return task_of(Goal.from_json(task.options).definition(), task.id)
        except ValueError as error:
            raise ConfigError(f"task {task.id} is none of wikihow_tasks: {error}") from error

    def _text(self) -> str:
        """The screen, and what is to be done next where the task has said so."""
        shown = self._view(self.app.leaves(self._visit), self._max_text)
        return f"{shown}\n{self._worded(f'Instruction: {self._told}')}" if self._told else shown

    def _admissible(self) -> tuple[str, ...] | None:
        return offers(self.app, self._visit, self._words) if self._offers else None


@lru_cache(64)
def _of_file(path: Path) -> TaskFile:
    return read_task(path)


def _inside(folder: str, name: str) -> Path:
    """The path of a task file.

    Raises:
        ConfigError: there is no folder, or the name leads out of it.
    """
    path = (Path(folder) / name).resolve()
    if not folder or not path.is_relative_to(Path(folder).resolve()):
        raise ConfigError(f"task file {name!r} is not in env.options.tasks = {folder!r}: name the folder that it is in")
    return path
