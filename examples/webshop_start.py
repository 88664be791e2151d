"""What a start model can do on WebShop, on goals for products that it has never seen, before any reinforcement.

    python examples/webshop_start.py runs/webshop-start
    python examples/webshop_start.py runs/smollm2-webshop-start webshop/smollm2 16
    python examples/webshop_start.py buyers

The second path is of the settings, which give the wording and the pages; the number is of the goals, those of the
validation split. Training on tips needs all that the table shows: actions that the shop takes, right tips followed,
what was bought written down so that it can be bought again. The right tips are those of a teacher who knows the goal's
product, the others of scripted buyers who failed. The last line is what those buyers themselves do, on every fifth
training goal.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from examination import Examination, print_table, refusals, share

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import load_tasks, panel
from trailnotes.errors import TrailnotesError
from trailnotes.policies.base import Policy
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.types import Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations import load_demonstrator
from trailnotes_worlds.demonstrations.webshop import Attempt, WebShopDemonstrator
from trailnotes_worlds.demonstrations.webshop_buyers import (
    BUY,
    extract_purchase_path,
    parse_tip_actions,
    unspace_brackets,
)

SETTINGS = "webshop/small"
LABELS = (
    "goals",
    "actions that the shop takes",
    "episodes that buy",
    "score without tips",
    "full score without tips",
    "score with the right tip",
    "does all that it says",
    "score with the right tip and those of failures",
    "does all that the right one says",
    "tells the way that it went",
    "score with its own tip",
)


class Examined(Examination):
    """A policy, and goals that a teacher can reach.

    Args:
        policy: acts and writes.
        config: of the wording, the memory and the shop.
        num: of the goals.
    """

    def __init__(self, policy: Policy, config: Config, num: int) -> None:
        super().__init__(policy, config)
        self.script: WebShopDemonstrator = load_demonstrator("webshop", config.rollout.style)(config, len, 0)
        self.script.forbidden = frozenset()  # what is examined here is shown to nobody who learns
        found = ((task, self.script.play_perfectly(task)) for task in panel(load_tasks(config, "validation"), num))
        self.right: dict[str, Attempt] = {task.id: attempt for task, attempt in found if attempt}

    @property
    def tasks(self) -> list[Task]:
        """The goals."""
        return [attempt.trajectory.task for attempt in self.right.values()]

    def told(self, *, failures: bool) -> dict[str, list[Tip]]:
        """The right tip of each goal, alone or beside those of failures."""
        tips = {name: [self.script.build_tip(attempt, attempt.worth)] for name, attempt in self.right.items()}
        for name, attempt in self.right.items() if failures else ():
            others = self.script.play_failures(attempt.trajectory.task, attempt)
            tips[name] += [self.script.build_tip(other, other.worth) for other in others]
        return tips

    async def column(self) -> list[str]:
        """The figures, in the order of `LABELS`."""
        alone = await self.play()
        told = [await self.play(self.told(failures=failures)) for failures in (False, True)]
        own = await self.written(alone)
        after = await self.play(own)
        return [
            str(len(alone)),
            share([not refused for episode in alone for refused in refusals(episode)]),
            share([actions(episode)[-1:] == (BUY,) for episode in alone]),
            score(alone),
            share([episode.success for episode in alone]),
            *(
                figure
                for episodes in told
                for figure in (score(episodes), share([self.does_as_told(episode) for episode in episodes]))
            ),
            share(
                [
                    parse_tip_actions(own[e.task.id][0].text) == extract_purchase_path(taken(e))
                    for e in alone
                    if e.task.id in own
                ]
            ),
            score(after),
        ]

    def does_as_told(self, episode: Trajectory) -> bool:
        """Whether an episode goes the way of its right tip."""
        return actions(episode) == self.right[episode.task.id].way


def actions(episode: Trajectory) -> tuple[str, ...]:
    """All actions of an episode, without blanks inside their brackets."""
    return tuple(unspace_brackets(step.action) for step in episode.steps)


def taken(episode: Trajectory) -> list[str]:
    """The actions that the shop took."""
    return [action for action, refused in zip(actions(episode), refusals(episode), strict=True) if not refused]


def score(episodes: Sequence[Trajectory]) -> str:
    """Mean score."""
    return f"{fmean(episode.score for episode in episodes):.2f}"


def buyers(config: Config) -> list[tuple[str, str, str, str]]:
    """For each scripted buyer, the number of its episodes that may be shown, their mean score, and the full ones."""
    script: WebShopDemonstrator = load_demonstrator("webshop", config.rollout.style)(config, len, 7)
    rows = []
    for manner in ("good", "hasty", "wandering"):
        shown = [attempt for task in script.tasks[::5] if (attempt := script.play_buyer(task, manner))]
        episodes = [attempt.trajectory for attempt in shown]
        rows.append((manner, str(len(shown)), score(episodes), share([episode.success for episode in episodes])))
    return rows


def main(path: str, settings: str = SETTINGS, num: str = "32") -> None:
    """Print the table."""
    config = load_config(Path(settings), ["--model.path", path])
    if path == "buyers":
        print_table(("buyer", "episodes", "score", "full score"), buyers(config))
        return
    examined = Examined(build_model_policy(config), config, int(num))
    print_table(("", ""), zip(LABELS, asyncio.run(examined.column()), strict=True))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:4] or ["runs/webshop-start"])
    except TrailnotesError as fault:
        sys.exit(f"webshop_start.py: {fault}")
