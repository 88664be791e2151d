"""A policy of transformers that says what it is told to, token by token, and a short game for it to play."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

from trailnotes.config.schema import Config, RolloutConfig
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.rollout.episode import run_episode
from trailnotes.types import Completion, Mode, Observation, Sampling, Task, Tip, TokenIds, Trajectory


def ids_of(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def led(tokenizer: Any, model: Any, *answers: str, **options: Any) -> HFPolicy:
    """A policy whose k-th completion is the k-th answer, as far as stops and limits let it."""
    policy = HFPolicy(model, tokenizer, **options)
    generate, extend = policy.engine.generate, policy.engine.decoder.extend
    left, saying = [list(ids_of(tokenizer, answer)) for answer in answers], list[int]()

    async def led_generate(prompt_ids: TokenIds, sampling: Sampling, episode: str) -> Completion:
        saying[:] = left.pop(0)
        return await generate(prompt_ids, sampling, episode)

    def led_extend(rows: Sequence[Any]) -> torch.Tensor:
        logits = torch.full_like(extend(rows), -100.0)
        logits[0, saying.pop(0)] = 0.0
        return logits

    policy.engine.generate = led_generate  # type: ignore[method-assign]
    policy.engine.decoder.extend = led_extend  # type: ignore[method-assign]
    return policy


class Hall:
    """Three steps, whatever is done, with `more` behind each observation."""

    def __init__(self, more: str = "") -> None:
        self.actions: list[str] = []
        self._more = more

    async def reset(self, task: Task) -> Observation:
        return Observation(f"a hall{self._more}", instruction="leave")

    async def step(self, action: str) -> Observation:
        self.actions.append(action)
        return Observation(f"after {action}{self._more}", reward=1.0, terminated=len(self.actions) == 3)


class OneTip:
    """Shows the same tip to everybody."""

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        return [Tip(namespace, "the key is north", "a hall", 1.0)]


def play(
    policy: HFPolicy, mode: Mode = "plain", memory: Any = None, *, more: str = "", **rollout: Any
) -> tuple[Trajectory, list[str]]:
    given = {"style": "terse", "max_steps": 3, "max_action_tokens": 40, "max_context_tokens": 500}
    config = Config(rollout=RolloutConfig(**(given | rollout)))
    env = Hall(more)

    async def run() -> Trajectory:
        policy.open_episode("t/0")
        return await run_episode(policy, env, Task("t", "hall"), mode, memory, config, member=0, seed=1)

    return asyncio.run(run()), env.actions
