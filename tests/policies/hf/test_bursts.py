"""Several tokens between two waits for the device: the same completions, and fewer waits and kernels."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MistralConfig, MistralForCausalLM

from puppet import WORDS
from tiny import tiny_model
from trailnotes.config.model_schema import EngineConfig, LoraConfig
from trailnotes.policies.hf.adapters import add_adapters
from trailnotes.policies.hf.decoder import SlotDecoder
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.types import Completion, Message, Sampling

VIEWS = {
    "view",
    "reshape",
    "transpose",
    "t",
    "expand",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "detach",
    "alias",
    "unbind",
    "lift_fresh",
}


def windowed(size: int) -> Any:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, max_position_embeddings=512, initializer_range=0.2,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


async def talk(policy: HFPolicy, turns: int = 3) -> list[list[Completion]]:
    """Five episodes of several ways of sampling, of which one is closed early and one begins late."""
    ways: list[dict[str, Any]] = [{"max_tokens": 5}, {"max_tokens": 19, "stop": ("e",)}, {"max_tokens": 11, "top_k": 9}]
    ways += [{"max_tokens": 8, "temperature": 0.0}, {"max_tokens": 13, "temperature": 1.5, "top_p": 0.9}]
    said: dict[int, list[Message]] = {}
    found = []
    for turn in range(turns):
        if turn == 1:
            policy.close_episode("1")
            del said[1]
        for index in [4] if turn == 1 else [0, 1, 2, 3] if turn == 0 else []:
            policy.open_episode(str(index))
            said[index] = [Message("system", "You walk through a dark hall. " * 3)]
        for index, messages in said.items():
            messages.append(Message("user", f"{WORDS[index]} {WORDS[turn]}"))
        asked = [
            policy.generate(messages, Sampling(seed=9 * turn + index, **ways[index]), str(index))
            for index, messages in said.items()
        ]
        found.append(await asyncio.gather(*asked))
        for messages, completion in zip(said.values(), found[-1], strict=True):
            messages.append(Message("assistant", completion.text, completion.token_ids))
    for index in said:
        policy.close_episode(str(index))
    return found


@pytest.mark.parametrize("kind", ["full", "windowed"])
def test_bursts_give_the_completions_of_single_tokens(model: Any, tokenizer: Any, kind: str) -> None:
    """Rows end inside a burst by stop texts, end tokens and limits; the next turn goes on from their true end."""
    chosen = windowed(model.get_input_embeddings().num_embeddings) if kind == "windowed" else model
    found = []
    for burst in (1, 3, 8):
        policy = HFPolicy(chosen, tokenizer, engine=EngineConfig(burst=burst))
        assert isinstance(policy.engine.decoder, SlotDecoder)
        policy.engine.endings.end_ids |= frozenset(range(0, 300, 7))
        found.append([completion for turn in asyncio.run(talk(policy)) for completion in turn])
    assert len({len(completion.token_ids) for completion in found[0]}) > 3
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)


def test_a_context_may_end_inside_a_burst(model: Any, tokenizer: Any) -> None:
    """The row with more tokens to go draws the other past the last position."""
    found = []
    for burst in (1, 8):
        policy = HFPolicy(model, tokenizer, engine=EngineConfig(burst=burst))
        prompts = [policy.encode([Message("user", text)]) for text in ("a", "a dark hall " * 4)]
        policy = HFPolicy(
            model, tokenizer, engine=EngineConfig(burst=burst), max_context_tokens=len(prompts[1]) + 3
        )  # fmt: skip

        async def ask(policy: HFPolicy = policy, prompts: Any = prompts) -> list[Completion]:
            for episode in "ab":
                policy.open_episode(episode)
            room = policy.context_length
            asked = zip(prompts, "ab", strict=True)
            given = (policy.engine.generate(ids, Sampling(max_tokens=room - len(ids)), name) for ids, name in asked)
            return await asyncio.gather(*given)

        found.append([completion.token_ids for completion in asyncio.run(ask())])
    assert found[0] == found[1]


class Kernels(TorchDispatchMode):
    """Counts operations that compute something, and those that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[function._schema.name.removeprefix("aten::")] += 1
        return function(*args, **(kwargs or {}))

    @property
    def computing(self) -> int:
        return sum(number for name, number in self.count.items() if name not in VIEWS)


def count_step(policy: HFPolicy) -> float:
    """Kernels of one decoding step of four rows."""
    policy.engine.endings.end_ids = frozenset()

    async def ask(tokens: int) -> None:
        for episode in "abcd":
            policy.open_episode(episode)
        asked = (policy.engine.generate((5, 6, 7), Sampling(max_tokens=tokens), episode) for episode in "abcd")
        await asyncio.gather(*asked)
        for episode in "abcd":
            policy.close_episode(episode)

    counts = []
    for tokens in (9, 25):
        with Kernels() as kernels:
            asyncio.run(ask(tokens))
        counts.append(kernels.computing)
    return (counts[1] - counts[0]) / 16


@pytest.mark.parametrize(("burst", "graphs", "most"), [(1, False, 1500), (8, False, 1500), (8, True, 1510)])
def test_kernels_of_a_step_are_those_of_the_model(tokenizer: Any, burst: int, graphs: bool, most: int) -> None:
    """What 36 layers may take, with adapters or without: 40 a layer and what is computed once."""
    size = len(tokenizer)
    per_layer = []
    for adapted in (False, True):
        counts = []
        for layers in (2, 4):
            torch.manual_seed(0)
            config = tiny_model().config
            config.num_hidden_layers, config.vocab_size = layers, size
            config.layer_types = ["full_attention"] * layers
            model: Any = type(tiny_model())(config).eval()
            if adapted:
                model = add_adapters(model, LoraConfig(rank=2), base="").eval()
            policy = HFPolicy(model, tokenizer, engine=EngineConfig(burst=burst, fold_adapters=adapted, graphs=graphs))
            counts.append(count_step(policy))
        each = (counts[1] - counts[0]) / 2
        per_layer.append(each)
        assert counts[0] + 34 * each <= most
    assert per_layer[0] == per_layer[1], "folded adapters cost nothing"
