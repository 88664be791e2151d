"""A policy of transformers that says what it is told to, token by token, and a short game for it to play."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from trailnotes.config.schema import Config, RolloutConfig
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.rollout.episode import run_episode
from trailnotes.types import Completion, Message, Mode, Observation, Sampling, Task, Tip, TokenIds, Trajectory


def ids_of(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def talk(*contents: str | tuple[str, TokenIds], system: str | None = None) -> list[Message]:
    """User, assistant, user, ...; an assistant's content may come with its ids."""
    messages = [] if system is None else [Message("system", system)]
    for number, content in enumerate(contents):
        text, ids = content if isinstance(content, tuple) else (content, None)
        messages.append(Message("assistant" if number % 2 else "user", text, ids))
    return messages


def rendered(tokenizer: Any, messages: Sequence[Message], **options: Any) -> str:
    turns = [{"role": message.role, "content": message.content} for message in messages]
    is_prompt = messages[-1].role != "assistant"
    text: str = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=is_prompt, **options)
    return text


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def forward(model: Any, completion: Completion, temperature: float = 1.0) -> list[float]:
    """Log-probabilities of the sampled tokens by one pass over everything, without any cache."""
    with torch.no_grad():
        logits = model(torch.tensor([completion.prompt_ids + completion.token_ids]), use_cache=False).logits[0].float()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)[len(completion.prompt_ids) - 1 :]
    return [float(row[token]) for row, token in zip(logprobs, completion.token_ids, strict=False)]


def assert_logprobs(model: Any, completions: Sequence[Completion], temperature: float = 1.0, tol: float = 1e-5) -> None:
    """Compare the log-probabilities of completions with those of one pass."""
    for completion in completions:
        assert list(completion.logprobs) == pytest.approx(forward(model, completion, temperature), abs=tol)


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


WORDS = ["key", "door", "north", "hall", "dark", "\n", "note", "é"]


def ask(policy: Any, *samplings: Sampling, text: str = "A hall.") -> list[Completion]:
    """Completions of as many episodes, all at once."""

    async def answer(name: str, sampling: Sampling) -> Completion:
        policy.open_episode(name)
        try:
            completion: Completion = await policy.generate([Message("user", text)], sampling, name)
            return completion
        finally:
            policy.close_episode(name)

    async def run() -> list[Completion]:
        return await asyncio.gather(*(answer(f"e{i}", sampling) for i, sampling in enumerate(samplings)))

    return asyncio.run(run())


def play_at_random(policy: Any, *turns: int) -> list[list[Completion]]:
    """Episodes of so many turns, all at once, which join and leave at different times; each depends on its place."""

    async def play_one(seed: int) -> list[Completion]:
        rng, messages, completions, name = random.Random(seed), list[Message](), list[Completion](), f"e{seed}"
        policy.open_episode(name)
        try:
            for turn in range(turns[seed]):
                messages.append(Message("user", " ".join(rng.choices(WORDS, k=rng.randint(1, 8)))))
                sampling = Sampling(seed=100 * seed + turn, max_tokens=rng.randint(1, 7))
                completions.append(await policy.generate(messages, sampling, name))
                messages.append(Message("assistant", completions[-1].text, completions[-1].token_ids))
        finally:
            policy.close_episode(name)
        return completions

    async def run() -> list[list[Completion]]:
        return await asyncio.gather(*map(play_one, range(len(turns))))

    return asyncio.run(run())
