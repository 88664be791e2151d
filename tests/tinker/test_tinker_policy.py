"""The policy at a server: where completions end, which are kept and found again, and what it refuses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from small import merge_sections, small_config
from tinker_servers import RANK, StandIn, close_service, score_here
from trailnotes.config.schema import Config
from trailnotes.errors import PolicyError
from trailnotes.learner.samples import anchor_sample
from trailnotes.learner.tinker import TinkerLearner
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.tinker import TinkerPolicy
from trailnotes.storage import checkpoint
from trailnotes.types import Completion, Message, Sampling
from trailnotes.web.tinker import TinkerServer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Adapter .* was active:UserWarning"),
]
ASK = [Message("user", "You are in a hall.")]
# Both sides add some hundred numbers of float32 for a log-probability, in orders of their own: logits of some ten nats
# have steps of 1e-6, of which dozens add up. Other weights are tenths of a nat off.
CLOSE = 1e-4
Opened = Callable[..., TinkerPolicy]


@pytest.fixture(scope="module", params=["documented", pytest.param("skyrl", marks=pytest.mark.long)])
def own(
    request: pytest.FixtureRequest, model_dir: Path, forks: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandIn]:
    server = StandIn(request.param, model_dir, tmp_path_factory.mktemp("server") / "root", forks=forks)
    server.start()
    yield server
    server.close()


def make_config(server: StandIn, **sections: dict[str, Any]) -> Config:
    own: dict[str, dict[str, Any]] = {
        "model": {"path": str(server.model), "lora": {"rank": RANK}},
        "optim": {"lr": 1e-2, "grad_clip": 0.0},
        "learner": {"name": "tinker", "url": server.url, "timeout": 60.0},
    }
    return small_config(**merge_sections(own, sections))


@pytest.fixture
def opened(own: StandIn) -> Iterator[Opened]:
    """Open policies, which end with the test."""
    policies = []

    def open_policy(directory: Path | None = None, **sections: dict[str, Any]) -> TinkerPolicy:
        config = make_config(own, **sections)
        ledger = directory / "tinker.jsonl" if directory else None
        policies.append(TinkerPolicy(config, TinkerServer(config.learner, ledger), directory))
        return policies[-1]

    yield open_policy
    for policy in policies:
        policy.close()
        close_service(policy.server.service)


def ask(policy: Any, *samplings: Sampling, messages: Sequence[Message] = ASK) -> list[Completion]:
    """Ask in one episode, one after the other."""

    async def play() -> list[Completion]:
        policy.open_episode("one")
        try:
            return [await policy.generate(messages, sampling, "one") for sampling in samplings]
        finally:
            policy.close_episode("one")

    return asyncio.run(play())


def count_asked(server: StandIn) -> int:
    return server.counts()["requests"].get("asample", 0)


def test_one_health_check_serves_all_requests_that_wait(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    server, checks = opened().server, list[str]()

    def hang() -> httpx.Response:
        checks.append("hangs")
        raise httpx.ReadTimeout("nothing came")

    monkeypatch.setattr("trailnotes.web.tinker.ALIVE_EVERY", 3600.0)
    monkeypatch.setattr(server, "_get_health", hang)
    assert [server._is_alive() for _ in range(3)] == [False] * 3
    assert checks == ["hangs"]


def test_completions_are_cut_where_the_engines_here_end_them(own: StandIn, opened: Opened) -> None:
    policy = opened()
    for seed in range(5):
        (whole,) = ask(policy, Sampling(max_tokens=16, seed=seed))
        assert (whole.finish_reason, len(whole.token_ids)) == ("length", 16)
        stop = whole.text[len(whole.text) // 2 :].strip()[:2]
        samplings = Sampling(max_tokens=16, seed=seed, stop=(stop,)), Sampling(max_tokens=5, seed=seed)
        stopped, short = ask(policy, *samplings)
        texts = [policy.format.decode(whole.token_ids[:size]) for size in range(17)]
        size = next(size for size in range(17) if stop in texts[size])
        assert stopped.token_ids == whole.token_ids[:size]
        assert stopped.logprobs == whole.logprobs[:size]
        assert stopped.text == whole.text.partition(stop)[0]
        assert stopped.finish_reason == "stop"
        assert (short.token_ids, short.finish_reason) == (whole.token_ids[:5], "length")
        expected = score_here(make_config(own), own.model, [anchor_sample(whole, "tip", 0.0)])
        assert whole.logprobs == pytest.approx([value for value in expected if value], abs=CLOSE)


def test_a_token_that_ends_the_turn_ends_the_completion(own: StandIn, opened: Opened) -> None:
    policy, sampling = opened(), Sampling(max_tokens=12, seed=7)
    ids = ask(policy, sampling)[0].token_ids
    policy.endings = StopCondition(policy.format.decode, {ids[3]}, policy.format.opening)
    policy._stop_ids.clear()
    (ended,) = ask(policy, sampling)
    assert ended.token_ids == ids[: ids.index(ids[3]) + 1]
    assert ended.finish_reason == "stop"


def test_load_refuses_other_weights_than_the_learner_has(own: StandIn, opened: Opened, tmp_path: Path) -> None:
    policy = opened()
    learner = TinkerLearner(make_config(own), policy.server)
    rows = [anchor_sample(probe, "tip", 0.0) for probe in policy.probes]

    def score_rows() -> list[list[float]]:
        pairs = zip(learner.logprobs(rows), rows, strict=True)
        return [[v for v, trained in zip(values, row.loss_mask, strict=True) if trained] for values, row in pairs]

    first = score_rows()
    assert asyncio.run(policy.load(learner.weights(), 0, first)) < CLOSE
    learner.update([anchor_sample(probe, "tip", 0.0, advantage=1.0) for probe in policy.probes])
    trained = score_rows()
    weights = learner.weights()
    with pytest.raises(PolicyError, match="samples from other weights than it trains"):
        asyncio.run(policy.load(weights, 1, first))
    assert asyncio.run(policy.load(weights, 1, trained)) < CLOSE
    assert policy.version == 1
    prompt, texts = policy.format.encode(ASK), ["go north", "take key"]
    for text, score in zip(texts, asyncio.run(policy.score(ASK, texts)), strict=True):
        reply = policy.format.encode_reply(ASK, text)
        row = anchor_sample(Completion(prompt, reply, (0.0,) * len(reply), text, "stop"), "tip", 0.0)
        assert score == pytest.approx(sum(learner.logprobs([row])[0]) / len(reply), abs=CLOSE)
    learner.close()


def test_repeated_requests_of_an_episode_are_kept_apart(own: StandIn, opened: Opened, tmp_path: Path) -> None:
    same = [Sampling(1.0, max_tokens=6, seed=3)] * 2 + [Sampling(1.0, max_tokens=6, seed=4)]
    first, file = ask(opened(tmp_path), *same), tmp_path / "completions" / "000000.jsonl"
    keys = [line.split('"')[3] for line in file.read_text().splitlines()]
    assert [key[-2:] for key in keys] == [".0", ".1", ".0"]
    assert len({*keys}) == 3
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])  # a line that was cut short is asked for again
    resumed = opened(tmp_path)
    assert ask(resumed, *same) == first
    assert resumed.report()["reused"] == 2
    assert Counter(file.read_bytes()) == Counter(whole)
    before, second = count_asked(own), opened(tmp_path)
    assert ask(second, *same) == first
    assert count_asked(own) == before
    assert second.report() == {"completions": 3.0, "reused": 3.0}
    assert ask(second, *same) == first  # by the same seeds, at the server
    assert count_asked(own) == before + 3
    assert second.report() == {"completions": 3.0, "reused": 0.0}
    for sections, reused in [  # what other weights may come of is asked for anew
        ({"empo2": {"old_logprobs": "acting"}}, 0), ({"optim": {"lr_decay": 0.5}, "train": {"iterations": 7}}, 0),
        ({"train": {"save_every": 7, "iterations": 7}, "learner": {"max_tokens_total": 10**6}}, 3),
    ]:  # fmt: skip
        changed = opened(tmp_path, **sections)
        ask(changed, *same)
        assert changed.report()["reused"] == reused, sections


def test_a_completion_whose_episode_is_cancelled_is_counted_and_kept(
    own: StandIn, opened: Opened, tmp_path: Path
) -> None:
    policy, sampling = opened(tmp_path), Sampling(1.0, max_tokens=6, seed=3)

    async def cancel_while_under_way() -> None:
        playing = asyncio.current_task()
        assert playing is not None
        asyncio.get_running_loop().call_soon(playing.cancel)
        policy.open_episode("one")
        await policy.generate(ASK, sampling, "one")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_while_under_way())
    assert policy.server.ledger.count.sampled > 0
    before, second = count_asked(own), opened(tmp_path)
    ask(second, sampling)
    assert (count_asked(own), second.report()["reused"]) == (before, 1.0)


def test_completions_before_the_oldest_checkpoint_go(own: StandIn, opened: Opened, tmp_path: Path) -> None:
    policy = opened(tmp_path)
    learner = TinkerLearner(make_config(own), policy.server)

    def list_files() -> list[str]:
        return sorted(path.stem for path in (tmp_path / "completions").glob("*.jsonl"))

    for version in range(3):
        asyncio.run(policy.load(learner.weights(), version))
        ask(policy, Sampling(max_tokens=2))
    assert list_files() == ["000000", "000001", "000002"]
    checkpoint.save(tmp_path / "checkpoints", 2, lambda path: None, meta={"iteration": 2})
    asyncio.run(policy.load(learner.weights(), 2))
    assert list_files() == ["000002"]
    asyncio.run(policy.load(learner.weights(), 0))  # an author's
    ask(policy, Sampling(max_tokens=2, seed=1))
    asyncio.run(policy.load(learner.weights(), 2))
    assert len((tmp_path / "completions" / "000002.jsonl").read_text().splitlines()) == 2
    learner.close()
