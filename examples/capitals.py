"""A task set of verifiers, small enough to read: capitals, with a reward for the answer and half of one for brevity.

Play it where verifiers is installed: ``PYTHONPATH=examples trailnotes rollout verifiers``.
"""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

WORLD = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Austria": "Vienna"}


class CapitalData(vf.TaskData):
    """A question, and the answer that the reward looks for."""

    answer: str


class CapitalConfig(vf.TasksetConfig):
    """What `env.options.config` may hold."""

    countries: int = len(WORLD)


class Capital(vf.Task[CapitalData]):
    """One question."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """Whether the answer has the capital in it."""
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def brief(self, trace: vf.Trace) -> float:
        """Whether it is one word."""
        return float(len(trace.last_reply.split()) == 1)


class Capitals(vf.Taskset[Capital, CapitalConfig]):
    """A question for each country."""

    def load(self) -> Iterator[Capital]:
        """In the order of `WORLD`."""
        for country, answer in list(WORLD.items())[: self.config.countries]:
            yield Capital(CapitalData(prompt=f"What is the capital of {country}?", answer=answer), self.config.task)


__all__ = ["Capitals"]
