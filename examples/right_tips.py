"""How many of its tips are right, checkpoint by checkpoint of a run on Waymarks.

    python examples/right_tips.py RUN

First of tips about scripted episodes under fresh rules that no panel has: one that read the archive must be followed by
the rule, and one that guessed wrong by the empty tip. Then of the tips that the run itself wrote since the checkpoint
before. Set `train.keep_last` high enough to keep the checkpoints.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_tasks
from trailnotes.envs.waymarks import spec as rules
from trailnotes.envs.waymarks.env import parse_spec
from trailnotes.memory import open_memory
from trailnotes.memory.tips import clean_tip
from trailnotes.policies.base import Policy
from trailnotes.rollout.tips import write_tips
from trailnotes.runs.directory import load_run_config
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.types import TrajectoryGroup
from trailnotes.warmstart.demonstrations.waymarks import NOTHING_FOUND, WaymarksDemonstrator, format_rule_note

GAMES = 100  # read, and as many guessed
KINDS = ("right", "other rule", "empty", "neither")


def kind_of(spec: rules.GameSpec, text: str) -> str:
    """What a tip about a game says: one of `KINDS`."""
    text = clean_tip(text)
    if text == format_rule_note(spec.family, spec.rule):
        return "right"
    if text == NOTHING_FOUND:
        return "empty"
    words = [word for word in text.partition(" : ")[2].split() if word not in rules.BOXES]
    fits = len(words) == spec.size and set(words) <= {*rules.DIRECTIONS, *rules.GEMS}
    return "other rule" if fits else "neither"


async def about(policy: Policy, config: Config, *, reads: bool) -> Counter[str]:
    """Tips about scripted episodes that read the archive, or that guessed wrong."""
    script = WaymarksDemonstrator(config, policy.count_tokens, seed=0)
    specs, groups = [], []
    while len(specs) < GAMES:
        spec = script.draw_spec()
        guess = rules.make_spec(spec.kind, spec.family, script.draw_rule(spec.kind, spec.family, spec.size), 0)
        actions = rules.archive_actions(spec) if reads else rules.gold_actions(guess)
        trajectory, _ = script.play(spec, (), actions)
        if not trajectory.success:
            specs.append(spec)
            groups.append(TrajectoryGroup(trajectory.task, (trajectory,)))
    texts = [tip.completion.text for tip in await write_tips(policy, groups, config, seed=0, step=0)]
    return Counter(kind_of(spec, text) for spec, text in zip(specs, texts, strict=True))


def in_memory(path: Path, config: Config) -> Counter[str]:
    """How often the run wrote tips of each kind, up to the checkpoint of this memory."""
    specs = {task.id: parse_spec(task) for task in load_tasks(config, config.train.split)}
    with open_memory(None, config.memory) as memory:  # a checkpoint's file that is opened itself changes
        memory.restore(path)
        tips = memory.store.load_tips()
    return sum((Counter({kind_of(specs[tip.namespace], tip.text): tip.support}) for tip in tips), Counter[str]())


def main(run: str) -> None:
    """Print the table."""
    config = load_run_config(Path(run))
    before: Counter[str] = Counter()
    print("| iteration | read: right | guessed: empty | written: " + " | ".join(KINDS) + " |")
    print("|---" + "|---:" * (2 + len(KINDS)) + "|")
    for checkpoint in sorted((Path(run) / "checkpoints").glob("step-*")):
        path = {"model": config.model.model_copy(update={"path": str(checkpoint / "model")})}
        policy = build_model_policy(config.model_copy(update=path))
        read, guessed = (asyncio.run(about(policy, config, reads=reads)) for reads in (True, False))
        until = in_memory(checkpoint / "memory.db", config)
        written = until - before
        cells = [read["right"] / GAMES, guessed["empty"] / GAMES]
        cells += [written[kind] / max(1, written.total()) for kind in KINDS]
        print(f"| {int(checkpoint.name[5:])} | {' | '.join(f'{cell:.2f}' for cell in cells)} |", flush=True)
        before = until


if __name__ == "__main__":
    main(sys.argv[1])
