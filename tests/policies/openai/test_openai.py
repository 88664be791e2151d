"""The policy against a real server over HTTP, with a proxy between that counts, and breaks what it is told to."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai as client
import pytest

from proxy import Fault, Proxy, changed, cut_body, cut_quietly, hang, refusal
from served import MODEL
from trailnotes.config.model_schema import EndpointConfig
from trailnotes.config.schema import Config
from trailnotes.errors import MIN_SECRET_CHARS, BudgetError, ConfigError, PolicyError, redact_environment
from trailnotes.policies import openai
from trailnotes.policies.openai import AnswerCache, OpenAIPolicy, PaidAnswer, TokenUsage
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Completion, Message, Sampling

pytestmark = pytest.mark.usefixtures("no_endpoint_variables")

PROMPT = (Message("user", "find the way through the cobalt maze\nward. exits north east south, archive west."),)
KEY = "sk-secret-0123456789"


def policy(
    url: str, answers: Path | None = None, name: str = MODEL, max_retries: int = 6, **endpoint: Any
) -> OpenAIPolicy:
    config = Config(endpoint={"base_url": url, "timeout": 30.0, **endpoint})
    made = OpenAIPolicy(config, name, answers=answers)
    made.config = made.config.model_copy(update={"max_retries": max_retries})
    return made


async def play(
    policy: OpenAIPolicy, *samplings: Sampling, messages: Sequence[Message] = PROMPT, episode: str = "e"
) -> list[Completion]:
    """The completions of one episode, asked for one after the other."""
    policy.open_episode(episode)
    try:
        return [await policy.generate(messages, sampling, episode) for sampling in samplings]
    finally:
        policy.close_episode(episode)


def ask(policy: OpenAIPolicy, *samplings: Sampling, **options: Any) -> list[Completion]:
    return asyncio.run(play(policy, *samplings, **options))


def sampling(seed: int = 0, **changes: Any) -> Sampling:
    return Sampling(**{"max_tokens": 8, "stop": ("\n",), "seed": seed} | changes)


# -- what comes back


def test_a_completion_has_text_and_the_servers_count_of_tokens(proxy: Proxy) -> None:
    (done,) = ask(policy(proxy.url), sampling())
    assert done.text in {"north", "east", "south", "west"}
    assert (done.finish_reason, done.usage) == ("stop", (20, 2))
    assert (done.prompt_ids, done.token_ids, done.logprobs) == ((), (), ())


def test_the_request_is_the_sampling(proxy: Proxy) -> None:
    drawn = Sampling(0.5, 0.9, max_tokens=3, stop=tuple("abcdef"), seed=2**62 + 5)
    messages = [Message("system", "s"), *PROMPT, Message("assistant", "east", (1, 2)), Message("user", "half \ud83d")]
    ask(policy(proxy.url), drawn, messages=messages)
    sent = [("system", "s"), ("user", PROMPT[0].content), ("assistant", "east"), ("user", "half ?")]
    assert proxy.asked[0].body == {
        "model": MODEL, "messages": [{"role": role, "content": content} for role, content in sent],
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 3, "stop": ["a", "b", "c", "d"], "seed": 5,
    }  # fmt: skip


def test_text_is_cut_at_the_first_stop_whatever_the_server_does(proxy: Proxy) -> None:
    proxy.always = changed(lambda answer: with_choice(answer, "go east;\nthen north", "model_length"))
    whole, cut = ask(policy(proxy.url), sampling(stop=()), sampling(stop=("\n", ";")))
    assert (whole.text, whole.finish_reason) == ("go east;\nthen north", "length")
    assert (cut.text, cut.finish_reason) == ("go east", "stop")


def with_choice(answer: dict[str, Any], content: Any, reason: str, **message: Any) -> dict[str, Any]:
    return answer | {"choices": [{"message": {"content": content, **message}, "finish_reason": reason}]}


def test_cut_prompts_and_filtered_answers_are_reported_once(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 2}
    proxy.always = changed(lambda answer: with_choice(answer | {"usage": usage}, "go", "content_filter"))
    ask(policy(proxy.url), sampling(), sampling(1), messages=[Message("user", "granite " * 1500)])
    assert (caplog.text.count("OLLAMA_CONTEXT_LENGTH"), caplog.text.count("content filter")) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ({"usage": {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}}, ("go", "stop", (32, 103))),
        (with_choice({"usage": None}, "go", "stop", reasoning="x" * 300), ("go", "stop", (31, 101))),
        (with_choice({}, [{"type": "thinking"}, {"type": "text", "text": "go"}], "length"), ("go", "length", (20, 2))),
    ],
)
def test_answers_of_reasoning_models(proxy: Proxy, answer: dict[str, Any], wanted: Any) -> None:
    proxy.always = changed(lambda real: with_choice(real, "go", "stop") | answer)
    (done,) = ask(policy(proxy.url), sampling())
    assert (done.text, done.finish_reason, done.usage) == wanted


def test_further_fields_are_sent_and_ask_for_another_answer(proxy: Proxy, tmp_path: Path) -> None:
    plain, own = (
        policy(proxy.url, tmp_path / "a.jsonl", extra=extra)
        for extra in ({}, {"generation_config": '{"do_sample": false, "eos_token_id": 1}'})
    )
    ask(plain, sampling())
    greedy = [ask(own, sampling(seed, temperature=1.0))[0].text for seed in range(4)]
    assert "generation_config" not in proxy.asked[0].body
    assert proxy.asked[1].body["generation_config"] == own.config.extra["generation_config"]
    assert len({*greedy}) == 1, "the real server drew nothing"
    assert len({line["key"] for line in read_jsonl(tmp_path / "a.jsonl")}) == len(proxy.asked) == 5


# -- faults that pass


PASSING: dict[str, Fault] = {
    "429": refusal(429, "slow down", headers={"Retry-After": "5"}),
    "504": refusal(504, "the proxy waited long enough"),
    "a cut body": cut_body,
    "a body cut unnoticed": cut_quietly,
    "no answer in time": hang,
    "no JSON": changed(lambda answer: "<html>Bad gateway</html>"),
    "no choices": changed(lambda answer: answer | {"choices": []}),
    "no text": changed(lambda answer: with_choice(answer, 3, "stop")),
    "an error with status 200": changed(lambda answer: {"error": {"message": "overloaded"}}),
    "429 with status 200": changed(lambda answer: {"error": {"message": "slow down", "code": 429}}),
    "502 after a part": changed(lambda answer: {"choices": [{"error": {"code": 502}, "message": {"content": "go"}}]}),
    "an error after a part": changed(lambda answer: with_choice(answer, "go", "insufficient_system_resource")),
}
BILLED = PASSING.keys() - {"429", "429 with status 200"}


@pytest.mark.parametrize("name", PASSING)
def test_a_fault_that_passes_is_tried_again_and_counted(name: str, proxy: Proxy, tmp_path: Path, monkeypatch) -> None:
    waits: list[tuple[float | None, int]] = []
    monkeypatch.setattr(openai, "compute_wait", lambda _, *asked: waits.append(asked) or 0.0)
    proxy.faults = [PASSING[name], PASSING[name], None, None]
    endpoint = policy(proxy.url, tmp_path / "a.jsonl", timeout=2.0 if PASSING[name] is hang else 30.0)
    done = ask(endpoint, sampling(), sampling(1))
    assert [each.usage for each in done] == [(20, 2), (20, 2)]  # the run goes on
    metrics = endpoint.metrics()
    assert (metrics["endpoint/requests"], metrics["endpoint/retries"]) == (2, 2)
    assert metrics["endpoint/lost"] == (2 if name in BILLED else 0)
    status = int(name[:3]) if name[0].isdecimal() else 0
    assert (len(proxy.asked), waits) == (4, [(5.0 if name == "429" else None, status)] * 2)
    assert [line["retries"] for line in read_jsonl(tmp_path / "a.jsonl") if line["key"]] == [2, 0]


def test_a_server_that_gives_no_answer_at_all_ends_the_run_at_once(caplog, monkeypatch) -> None:
    monkeypatch.setattr(openai, "FIRST_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # which takes connections and answers nothing
        silent = policy(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", concurrency=1)

        async def main() -> list[Any]:
            plays = (play(silent, sampling(number), episode=f"{number}") for number in range(3))
            return await asyncio.gather(*plays, return_exceptions=True)

        failures = asyncio.run(main())
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            [listener.accept()[0].close() for _ in range(2)]  # at most one probe
    assert all("does not answer (nothing within 0.3 s): see" in str(failure) for failure in failures)
    with pytest.raises(PolicyError, match=r"127.0.0.1:9/v1 does not answer .*endpoint.base_url"):
        ask(policy("http://127.0.0.1:9/v1"), sampling())
    assert not silent.metrics()["endpoint/lost"]  # no completion was asked for


def test_the_imports_of_the_first_request_are_not_the_servers_time(proxy: Proxy, monkeypatch) -> None:
    models = client.AsyncOpenAI.models.func
    monkeypatch.setattr(openai, "FIRST_TIMEOUT", 1.0)
    monkeypatch.setattr(client.AsyncOpenAI, "models", property(lambda self: time.sleep(1.1) or models(self)))
    ask(policy(proxy.url), sampling())
    assert proxy.probes == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [(500, "failed 2 times, at last with 500: too much"), (429, "rate limit, 2 times .*429: too much")],
)
def test_an_endpoint_that_fails_too_often(proxy: Proxy, status: int, words: str) -> None:
    proxy.always = refusal(status, "too much")
    with pytest.raises(PolicyError, match=words):
        ask(policy(proxy.url, max_retries=1), sampling())
    assert len(proxy.asked) == 2


def test_what_may_have_been_billed_counts_at_its_most(proxy: Proxy, tmp_path: Path) -> None:
    proxy.faults = [cut_body, None]
    prices = {"price_input": 1.0, "price_output": 10.0}
    endpoint = policy(proxy.url, tmp_path / "a.jsonl", **prices)
    ask(endpoint, sampling())
    lost, kept = read_jsonl(tmp_path / "a.jsonl")
    assert (lost["prompt_tokens"], lost["completion_tokens"], lost["key"]) == (31, 8, "")
    assert (lost["cost"], kept["cost"]) == pytest.approx(((31 + 80) / 1e6, (20 + 20) / 1e6))
    assert endpoint.metrics()["endpoint/cost"] == pytest.approx(151e-6)
    again = policy(proxy.url, tmp_path / "a.jsonl", **prices)
    assert again.metrics() == endpoint.metrics()


# -- faults that do not pass

FATAL: dict[str, tuple[Fault, str]] = {
    "a refused key": (refusal(403, "not for you"), "OPENAI_API_KEY"),
    "a refused parameter": (refusal(400, "only 1", param="temperature"), "endpoint.omit"),
    "no money": (refusal(429, "pay first", code="insufficient_quota"), "top it up"),
    "no money, with status 200": (changed(lambda answer: {"error": {"message": "pay", "code": 402}}), "top it up"),
}


@pytest.mark.parametrize("name", FATAL)
def test_fatal_fault_ends_the_run_and_keeps_answers(name: str, proxy: Proxy, tmp_path: Path) -> None:
    fault, fix = FATAL[name]
    proxy.faults = [None, fault]
    with pytest.raises(PolicyError) as caught:
        ask(policy(proxy.url, tmp_path / "a.jsonl"), sampling(), sampling(1))
    assert fix in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(proxy.asked) == 2
    ask(policy(proxy.url, tmp_path / "a.jsonl"), sampling(), sampling(1))  # and goes on once that is mended
    assert sorted(proxy.counts.values()) == [1, 2]


def test_key_is_redacted_everywhere(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    proxy.key = KEY
    echo = {"message": f"you sent {KEY}"}
    proxy.faults = [
        None, refusal(500, echo["message"]), cut_body, changed(lambda answer: {"error": echo}), None,
        refusal(400, echo["message"]),
    ]  # fmt: skip
    with caplog.at_level(logging.DEBUG):
        endpoint = policy(proxy.url, tmp_path / "a.jsonl", api_key_env="MY_KEY")
        with pytest.raises(PolicyError) as caught:
            ask(endpoint, sampling(), sampling(1), sampling(2))
    assert proxy.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert "[key]" in str(caught.value)
    cause = caught.value.__cause__
    texts = [repr(endpoint), str(endpoint), repr(caught.value), repr(cause), caplog.text, str(endpoint.answers.path)]
    texts += [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(texts) == 7
    assert not [text for text in texts if KEY in text]
    assert PROMPT[0].content.splitlines()[0] not in caplog.text  # not even the client's own log has prompts


def test_keys_are_redacted_alike_in_answers_and_in_errors(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"A_KEY": "k" * MIN_SECRET_CHARS, "B_KEY": "n" * (MIN_SECRET_CHARS - 1)}
    proxy.always = changed(lambda answer: with_choice(answer, " ".join(keys.values()), "stop"))
    texts = []
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
        texts += [each.text for each in ask(policy(proxy.url, api_key_env=name), sampling())]
    assert texts == [f"[key] {keys['B_KEY']}", " ".join(keys.values())]
    assert redact_environment(" ".join(keys.values())) == f"[A_KEY] {keys['B_KEY']}"


# -- settings


@pytest.mark.parametrize(
    ("endpoint", "key", "named"),
    [
        ({}, "", "OPENAI_API_KEY"),
        ({"base_url": "http://h/v1", "max_cost": 1.0}, "", "endpoint.price_input"),
        ({"base_url": "http://h/v1"}, "sk-\u201chush\u201d", "OPENAI_API_KEY"),
        *(({"base_url": url}, "", "endpoint.base_url") for url in ("http:me:hush@h/v1", "me:hush@h", "h:80/v1")),
    ],
)
def test_impossible_settings_name_the_key(
    endpoint: dict[str, Any], key: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises((ConfigError, ValueError), match=named) as caught:
        OpenAIPolicy(Config(endpoint=endpoint), "m")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("priced", "free"), [("price_input", "price_output = 0: answers"), ("price_output", "price_input = 0: prompts")]
)
def test_a_price_of_zero_beside_a_limit_is_warned_of(priced: str, free: str, caplog: pytest.LogCaptureFixture) -> None:
    OpenAIPolicy(Config(endpoint={"base_url": "http://h/v1", "max_cost": 1.0, priced: 2.0}), "m")
    assert caplog.messages == [f"endpoint.{free} count as free"]


# -- many at once


def test_no_more_requests_are_under_way_than_allowed(proxy: Proxy) -> None:
    proxy.delay = 0.2
    endpoint = policy(proxy.url, concurrency=3)

    async def main() -> None:
        await asyncio.gather(*(play(endpoint, sampling(number), episode=f"{number}") for number in range(12)))

    asyncio.run(main())
    assert (proxy.most_under_way, proxy.probes) == (3, 1)
    asyncio.run(main())  # in another event loop, and from memory
    assert len(proxy.asked) == 12


async def test_equal_requests_share_answers_across_episodes(proxy: Proxy) -> None:
    endpoint = policy(proxy.url)
    played = await asyncio.gather(*(play(endpoint, *[sampling()] * 3, episode=episode) for episode in "abcd"))
    assert all(done == played[0] for done in played)
    assert list(proxy.counts.values()) == [3]


def test_cancelled_episode_keeps_its_answer(proxy: Proxy) -> None:
    proxy.delay = 1.0
    endpoint = policy(proxy.url)

    async def main() -> None:
        task = asyncio.create_task(play(endpoint, sampling()))
        while not proxy.asked:  # noqa: ASYNC110 (the proxy lives in another thread)
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(main())
    assert endpoint.metrics()["endpoint/requests"] == 1
    ask(endpoint, sampling())
    assert len(proxy.asked) == 1


# -- limits


def test_a_request_that_could_pass_the_token_limit_is_not_sent(proxy: Proxy, tmp_path: Path) -> None:
    limit = 200
    endpoint = policy(proxy.url, tmp_path / "a.jsonl", max_tokens_total=limit)

    async def main() -> list[Any]:
        asks = (play(endpoint, sampling(number), episode=f"{number}") for number in range(20))
        return await asyncio.gather(*asks, return_exceptions=True)

    ends = asyncio.run(main())
    stopped = [end for end in ends if isinstance(end, BudgetError)]
    sent = len(ends) - len(stopped)
    assert limit - 39 < proxy.tokens <= limit  # 31 + 8 tokens are held back for each, of which 22 are used
    assert len(proxy.asked) == sent == 8  # so that 8 * 22 = 176 are spent, and a ninth could take 39
    assert "endpoint.max_tokens_total = 200: 176 tokens are spent, and it may take 39" in str(stopped[0])
    assert not endpoint.answers.reserved
    more = policy(proxy.url, tmp_path / "a.jsonl", max_tokens_total=480)  # the limit raised: the sum goes on
    for number in range(20):
        ask(more, sampling(number), episode=f"{number}")
    assert set(proxy.counts.values()) == {1}
    assert proxy.tokens == 440
    with pytest.raises(BudgetError):
        ask(more, sampling(20), sampling(21))
    assert proxy.tokens == 440 + 22


def test_preamble_of_the_server_is_reserved_once_for_each_prompt(proxy: Proxy) -> None:
    proxy.always = changed(lambda answer: answer | {"usage": {"prompt_tokens": 1800, "completion_tokens": 2}})
    endpoint = policy(proxy.url, max_tokens_total=4000)
    ask(endpoint, sampling())
    ask(endpoint, sampling(), messages=[Message("user", "go " * 300)])  # 304 tokens are estimated
    with pytest.raises(BudgetError):
        ask(endpoint, sampling(1))


def test_max_cost_counts_what_is_under_way() -> None:
    answers = AnswerCache(None, EndpointConfig(price_input=2.0, price_output=10.0, max_cost=0.001))
    amount = TokenUsage(100, 20)  # costs 0.0002 + 0.0002
    answers.reserved = {1: amount}
    assert not answers.explain_limit(amount)
    answers.reserved = {1: amount, 2: amount}
    assert "endpoint.max_cost = 0.001" in answers.explain_limit(amount)
    answers.reserved.clear()
    answers.store(PaidAnswer("k", "x", "stop", 300, 40, 0.00096))
    assert "0.00096 is spent, and it may cost 0.0004" in answers.explain_limit(amount)


# -- the file


def test_restart_pays_for_no_whole_answer_twice(proxy: Proxy, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = ask(policy(proxy.url, path), *map(sampling, (0, 1, 2, 2)))
    again = policy(proxy.url, path)
    second = ask(again, *map(sampling, (2, 1, 2, 0, 3)))
    assert [second[i] for i in (3, 1, 0, 2)] == first
    assert (len(proxy.asked), again.metrics()["endpoint/reused"]) == (5, 4)
    assert "cobalt" not in path.read_text()  # no prompt is written
    path.write_bytes(path.read_bytes()[:-20])
    ask(policy(proxy.url, path), *map(sampling, (2, 3)))
    assert (len(proxy.asked), len([*read_jsonl(path)])) == (6, 5), "a cut last line costs its answer and no other"
