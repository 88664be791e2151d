"""Generation with a cache that lives with the episode, held against plain forward passes without one."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from tokenizers import AddedToken

from families import CHATML
from puppet import WORDS, ask, assert_logprobs, forward, play_at_random
from trailnotes.config.model_schema import EngineConfig, ModelConfig
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.learner.logprobs import TokenScorer
from trailnotes.policies.hf.cache import MIN_SLOTS
from trailnotes.policies.hf.decoder import RecomputeDecoder, SlotDecoder, split_model
from trailnotes.policies.hf.policy import (
    HFPolicy,
    get_context_length,
    is_cache_only,
    load_model,
    require_context_length,
)
from trailnotes.types import Completion, Message, Sampling


def one(policy: HFPolicy, text: str = "A hall.", **options: Any) -> Completion:
    return ask(policy, Sampling(**options), text=text)[0]


def watch_passes(model: Any) -> list[torch.Size]:
    """Return the list that gets the rows and columns of each pass from now on."""
    passes: list[torch.Size] = []
    model.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape))
    return passes


def test_later_turns_compute_only_what_is_new(model, tokenizer, monkeypatch):
    policy = HFPolicy(model, tokenizer)
    fed: list[int] = []
    extend = policy.engine.decoder.extend
    monkeypatch.setattr(policy.engine.decoder, "extend", lambda rows: fed.append(len(rows[0][1])) or extend(rows))
    last = play_at_random(policy, 4)[0][-1]
    assert sum(fed) == len(last.prompt_ids) + len(last.token_ids) - 1  # each token once; the last is never fed


@pytest.mark.parametrize("burst", [1, 8])
def test_request_for_a_tip_continues_the_ended_episode(model, tokenizer, monkeypatch, burst):
    policy = HFPolicy(model, tokenizer, engine=EngineConfig(burst=burst))
    decoder = policy.engine.decoder
    fed: list[list[int]] = []
    extend = decoder.extend
    monkeypatch.setattr(decoder, "extend", lambda rows: fed.append([len(new) for _, new in rows]) or extend(rows))
    texts = ["north hall " * 9 + end for end in ("key", "door", "dark")]

    async def answer(name: str, messages: list[Message], seed: int) -> Completion:
        completion = await policy.generate(messages, Sampling(max_tokens=3, seed=seed), name)
        policy.close_episode(name)
        return completion

    async def answer_all(kind: str, conversations: list[list[Message]]) -> list[Completion]:
        names = [f"{kind}{index}" for index in range(len(conversations))]
        for name in names:
            policy.open_episode(name)
        return await asyncio.gather(*map(answer, names, conversations, range(len(names))))

    async def run() -> tuple[list[Completion], list[Completion]]:
        starts = [[Message("user", text)] for text in texts]
        firsts = await answer_all("episode", starts)
        fed.clear()
        answers = [Message("assistant", first.text, first.token_ids) for first in firsts]
        talks = [[*start, turn, Message("user", "A note?")] for start, turn in zip(starts, answers, strict=True)]
        tips = await answer_all("tip", [[Message("user", "dark " * 40)], *reversed(talks)])  # the first continues none
        assert decoder.cache.num_slots  # kept for others
        return list(reversed(firsts)), tips

    firsts, tips = asyncio.run(run())
    kept = [0, *(len(first.prompt_ids) + len(first.token_ids) - 1 for first in firsts)]  # the last was never fed
    assert fed[0] == [len(tip.prompt_ids) - num for tip, num in zip(tips, kept, strict=True)]
    assert_logprobs(model, tips)
    one(policy)  # continues none
    assert decoder.cache.num_slots == MIN_SLOTS
    asyncio.run(policy.sleep())
    assert decoder.cache.num_slots == 0


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
async def test_common_prompt_of_a_group_is_computed_once(model_of, tokenizer, kind):
    """Four members with one prompt, two with another end, one with another beginning; then all go on."""
    model = model_of(kind)
    policy = HFPolicy(model, tokenizer, deterministic=True)
    passes = watch_passes(model)
    common = "north hall dark key " * 12
    texts = [common + "door", *[common] * 4, common + "door", "key " + common]

    async def member(index: int) -> list[Completion]:
        name = f"e{index}"
        policy.open_episode(name)
        messages = [Message("user", texts[index])]
        first = await policy.generate(messages, Sampling(max_tokens=3, seed=index), name)
        messages += [Message("assistant", first.text, first.token_ids), Message("user", "A hall.")]
        second = await policy.generate(messages, Sampling(max_tokens=3, seed=index), name)
        policy.close_episode(name)
        return [first, second]

    episodes = await asyncio.gather(*map(member, range(len(texts))))
    longest = max(len(completions[0].prompt_ids) for completions in episodes)
    computed = sum(rows * width for rows, width in passes[:2])  # what two begin with, and the ends of others, padded
    assert computed <= 2 * longest + 64
    for completions in episodes:
        assert_logprobs(model, completions)


def test_deterministic_composition_does_not_depend_on_timing(model, tokenizer, monkeypatch):
    def batches(order: list[int]) -> list[list[int]]:
        policy, seen = HFPolicy(model, tokenizer), []
        extend = policy.engine.decoder.extend
        monkeypatch.setattr(
            policy.engine.decoder, "extend", lambda rows: seen.append([len(new) for _, new in rows]) or extend(rows)
        )

        async def late(index: int, delay: int) -> None:
            for _ in range(delay):
                await asyncio.sleep(0)
            await policy.generate([Message("user", WORDS[index] * (index + 1))], Sampling(max_tokens=3), f"e{index}")
            policy.close_episode(f"e{index}")

        async def run() -> None:
            for index in range(4):
                policy.open_episode(f"e{index}")
            await asyncio.gather(*(late(index, 7 * position) for position, index in enumerate(order)))

        asyncio.run(run())
        return seen

    assert batches([0, 1, 2, 3]) == batches([3, 1, 0, 2])


async def test_whatever_happens_to_a_slot_logprobs_are_those_of_a_fresh_forward(model_of, tokenizer):
    """Histories grow and are rewritten, episodes take over slots that others left, and weights change."""
    model, rng = model_of(), random.Random(0)
    policy = HFPolicy(model, tokenizer, deterministic=False)
    policy.open_episode("keeper")  # holds the memory, so that arrays are used again
    await policy.generate([Message("user", "dark " * 30)], Sampling(max_tokens=5), "keeper")
    for number in range(24):
        if number % 4 == 0:
            policy.close_episode(f"e{number - 4}")
            policy.open_episode(f"e{number}")
            talk: list[Message] = []
        elif rng.random() < 0.3:
            talk[2 * rng.randrange(len(talk) // 2)] = Message("user", "A key.")
        talk.append(Message("user", " ".join(rng.choices(WORDS, k=rng.randint(1, 20)))))
        done = await policy.generate(talk, Sampling(max_tokens=4, seed=number), f"e{number - number % 4}")
        assert_logprobs(model, [done])
        talk.append(Message("assistant", done.text, done.token_ids))
        if number % 5 == 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.05)
            policy.bump_version()
    policy.close_episode("e20")
    policy.close_episode("keeper")
    await policy.sleep()
    assert policy.version == 5
    cache = policy.engine.decoder.cache
    assert cache.capacity == cache.num_slots == len(cache.layers) == 0


async def test_weights_may_not_change_under_a_completion(model, tokenizer):
    policy = HFPolicy(model, tokenizer)
    policy.open_episode("a")
    policy.open_episode("b")
    asking = asyncio.create_task(policy.generate([Message("user", "x")], Sampling(), "a"))
    await asyncio.sleep(0)
    with pytest.raises(PolicyError, match="1 completions were under way"):
        policy.bump_version()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    policy.bump_version()


def test_an_engine_that_fails_says_so_and_goes_on(model, tokenizer, monkeypatch):
    policy = HFPolicy(model, tokenizer)
    before = one(policy, max_tokens=4)
    with monkeypatch.context() as patch:
        patch.setattr(policy.engine.decoder, "extend", lambda rows: (_ for _ in ()).throw(RuntimeError("broken GPU")))
        with pytest.raises(PolicyError, match="RuntimeError: broken GPU"):
            ask(policy, *[Sampling(max_tokens=4)] * 3)
    assert one(policy, max_tokens=4) == before


def test_weights_that_are_not_finite_are_an_error(model_of, tokenizer):
    model = model_of()
    policy = HFPolicy(model, tokenizer)
    before = one(policy, max_tokens=4)
    norm = model.model.norm.weight
    saved = norm.detach().clone()
    with torch.no_grad():
        norm.fill_(torch.nan)
    with pytest.raises(PolicyError, match="not finite"):
        one(policy, max_tokens=4)
    with torch.no_grad():
        norm.copy_(saved)
    assert one(policy, max_tokens=4) == before


LLAMA4 = {"intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 8, "head_dim": 8}
CHUNKED, FULL = "chunked_attention", "full_attention"


@pytest.mark.parametrize(
    ("kind", "options"),
    [("mamba", {}), *(("llama4_text", LLAMA4 | {"layer_types": [CHUNKED, last]}) for last in (CHUNKED, FULL))],
)
def test_a_model_with_other_layers_recomputes_and_is_right(model_of, tokenizer, caplog, monkeypatch, kind, options):
    monkeypatch.setattr("trailnotes.policies.hf.decoder.MAX_TOKENS", 64)
    model = model_of(kind, **options)
    with caplog.at_level(logging.WARNING):
        policy = HFPolicy(model, tokenizer)
    assert isinstance(policy.engine.decoder, RecomputeDecoder)
    assert "no cache is kept between turns" in caplog.text
    passes = watch_passes(model)
    for completions in play_at_random(policy, 1, 2, 3, 4):
        assert_logprobs(model, completions)
    assert all(rows == 1 or rows * width <= 64 for rows, width in passes)
    assert any(rows > 1 for rows, _ in passes)


WINDOWS = [(kind, {"sliding_window": window}) for kind in ("mistral", "gemma2") for window in (6, 256)]


@pytest.mark.parametrize(("kind", "options"), [*WINDOWS, ("stablelm", {}), ("nemotron", {})])
def test_sliding_windows_and_attention_that_ignores_ours_keep_the_cache(model_of, tokenizer, kind, options):
    model = model_of(kind, **options)
    policy = HFPolicy(model, tokenizer)
    assert isinstance(policy.engine.decoder, SlotDecoder)
    capped = policy.engine.decoder.network.parts is None
    assert capped == (kind == "gemma2")
    for completions in play_at_random(policy, 1, 2, 3, 4, 5):
        assert_logprobs(model, completions, tol=2e-5)


LONGROPE = {  # as Phi-3.5's files have it
    "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "longrope", "short_factor": [1, 1.1, 1.2, 1.3], "long_factor": [1, 4, 16, 32]},
}
DYNAMIC = {"rope_scaling": {"type": "dynamic", "factor": 4.0}}


@pytest.mark.parametrize(
    ("kind", "positions", "options"), [("phi3", 256, LONGROPE), ("llama", 64, DYNAMIC)], ids=["longrope", "dynamic"]
)
def test_rope_uses_one_set_of_factors_in_the_context(model_of, tokenizer, kind, positions, options):
    """Whatever is cached and whatever stands beside a row: other factors would take over behind token 64."""
    model = model_of(kind, positions, **options)
    policy = HFPolicy(model, tokenizer)
    assert policy.context_length == 64
    ids = policy.encode([Message("user", "go north")])
    whole = one(policy, "go north", max_tokens=64 - len(ids))
    assert_logprobs(model, [whole], tol=2e-5)
    with torch.no_grad():
        alone, inside, beyond = (
            model(torch.tensor([[*ids, *[0] * more]])).logits[0, : len(ids)] for more in (0, 64 - len(ids), 64)
        )
    torch.testing.assert_close(alone, inside, atol=2e-5, rtol=1e-4)
    assert (alone - beyond).abs().max() > 0.1, "there are other factors: the test shows something"


def test_context_beyond_longrope_s_first_factors_is_refused(model_of, tmp_path):
    model_of("phi3", **LONGROPE).config.save_pretrained(tmp_path)
    config = ModelConfig(path=str(tmp_path), device="cpu")
    require_context_length(config, 64)
    with pytest.raises(ConfigError, match=r"holds 64 tokens.* set rollout\.max_context_tokens to 64 or"):
        require_context_length(config, 65)


def test_a_cache_that_the_model_ignores_is_found_out(model_of, tokenizer, caplog):
    model = model_of()
    whole = model.model.forward
    model.model.forward = lambda **inputs: whole(**inputs | {"position_ids": None})
    policy = HFPolicy(model, tokenizer)
    assert isinstance(policy.engine.decoder, RecomputeDecoder)
    assert "differs from one without" in caplog.text
    assert_logprobs(model, [one(policy, max_tokens=5)])


def test_long_prompts_are_computed_in_parts(model, tokenizer, monkeypatch):
    monkeypatch.setattr("trailnotes.policies.hf.decoder.MAX_TOKENS", 16)
    policy = HFPolicy(model, tokenizer)
    for completions in play_at_random(policy, 1, 2, 3, 4, 5):
        assert_logprobs(model, completions)


def test_a_model_left_in_training_mode_samples_without_dropout(model_of, tokenizer):
    model = model_of("gpt2", resid_pdrop=0.5)
    policy = HFPolicy(model, tokenizer)
    model.train()
    assert one(policy, max_tokens=6) == one(policy, max_tokens=6)


def test_tokenizer_with_more_tokens_than_the_model_embeds(model, tokenizer_of):
    tokenizer = tokenizer_of()
    tokenizer.add_tokens([AddedToken("<image_soft_token>", special=True, normalized=False)])
    policy = HFPolicy(model, tokenizer)
    assert max(policy.encode([Message("user", "an <image_soft_token> here")])) < len(tokenizer) - 1, "data is cut apart"
    for change in ("the template", "a word"):
        tokenizer.chat_template = ("<image_soft_token>" if change == "the template" else "") + CHATML
        tokenizer.add_tokens(["dragon"] if change == "a word" else [])
        with pytest.raises(PolicyError, match=r"the model embeds only .*resize_token_embeddings"):
            HFPolicy(model, tokenizer)


# -- log-probabilities of given replies

PROMPT = (Message("user", "You are in a hall."), Message("assistant", "look"), Message("user", "It is dark here."))
REPLIES = ("go north", "take key", "go north and south and look at the key")


def score(policy: HFPolicy, messages: Sequence[Message], replies: Sequence[Any]) -> list[float]:
    return asyncio.run(policy.score(messages, replies))


@pytest.mark.parametrize("kind", ["qwen2", "gpt2", "gemma2", "mamba"])
def test_a_score_is_the_mean_logprob_of_the_reply_however_replies_are_batched(model_of, tokenizer, monkeypatch, kind):
    policy = HFPolicy(model_of(kind), tokenizer)
    prompt, end = policy.encode(PROMPT), tuple(tokenizer.encode("<|im_end|>"))
    rows = [Completion(prompt, ids, (0.0,) * len(ids), "") for ids in ((*tokenizer.encode(r), *end) for r in REPLIES)]
    wanted = [sum(forward(policy.model, row)) / len(row.token_ids) for row in rows]
    assert score(policy, PROMPT, REPLIES) == pytest.approx(wanted, abs=1e-4)
    monkeypatch.setattr("trailnotes.policies.hf.policy.MAX_TOKENS", 1)
    assert score(policy, PROMPT, [*REPLIES, rows[0].token_ids]) == pytest.approx([*wanted, wanted[0]], abs=1e-4)
    assert score(policy, PROMPT, []) == []


def test_scoring_in_an_episode_leaves_no_trace(model, tokenizer):
    async def answer(between: bool) -> list[Completion]:
        policy, messages, answers = HFPolicy(model, tokenizer), list(PROMPT), []
        policy.open_episode("e")
        for turn in range(2):
            if between:
                await policy.score(messages, REPLIES)
            answers.append(await policy.generate(messages, Sampling(max_tokens=6, seed=turn), "e"))
            messages += [Message("assistant", answers[-1].text, answers[-1].token_ids), Message("user", "And now?")]
        return answers

    assert asyncio.run(answer(between=True)) == asyncio.run(answer(between=False))


@pytest.mark.parametrize(("kind", "alone"), [("qwen2", True), ("gemma2", False)])  # Gemma 2 caps its logits at 30
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_policy_and_learner_agree_whether_the_head_alone_gives_the_logits(model_of, tokenizer, kind, alone):
    model = model_of(kind, initializer_range=0.02, tie_word_embeddings=False)  # logits far too small for the cap
    model.train()
    assert (split_model(model) is not None, model.training) == (alone, True), "the probe leaves the mode alone"
    policy, scorer = HFPolicy(model, tokenizer), TokenScorer(model)
    assert policy.engine.decoder.network.parts == scorer.parts
    for growth in (1.0, 500.0):
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(growth)
        policy.bump_version()
        done = one(policy, max_tokens=8, seed=3)
        ids = torch.tensor([[*done.prompt_ids, *done.token_ids]])
        mask = torch.arange(ids.shape[1])[None] >= len(done.prompt_ids)
        with torch.no_grad():
            assert list(done.logprobs) == pytest.approx(scorer(ids, mask)[0][mask].tolist(), abs=1e-4)


# -- files


def test_a_model_that_does_not_load_names_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("", "./nowhere", "/nowhere/at/all", "."):
        with pytest.raises(ConfigError, match=r"model\.path"):
            load_model(ModelConfig(path=path))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "vocab_size": "many"}')
    with pytest.raises(PolicyError, match=r"model\.path"):
        load_model(ModelConfig(path=str(tmp_path), device="cpu"))


@pytest.mark.parametrize(
    ("status", "is_cached", "is_read"), [(0, False, False), (0, True, True), (429, True, True), (404, True, False)]
)
def test_a_hub_out_of_reach_is_asked_once_and_the_cache_is_read(monkeypatch, status, is_cached, is_read):
    names: list[str] = []
    response: Any = SimpleNamespace(status_code=status, headers={}, request=None)

    def refuse(_: Any, name: str, **options: Any) -> None:
        names.append(name)
        raise HfHubHTTPError("no", response=response) if status else ConnectionError("Name or service\nnot known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    monkeypatch.setattr("trailnotes.policies.hf.policy.try_to_load_from_cache", lambda *_: "x" if is_cached else None)
    is_cache_only.cache_clear()
    if is_read:
        assert [is_cache_only("some/model") for _ in range(3)] == [True] * 3
    else:
        with pytest.raises(PolicyError, match=r"model\.path = 'some/model'"):
            get_context_length(ModelConfig(path="some/model"))
    is_cache_only.cache_clear()
    assert names == ["some/model"]
