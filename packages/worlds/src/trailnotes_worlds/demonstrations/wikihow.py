"""Scripted WikiHow episodes of training goals: straight ones and hasty ones, with tips to act on and to write.

The initial model learns to search, to tap the target of the instruction, to scroll down to it, to repeat a tip with a
full score and nothing else, and to write down its way and the missed target. The scripts play goals of the train split
alone, in a library without the articles of evaluation goals.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from trailnotes.envs import list_env_tasks, make_env
from trailnotes.envs.tasks import select_unused
from trailnotes.errors import ConfigError
from trailnotes.types import Task, Tip
from trailnotes.warmstart.demonstrations.episodes import (
    Demonstrator,
    build_demonstrations,
    get_actions,
    play_script,
    replay_actions,
)
from trailnotes_worlds.demonstrations.wikihow_readers import Adviser, Reader, space_arguments
from trailnotes_worlds.wikihow.articles import Article

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from trailnotes.config.schema import Config
    from trailnotes.storage.demonstrations import Demonstration
    from trailnotes.types import Trajectory
    from trailnotes_worlds.wikihow.env import WikiHowEnv

_TITLES: Final = re.compile(r'learn how to (.+?)\.?$|article "how to (.+)"', re.IGNORECASE | re.MULTILINE)
EVAL_SPLITS: Final = ("validation", "test")


def extract_titles(env: WikiHowEnv, tasks: Iterable[Task]) -> set[str]:
    instructions = (env.reset(task).instruction or "" for task in tasks)
    return {(match[1] or match[2]).lower() for text in instructions for match in _TITLES.finditer(text)}


def collect_eval_titles(options: Mapping[str, object]) -> set[str]:
    """Collect the titles in all evaluation goals of `options`, of any template."""
    options = {**options, "templates": ()}
    env, tasks = cast("WikiHowEnv", make_env("wikihow", **options)), list[Task]()
    for split in EVAL_SPLITS:
        with suppress(ConfigError):  # the split is empty
            tasks += list_env_tasks("wikihow", split, options)
    return extract_titles(env, tasks)


class WikiHowDemonstrator(Demonstrator):
    """Endless fresh demonstrations of the goals of the train split."""

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        super().__init__(config, count_tokens, seed)
        options = {**config.env.options, "max_steps": config.rollout.max_steps}
        self.env = cast("WikiHowEnv", make_env("wikihow", **{**options, "actions": True}))
        self.tasks = list_env_tasks("wikihow", "train", options)
        self.exclude_titles(collect_eval_titles(options))
        if not self.tasks:
            raise ConfigError("every training goal names an evaluation article: name other env.options.tasks")
        self.adviser = Adviser(self.env, config, count_tokens, self.rng)

    def exclude_titles(self, titles: AbstractSet[str]) -> None:
        """Hide the articles with these titles, in lower case, and drop the goals that name one."""
        self.env.hide_articles(
            page.path for page in self.env.library if isinstance(page, Article) and page.title.lower() in titles
        )
        self.tasks = [task for task in self.tasks if not titles & extract_titles(self.env, [task])]

    def hold_out(self, config: Config) -> None:
        """Keep the unused goals, as `Demonstrator.hold_out`, and hide the articles of those that are evaluated."""
        self.exclude_titles(collect_eval_titles(config.env.options))
        self.tasks = select_unused(self.tasks, config)
        if not self.tasks:
            fix = "name another library in rehearsal.options.library"
            raise ConfigError(f"every training goal is trained on or evaluated: {fix}")

    def __iter__(self) -> Iterator[Demonstration]:
        while True:
            yield from self.demonstrate_episode(self.rng.choice(self.tasks))

    def demonstrate_episode(self, task: Task) -> list[Demonstration]:
        """Demonstrate an episode: a row to act, and after tips a tip-free row to write; or one step with advice."""
        warm = self.config.warmstart
        if self.rng.random() < warm.advice:
            return [self.adviser.demonstrate_advice(task, self.tasks)]
        tips: tuple[Tip, ...] = ()
        if self.rng.random() < warm.p_follow_tip:
            trajectory, tips = self.play_with_tip(task)
        else:
            manner = "hasty" if self.rng.random() < warm.p_explore else "straight"
            trajectory = self.play(task, manner)
            if self.rng.random() < 0.4:
                tips = (self.build_tip(self.play(task, "hasty")),)
        texts = [replace(step.completion, text=space_arguments(step.action)) for step in trajectory.steps]
        steps = (replace(step, completion=text) for step, text in zip(trajectory.steps, texts, strict=True))
        spoken, note = replace(trajectory, steps=tuple(steps)), self.write_note(trajectory)
        return build_demonstrations(spoken, self.rank_tips(tips), note, self.config, self.count_tokens)

    def play_with_tip(self, task: Task) -> tuple[Trajectory, tuple[Tip, ...]]:
        """Play an episode that follows a tip with a full score, and return it with its tips.

        Half of the tips tell a way that earns the full score, the others any way: the model must follow the tip and not
        the instruction.
        """
        source = self.play(task, "straight" if self.rng.random() < 0.5 else "hasty")
        trajectory = play_script(self.env, task, partial(replay_actions, get_actions(source)))
        others = [self.build_tip(self.play(task, "hasty"))] if self.rng.random() < 0.4 else []
        praised = Tip(task.id, self.format_actions(source), key="", score=source.max_score, max_score=source.max_score)
        return trajectory, (praised, *(tip for tip in others if tip.score < praised.score))

    def play(self, task: Task, manner: str) -> Trajectory:
        return play_script(self.env, task, getattr(Reader(self.env, self.rng), manner))

    def build_tip(self, trajectory: Trajectory) -> Tip:
        most = trajectory.max_score
        return Tip(trajectory.task.id, self.write_note(trajectory), key="", score=trajectory.score, max_score=most)

    def format_actions(self, trajectory: Trajectory) -> str:
        return " ; ".join(map(space_arguments, get_actions(trajectory))) or "nothing"

    def write_note(self, trajectory: Trajectory) -> str:
        """Write the note about an episode: its actions, and after a full stop the missed target."""
        missed = trajectory.final_observation.info.get("instruction", "")
        way = self.format_actions(trajectory)
        return way if trajectory.success else f"{way} . not yet : {missed.lower() or 'nothing was found'}"

    def rank_tips(self, tips: Sequence[Tip]) -> tuple[Tip, ...]:
        most = min(self.config.warmstart.num_tips, self.config.memory.top_k)
        return tuple(sorted(tips, key=lambda tip: -tip.score)[:most])
