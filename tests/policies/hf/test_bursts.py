"""Several tokens between two waits for the device: the same completions, and fewer waits and kernels."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from puppet import WORDS, ask
from tiny import tiny_model
from tinyrun import episodes, tiny_config, train_in_process
from trailnotes.config.model_schema import EngineConfig, LoraConfig
from trailnotes.policies.hf import graphs
from trailnotes.policies.hf.adapters import add_adapters
from trailnotes.policies.hf.decoder import RecomputeDecoder, SlotDecoder
from trailnotes.policies.hf.graphs import StaticDecoder
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.policies.hf.sampling import TokenSampler
from trailnotes.types import Completion, Message, Sampling

VIEWS = {
    "view", "reshape", "transpose", "t", "expand", "slice", "select", "unsqueeze", "squeeze", "detach", "alias",
    "unbind", "lift_fresh",
}  # fmt: skip


async def talk(policy: HFPolicy, turns: int = 3) -> list[list[Completion]]:
    """Five episodes of several ways of sampling, of which one is closed early and one begins late."""
    ways: list[dict[str, Any]] = [{"max_tokens": 5}, {"max_tokens": 19, "stop": ("e",)}, {"max_tokens": 11, "top_k": 9}]
    ways += [{"max_tokens": 8, "temperature": 0.0}, {"max_tokens": 13, "temperature": 1.5, "top_p": 0.9}]
    conversations: dict[int, list[Message]] = {}
    completions = []
    for turn in range(turns):
        if turn == 1:
            policy.close_episode("1")
            del conversations[1]
        for index in [4] if turn == 1 else [0, 1, 2, 3] if turn == 0 else []:
            policy.open_episode(str(index))
            conversations[index] = [Message("system", "You walk through a dark hall. " * 3)]
        for index, messages in conversations.items():
            messages.append(Message("user", f"{WORDS[index]} {WORDS[turn]}"))
        requests = [
            policy.generate(messages, Sampling(seed=9 * turn + index, **ways[index]), str(index))
            for index, messages in conversations.items()
        ]
        completions.append(await asyncio.gather(*requests))
        for messages, completion in zip(conversations.values(), completions[-1], strict=True):
            messages.append(Message("assistant", completion.text, completion.token_ids))
    for index in conversations:
        policy.close_episode(str(index))
    return completions


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

    async def generate(tokens: int) -> None:
        for episode in "abcd":
            policy.open_episode(episode)
        sampling = Sampling(max_tokens=tokens)
        await asyncio.gather(*(policy.engine.generate((5, 6, 7), sampling, episode) for episode in "abcd"))
        for episode in "abcd":
            policy.close_episode(episode)

    counts = []
    for tokens in (9, 25):
        with Kernels() as kernels:
            asyncio.run(generate(tokens))
        counts.append(kernels.computing)
    return (counts[1] - counts[0]) / 16


@pytest.mark.parametrize(("burst", "graphs", "most"), [(1, False, 1500), (8, False, 1500), (8, True, 1510)])
def test_kernels_of_a_step_are_those_of_the_model(
    tokenizer: Any, burst: int, graphs: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What 36 layers may take on a GPU, with adapters or without: 40 a layer and what is computed once."""
    monkeypatch.setattr("trailnotes.policies.hf.decoder.use_cached_attention", lambda _model: False)
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


# --- bursts and the static step, which runs as it is here; `tests/pretend_cases.py` replays it


Play = Callable[[HFPolicy], Awaitable[list[list[Completion]]]]


async def generate(policy: HFPolicy, *rows: tuple[str, int, int]) -> list[Completion]:
    """One completion of each episode, of so many tokens, behind a prompt of so many."""
    prompts = [tuple((7 * i + 3) % 300 for i in range(length)) for _, length, _ in rows]
    return await asyncio.gather(*(
        policy.engine.generate(ids, Sampling(max_tokens=num, seed=num), name)
        for (name, _, num), ids in zip(rows, prompts, strict=True)
    ))  # fmt: skip


async def cross_buckets(policy: HFPolicy) -> list[list[Completion]]:
    """One, three and eleven rows, of which one grows from 250 to 270 tokens, and then again one."""
    names, completions = "abcdefghijk", []
    for number in (1, 3, 11):
        for name in names[:number]:
            if name not in policy.engine._slots:
                policy.open_episode(name)
        rows = [(name, 250 if name == "a" else 9 * number + i, 20) for i, name in enumerate(names[:number])]
        completions.append(await generate(policy, *rows))
    for name in names[1:]:
        policy.close_episode(name)
    return [*completions, await generate(policy, ("a", 500, 9))]


async def fill_the_context(policy: HFPolicy) -> list[list[Completion]]:
    """The second episode ends at the last column there is, and idles there while its neighbours go on."""
    for name in "abc":
        policy.open_episode(name)
    return [await generate(policy, ("a", 3, 40), ("b", policy.context_length - 11, 11), ("c", 3, 40))]


async def change_weights(policy: HFPolicy) -> list[list[Completion]]:
    """In place, and by other parameters."""
    completions = await talk(policy, 1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.3)
    policy.bump_version()
    completions += await talk(policy, 1)
    policy.model.model.norm.weight = torch.nn.Parameter(policy.model.model.norm.weight.detach() * 0.5)
    policy.bump_version()
    return [*completions, *await talk(policy, 1)]


PLAYS: dict[str, Play] = {
    "rows join and leave, stop inside bursts, and rewind": talk,
    "rows and columns change": cross_buckets,
    "a context is full": fill_the_context,
    "weights change": change_weights,
}


@pytest.mark.parametrize("kind", ["full", "windowed"])
@pytest.mark.parametrize("play", PLAYS)
def test_bursts_and_static_steps_draw_as_single_tokens_do(model_of: Any, tokenizer: Any, play: str, kind: str) -> None:
    model = model_of("mistral", 512, sliding_window=8) if kind == "windowed" else model_of(positions=512)
    completions = []
    for burst, is_static in ((1, False), (3, False), (8, False), (1, True), (8, True)):
        engine = EngineConfig(burst=burst, graphs=is_static)
        policy = HFPolicy(copy.deepcopy(model), tokenizer, engine=engine)
        assert isinstance(policy.engine.decoder, StaticDecoder) == is_static
        if PLAYS[play] is talk:
            policy.engine.endings.end_ids |= frozenset(range(0, 300, 7))
        completions.append([completion for turn in asyncio.run(PLAYS[play](policy)) for completion in turn])
    assert len({len(completion.token_ids) for completion in completions[0]}) > 1
    for others in completions[1:]:
        for one, other in zip(completions[0], others, strict=True):
            assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)


@pytest.mark.parametrize("begun", [1, 2])
def test_a_row_ends_on_the_device(model: Any, tokenizer: Any, begun: int) -> None:
    """It draws no token behind an end, whether that comes from the prompt's pass or from a step."""
    decoder = HFPolicy(model, tokenizer, engine=EngineConfig(graphs=True, burst=8)).engine.decoder
    tokens, rows = [], [(Sampling(), np.linspace(0.1, 0.9, 6, dtype=np.float32))]
    for ends in ((), (0,)):
        slot = decoder.acquire()
        sample = TokenSampler(rows, 6, frozenset(tokens[0][begun - 1] for _ in ends))
        tokens += decoder.decode([(slot, (5, 6, 7))], sample, 6)[0]
        assert decoder.rewind(slot, (5, 6, 7, *tokens[0][:5])) == (3 + begun if ends else 7)
        decoder.release(slot)
        decoder.free_idle()
    assert tokens[1] == [*tokens[0][:begun], *[-1] * (6 - begun)]


@pytest.mark.parametrize("fault", ["it raises", "it differs", "no cache"])
def test_a_model_without_a_static_step_decodes_as_before(
    model_of: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    draw = graphs.draw_tokens
    if fault == "it raises":
        monkeypatch.setattr(StaticDecoder, "_step", lambda *_sizes: (_ for _ in ()).throw(RuntimeError("no capture")))
    elif fault == "it differs":
        monkeypatch.setattr(graphs, "draw_tokens", lambda logits, *others: draw(1.01 * logits, *others))
    model = model_of("mamba" if fault == "no cache" else "qwen2")
    with caplog.at_level(logging.WARNING, logger="trailnotes"):
        policy = HFPolicy(model, tokenizer, engine=EngineConfig(graphs=True))
    assert type(policy.engine.decoder) is (RecomputeDecoder if fault == "no cache" else SlotDecoder)
    assert len([record for record in caplog.records if record.name.startswith("trailnotes")]) == 1
    assert ask(policy, Sampling(max_tokens=3)) == ask(HFPolicy(model, tokenizer), Sampling(max_tokens=3))


def test_a_run_acts_as_without(start_model: Path, tmp_path: Path) -> None:
    completions = []
    for is_static in (False, True):
        directory = tmp_path / str(is_static)
        config = tiny_config(start_model, engine={"graphs": is_static, "burst": 8}, train={"iterations": 2})
        run = train_in_process(config, directory)
        assert isinstance(run.policy.engine.decoder, StaticDecoder) == is_static
        completions.append([step["completion"] for episode in episodes(directory) for step in episode["steps"]])
    assert len(completions[0]) > 50
    for one, other in zip(*completions, strict=True):
        assert other.pop("logprobs") == pytest.approx(one.pop("logprobs"), abs=1e-5)
        assert one == other
