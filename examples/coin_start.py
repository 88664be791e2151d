"""What an initial model can do in the game coin of TextWorldExpress, in houses that it has not been shown.

    python examples/coin_start.py runs/textworld-express-start
    python examples/coin_start.py runs/textworld-express-start textworld-express/small 100
    python examples/coin_start.py scripts

The second argument is the config, which gives the wording and the games; the number is of houses of the validation
split. Training on tips needs all that the table shows: actions that the game takes, right tips followed,
rooms that tips call empty left alone, and what was seen written down. The right tips are those of a scripted search of
a hundred steps, the others of scripted searches that failed. The last command evaluates the scripts themselves.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from start_evaluation import StartEvaluation, format_share, print_table

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


class CoinEvaluation(StartEvaluation):
    """A policy, and houses whose coins a script has found.

    Args:
        policy: acts and writes.
        config: of the wording, the memory and the games.
        num: of the houses; those are left out whose coin is too far away.
    """

    def __init__(self, policy: Policy, config: Config, num: int) -> None:
        super().__init__(policy, config)
        self.script = CoinDemonstrator(config, len, 0)
        played = ((task, self.script.play_with_tip(task)) for task in panel(load_tasks(config, "validation"), num))
        self.solved = {task.id: solved for task, solved in played if solved}
        self.failure_tips = {
            name: list(self.script.build_failed_search_tips(gold.task)) for name, (gold, _) in self.solved.items()
        }
        self.script.env.close()

    @property
    def tasks(self) -> list[Task]:
        return [gold.task for gold, _ in self.solved.values()]

    def get_tips(self, *, right: bool, failures: bool) -> dict[str, list[Tip]]:
        """Return the right tip of each house, those of failures, or both."""
        return {
            name: [*(tips[:1] if right else ()), *(self.failure_tips[name] if failures else ())]
            for name, (_, tips) in self.solved.items()
        }

    async def compute_column(self) -> list[str]:
        """Compute the figures, in the order of `LABELS`."""
        plain = await self.play()
        right = await self.play(self.get_tips(right=True, failures=False))
        both = await self.play(self.get_tips(right=True, failures=True))
        failures = await self.play(self.get_tips(right=False, failures=True))
        own_tips = await self.write(plain)
        after = await self.play(own_tips)
        is_correct = [[tip.text for tip in own_tips.get(e.task.id, ())] == [format_search_note(e)] for e in plain]
        return [
            str(len(plain)),
            format_share([s.action in (s.observation.actions or ()) for episode in plain for s in episode.steps]),
            format_success(plain),
            format_success(right),
            format_share([get_actions(e) == get_actions(self.solved[e.task.id][0]) for e in right]),
            format_success(both),
            format_success(failures),
            *(
                format_share([correct for e, correct in zip(plain, is_correct, strict=True) if e.success is success])
                for success in (True, False)
            ),
            format_success(after),
        ]


def format_success(episodes: Sequence[Trajectory]) -> str:
    """Format the share of the episodes that took the coin."""
    return format_share([episode.success for episode in episodes])


def evaluate_scripts(config: Config) -> list[tuple[str, str, str]]:
    """Evaluate each script, alone and followed by a search that knows the empty rooms."""
    script, rows = CoinDemonstrator(config, len, 7), []
    for manner in ("search", "wander"):
        first = [script.play(task, manner) for task in panel(script.coins, 200)]
        empty = {episode.task.id: parse_empty_rooms([script.build_tip(episode, episode.score)]) for episode in first}
        again = [e if e.success else script.play(e.task, "search", empty[e.task.id]) for e in first]
        rows.append((manner, format_success(first), format_success(again)))
    script.env.close()
    return rows


def main(path: str, settings: str = SETTINGS, num: str = "64") -> None:
    """Print the table."""
    config = load_config(Path(settings), ["--model.path", path])
    if path == "scripts":
        print_table(("script", "coins found", "and after a failure"), evaluate_scripts(config))
        return
    evaluation = CoinEvaluation(build_model_policy(config), config, int(num))
    print_table(("", ""), zip(LABELS, asyncio.run(evaluation.compute_column()), strict=True))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:4] or ["runs/textworld-express-start"])
    except TrailnotesError as fault:
        sys.exit(f"coin_start.py: {fault}")
