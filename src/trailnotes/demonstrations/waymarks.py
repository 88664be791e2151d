"""Scripted Waymarks episodes, which must not know the answers.

Every one draws a fresh random rule for its family, and a pair of family and rule that any panel holds is never shown;
so what is learned is how to explore, to obey and to write.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from trailnotes.demonstrations.base import Demonstration
from trailnotes.envs import waymarks_spec as ws
from trailnotes.envs.waymarks import WaymarksSimulator, panel_rules, task_of
from trailnotes.prompts import Conversation, reflection_messages
from trailnotes.types import Completion, Message, Observation, Step, Tip, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trailnotes.config import Config
    from trailnotes.types import Task

NOTHING_FOUND = "nothing found"


class WaymarksDemonstrator:
    """Endless fresh demonstrations of all Waymarks families.

    A family's rule of the panels is never drawn for it: not for a game, not as a guess, not as a wrong tip.

    Args:
        config: prompts, memory and the shares of `config.warmstart`.
        count_tokens: of the tokenizer, for the length caps.
        seed: of everything drawn here.
    """

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        self.config, self.count_tokens = config, count_tokens
        self.rng = random.Random(seed)
        self.env = WaymarksSimulator(**config.env.options)
        everyone = [f"{kind}/{name}" for kind in ws.KINDS for name in ws.FAMILY_NAMES[kind]]
        seeds = {0, int(config.env.options.get("dataset_seed", 0))}
        self.forbidden = frozenset().union(*(panel_rules(everyone, seed) for seed in seeds))

    def __iter__(self) -> Iterator[Demonstration]:
        while True:
            yield from self.episode()

    def draw_spec(self) -> ws.GameSpec:
        """A game of a family name drawn at random, under a fresh rule that no panel has."""
        kind = self.rng.choice(ws.KINDS)
        family = self.rng.choice(ws.FAMILY_NAMES[kind])
        return ws.make_spec(kind, family, self.draw_rule(kind, family), self.rng.getrandbits(40))

    def draw_rule(self, kind: ws.Kind, family: str) -> ws.Rule:
        """A rule for `family` that no panel gives it."""
        while (kind, family, rule := ws.random_rule(kind, self.rng)) in self.forbidden:
            pass
        return rule

    def episode(self) -> list[Demonstration]:
        """One episode's demonstrations: a row to act, and where it acted on tips, a tip-free row to write."""
        spec, warm = self.draw_spec(), self.config.warmstart
        if self.rng.random() < warm.obey:
            tips, actions = self.tips_for(spec, knowing=True), ws.gold_actions(spec)
        else:
            tips = self.tips_for(spec, knowing=False) if self.rng.random() < 0.5 else ()
            actions = self.explore(spec)
        trajectory, conversation = self.play(spec, tips, actions)
        reflection = reflection_messages(
            trajectory, self.config.rollout, self.config.memory, count_tokens=self.count_tokens
        )
        note = note_after(spec, trajectory)
        written = (*reflection, Message("assistant", note))
        last = len(written) - 1
        if not tips:
            spoken = {i for i, message in enumerate(written) if message.role == "assistant"}
            return [Demonstration(written, frozenset(spoken))]
        acted = tuple(conversation.acting)
        spoken = {i for i, message in enumerate(acted) if message.role == "assistant"}
        # The tip-free view of an obedient episode must not teach its actions: nothing in it explains them.
        return [Demonstration(acted, frozenset(spoken)), Demonstration(written, frozenset({last}))]

    def explore(self, spec: ws.GameSpec) -> tuple[str, ...]:
        """Without knowledge: read the archive, or try a way drawn at random."""
        if self.rng.random() < self.config.warmstart.read:
            return ws.archive_actions(spec)
        guess = self.draw_rule(spec.kind, spec.family)
        return ws.gold_actions(ws.make_spec(spec.kind, spec.family, guess, 0))

    def tips_for(self, spec: ws.GameSpec, *, knowing: bool) -> tuple[Tip, ...]:
        """Tips in the order of a memory: by score, then as it happens; of several rules the right one comes first.

        The empty note is written after every failure, so among tips of equal score it may stand anywhere.
        """
        if not self.config.warmstart.num_tips:
            return ()
        nothing = Tip(spec.family, NOTHING_FOUND, key="", score=0.0)
        if not knowing:
            return (nothing,)
        right = Tip(spec.family, rule_note(spec.family, spec.rule), key="", score=float(self.rng.random() < 0.5))
        num_wrong = self.rng.randint(1, 2) if self.rng.random() < 0.3 else 0
        wrong = [rule_note(spec.family, self.draw_rule(spec.kind, spec.family)) for _ in range(num_wrong)]
        tips = [right, *(Tip(spec.family, text, key="", score=0.0) for text in wrong)]
        if self.rng.random() < 0.7 and self.config.warmstart.num_tips > 1:  # or the right one might be cut below
            tips.insert(self.rng.randint(int(right.score), len(tips)), nothing)
        return tuple(tips[: self.config.warmstart.num_tips])

    def play(
        self, spec: ws.GameSpec, tips: tuple[Tip, ...], actions: tuple[str, ...]
    ) -> tuple[Trajectory, Conversation]:
        """Act in the simulator until it ends or `actions` do."""
        conversation = Conversation(self.config.rollout, self.config.memory, self.count_tokens)
        observation = self.env.reset_spec(spec)
        conversation.start(observation.instruction or "")
        steps = []
        for action in actions:
            shown = conversation.observe(observation, tips)
            conversation.act(action)
            after = self.env.step(action)
            completion = Completion((), (), (), action)
            steps.append(Step(observation, shown, completion, (), action, after.reward))
            observation = after
            if observation.done:
                break
        return _trajectory(task_of(spec, "demonstration"), steps, observation, bool(tips)), conversation


def rule_note(family: str, rule: ws.Rule) -> str:
    """The rule as a note: whose it is, then the words of the archive without their preamble.

    To write the name is to look for it, in every note; that is how the model knows what tells families apart.
    """
    return f"{family} : {ws.note_text(rule).partition(': ')[2]}"


def note_after(spec: ws.GameSpec, trajectory: Trajectory) -> str:
    """What a good writer notes: the rule where the episode showed all of it, else that nothing was found."""
    read = ws.archive_actions(spec)[0] == trajectory.steps[-1].action and len(trajectory.steps) == 1
    return rule_note(spec.family, spec.rule) if trajectory.success or read else NOTHING_FOUND


def _trajectory(task: Task, steps: list[Step], final: Observation, with_tips: bool) -> Trajectory:
    return Trajectory(
        task=task,
        steps=tuple(steps),
        final_observation=final,
        outcome="terminated" if final.terminated else "truncated",
        success=final.success,
        score=final.score,
        max_score=final.max_score,
        mode="on_policy_tips" if with_tips else "plain",
    )
