"""Scripted WikiHow episodes of training goals: straight ones and hasty ones, with tips to act on and to write.

What a start model learns here is how to search, to tap what the instruction names, to look further down where it is not
to be seen, to repeat what a tip with a full score tells and nothing else, and to write down its way and what it has not
reached. Only goals of the train split are played; lists that lead to their pages may name others' articles.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self, cast

from trailnotes.envs import env_tasks, make_env
from trailnotes.envs.tasks import kept_apart
from trailnotes.envs.wikihow.articles import ABOUT
from trailnotes.envs.wikihow.goals import keywords
from trailnotes.envs.wikihow.pages import REFERENCES_TAP, SEARCH_TAP
from trailnotes.errors import ConfigError
from trailnotes.types import Tip
from trailnotes.warmstart.demonstrations.episodes import actions_of, conversations, follow, of_rehearsal, played

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trailnotes.config.schema import Config
    from trailnotes.envs.wikihow.env import WikiHowEnv
    from trailnotes.envs.wikihow.views import View
    from trailnotes.storage.demonstrations import Demonstration
    from trailnotes.types import Observation, Task, Trajectory
    from trailnotes.warmstart.demonstrations.episodes import Script

_NAMED: Final = re.compile(
    r'article "How to (?P<article>.*)"|author page of (?P<author>.*)\.$|category (?P<category>.*)$'
)
_SEARCHED: Final = re.compile(r"how to (.+?)\.?\s*$", re.MULTILINE)
_ACTION: Final = re.compile(r"(\w+)\((.+)\)", re.DOTALL)


class Reader:
    """Does what the newest instruction says, by what the screen shows."""

    def __init__(self, env: WikiHowEnv, rng: random.Random) -> None:
        self.env, self.rng = env, rng

    def straight(self, first: Observation) -> Script:
        """To the end without a detour."""
        self.title = self._title(first)
        observation = first
        while True:
            observation = yield self.next(observation)

    def hasty(self, first: Observation) -> Script:
        """Now and then anything that can be done, and gives up before the end or at it."""
        self.title = self._title(first)
        observation = first
        for _ in range(self.rng.randint(2, 6)):
            offers = observation.actions or ()
            observation = (
                yield self.rng.choice(offers) if offers and self.rng.random() < 0.4 else self.next(observation)
            )

    def next(self, observation: Observation) -> str:
        """The action that the instruction asks for here."""
        wanted = observation.info.get("instruction", "")
        if not wanted:
            place = self._place(lambda view: view.target == SEARCH_TAP)
            return f"INPUT({place}, {self._words()})"
        place = self._place(partial(_is_named, wanted))
        if place is not None:
            return f"CLICK({place})"
        return "SCROLL(DOWN)" if self.env.app.can_scroll(self.env.visit, "DOWN") else "GOBACK"

    def _place(self, fits: Callable[[View], bool]) -> int | None:
        listed = self.env.app.leaves(self.env.visit)
        return next((place for place, leaf in enumerate(listed) if fits(leaf.view)), None)

    def _title(self, first: Observation) -> str:
        found = _SEARCHED.search(first.instruction or "")
        return found[1] if found else ""

    def _words(self) -> str:
        """What is searched: the title, or the words of it that matter."""
        return self.title if self.rng.random() < 0.7 else " ".join(keywords(self.title))


def _is_named(wanted: str, view: View) -> bool:
    """Whether a view is what an instruction names, or leads there."""
    if "about page" in wanted or "reference list" in wanted:
        return view.target == (ABOUT if "about page" in wanted else REFERENCES_TAP)
    named = _NAMED.search(wanted)
    if named is None or not view.target:
        return False
    name, text = str(named[named.lastgroup or 0]).lower(), view.text.lower()
    return text in (name, f"how to {name}")


class WikiHowDemonstrator:
    """Endless fresh demonstrations of the goals of the train split.

    Args:
        config: prompts, memory, `env.options`, and the shares of `config.warmstart`: `obey` of the episodes follow a
            tip with a full score, `read` of the others are hasty, and the rest go straight to the end.
        count_tokens: of the tokenizer, for the length caps.
        seed: of everything drawn here.

    Raises:
        ConfigError: the library or the train split of its goals does not exist.
    """

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        self.config, self.count_tokens = config, count_tokens
        self.rng = random.Random(seed)
        options = {**config.env.options, "max_steps": config.rollout.max_steps}
        self.env = cast("WikiHowEnv", make_env("wikihow", **options))
        self.tasks = env_tasks("wikihow", "train", options)

    @classmethod
    def apart(cls, config: Config, count_tokens: Callable[[str], int], seed: int) -> Self:
        """Those of the goals in `rehearsal.options` that `config` neither trains on nor examines.

        Raises:
            ConfigError: none is left.
        """
        subject = cls(of_rehearsal(config), count_tokens, seed)
        subject.tasks = kept_apart(subject.tasks, config)
        if not subject.tasks:
            raise ConfigError(
                "every training goal is trained on or examined: name another library in rehearsal.options.library"
            )
        return subject

    def __iter__(self) -> Iterator[Demonstration]:
        while True:
            yield from self.episode(self.rng.choice(self.tasks))

    def episode(self, task: Task) -> list[Demonstration]:
        """One episode's demonstrations: a row to act, and where it acted on tips, a tip-free row to write."""
        warm = self.config.warmstart
        tips: tuple[Tip, ...] = ()
        if self.rng.random() < warm.obey:
            trajectory, tips = self.told(task)
        else:
            manner = "hasty" if self.rng.random() < warm.read else "straight"
            trajectory = self.play(task, manner)
            if self.rng.random() < 0.4:
                tips = (self.tip(self.play(task, "hasty")),)
        said = [
            replace(step, completion=replace(step.completion, text=self.say(step.action))) for step in trajectory.steps
        ]
        spoken = replace(trajectory, steps=tuple(said))
        return conversations(spoken, self.ranked(tips), self.note(trajectory), self.config, self.count_tokens)

    def told(self, task: Task) -> tuple[Trajectory, tuple[Tip, ...]]:
        """An episode that does what a tip with a full score tells, and the tips that it has seen.

        What is told is half of the time what has earned the full score, else any way, so that it is the tip that is
        followed and not the instruction.
        """
        source = self.play(task, "straight" if self.rng.random() < 0.5 else "hasty")
        trajectory = played(self.env, task, partial(follow, actions_of(source)))
        others = [self.tip(self.play(task, "hasty"))] if self.rng.random() < 0.4 else []
        praised = Tip(task.id, self.way(source), key="", score=source.max_score, max_score=source.max_score)
        return trajectory, (praised, *(tip for tip in others if tip.score < praised.score))

    def play(self, task: Task, manner: str) -> Trajectory:
        """An episode of a scripted reader: "straight" or "hasty"."""
        return played(self.env, task, getattr(Reader(self.env, self.rng), manner))

    def tip(self, trajectory: Trajectory) -> Tip:
        """What a memory would hold of an episode."""
        most = trajectory.max_score
        return Tip(trajectory.task.id, self.note(trajectory), key="", score=trajectory.score, max_score=most)

    def say(self, action: str) -> str:
        """An action as it is said: with blanks within, so that its words are the same tokens as on a screen."""
        match = _ACTION.fullmatch(action)
        return f"{match[1]}( {match[2].replace(', ', ' , ', 1)} )" if match else action

    def way(self, trajectory: Trajectory) -> str:
        """The actions of an episode."""
        return " ; ".join(map(self.say, actions_of(trajectory))) or "nothing"

    def note(self, trajectory: Trajectory) -> str:
        """What a good writer writes about an episode: the way, and behind a full stop what was not reached."""
        missed = trajectory.final_observation.info.get("instruction", "")
        way = self.way(trajectory)
        return way if trajectory.success else f"{way} . not yet : {missed.lower() or 'nothing was found'}"

    def ranked(self, tips: Sequence[Tip]) -> tuple[Tip, ...]:
        """As many as are shown, by score."""
        most = min(self.config.warmstart.num_tips, self.config.memory.top_k)
        return tuple(sorted(tips, key=lambda tip: -tip.score)[:most])
