"""What a start model can do on WikiHow, on goals whose articles it has never seen, before any reinforcement.

    python examples/wikihow_start.py runs/wikihow-start
    python examples/wikihow_start.py runs/wikihow-start wikihow/small 95

The second path is of the settings, which give the wording and the screens; the number is of the goals, those of the
validation split. The right tips are those of a scripted reader. The last rows are the successes of each template.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, cast

from examination import Examination, print_table, refusals, share

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs import make_env
from trailnotes.envs.tasks import load_tasks, panel
from trailnotes.errors import TrailnotesError
from trailnotes.policies.base import Policy
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.types import Task, Trajectory
from trailnotes.warmstart.demonstrations.episodes import get_actions, play_script
from trailnotes_worlds.demonstrations.wikihow import Reader, WikiHowDemonstrator, space_arguments

if TYPE_CHECKING:
    from trailnotes_worlds.wikihow.env import WikiHowEnv

SETTINGS = "wikihow/small"


class Read(Examination):
    """A policy, and goals that a scripted reader reaches in as many steps.

    Args:
        policy: acts and writes.
        config: of the wording, the memory and the app.
        num: of the goals.
    """

    def __init__(self, policy: Policy, config: Config, num: int) -> None:
        super().__init__(policy, config)
        self.script = WikiHowDemonstrator(config, len, 0)
        env = cast("WikiHowEnv", make_env("wikihow", **config.env.options | {"max_steps": config.rollout.max_steps}))
        reader = Reader(env, self.script.rng)
        found = [play_script(env, task, reader.straight) for task in panel(load_tasks(config, "validation"), num)]
        self.reached = {episode.task.id: episode for episode in found if episode.success}

    @property
    def tasks(self) -> list[Task]:
        """The goals."""
        return [episode.task for episode in self.reached.values()]

    async def rows(self) -> Iterator[tuple[str, str]]:
        """The figures by their names."""
        alone = await self.play()
        told = await self.play({name: [self.script.build_tip(episode)] for name, episode in self.reached.items()})
        own = await self.written(alone)
        after = await self.play(own)
        taken = [not refused for episode in alone for refused in refusals(episode)]
        as_told = [said(episode) == said(self.reached[episode.task.id]) for episode in told]
        ways = [own[e.task.id][0].text.partition(" . ")[0] == " ; ".join(said(e)) for e in alone if e.task.id in own]
        return iter((
            ("goals", str(len(alone))),
            ("actions that the app takes", share(taken)),
            ("reward of all that can be had, without tips", score(alone)),
            ("success without tips", share([episode.success for episode in alone])),
            ("success with the right tip", share([episode.success for episode in told])),
            ("does all that it says", share(as_told)),
            ("tells the way that it went", share(ways)),
            ("success with its own tip", share([episode.success for episode in after])),
            *((f"{name}, without tips and with the right one", row) for name, row in by_template(alone, told)),
        ))  # fmt: skip


def said(episode: Trajectory) -> list[str]:
    """The actions, with one blank inside their brackets, whoever said them."""
    return [" ".join(space_arguments(action).split()) for action in get_actions(episode)]


def score(episodes: Sequence[Trajectory]) -> str:
    """Mean share of the pages that were reached."""
    return f"{fmean(episode.score / episode.max_score for episode in episodes):.2f}"


def by_template(*plays: Sequence[Trajectory]) -> Iterator[tuple[str, str]]:
    """Success of each template, play by play."""
    wins: defaultdict[str, list[list[bool]]] = defaultdict(lambda: [[] for _ in plays])
    for place, episodes in enumerate(plays):
        for episode in episodes:
            options = episode.task.options
            more = ", then an article" if options.get("then_slug") else ""
            wins[options["template"] + more][place].append(episode.success)
    for name, won in sorted(wins.items()):
        yield f"{name} ({len(won[0])})", ", ".join(map(share, won))


def main(path: str, settings: str = SETTINGS, num: str = "48") -> None:
    """Print the table."""
    config = load_config(Path(settings), ["--model.path", path])
    print_table(("", ""), asyncio.run(Read(build_model_policy(config), config, int(num)).rows()))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:4] or ["runs/wikihow-start"])
    except TrailnotesError as fault:
        sys.exit(f"wikihow_start.py: {fault}")
