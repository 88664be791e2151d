"""What a start model can do in the game coin of TextWorldExpress, in houses that it has not been shown.

    python examples/coin_start.py runs/textworld-express-start
    python examples/coin_start.py runs/textworld-express-start textworld-express/small 100
    python examples/coin_start.py searchers

The second path is of the settings, which give the wording and the games; the number is of the houses, those of the
validation split. Training on tips needs all that the table shows: actions that the game takes, right tips followed,
rooms that tips call empty left alone, and what was seen written down. The right tips are those of a scripted search of
a hundred steps, the others of scripted searches that failed. The last line is what the scripts themselves do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from examination import Examination, print_table, share

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import load_tasks, panel
from trailnotes.errors import TrailnotesError
from trailnotes.policies.base import Policy
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.types import Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import get_actions
from trailnotes_worlds.demonstrations.coin import CoinDemonstrator, format_search_note, parse_empty_rooms

SETTINGS = "textworld-express/small"
LABELS = (
    "houses",
    "actions that the game takes",
    "coins found without tips",
    "coins found with the right tip",
    "goes the way that it tells",
    "coins found with the right tip and those of failures",
    "coins found with tips of failures",
    "writes what a good writer would, after a success",
    "writes what a good writer would, after a failure",
    "coins found with its own tip",
)


class Examined(Examination):
    """A policy, and houses whose coins a searcher has found.

    Args:
        policy: acts and writes.
        config: of the wording, the memory and the games.
        num: of the houses; those are left out whose coin is too far away.
    """

    def __init__(self, policy: Policy, config: Config, num: int) -> None:
        super().__init__(policy, config)
        self.script = CoinDemonstrator(config, len, 0)
        told = ((task, self.script.play_with_tip(task)) for task in panel(load_tasks(config, "validation"), num))
        self.right = {task.id: found for task, found in told if found}
        self.failed = {
            name: list(self.script.build_failed_search_tips(found.task)) for name, (found, _) in self.right.items()
        }
        self.script.env.close()

    @property
    def tasks(self) -> list[Task]:
        """The houses."""
        return [found.task for found, _ in self.right.values()]

    def told(self, *, right: bool, failures: bool) -> dict[str, list[Tip]]:
        """The right tip of each house, those of failures, or both."""
        return {
            name: [*(tips[:1] if right else ()), *(self.failed[name] if failures else ())]
            for name, (_, tips) in self.right.items()
        }

    async def column(self) -> list[str]:
        """The figures, in the order of `LABELS`."""
        alone = await self.play()
        right = await self.play(self.told(right=True, failures=False))
        both = await self.play(self.told(right=True, failures=True))
        failures = await self.play(self.told(right=False, failures=True))
        own = await self.written(alone)
        after = await self.play(own)
        told = [(e.success, [tip.text for tip in own.get(e.task.id, ())] == [format_search_note(e)]) for e in alone]
        return [
            str(len(alone)),
            share([action in offered for episode in alone for action, offered in said(episode)]),
            found(alone),
            found(right),
            share([get_actions(episode) == get_actions(self.right[episode.task.id][0]) for episode in right]),
            found(both),
            found(failures),
            *(share([as_it_was for success, as_it_was in told if success is wanted]) for wanted in (True, False)),
            found(after),
        ]


def said(episode: Trajectory) -> list[tuple[str, Sequence[str]]]:
    """Each action, with those that were admissible."""
    return [(step.action, step.observation.actions or ()) for step in episode.steps]


def found(episodes: Sequence[Trajectory]) -> str:
    """Share of the episodes that took the coin."""
    return share([episode.success for episode in episodes])


def searchers(config: Config) -> list[tuple[str, str, str]]:
    """For each script, the coins that it finds, and those found when a search follows that knows the empty rooms."""
    script, rows = CoinDemonstrator(config, len, 7), []
    for manner in ("search", "wander"):
        first = [script.play(task, manner) for task in panel(script.coins, 200)]
        empty = {episode.task.id: parse_empty_rooms([script.build_tip(episode, episode.score)]) for episode in first}
        again = [e if e.success else script.play(e.task, "search", empty[e.task.id]) for e in first]
        rows.append((manner, found(first), found(again)))
    script.env.close()
    return rows


def main(path: str, settings: str = SETTINGS, num: str = "64") -> None:
    """Print the table."""
    config = load_config(Path(settings), ["--model.path", path])
    if path == "searchers":
        print_table(("script", "coins found", "and after a failure"), searchers(config))
        return
    examined = Examined(build_model_policy(config), config, int(num))
    print_table(("", ""), zip(LABELS, asyncio.run(examined.column()), strict=True))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:4] or ["runs/textworld-express-start"])
    except TrailnotesError as fault:
        sys.exit(f"coin_start.py: {fault}")
