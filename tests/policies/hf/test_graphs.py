"""The static step draws what the present decoder draws, whatever happens between two steps.

Here it runs as it is; `tests/pretend_cases.py` replays it.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_bursts import talk, windowed

from puppet import ask
from tinyrun import episodes, tiny_config, train_in_process
from trailnotes.config.model_schema import EngineConfig
from trailnotes.errors import PolicyError
from trailnotes.policies.hf import graphs
from trailnotes.policies.hf.decoder import RecomputeDecoder, SlotDecoder
from trailnotes.policies.hf.graphs import StaticDecoder
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.policies.hf.sampling import TokenSampler
from trailnotes.types import Completion, Sampling

Play = Callable[[HFPolicy], Awaitable[list[list[Completion]]]]


async def generate(policy: HFPolicy, *rows: tuple[str, int, int]) -> list[Completion]:
    """One completion of each episode, of so many tokens, behind a prompt of so many."""
    prompts = [tuple((7 * i + 3) % 300 for i in range(length)) for _, length, _ in rows]
    asked = zip(rows, prompts, strict=True)
    return await asyncio.gather(
        *(policy.engine.generate(ids, Sampling(max_tokens=num, seed=num), name) for (name, _, num), ids in asked)
    )


async def cross_buckets(policy: HFPolicy) -> list[list[Completion]]:
    """One, three and eleven rows, of which one grows from 250 to 270 tokens, and then again one."""
    names, found = "abcdefghijk", []
    for number in (1, 3, 11):
        for name in names[:number]:
            if name not in policy.engine._slots:
                policy.open_episode(name)
        rows = [(name, 250 if name == "a" else 9 * number + i, 20) for i, name in enumerate(names[:number])]
        found.append(await generate(policy, *rows))
    for name in names[1:]:
        policy.close_episode(name)
    return [*found, await generate(policy, ("a", 500, 9))]


async def fill_the_context(policy: HFPolicy) -> list[list[Completion]]:
    """The second episode ends at the last column there is, and idles there while its neighbours go on."""
    for name in "abc":
        policy.open_episode(name)
    return [await generate(policy, ("a", 3, 40), ("b", policy.context_length - 11, 11), ("c", 3, 40))]


async def change_weights(policy: HFPolicy) -> list[list[Completion]]:
    """In place, and by other parameters."""
    found = await talk(policy, 1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.3)
    policy.bump_version()
    found += await talk(policy, 1)
    policy.model.model.norm.weight = torch.nn.Parameter(policy.model.model.norm.weight.detach() * 0.5)
    policy.bump_version()
    return [*found, *await talk(policy, 1)]


PLAYS: dict[str, Play] = {
    "rows join and leave, stop inside bursts, and rewind": talk,
    "rows and columns change": cross_buckets,
    "a context is full": fill_the_context,
    "weights change": change_weights,
}


@pytest.mark.parametrize("kind", ["full", "windowed"])
@pytest.mark.parametrize("play", PLAYS)
def test_static_steps_draw_what_the_present_decoder_draws(model_of: Any, tokenizer: Any, play: str, kind: str) -> None:
    model = windowed(len(tokenizer)) if kind == "windowed" else model_of(positions=512)
    found = []
    for burst, is_static in ((1, False), (1, True), (8, True)):
        engine = EngineConfig(burst=burst, graphs=is_static)
        policy = HFPolicy(copy.deepcopy(model), tokenizer, engine=engine)
        assert isinstance(policy.engine.decoder, StaticDecoder) == is_static
        if PLAYS[play] is talk:
            policy.engine.endings.end_ids |= frozenset(range(0, 300, 7))
        found.append([completion for turn in asyncio.run(PLAYS[play](policy)) for completion in turn])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)


@pytest.mark.parametrize("begun", [1, 2])
def test_a_row_ends_on_the_device(model: Any, tokenizer: Any, begun: int) -> None:
    """It draws no token behind an end, whether that comes from the prompt's pass or from a step."""
    decoder = HFPolicy(model, tokenizer, engine=EngineConfig(graphs=True, burst=8)).engine.decoder
    found, rows = [], [(Sampling(), np.linspace(0.1, 0.9, 6, dtype=np.float32))]
    for ends in ((), (0,)):
        slot = decoder.acquire()
        sample = TokenSampler(rows, 6, frozenset(found[0][begun - 1] for _ in ends))
        found += decoder.decode([(slot, (5, 6, 7))], sample, 6)[0]
        assert decoder.rewind(slot, (5, 6, 7, *found[0][:5])) == (3 + begun if ends else 7)
        decoder.release(slot)
        decoder.free_idle()
    assert found[1] == [*found[0][:begun], *[-1] * (6 - begun)]


def test_numbers_of_broken_weights_do_not_stay(model: Any, tokenizer: Any) -> None:
    """The arrays of the cache outlive the weights, and 0 * nan is nan."""
    broken = copy.deepcopy(model)
    policy = HFPolicy(broken, tokenizer, engine=EngineConfig(graphs=True))
    before = ask(policy, Sampling(max_tokens=4))
    with torch.no_grad():
        broken.model.embed_tokens.weight.fill_(torch.nan)
    with pytest.raises(PolicyError, match="not finite"):
        ask(policy, Sampling(max_tokens=4), text="A hall, and behind it a long corridor.")
    broken.load_state_dict(model.state_dict())
    policy.bump_version()
    assert ask(policy, Sampling(max_tokens=4)) == before


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
    found = []
    for is_static in (False, True):
        directory = tmp_path / str(is_static)
        config = tiny_config(start_model, engine={"graphs": is_static, "burst": 8}, train={"iterations": 2})
        run = train_in_process(config, directory)
        assert isinstance(run.policy.engine.decoder, StaticDecoder) == is_static
        found.append([step["completion"] for episode in episodes(directory) for step in episode["steps"]])
    assert len(found[0]) > 50
    for one, other in zip(*found, strict=True):
        assert other.pop("logprobs") == pytest.approx(one.pop("logprobs"), abs=1e-5)
        assert one == other
