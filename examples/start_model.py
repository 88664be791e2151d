"""What an initial model can do on Waymarks, under fresh rules that no panel has.

    python examples/start_model.py builtin:waymarks-start
    python examples/start_model.py runs/smollm2-start smollm2/waymarks 16

The second argument is the config, which gives the wording and the sizes; the number is of games of each size.
Training on tips needs all that the table shows: without tips some episodes must read the archive, what was read must be
written down so that it can be used, and a right tip must be followed, whatever stands beside it.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from start_evaluation import StartEvaluation, format_share, get_answers, print_table

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import load_tasks
from trailnotes.envs.waymarks import env as waymarks
from trailnotes.envs.waymarks import spec as rules
from trailnotes.policies.base import Policy
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.types import Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations import load_demonstrator
from trailnotes.warmstart.demonstrations.waymarks import WaymarksDemonstrator

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


class WaymarksEvaluation(StartEvaluation):
    """A policy, and games of one size of any family under fresh rules.

    Args:
        policy: acts and writes.
        config: of the wording and the memory.
        kind: of the games.
        size: of the games.
        num: of the games.
    """

    def __init__(self, policy: Policy, config: Config, kind: rules.Kind, size: int, num: int) -> None:
        super().__init__(policy, config)
        self.kind, self.size = kind, size
        self.script: WaymarksDemonstrator = load_demonstrator(config.env.name, config.rollout.style)(config, len, 0)
        rng = random.Random(size)
        self.games = [self.draw(rng, f"fresh-{i}") for i in range(num)]

    @property
    def tasks(self) -> list[Task]:
        return self.games

    def draw(self, rng: random.Random, name: str, but: str = "") -> Task:
        """Draw a game of any family but one."""
        family = rng.choice([name for name in rules.FAMILY_NAMES[self.kind] if name != but])
        rule = self.script.draw_rule(self.kind, family, self.size)
        spec = rules.make_spec(self.kind, family, rule, rng.getrandbits(40))
        return waymarks.make_task(spec, f"{self.kind}/{family}/{name}")

    def write_note(self, spec: Game, actions: Sequence[str]) -> str:
        """Return what the script writes after an episode with these actions."""
        return self.script.write_correct_note(spec, self.script.play(spec, (), tuple(actions))[0])

    def write_right_tip(self, spec: Game) -> str:
        """Return the tip after the archive was read."""
        return self.write_note(spec, rules.archive_actions(spec))

    def write_failure_tip(self, spec: Game) -> str:
        """Return the tip after a wrong guess."""
        while (guess := self.script.draw_rule(self.kind, spec.family, self.size)) == spec.rule:
            pass
        return self.write_note(spec, rules.gold_actions(rules.make_spec(self.kind, spec.family, guess, 0)))

    def write_other_tip(self, spec: Game) -> str:
        """Return the right tip of another family."""
        return self.write_right_tip(waymarks.parse_spec(self.draw(random.Random(spec.seed), "other", but=spec.family)))

    def build_tips(self, *writers: Callable[[Game], str]) -> dict[str, list[Tip]]:
        """Build the tips of each game, the last the newest."""
        return {
            task.id: [Tip(task.id, write(waymarks.parse_spec(task)), key="", score=0.0) for write in writers]
            for task in self.tasks
        }

    async def compute_column(self) -> list[str]:
        """Compute the figures, in the order of `LABELS`."""
        plain = await self.play()
        read = [episode for episode in plain if episode.steps[0].action == rules.ARCHIVE_DIRECTION]
        failed = [episode for episode in plain if episode not in read and not episode.success]
        right, failure, other = self.write_right_tip, self.write_failure_tip, self.write_other_tip
        with_tips = [
            await self.play(self.build_tips(*writers)) for writers in ((right,), (failure, right), (right, other))
        ]
        own_tips = await self.write([*read, *failed])
        texts = {name: tips[0].text for name, tips in own_tips.items()}
        usable = [episode.task for episode in read if episode.task.id in own_tips]
        after = await self.play({task.id: own_tips[task.id] for task in usable}, usable) if usable else []
        return [
            format_share([answer.text.strip() != rules.NOT_UNDERSTOOD for e in plain for answer in get_answers(e)]),
            format_share([episode in read for episode in plain]),
            *(format_share([episode.success for episode in episodes]) for episodes in (plain, *with_tips)),
            format_share([names_rule(waymarks.parse_spec(e.task), texts.get(e.task.id, "")) for e in read]),
            format_share([invents_nothing(e, texts.get(e.task.id, "")) for e in failed]),
            format_share([episode.success for episode in after]),
        ]


def names_rule(spec: Game, text: str) -> bool:
    """Tell whether a tip names its family and the rule."""
    return spec.family in text.lower() and parse_rule(spec.kind, text) == spec.rule


def invents_nothing(episode: Trajectory, text: str) -> bool:
    """Tell whether a tip after a failure names no moves or gems, or those that were tried."""
    tried = tuple(word for step in episode.steps for word in step.action.split()[-1:])
    return parse_rule(waymarks.parse_spec(episode.task).kind, text) in {(), tried}


_THINGS = re.compile(rf"\b({'|'.join((*rules.BOXES, *rules.GEMS))})\b")
_MOVE = f"(?:{'|'.join(rules.DIRECTIONS)})"
_MOVES = re.compile(rf"\b{_MOVE}\b(?:(?:,|\s|and\b|then\b)+{_MOVE}\b)*")


def parse_rule(kind: rules.Kind, text: str) -> rules.Rule:
    """Parse the directions, or the gems by box, that a tip names in one piece; () where it names none.

    It also parses wordings from outside this file: any list of directions, or of boxes beside gems.
    """
    if kind == "route":
        longest: list[str] = max((re.findall(_MOVE, run) for run in _MOVES.findall(text.lower())), key=len, default=[])
        return tuple(longest)
    things = _THINGS.findall(text.lower())
    gems: dict[str, str] = {}
    while len(things) > 1:
        box, gem = sorted(things[:2], key=rules.GEMS.__contains__)
        if box in rules.BOXES and gem in rules.GEMS:
            gems.setdefault(box, gem)
            things = things[1:]
        things = things[1:]
    return tuple(gems[box] for box in rules.BOXES if box in gems)


def main(path: str, settings: str = "compare/textworld-base", num: str = "64") -> None:
    """Print the table."""
    config = load_config(Path(settings), ["--model.path", path, "--env.name", "waymarks-simulator"])
    policy = build_model_policy(config)
    specs = map(waymarks.parse_spec, load_tasks(config, "train"))
    sizes = sorted({(spec.kind, spec.size) for spec in specs}, reverse=True)
    columns = [
        asyncio.run(WaymarksEvaluation(policy, config, kind, size, int(num)).compute_column()) for kind, size in sizes
    ]
    names = [f"{size} {'moves' if kind == 'route' else 'boxes'}" for kind, size in sizes]
    print_table(("", *names), zip(LABELS, *columns, strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:4] or ["builtin:waymarks-start"])
