"""Galleries in which one way of four leads on, fog beside them, and a reader who follows the advice in its prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.types import Message, Observation, Task

WAYS = ("north", "east", "south", "west")
METALS = ("amber", "brass", "copper", "flint", "gold", "iron", "jade", "lead")
SIGHTS = (
    *("arch", "bridge", "candle", "door", "engine", "fountain", "gate", "hammer"),
    *("idol", "jar", "kettle", "ladder", "mirror", "nail", "oven", "pump"),
)
LENGTH, MAX_STEPS = 3, 6


class Caves:
    """Each right step pays; a wrong one ends in fog for good, which looks a little different wherever one stands."""

    @staticmethod
    def tasks(split: str) -> list[Task]:
        """Every split holds the same galleries, as games of other seeds."""
        seed = ("train", "validation", "test").index(split)
        return [Task(f"{split}/{metal}", "caves:Caves", seed, split, {"metal": metal}) for metal in METALS]

    def reset(self, task: Task) -> Observation:
        self.metal, self.path, self.lost = str(task.options["metal"]), [], False
        return self.look(0.0, instruction=f"cross the {self.metal} gallery")

    def step(self, action: str) -> Observation:
        self.lost = self.lost or action != right_way(self.metal, len(self.path))
        self.path.append(action)
        return self.look(0.0 if self.lost else 1 / LENGTH)

    def look(self, reward: float, instruction: str | None = None) -> Observation:
        won = len(self.path) == LENGTH and not self.lost
        sights = random.Random(f"{self.metal} {len(self.path)}").sample(SIGHTS, 3)
        text = f"fog , nothing but fog ; you came {' '.join(self.path)}" if self.lost else f"see {' and '.join(sights)}"
        return Observation(
            text, reward, terminated=won, truncated=len(self.path) == MAX_STEPS, actions=WAYS,
            instruction=instruction, success=won, score=float(won),
        )  # fmt: skip

    def close(self) -> None:
        pass


def right_way(metal: str, place: int) -> str:
    return random.Random(f"way {metal} {place}").choice(WAYS)


def adviser() -> ScriptedPolicy:
    """Does what the nearest example encourages, if its situation is the present one; else goes north."""

    def answer(messages: Sequence[Message]) -> str:
        *examples, present = ("\n" + messages[-1].content).split("\nexample ")
        if not examples:
            return "north -> 0.0"
        example, _, present = present.partition("\nnot :")
        task, _, saw, _, *encouraged = example.splitlines()[1:]
        now = [line for line in present.splitlines() if line and " -> " not in line]
        return encouraged[0] if encouraged and (task, saw) == (now[0], now[2]) else "north -> 0.0"

    return ScriptedPolicy(answer)
