"""What a start model can do on tasks of ScienceWorld that it has not been shown, before any reinforcement.

    python examples/scienceworld_start.py runs/smollm2-scienceworld-start
    python examples/scienceworld_start.py MODEL smollm2/scienceworld 8 find-non-living-thing=6

The second path is of the settings, which give the wording; the number is of the training variations of each task, and
each task has its number of steps. A model that reads and writes has .8 or more in the lines "share of the gold score"
(reader) and "names the actions that scored" (author, about episodes without tips and with the right one); the last word
is "return with its own tip". Tips are about recorded episodes: the simulator's own solution, and wanderings that
failed. Training on tips needs all that the table shows: actions that the game knows, right tips followed, what was done
written down so that it can be done again.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean

from examination import Examination, answers, count_to_last_raise, print_table, share

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.policies.base import Policy
from trailnotes.rollout.tips import extract_tips, parse_tips
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.types import Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations import load_demonstrator
from trailnotes.warmstart.demonstrations.episodes import get_actions
from trailnotes_worlds.demonstrations.recorded import RecordedGame
from trailnotes_worlds.demonstrations.scienceworld import ScienceWorldDemonstrator
from trailnotes_worlds.demonstrations.scienceworld_english import parse_listed_actions

SETTINGS = "smollm2/scienceworld"
TASKS = ("find-non-living-thing=6", "lifespan-longest-lived=5", "use-thermometer=10")
UNKNOWN = ("No known action", "Unknown action")
LABELS = (
    "variations",
    "answers with an action of the game",
    "return without tips",
    "full score without tips",
    "return with the right tip",
    "share of the gold score",
    "does all that it says",
    "return with the right tip and those of failures",
    "does all that the right one says",
    "tells all that it did",
    "names the actions that scored, of episodes that did",
    "return with its own tip",
    "does all that its own tip says",
)


class Examined(Examination):
    """A policy, and recorded episodes of variations of one task.

    Args:
        policy: acts and writes.
        config: of the wording, the memory and the task.
    """

    def __init__(self, policy: Policy, config: Config) -> None:
        super().__init__(policy, config)
        demonstrator = load_demonstrator("scienceworld", config.rollout.style)
        self.script: ScienceWorldDemonstrator = demonstrator(config, policy.count_tokens, 0)
        self.recorded = {each.gold.task.id: each for each in self.script.recordings if each.gold}

    @property
    def tasks(self) -> list[Task]:
        """The variations."""
        return [each.wandered[0].task for each in self.recorded.values()]

    def right(self, recorded: RecordedGame) -> list[Tip]:
        """The tip of who has solved it; of single steps the actions themselves."""
        assert recorded.gold is not None, "only what can be solved is examined"
        if self.config.memory.entries == "step":
            extracted = extract_tips(self.policy, [recorded.gold], self.config)
            return [*parse_tips(self.policy, [recorded.gold], extracted, self.config, step=0)[0].tips]
        return [self.script.build_tip(recorded.gold, recorded.gold.score)]

    def mixed(self, recorded: RecordedGame) -> list[Tip]:
        """The same beside those of failures."""
        assert recorded.gold is not None, "only what can be solved is examined"
        return [*self.right(recorded), *self.script.build_failure_tips(recorded, recorded.gold)]

    async def column(self) -> list[str]:
        """The figures, in the order of `LABELS`."""
        alone = await self.play()
        told = [
            await self.play({name: tips_of(each) for name, each in self.recorded.items()})
            for tips_of in (self.right, self.mixed)
        ]
        own, about_told = await self.written(alone), await self.written(told[0])
        after = await self.play(own)
        pairs = [(e, self.parse(tips, e)) for episodes, tips in ((alone, own), (told[0], about_told)) for e in episodes]
        named = [said[:n] == tuple(get_actions(e)[:n]) for e, said in pairs if (n := count_to_last_raise(e))]
        gold = {name: tuple(get_actions(each.gold)) for name, each in self.recorded.items() if each.gold}
        said = {episode.task.id: self.parse(own, episode) for episode in alone}
        return [
            str(len(alone)),
            share([not answer.text.startswith(UNKNOWN) for episode in alone for answer in answers(episode)]),
            returns(alone),
            share([episode.success for episode in alone]),
            returns(told[0]),
            f"{fmean(max(0.0, episode.score) / episode.max_score for episode in told[0]):.2f}",
            share([does(episode, gold) for episode in told[0]]),
            returns(told[1]),
            share([does(episode, gold) for episode in told[1]]),
            share([said[episode.task.id] == tuple(get_actions(episode)) for episode in alone]),
            share(named),
            returns(after),
            share([does(episode, said) for episode in after]),
        ]

    def parse(self, tips: Mapping[str, Sequence[Tip]], episode: Trajectory) -> tuple[str, ...]:
        """The actions that the tip about this episode lists."""
        told = tips.get(episode.task.id, ())
        if self.config.memory.entries == "step":
            return tuple(tip.action for tip in told)
        text = told[0].text if told else ""
        return tuple(text.split(" ; ")) if self.config.rollout.style == "terse" else parse_listed_actions(text)


def does(episode: Trajectory, told: dict[str, tuple[str, ...]]) -> bool:
    """Whether an episode begins with all that was told; nothing told cannot be done."""
    wanted = told[episode.task.id]
    return bool(wanted) and tuple(get_actions(episode))[: len(wanted)] == wanted


def returns(episodes: Sequence[Trajectory]) -> str:
    """Mean score."""
    return f"{fmean(episode.score for episode in episodes):.0f}"


def main(path: str, settings: str = SETTINGS, num: str = "8", *tasks: str) -> None:
    """Print the table."""
    logging.basicConfig(level=logging.WARNING)
    names = [task.partition("=") for task in tasks or TASKS]
    columns, policy = [], None
    for name, _, steps in names:
        options = ["--env.options", f'{{task = "{name}", max_steps = {steps}}}', "--rollout.max_steps", steps]
        config = load_config(Path(settings), ["--model.path", path, "--warmstart.variations", num, *options])
        policy = policy or build_model_policy(config)
        with closing(Examined(policy, config)) as examined:
            columns.append(asyncio.run(examined.column()))
    print_table(("", *(name for name, _, _ in names)), zip(LABELS, *columns, strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:] or ["runs/smollm2-scienceworld-start"])
