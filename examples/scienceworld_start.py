"""What an initial model can do on tasks of ScienceWorld that it has not been shown, before any reinforcement.

    python examples/scienceworld_start.py runs/smollm2-scienceworld-start
    python examples/scienceworld_start.py MODEL smollm2/scienceworld 8 find-non-living-thing=6

The second argument is the config, which gives the wording, then comes the number of training variations of each task,
and each task has its number of steps. A model that reads and writes has .8 or more in the lines "share of the gold
score" (reader) and "names the actions that scored" (author, about episodes without tips and with the right one); what
counts in the end is "return with its own tip". Tips are about recorded episodes: the simulator's own solution, and
wanderings that failed. Training on tips needs all that the table shows: actions that the game knows, right tips
followed, what was done written down so that it can be done again.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean

from start_evaluation import StartEvaluation, count_to_last_gain, format_share, get_answers, print_table

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


class ScienceWorldEvaluation(StartEvaluation):
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
        return [each.wandered[0].task for each in self.recorded.values()]

    def build_right_tips(self, recorded: RecordedGame) -> list[Tip]:
        """Build the tip about the gold path; with `memory.entries = "step"` each action is one."""
        assert recorded.gold is not None, "only variations with a gold path are evaluated"
        if self.config.memory.entries == "step":
            extracted = extract_tips(self.policy, [recorded.gold], self.config)
            return [*parse_tips(self.policy, [recorded.gold], extracted, self.config, step=0)[0].tips]
        return [self.script.build_tip(recorded.gold, recorded.gold.score)]

    def build_mixed_tips(self, recorded: RecordedGame) -> list[Tip]:
        """Build the right tips, and those about failures."""
        assert recorded.gold is not None, "only variations with a gold path are evaluated"
        return [*self.build_right_tips(recorded), *self.script.build_failure_tips(recorded, recorded.gold)]

    async def compute_column(self) -> list[str]:
        """Compute the figures, in the order of `LABELS`."""
        plain = await self.play()
        right, mixed = [
            await self.play({name: build_tips(each) for name, each in self.recorded.items()})
            for build_tips in (self.build_right_tips, self.build_mixed_tips)
        ]
        own_tips, tips_about_right = await self.write(plain), await self.write(right)
        after = await self.play(own_tips)
        listed = {episode.task.id: self.parse_actions(own_tips, episode) for episode in plain}
        pairs = [(e, listed[e.task.id]) for e in plain] + [(e, self.parse_actions(tips_about_right, e)) for e in right]
        named = [actions[:n] == tuple(get_actions(e)[:n]) for e, actions in pairs if (n := count_to_last_gain(e))]
        gold = {name: tuple(get_actions(each.gold)) for name, each in self.recorded.items() if each.gold}
        return [
            str(len(plain)),
            format_share([not answer.text.startswith(UNKNOWN) for e in plain for answer in get_answers(e)]),
            format_return(plain),
            format_share([episode.success for episode in plain]),
            format_return(right),
            f"{fmean(max(0.0, episode.score) / episode.max_score for episode in right):.2f}",
            format_share([begins_with(episode, gold) for episode in right]),
            format_return(mixed),
            format_share([begins_with(episode, gold) for episode in mixed]),
            format_share([listed[episode.task.id] == tuple(get_actions(episode)) for episode in plain]),
            format_share(named),
            format_return(after),
            format_share([begins_with(episode, listed) for episode in after]),
        ]

    def parse_actions(self, tips: Mapping[str, Sequence[Tip]], episode: Trajectory) -> tuple[str, ...]:
        """Parse the actions that the tip about this episode lists."""
        of_task = tips.get(episode.task.id, ())
        if self.config.memory.entries == "step":
            return tuple(tip.action for tip in of_task)
        text = of_task[0].text if of_task else ""
        return tuple(text.split(" ; ")) if self.config.rollout.style == "terse" else parse_listed_actions(text)


def begins_with(episode: Trajectory, actions: Mapping[str, tuple[str, ...]]) -> bool:
    """Tell whether an episode begins with all actions that are listed for its task; false where none are."""
    listed = actions[episode.task.id]
    return bool(listed) and tuple(get_actions(episode))[: len(listed)] == listed


def format_return(episodes: Sequence[Trajectory]) -> str:
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
        with closing(ScienceWorldEvaluation(policy, config)) as evaluation:
            columns.append(asyncio.run(evaluation.compute_column()))
    print_table(("", *(name for name, _, _ in names)), zip(LABELS, *columns, strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:] or ["runs/smollm2-scienceworld-start"])
