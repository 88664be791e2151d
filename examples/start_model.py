"""What a start model can do on Waymarks, under fresh rules that no panel has.

    python examples/start_model.py models/waymarks-start
    python examples/start_model.py runs/smollm2-start configs/smollm2/waymarks.toml 16

The second path is of the settings, which give the wording and the sizes; the number is of the games of each size.
Training on tips needs all that the table shows: without tips some episodes must read the archive, what was read must be
written down so that it can be used, and a right tip must be followed, whatever stands beside it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import tasks_of
from trailnotes.envs.waymarks import env as waymarks
from trailnotes.envs.waymarks import spec as rules
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.memory import open_memory
from trailnotes.memory.tips import clean_tip
from trailnotes.policies.base import Policy
from trailnotes.rollout import run_groups, write_tips
from trailnotes.runs.players import model_policy
from trailnotes.types import Mode, Task, Tip, Trajectory, TrajectoryGroup
from trailnotes.warmstart.demonstrations import demonstrator_of
from trailnotes.warmstart.demonstrations.waymarks import WaymarksDemonstrator
from trailnotes.warmstart.demonstrations.waymarks_words import told_rule

Game = rules.GameSpec
LABELS = (
    "answers with a command of the game",
    "reads the archive, without tips",
    "wins without tips",
    "wins with the right tip",
    "... beside one of a failure",
    "... beside one of another family",
    "tells the rule that it read",
    "invents nothing after a failure",
    "wins with what it wrote after reading",
)


class Examined:
    """A policy, and games of one size of any family under fresh rules.

    Args:
        policy: acts and writes.
        config: of the wording and the memory.
        kind: of the games.
        size: of the games.
        num: of the games.
    """

    def __init__(self, policy: Policy, config: Config, kind: rules.Kind, size: int, num: int) -> None:
        self.policy, self.config, self.kind, self.size = policy, config, kind, size
        self.script: WaymarksDemonstrator = demonstrator_of(config.env.name, config.rollout.style)(config, len, 0)
        rng = random.Random(size)
        self.tasks = [self.draw(rng, f"fresh-{i}") for i in range(num)]

    def draw(self, rng: random.Random, name: str, but: str = "") -> Task:
        """A game of any family but one."""
        family = rng.choice([name for name in rules.FAMILY_NAMES[self.kind] if name != but])
        rule = self.script.draw_rule(self.kind, family, self.size)
        spec = rules.make_spec(self.kind, family, rule, rng.getrandbits(40))
        return waymarks.task_of(spec, f"{self.kind}/{family}/{name}")

    def noted(self, spec: Game, actions: Sequence[str]) -> str:
        """What the script writes after such an episode."""
        return self.script.note_after(spec, self.script.play(spec, (), tuple(actions))[0])

    def right(self, spec: Game) -> str:
        """The tip of who has read the archive."""
        return self.noted(spec, rules.archive_actions(spec))

    def failure(self, spec: Game) -> str:
        """The tip of who has guessed wrong."""
        while (guess := self.script.draw_rule(self.kind, spec.family, self.size)) == spec.rule:
            pass
        return self.noted(spec, rules.gold_actions(rules.make_spec(self.kind, spec.family, guess, 0)))

    def elsewhere(self, spec: Game) -> str:
        """The tip of who has read the archive of another family."""
        return self.right(waymarks.spec_of(self.draw(random.Random(spec.seed), "other", but=spec.family)))

    async def play(self, *tips: Callable[[Game], str], tasks: Sequence[Task] = ()) -> list[Trajectory]:
        """One episode a game, with these tips or none."""
        tasks = tasks or self.tasks
        with open_memory(None, self.config.memory) as memory, EnvPool(self.config.env) as pool:
            for task in tasks:
                texts = [tip(waymarks.spec_of(task)) for tip in tips]
                memory.add([Tip(task.id, text, key="", score=0.0) for text in texts])
            mode: Mode = "on_policy_tips" if tips else "plain"
            groups = await run_groups(self.policy, pool, tasks, [[mode]] * len(tasks), memory, self.config, seed=0)
        return [trajectory for group in groups for trajectory in group.trajectories]

    async def written(self, episodes: Sequence[Trajectory]) -> dict[int, str]:
        """What the policy writes about each of these episodes, by the seed of its game."""
        groups = [TrajectoryGroup(episode.task, (episode,)) for episode in episodes]
        texts: dict[int, str] = {}
        await write_tips(
            self.policy, groups, self.config, seed=0, step=0,
            on_tip=lambda tip: texts.update({tip.trajectory.task.seed: clean_tip(tip.completion.text)}),
        )  # fmt: skip
        return texts

    def tells(self, spec: Game, text: str) -> bool:
        """Whether a tip says which family it is of, and its rule."""
        return spec.family in text.lower() and told_rule(spec.kind, text) == spec.rule

    async def column(self) -> list[str]:
        """The figures, in the order of `LABELS`."""
        alone = await self.play()
        read = [episode for episode in alone if episode.steps[0].action == rules.ARCHIVE_DIRECTION]
        failed = [episode for episode in alone if episode not in read and not episode.success]
        told = [await self.play(*tips) for tips in ((self.right,), (self.failure, self.right))]
        told.append(await self.play(self.right, self.elsewhere))
        notes = await self.written([*read, *failed])
        own = [episode.task for episode in read if notes.get(episode.task.seed)]
        after = await self.play(lambda spec: notes[spec.seed], tasks=own) if own else []
        return [
            share([understood(text) for episode in alone for text in answers(episode)]),
            share([episode in read for episode in alone]),
            *(share([episode.success for episode in episodes]) for episodes in (alone, *told)),
            share([self.tells(waymarks.spec_of(e.task), notes.get(e.task.seed, "")) for e in read]),
            share([invents_nothing(e, notes.get(e.task.seed, "")) for e in failed]),
            share([episode.success for episode in after]),
        ]


def invents_nothing(episode: Trajectory, text: str) -> bool:
    """Whether a tip after a failure names no moves or gems, or those that were tried."""
    tried = tuple(word for step in episode.steps for word in step.action.split()[-1:])
    return told_rule(waymarks.spec_of(episode.task).kind, text) in {(), tried}


def answers(episode: Trajectory) -> list[str]:
    """What the game said to each action."""
    return [*(step.observation.text for step in episode.steps[1:]), episode.final_observation.text]


def understood(answer: str) -> bool:
    """Whether the game took the action for one of its commands."""
    return answer.strip() != rules.NOT_UNDERSTOOD


def share(hits: Sequence[bool]) -> str:
    """As a table shows it; "-" where nothing was tried."""
    return f"{sum(hits) / len(hits):.2f}" if hits else "-"


def main(path: str, settings: str = "configs/compare/textworld-base.toml", num: str = "64") -> None:
    """Print the table."""
    config = load_config(Path(settings), ["--model.path", path, "--env.name", "waymarks-simulator"])
    policy = model_policy(config)
    specs = map(waymarks.spec_of, tasks_of(config, "train"))
    sizes = sorted({(spec.kind, spec.size) for spec in specs}, reverse=True)
    cells = [asyncio.run(Examined(policy, config, kind, size, int(num)).column()) for kind, size in sizes]
    names = [f"{size} {'moves' if kind == 'route' else 'boxes'}" for kind, size in sizes]
    print("| | " + " | ".join(names) + " |\n|---" + "|---:" * len(names) + "|")
    for label, row in zip(LABELS, zip(*cells, strict=True), strict=True):
        print(f"| {label} | {' | '.join(row)} |")


if __name__ == "__main__":
    main(*sys.argv[1:4] or ["models/waymarks-start"])
