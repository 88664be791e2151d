"""What a start model can do on tasks of ScienceWorld that it has not been shown, before any reinforcement.

    python examples/scienceworld_start.py runs/smollm2-scienceworld-start
    python examples/scienceworld_start.py MODEL configs/smollm2/scienceworld.toml 8 find-non-living-thing=6

The second path is of the settings, which give the wording; the number is of the training variations of each task, and
each task has its number of steps. Tips are about recorded episodes: the simulator's own solution, and wanderings that
failed. Training on tips needs all that the table shows: actions that the game knows, right tips followed, what was done
written down so that it can be done again.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from examination import Examination, answers, print_table, share

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.policies.base import Policy
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.types import Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations import load_demonstrator
from trailnotes.warmstart.demonstrations.episodes import get_actions
from trailnotes_worlds.demonstrations.scienceworld import RecordedGame, ScienceWorldDemonstrator
from trailnotes_worlds.demonstrations.scienceworld_english import parse_listed_actions

SETTINGS = Path(__file__).parent.parent / "configs" / "smollm2" / "scienceworld.toml"
TASKS = ("find-non-living-thing=6", "lifespan-longest-lived=5", "use-thermometer=10")
UNKNOWN = ("No known action", "Unknown action")
LABELS = (
    "variations",
    "answers with an action of the game",
    "return without tips",
    "full score without tips",
    "return with the right tip",
    "does all that it says",
    "return with the right tip and those of failures",
    "does all that the right one says",
    "tells all that it did",
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
        self.script: ScienceWorldDemonstrator = load_demonstrator("scienceworld", "full")(
            config, policy.count_tokens, 0
        )
        self.recorded = {each.gold.task.id: each for each in self.script.recordings if each.gold}

    @property
    def tasks(self) -> list[Task]:
        """The variations."""
        return [each.wandered[0].task for each in self.recorded.values()]

    def right(self, recorded: RecordedGame) -> list[Tip]:
        """The tip of who has solved it."""
        assert recorded.gold is not None, "only what can be solved is examined"
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
        own = await self.written(alone)
        after = await self.play(own)
        gold = {name: tuple(get_actions(each.gold)) for name, each in self.recorded.items() if each.gold}
        said = {name: parse_listed_actions(own[name][0].text) if name in own else () for name in gold}
        return [
            str(len(alone)),
            share([not answer.text.startswith(UNKNOWN) for episode in alone for answer in answers(episode)]),
            returns(alone),
            share([episode.success for episode in alone]),
            *(figure for episodes in told for figure in (returns(episodes), share([does(e, gold) for e in episodes]))),
            share([said[episode.task.id] == tuple(get_actions(episode)) for episode in alone]),
            returns(after),
            share([does(episode, said) for episode in after]),
        ]


def does(episode: Trajectory, told: dict[str, tuple[str, ...]]) -> bool:
    """Whether an episode begins with all that was told; nothing told cannot be done."""
    wanted = told[episode.task.id]
    return bool(wanted) and tuple(get_actions(episode))[: len(wanted)] == wanted


def returns(episodes: Sequence[Trajectory]) -> str:
    """Mean score."""
    return f"{fmean(episode.score for episode in episodes):.0f}"


def main(path: str, settings: str = str(SETTINGS), num: str = "8", *tasks: str) -> None:
    """Print the table."""
    logging.basicConfig(level=logging.WARNING)
    names = [task.partition("=") for task in tasks or TASKS]
    columns, policy = [], None
    for name, _, steps in names:
        options = ["--env.options", f'{{task = "{name}", max_steps = {steps}}}', "--rollout.max_steps", steps]
        config = load_config(Path(settings), ["--model.path", path, "--warmstart.variations", num, *options])
        policy = policy or build_model_policy(config)
        columns.append(asyncio.run(Examined(policy, config).column()))
    print_table(("", *(name for name, _, _ in names)), zip(LABELS, *columns, strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:] or ["runs/smollm2-scienceworld-start"])
