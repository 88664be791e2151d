"""What every engine that gives token ids must do: the embedded one, vLLM's, and that with a stand-in for the server."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from puppet import ask, assert_logprobs, forward, play_at_random
from trailnotes.config.schema import Config
from trailnotes.errors import PolicyError
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.policies.vllm import make_vllm_policy, server
from trailnotes.types import Completion, Message, Sampling

CONTEXT = 224
CLOSE = 1e-4  # nats; float32 on a CPU gives 1e-5
VLLM = os.environ.get("TRAILNOTES_TEST_VLLM", "")  # a Python that has it, for engine.python


class Subject(NamedTuple):
    """A policy, the model whose weights it has, and whether it knows more of sampling than a temperature."""

    policy: Any
    model: Any
    truncates: bool = True


@pytest.fixture(scope="module", params=["hf", "stand-in", pytest.param("vllm", marks=pytest.mark.vllm)])
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tokenizer_of: Any, model_of: Any
) -> Iterator[Subject]:
    # Heads of 32 channels, which vLLM's attention on a CPU knows.
    model = model_of("qwen2", positions=CONTEXT, hidden_size=64, num_attention_heads=2, num_key_value_heads=1)
    if request.param == "hf":
        yield Subject(HFPolicy(model, tokenizer_of(), deterministic=False), model)
        return
    path, is_real = tmp_path_factory.mktemp("model"), request.param == "vllm"
    model.save_pretrained(path)
    tokenizer_of().save_pretrained(path)
    config = Config(
        run={"deterministic": False},
        model={"path": str(path), "device": "cpu"},
        engine={"name": "vllm", "python": VLLM if is_real else sys.executable, "max_concurrent": 8},
    )
    with pytest.MonkeyPatch.context() as patch:
        if not is_real:
            patch.setattr(server, "PROGRAM", Path(__file__).parents[1] / "causal.py")
        policy = make_vllm_policy(config)
        yield Subject(policy, model, truncates=is_real)
        policy.close()


def test_logprobs_of_episodes_side_by_side_equal_a_fresh_forward(subject: Subject) -> None:
    for completions in play_at_random(subject.policy, *(1 + i % 5 for i in range(9))):
        assert_logprobs(subject.model, completions, tol=CLOSE)
        for earlier, later in itertools.pairwise(completions):
            assert later.prompt_ids[: len(earlier.prompt_ids)] == earlier.prompt_ids


def test_equal_seeds_give_equal_tokens_in_any_company(subject: Subject) -> None:
    samplings = [Sampling(max_tokens=12, seed=seed) for seed in (3, 2**62 + 1, 5)]
    together = ask(subject.policy, *samplings)
    alone = [ask(subject.policy, sampling)[0] for sampling in samplings]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert len({c.token_ids for c in together}) == 3


def test_temperature_is_part_of_the_logprobs(subject: Subject) -> None:
    completions = ask(subject.policy, *(Sampling(0.4, max_tokens=8, seed=s) for s in range(3)))
    assert_logprobs(subject.model, completions, 0.4, tol=CLOSE)


def test_greedy_tokens_report_their_logprob_at_temperature_one(subject: Subject) -> None:
    if not subject.truncates:
        pytest.skip("the stand-in only draws")
    first, second, drawn = ask(subject.policy, Sampling(0, max_tokens=6), Sampling(0, 0.1, 1, 6, seed=9), Sampling())
    assert first.token_ids == second.token_ids
    assert_logprobs(subject.model, [first, second, drawn], tol=CLOSE)


def test_a_score_is_the_mean_logprob_of_a_reply_at_temperature_one(subject: Subject) -> None:
    (done,) = ask(subject.policy, Sampling(0.5, max_tokens=5))
    scores = asyncio.run(subject.policy.score([Message("user", "A hall.")], [done.token_ids, done.token_ids[:2]]))
    wanted = forward(subject.model, done)
    assert scores == pytest.approx([sum(wanted) / len(wanted), sum(wanted[:2]) / 2], abs=CLOSE)
    with pytest.raises(PolicyError, match="exceed the context"):
        asyncio.run(subject.policy.score([Message("user", "A hall.")], [done.token_ids * 100]))
    with pytest.raises(ValueError, match="an empty reply"):
        asyncio.run(subject.policy.score([Message("user", "A hall.")], ["go", " "]))


def test_truncated_sampling_reports_the_truncated_distribution(subject: Subject) -> None:
    if not subject.truncates:
        pytest.skip("the stand-in only draws")
    best, nucleus = ask(subject.policy, Sampling(top_k=1, max_tokens=4), Sampling(top_p=0.5, max_tokens=6))
    assert best.logprobs == pytest.approx([0.0] * len(best.logprobs), abs=1e-6)
    raw = forward(subject.model, nucleus)
    assert all(got > want for got, want in zip(nucleus.logprobs, raw, strict=True))


def test_frequencies_follow_the_distribution(subject: Subject) -> None:
    num = 400
    completions = ask(subject.policy, *(Sampling(max_tokens=1, seed=seed) for seed in range(num)))
    with torch.no_grad():
        row = torch.log_softmax(subject.model(torch.tensor([completions[0].prompt_ids])).logits[0, -1].float(), -1)
    likely, probability = int(row.argmax()), float(row.max().exp())
    share = sum(c.token_ids[0] == likely for c in completions) / num
    assert share == pytest.approx(probability, abs=5 * (probability * (1 - probability) / num) ** 0.5)


def test_a_stop_text_is_the_end_of_the_ids_and_cut_from_the_text(subject: Subject) -> None:
    (free,) = ask(subject.policy, Sampling(max_tokens=40, seed=1))
    decode = subject.policy.format.decode
    texts = [decode((token,)) for token in free.token_ids]
    place = next(i for i, text in enumerate(texts) if i > 2 and text.isalnum() and text not in "".join(texts[:i]))
    (cut,) = ask(subject.policy, Sampling(max_tokens=40, seed=1, stop=("never said", texts[place])))
    assert cut.token_ids == free.token_ids[: place + 1]
    assert list(cut.logprobs) == pytest.approx(list(free.logprobs[: place + 1]), abs=CLOSE)
    assert (cut.text, cut.finish_reason) == (decode(free.token_ids[:place]), "stop")


def test_an_end_token_is_sampled_and_not_said(subject: Subject) -> None:
    completions = ask(subject.policy, *(Sampling(2.0, max_tokens=60, seed=seed) for seed in range(16)))
    ended = [c for c in completions if c.finish_reason == "stop"]
    assert ended
    end_ids = subject.policy.format.end_ids
    assert all(c.token_ids[-1] in end_ids and not set(c.token_ids[:-1]) & end_ids for c in ended)
    assert all(c.text == subject.policy.format.decode(c.token_ids[:-1]) for c in ended)
    assert all(len(c.token_ids) == 60 for c in completions if c.finish_reason == "length")


def test_the_context_can_be_filled_to_the_last_token_and_no_further(subject: Subject) -> None:
    policy = subject.policy
    room = policy.context_length - len(policy.encode([Message("user", "A hall.")]))
    assert_logprobs(subject.model, ask(policy, Sampling(max_tokens=room)), tol=CLOSE)
    with pytest.raises(PolicyError, match=rf"{room + 1} new ones exceed the context of {policy.context_length} tokens"):
        ask(policy, Sampling(max_tokens=room + 1))


def test_a_cancelled_request_leaves_the_others_alone(subject: Subject) -> None:
    policy = subject.policy
    (expected,) = ask(policy, Sampling(max_tokens=6))

    async def run() -> Completion:
        policy.open_episode("a")
        policy.open_episode("b")
        doomed = asyncio.create_task(policy.generate([Message("user", "x")], Sampling(max_tokens=60), "a"))
        other = asyncio.create_task(policy.generate([Message("user", "A hall.")], Sampling(max_tokens=6), "b"))
        for _ in range(3):
            await asyncio.sleep(0)
        doomed.cancel()
        try:
            completion: Completion = await other
            return completion
        finally:
            policy.close_episode("a")
            policy.close_episode("b")

    assert asyncio.run(run()).token_ids == expected.token_ids
    assert ask(policy, Sampling(max_tokens=6))[0].token_ids == expected.token_ids


def test_episodes_have_names_of_their_own_and_one_request_at_a_time(subject: Subject) -> None:
    policy = subject.policy
    with pytest.raises(PolicyError, match="'e' is not open"):
        asyncio.run(policy.generate([Message("user", "x")], Sampling(), "e"))
    policy.open_episode("e")
    with pytest.raises(PolicyError, match="'e' is open already"):
        policy.open_episode("e")

    async def run() -> None:
        asks = [policy.generate([Message("user", "x")], Sampling(max_tokens=2), "e") for _ in range(2)]
        for result in await asyncio.gather(*asks, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    try:
        with pytest.raises(PolicyError, match="has a completion under way"):
            asyncio.run(run())
    finally:
        policy.close_episode("e")
        policy.close_episode("e")
