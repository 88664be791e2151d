"""WikiHow as an environment: an app of articles on a simulated phone, pages to reach, fifteen actions.

Source: Zhang et al. 2023, "Mobile-Env: An Evaluation Platform and Benchmark for Interactive Agents in LLM Era" (arXiv
2305.08144), and the protocol of REMEMBERER (arXiv 2306.07929). See ``docs/envs/wikihow.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from trailnotes.envs.base import require_choice, require_int, require_text_list, require_type
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import NO_OP, Observation, Task
from trailnotes_worlds.wikihow.app import FORMATS, VIEWS, AppState, WikiHowApp, list_actions, parse_action
from trailnotes_worlds.wikihow.goals import Goal, read_goal
from trailnotes_worlds.wikihow.library import Library
from trailnotes_worlds.wikihow.pages import RESULTS_PER_PAGE
from trailnotes_worlds.wikihow.protocols import TaskSelection, WikiHowGoal, build_identity, compute_splits, make_tasks
from trailnotes_worlds.wikihow.synthetic import open_library

MAX_STEPS: Final = 15
_HOW_TO_PATTERN: Final = re.compile(r"how to (.+?)\.?\s*$", re.IGNORECASE | re.MULTILINE)


open_cached_library = lru_cache(4)(open_library)
_read_goal = lru_cache(64)(read_goal)
_load_splits = lru_cache(8)(compute_splits)


def wikihow_tasks(
    split: str,
    library: str = "synthetic",
    tasks: str = "",
    protocol: str = "by-article",
    dataset_seed: int = 0,
    train_set: str = "S0",
    templates: Sequence[str] = (),
) -> list[Task]:
    """List the goals of one split in the protocol's order: a pure function of library, files and arguments.

    Args:
        split: train, validation or test.
        library: folder, or "synthetic".
        tasks: folder of task files in Mobile-Env's format; "" generates goals.
        protocol: "by-article" or "rememberer".
        dataset_seed: of the templates of generated goals.
        train_set: "S0" or "S1", of the protocol rememberer.
        templates: kinds of generated goals, see `WikiHowGoal.kind`; () takes all.

    Raises:
        ConfigError: an unknown name, a value of the wrong kind, no library, no task files, or a split without goals.
    """
    choice = TaskSelection(protocol, tasks, dataset_seed, train_set, require_text_list("templates", templates))
    return make_tasks(_load_splits(open_cached_library(require_type(str, "library", library)), choice), split, choice)


class WikiHowEnv:
    """An app of how-to articles on a simulated phone: pages to reach by searches, taps and swipes.

    Environments of one process share one open library.
    """

    def __init__(  # noqa: PLR0913 (the user's options, by their names)
        self,
        *,
        library: str = "synthetic",
        tasks: str = "",
        view: str = "html",
        results_per_page: int = RESULTS_PER_PAGE,
        max_text: int = 500,
        max_steps: int = MAX_STEPS,
        free_nothing: bool = False,
        actions: bool = True,
    ) -> None:
        """Set the options of the environment.

        Args:
            library: folder that `trailnotes wikihow import` has written, or "synthetic".
            tasks: folder of task files in Mobile-Env's format; "" generates goals.
            view: "html", REMEMBERER's lines, or "short".
            results_per_page: articles that a search shows before `Next >`.
            max_text: characters of one text on the screen.
            max_steps: actions until the episode is truncated.
            free_nothing: up to `max_steps` empty actions, which stand for unreadable answers, cost no step; REMEMBERER
                counts so.
            actions: offer the admissible actions with each observation.
        """
        self._place = require_type(str, "library", library)
        self._files = require_type(str, "tasks", tasks)
        self._view = VIEWS[require_choice("view", view, VIEWS)]
        self._worded: Callable[[str], str] = str.lower if view == "short" else str
        self._per_search = require_int("results_per_page", results_per_page)
        self._max_text = require_int("max_text", max_text)
        self._max_steps = require_int("max_steps", max_steps)
        self._free_nothing = require_type(bool, "free_nothing", free_nothing)
        self._offers = require_type(bool, "actions", actions)
        self._app: WikiHowApp | None = None
        self._hidden: frozenset[str] = frozenset()
        self._goal = Goal("", ())
        self._reached: set[int] = set()  # places of the goal's pages
        self.app_state = AppState()
        self._steps_left = self._free_left = 0
        self._instruction = self._words = ""

    tasks = staticmethod(wikihow_tasks)

    @staticmethod
    def identity(
        library: str = "synthetic",
        tasks: str = "",
        protocol: str = "by-article",
        dataset_seed: int = 0,
        train_set: str = "S0",
        templates: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Identify library, protocol and goals of each split, as JSON: comparable results share them."""
        choice = TaskSelection(protocol, tasks, dataset_seed, train_set, require_text_list("templates", templates))
        pages = open_cached_library(require_type(str, "library", library))
        goals = build_identity(_load_splits(pages, choice), choice)
        return {"library": pages.name, **goals, "text_events": False}  # as earlier results have it

    @property
    def app(self) -> WikiHowApp:
        if self._app is None:
            library = self.library.without(self._hidden) if self._hidden else self.library
            self._app = WikiHowApp(library, self._per_search)
        return self._app

    @property
    def library(self) -> Library:
        return open_cached_library(self._place)

    def hide_articles(self, paths: Iterable[str]) -> None:
        self._hidden |= frozenset(paths)
        self._app = None

    def reset(self, task: Task) -> Observation:
        self._steps_left = 0  # while the goal may be refused
        self._goal, self._reached = self._load_goal(task), set()
        self.app_state, self._instruction = AppState(), ""
        named = _HOW_TO_PATTERN.search(self._goal.command)
        self._words = named[1] if named else self._goal.command
        self._steps_left = self._free_left = self._max_steps
        return Observation(
            self._render_text(),
            actions=self._get_admissible_actions(),
            instruction=self._worded(self._goal.format_instructions()),
            max_score=float(len(self._goal.pages)),
            briefing={"action_formats": list(FORMATS)},
        )

    def step(self, action: str) -> Observation:
        """Take one action.

        ``info``: ``action_refused`` with the reason ``refused`` for an action without effect; ``instruction``, the next
        one.
        """
        if not self._steps_left:
            raise EnvError("the episode is over, or none has begun: call reset before step")
        if action == NO_OP and self._free_nothing and self._free_left:
            self._free_left -= 1
        else:
            self._steps_left -= 1
        turn = self.app.step(self.app_state, parse_action(action))
        self.app_state = turn.state
        reached = [place for place in self._goal.find_reached(turn.log) if place not in self._reached]
        self._reached.update(reached)
        for place in reached:
            self._instruction = self._goal.pages[place].instruction or self._instruction
        is_over = len(self._goal.pages) - 1 in reached
        truncated = not is_over and not self._steps_left
        if is_over:
            self._steps_left = 0
        info: dict[str, Any] = {"action_refused": True, "refused": turn.refused} if turn.refused else {}
        return Observation(
            self._render_text(),
            reward=float(len(reached)),
            terminated=is_over,
            truncated=truncated,
            actions=self._get_admissible_actions(),
            success=is_over,
            score=float(len(self._reached)),
            max_score=float(len(self._goal.pages)),
            info={**info, "instruction": self._instruction} if self._instruction else info,
        )

    def close(self) -> None:
        self._steps_left = 0
        self._app = None

    def _load_goal(self, task: Task) -> Goal:
        name = task.options.get("file")
        if name is None:
            return WikiHowGoal.from_json(task.options).to_pages()
        path = (Path(self._files) / name).resolve()
        if not self._files or not path.is_relative_to(Path(self._files).resolve()):
            raise ConfigError(f"task file {name!r} is not in env.options.tasks = {self._files!r}: name its folder")
        return _read_goal(path)

    def _render_text(self) -> str:
        page = self._view(self.app.leaves(self.app_state), self._max_text)
        return f"{page}\n{self._worded(f'Instruction: {self._instruction}')}" if self._instruction else page

    def _get_admissible_actions(self) -> tuple[str, ...] | None:
        return list_actions(self.app, self.app_state, self._words) if self._offers else None
