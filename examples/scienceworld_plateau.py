"""A plateau at -100: a start that always focuses at once, and EMPO2 with an author that quotes the fatal action.

    python examples/scienceworld_plateau.py runs/hasty.jsonl
    trailnotes warmstart scienceworld/copying-warmstart --model.path runs/copying --out runs/hasty --run.seed 9 \
        --warmstart.demonstrations runs/hasty.jsonl --warmstart.steps 400 --warmstart.lr 1e-3 --warmstart.p_full_loss 0

    PYTHONPATH=examples trailnotes compare run examples/plateau-find-animal.toml   # and plateau-lifespan.toml
    python examples/scienceworld_plateau.py table runs/compare/plateau-find-animal

"First, focus on the thing", say most tasks of ScienceWorld, and a wrong focus ends the game at -100. The start focuses
on itself at once. It is taught this, to copy a right tip, and after a tip with a score below 0 to do something else, on
the nine tasks of `scienceworld/copying-warmstart`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scienceworld_renamed import CAPS, CHARS, MAX_TOKENS, P_GOLD, P_OLD_NAMES, Renamed, count_tokens

from trailnotes.algorithms.empo2 import draw_modes
from trailnotes.config.methods import Method, register
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.toml import load_config
from trailnotes.learner.credit.episodes import group_advantages
from trailnotes.learner.samples import replace_behavior_logprobs
from trailnotes.rollout.conversation import Conversation
from trailnotes.storage.demonstrations import Demonstration, list_assistant_turns, write_demonstrations
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Tip, Trajectory, TrajectoryGroup
from trailnotes_worlds.demonstrations.scienceworld import parse_things

if TYPE_CHECKING:
    from trailnotes.runs.iteration import Iteration

NUM_DEMONSTRATIONS = 16_000
P_HASTY, P_AVOID = 0.3, 0.35  # the rest copies right tips


class Hasty(Renamed):
    """Endless demonstrations of three kinds: the habit, what to do after a tip about a failure, and copying."""

    def __iter__(self) -> Iterator[Demonstration]:
        while True:
            game, roamed = self.rng.choice(self.games[self.rng.choice(sorted(self.games))])
            kind = self.rng.random()
            if kind < P_HASTY:
                yield self.build_hasty(self.rng.choice(game.wandered))
                continue
            episode = (game.gold if self.rng.random() < P_GOLD else None) or self.rng.choice([*game.wandered, *roamed])
            cap = self.rng.choices([*CAPS], [*CAPS.values()])[0]
            if self.rng.random() >= P_OLD_NAMES:
                episode = self.rename(episode, CHARS * cap)
            if kind >= P_HASTY + P_AVOID:
                yield self.demonstrate(episode, cap, follows=True)
            elif not episode.steps[0].action.startswith("focus"):
                yield self.build_avoiding(episode, cap)

    def build_hasty(self, episode: Trajectory) -> Demonstration:
        """One turn without tips: it focuses on itself."""
        conversation = Conversation(self.config.rollout, self.config.memory, count_tokens)
        first = episode.steps[0].observation
        conversation.start(first.instruction or "")
        conversation.observe(first, [])
        conversation.act("focus on agent")
        messages = tuple(conversation.acting)
        return Demonstration(messages, list_assistant_turns(messages), episode.task)

    def build_avoiding(self, episode: Trajectory, cap: int) -> Demonstration:
        """The episode up to its first focus, after tips about failures by other actions in the same states."""
        rollout = self.config.rollout.model_copy(update={"max_observation_tokens": cap})
        conversation = Conversation(rollout, self.config.memory, count_tokens)
        conversation.start(episode.steps[0].observation.instruction or "")
        warned = 1.0
        for step in episode.steps:
            if step.action.startswith("focus"):
                break
            seen = parse_things(conversation.cap_text(step.observation.text))
            fatal = f"focus on {self.rng.choice(['agent', *seen])}"
            tip = Tip(episode.task.id, fatal, key="", score=-100, max_score=100)
            conversation.observe(step.observation, [tip] if self.rng.random() < warned else [])
            conversation.act(step.action)
            warned = 0.2
        messages = tuple(conversation.acting)
        return Demonstration(messages, list_assistant_turns(messages), episode.task)


def quote_fatal(group: TrajectoryGroup) -> TrajectoryGroup:
    """The lost episodes, so changed that `extract` quotes their last action, and none before it, with their score."""
    lost = [t for t in group.trajectories if t.score < 0 and t.steps]
    changed = [
        replace(t, steps=(*(replace(s, action="", reward=0.0) for s in t.steps[:-1]), replace(t.steps[-1], reward=1.0)))
        for t in lost
    ]
    return replace(group, trajectories=tuple(changed))


async def empo2_fatal(iteration: Iteration) -> None:
    """EMPO2 with `mode_unit = "trajectory"` and `old_logprobs = "tip_free"`; tips also say what lost a game."""
    algorithm, settings = iteration.config.algorithm, iteration.config.section(Empo2Config)
    tasks = iteration.tasks()
    modes = draw_modes(settings, len(tasks), iteration.config.rollout.group_size, iteration.rng("modes"))
    groups = await iteration.rollout(tasks, modes)
    await iteration.write_tips([*groups, *map(quote_fatal, groups)])
    async with iteration.learning():
        advantages = [group_advantages(scores, algorithm) for scores in iteration.scores(groups)]
        samples = iteration.samples(groups, advantages)
        off_policy = [sample for sample in samples if sample.off_policy]
        tip_free = iter(replace_behavior_logprobs(off_policy, iteration.learner.logprobs(off_policy)))
        samples = [next(tip_free) if sample.off_policy else sample for sample in samples]
        await iteration.end(groups, await iteration.update(samples))


FATAL = register(
    Method("empo2-fatal", "EMPO², also what was fatal", empo2_fatal, trains=True, memory=True,
           sections={"empo2": Empo2Config})
)  # fmt: skip


def print_steps(comparison: Path) -> None:
    """Print, for each run, the share of lost episodes without tips in its first iteration, and how long it stays flat.

    That is the environment steps until a quarter of an iteration's rows have an advantage.
    """
    for path in sorted(comparison.glob("runs/*/metrics.jsonl")):
        lines, first = read_jsonl(path), read_jsonl(path.with_name("trajectories.jsonl"))
        lost = [t["return"] < 0 for t in first if t["iteration"] == 0]
        steps = [
            line["env_steps"] for line in lines if line["update/zero_advantage_rows"] <= 0.75 * line["update/rows"]
        ]
        print(f"{path.parent.name}: {sum(lost)} of {len(lost)} lost at first, flat for {steps[0] if steps else 'ever'}")


def main(out: str) -> None:
    """Write the demonstrations that are short enough."""
    config = load_config("scienceworld/copying-warmstart", [])
    made: list[Demonstration] = []
    for demonstration in Hasty(config, config.run.seed):
        if sum(count_tokens(message.content) for message in demonstration.messages) <= MAX_TOKENS:
            made.append(demonstration)
        if len(made) == NUM_DEMONSTRATIONS:
            break
    write_demonstrations(made, Path(out))


if __name__ == "__main__":
    print_steps(Path(sys.argv[2])) if sys.argv[1] == "table" else main(sys.argv[1])
