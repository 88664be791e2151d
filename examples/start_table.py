"""What an initial model can do in a world before any reinforcement: act, follow a right tip, write one.

    python examples/start_table.py models/qwen2.5-coder-0.5b qwen/webshop 6
    python examples/start_table.py runs/webshop-start webshop/small 62 --train.split validation

The second argument is the config, which gives the wording, the number is of the tasks, and options follow as for any
command. A world needs actions that win its tasks: an environment with `solution(task)` has them, and WebShop and
WikiHow have scripts here. The right tip lists them. A score is the share of the full one. Training on tips needs all
that the table shows: actions that the world takes, right tips followed, what scored written down. The last two lines
are the author's: whether its tip about such a solved task names, in their order, the actions up to the last that
raised the score, and what its tips about its own episodes without tips are worth.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from statistics import fmean
from typing import Any

from start_evaluation import StartEvaluation, count_to_last_gain, format_share, get_answers, print_table

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs import make_env
from trailnotes.envs.tasks import load_tasks, panel
from trailnotes.errors import TrailnotesError
from trailnotes.policies.base import Policy
from trailnotes.rollout.tips import extract_tips
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.types import Observation, Step, Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations import load_demonstrator
from trailnotes.warmstart.demonstrations.episodes import get_actions, play_script, replay_actions
from trailnotes_worlds.demonstrations.wikihow import Reader

LABELS = (
    "tasks",
    "answers that are actions of the world",
    "score, and share solved, without tips",
    "with the right tip",
    "plays exactly the actions of the solution",
    "names what scored, of a solved task",
    "with its own tip",
)
REFUSALS = (  # beginnings of what worlds answer to what is no action of theirs
    "Nothing happens.", "that makes no sense.", "That's not a verb", "You can't see any such thing", "What do you want",
    "I didn't understand", "I only understood", "You can't go that way", "I beg your pardon", "You can only",
)  # fmt: skip


class SolvedTasksEvaluation(StartEvaluation):
    """A policy, and tasks with actions that win them.

    Args:
        policy: acts and writes.
        config: of the wording, the memory and the world.
        num: of the tasks.
    """

    def __init__(self, policy: Policy, config: Config, num: int) -> None:
        super().__init__(policy, config)
        solved = SOLVERS.get(config.env.name, solve)(policy, config, panel(load_tasks(config, config.train.split), num))
        self.solved = {gold.task.id: (gold, tip) for gold, tip in solved}

    @property
    def tasks(self) -> list[Task]:
        """The tasks that are won within `rollout.max_steps`."""
        return [gold.task for gold, _ in self.solved.values()]

    async def compute_column(self) -> list[str]:
        """Compute the figures, in the order of `LABELS`."""
        plain = await self.play()
        right = await self.play({name: [tip] for name, (_, tip) in self.solved.items()})
        gold = [episode for episode, _ in self.solved.values()]
        tips_about_gold, own_tips = await self.write(gold), await self.write(plain)
        after = await self.play(own_tips)
        return [
            str(len(plain)),
            format_share([is_action(*turn) for e in plain for turn in zip(e.steps, get_answers(e), strict=True)]),
            format_score(plain),
            format_score(right),
            format_share(
                [strip_marks(get_actions(e)) == strip_marks(get_actions(self.solved[e.task.id][0])) for e in right]
            ),
            format_share([names_actions(tips_about_gold.get(episode.task.id, ()), episode) for episode in gold]),
            format_score(after),
        ]


Solved = Iterator[tuple[Trajectory, Tip]]


def solve(policy: Policy, config: Config, tasks: Sequence[Task]) -> Solved:
    """Play the solutions that the environment knows; a right tip quotes what scored, as `author = "extract"` does."""
    env: Any = make_env(config.env.name, **config.env.options)
    with closing(env):
        for task in tasks:
            actions = env.solution(task)
            gold = play_script(env, task, partial(replay_actions, actions))
            if gold.success and len(actions) <= config.rollout.max_steps:
                text = extract_tips(policy, [gold], config)[0].text
                yield gold, Tip(task.id, text, key="", score=gold.score, max_score=gold.max_score)


def solve_webshop(_: Policy, config: Config, tasks: Sequence[Task]) -> Solved:
    """Play the script that knows the goal's product."""
    script = load_demonstrator("webshop", config.rollout.style)(config, len, 0)
    script.forbidden = frozenset()  # no model is taught on these products
    for attempt in filter(None, map(script.play_perfectly, tasks)):
        yield attempt.trajectory, script.build_tip(attempt, attempt.worth)


def solve_wikihow(_: Policy, config: Config, tasks: Sequence[Task]) -> Solved:
    """Play the script that looks for what the instruction names."""
    script = load_demonstrator("wikihow", config.rollout.style)(config, len, 0)
    env: Any = make_env("wikihow", **config.env.options | {"max_steps": config.rollout.max_steps})
    for gold in (play_script(env, task, Reader(env, script.rng).straight) for task in tasks):
        if gold.success:
            yield gold, script.build_tip(gold)


SOLVERS = {"webshop": solve_webshop, "wikihow": solve_wikihow}


def is_action(step: Step, answer: Observation) -> bool:
    """Tell whether the world took an answer for one of its actions."""
    return bool(step.action) and not (answer.info.get("action_refused") or answer.text.startswith(REFUSALS))


def strip_marks(texts: Sequence[str]) -> str:
    """Return the words of texts, each after a blank, without brackets and quotation marks."""
    return " " + " ".join(" ".join(re.findall(r"\w+", text.lower())) for text in texts)


def names_actions(tips: Sequence[Tip], episode: Trajectory) -> bool:
    """Tell whether tips name, in their order, the actions of an episode up to the last that raised the score."""
    last = count_to_last_gain(episode)
    rest = strip_marks([tip.text for tip in tips]) + " "
    for action in get_actions(episode)[:last]:
        _, match, rest = rest.partition(strip_marks([action]) + " ")
        if not match:
            return False
        rest = f" {rest}"
    return last > 0


def format_score(episodes: Sequence[Trajectory]) -> str:
    """Format the mean share of the full score, and the share of the episodes that succeeded."""
    if not episodes:
        return "-"
    mean = fmean(max(0.0, episode.score) / episode.max_score for episode in episodes)
    return f"{mean:.2f}, {format_share([episode.success for episode in episodes])}"


def main(path: str, settings: str, num: str = "6", *options: str) -> None:
    """Print the table."""
    config = load_config(settings, ["--model.path", path, "--train.eval_every", "0", *options])
    with closing(SolvedTasksEvaluation(build_model_policy(config), config, int(num))) as evaluation:
        print_table(("", settings), zip(LABELS, asyncio.run(evaluation.compute_column()), strict=True))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except TrailnotesError as fault:
        sys.exit(f"start_table.py: {fault}")
