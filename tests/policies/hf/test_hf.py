"""Generation with a cache that lives with the episode, held against plain forward passes without one."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest
import torch

from puppet import forward
from trailnotes.config.model_schema import ModelConfig
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.policies.hf.decoder import RecomputeDecoder, SlotDecoder
from trailnotes.policies.hf.policy import HFPolicy, load_model, require_context_length
from trailnotes.types import Completion, Message, Sampling

WORDS = ["key", "door", "north", "hall", "dark", "\n", "note", "é"]


async def play(policy: HFPolicy, name: str, seed: int, turns: int, **options: Any) -> list[Completion]:
    """An episode of random observations; its length, waits and temperatures depend on the seed alone."""
    rng, waits = random.Random(seed), random.Random(-seed - 1)
    policy.open_episode(name)
    messages: list[Message] = []
    completions = []
    try:
        for turn in range(turns):
            if not policy.engine.deterministic:
                for _ in range(waits.randrange(4)):
                    await asyncio.sleep(0)
            messages.append(Message("user", " ".join(rng.choices(WORDS, k=rng.randint(1, 8)))))
            sampling = Sampling(seed=100 * seed + turn, **({"max_tokens": rng.randint(1, 7)} | options))
            completion = await policy.generate(messages, sampling, name)
            completions.append(completion)
            messages.append(Message("assistant", completion.text, completion.token_ids))
    finally:
        policy.close_episode(name)
    return completions


def play_all(policy: HFPolicy, episodes: int, **options: Any) -> list[list[Completion]]:
    """Episodes of one to five turns at once: they join and leave at different times."""

    async def run() -> list[list[Completion]]:
        return await asyncio.gather(*(play(policy, f"e{i}", i, 1 + i % 5, **options) for i in range(episodes)))

    return asyncio.run(run())


def one(policy: HFPolicy, text: str = "A hall.", name: str = "e", **options: Any) -> Completion:
    async def run() -> Completion:
        policy.open_episode(name)
        try:
            return await policy.generate([Message("user", text)], Sampling(**options), name)
        finally:
            policy.close_episode(name)

    return asyncio.run(run())


EAGER, UNTIED = {"attn_implementation": "eager"}, {"tie_word_embeddings": False}


def test_later_turns_compute_only_what_is_new(model, tokenizer, monkeypatch):
    policy = HFPolicy(model, tokenizer)
    fed: list[int] = []
    extend = policy.engine.decoder.extend
    monkeypatch.setattr(policy.engine.decoder, "extend", lambda rows: fed.append(len(rows[0][1])) or extend(rows))
    completions = asyncio.run(play(policy, "e", 3, 4))
    last = completions[-1]
    assert sum(fed) == len(last.prompt_ids) + len(last.token_ids) - 1  # each token once; the last is never fed


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_common_prompt_of_a_group_is_computed_once(model_of, tokenizer, monkeypatch, kind):
    """Four members with one prompt, two with another end, one with another beginning; then all go on."""
    model = model_of(kind)
    policy = HFPolicy(model, tokenizer, deterministic=True)
    network = policy.engine.decoder.network
    computed: list[int] = []
    forward_pass = type(network).__call__
    monkeypatch.setattr(
        type(network),
        "__call__",
        lambda self, last, **inputs: computed.append(inputs["input_ids"].numel()) or forward_pass(self, last, **inputs),
    )
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

    async def play_group() -> list[list[Completion]]:
        return await asyncio.gather(*map(member, range(len(texts))))

    episodes = asyncio.run(play_group())
    longest = max(len(completions[0].prompt_ids) for completions in episodes)
    assert sum(computed[:2]) <= 2 * longest + 64  # what two begin with, and the ends of the others, padded
    for completions in episodes:
        for completion in completions:
            assert list(completion.logprobs) == pytest.approx(forward(model, completion), abs=1e-5)


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


def test_a_changed_history_is_rolled_back(model, tokenizer):
    policy = HFPolicy(model, tokenizer)

    async def run() -> list[Completion]:
        policy.open_episode("e")
        sampling = Sampling(max_tokens=4)
        talks = [
            [Message("user", "A hall. A door leads north.")],
            [Message("user", "A hall. A key."), Message("assistant", "take key"), Message("user", "Taken.")],
            [Message("user", "A hall. A key.")],
        ]
        return [await policy.generate(talk, sampling, "e") for talk in talks]

    for completion in asyncio.run(run()):
        assert list(completion.logprobs) == pytest.approx(forward(model, completion), abs=1e-5)


def test_new_weights_forget_the_cache_and_count_a_version(model_of, tokenizer):
    model = model_of()
    policy = HFPolicy(model, tokenizer)

    async def run() -> Completion:
        policy.open_episode("e")
        talk = [Message("user", "A hall. A door leads north.")]
        before = await policy.generate(talk, Sampling(max_tokens=3), "e")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.2)
        policy.bump_version()
        talk += [Message("assistant", before.text, before.token_ids), Message("user", "Dark.")]
        return await policy.generate(talk, Sampling(max_tokens=3), "e")

    after = asyncio.run(run())
    assert policy.version == 1
    assert list(after.logprobs) == pytest.approx(forward(model, after), abs=1e-5)


def test_weights_may_not_change_under_a_completion(model, tokenizer):
    policy = HFPolicy(model, tokenizer)

    async def run() -> None:
        policy.open_episode("a")
        policy.open_episode("b")
        asking = asyncio.create_task(policy.generate([Message("user", "x")], Sampling(), "a"))
        await asyncio.sleep(0)
        with pytest.raises(PolicyError, match="1 completions were under way"):
            policy.bump_version()
        asking.cancel()

    asyncio.run(run())
    policy.bump_version()


def test_a_slot_used_again_leaks_nothing(model, tokenizer):
    policy = HFPolicy(model, tokenizer)
    fresh = one(policy, "A key.", max_tokens=5)

    async def run() -> Completion:
        policy.open_episode("keeper")  # holds the memory, so that arrays are used again
        policy.open_episode("long")
        ask = [policy.generate([Message("user", "dark " * 30)], Sampling(max_tokens=5), n) for n in ("keeper", "long")]
        await asyncio.gather(*ask)
        policy.close_episode("long")
        policy.close_episode("unknown")
        policy.open_episode("short")
        keeper = policy.generate([Message("user", "dark " * 30)], Sampling(max_tokens=5), "keeper")
        short = policy.generate([Message("user", "A key.")], Sampling(max_tokens=5), "short")
        result = (await asyncio.gather(keeper, short))[1]
        policy.close_episode("keeper")
        policy.close_episode("short")
        return result

    again = asyncio.run(run())
    assert again.token_ids == fresh.token_ids
    assert list(again.logprobs) == pytest.approx(list(fresh.logprobs), abs=1e-5)
    decoder = policy.engine.decoder
    assert isinstance(decoder, SlotDecoder)
    assert decoder.cache.capacity == decoder.cache.num_slots == len(decoder.cache.layers) == 0


def test_an_engine_that_fails_tells_everybody_and_goes_on(model, tokenizer, monkeypatch):
    policy = HFPolicy(model, tokenizer)
    before = one(policy, max_tokens=4)
    with monkeypatch.context() as patch:
        patch.setattr(policy.engine.decoder, "extend", lambda rows: (_ for _ in ()).throw(RuntimeError("broken GPU")))

        async def run() -> list[Any]:
            return await asyncio.gather(*(play(policy, f"e{i}", i, 2) for i in range(3)), return_exceptions=True)

        errors = asyncio.run(run())
    assert [type(error) for error in errors] == [PolicyError] * 3
    assert "RuntimeError: broken GPU" in str(errors[0])
    assert isinstance(errors[0].__cause__, RuntimeError)
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
    [
        ("mamba", {}),
        ("llama4_text", LLAMA4 | {"layer_types": [CHUNKED, CHUNKED]}),
        ("llama4_text", LLAMA4 | {"layer_types": [CHUNKED, FULL]}),
    ],
)
def test_a_model_with_other_layers_recomputes_and_is_right(model_of, tokenizer, caplog, kind, options):
    model = model_of(kind, **options)
    with caplog.at_level(logging.WARNING):
        policy = HFPolicy(model, tokenizer)
    assert isinstance(policy.engine.decoder, RecomputeDecoder)
    assert "no cache is kept between turns" in caplog.text
    for completions in play_all(policy, 4):
        for completion in completions:
            assert list(completion.logprobs) == pytest.approx(forward(model, completion), abs=1e-5)


@pytest.mark.parametrize("window", [6, 256])
@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_sliding_windows(model_of, tokenizer, kind, window):
    model = model_of(kind, sliding_window=window)
    policy = HFPolicy(model, tokenizer)
    assert isinstance(policy.engine.decoder, SlotDecoder)
    capped = policy.engine.decoder.network.parts is None
    assert capped == (kind == "gemma2")
    for completions in play_all(policy, 5):
        for completion in completions:
            assert list(completion.logprobs) == pytest.approx(forward(model, completion), abs=2e-5)


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
    assert list(whole.logprobs) == pytest.approx(forward(model, whole), abs=2e-5)
    with torch.no_grad():
        alone, inside, beyond = (
            model(torch.tensor([[*ids, *[0] * more]])).logits[0, : len(ids)] for more in (0, 64 - len(ids), 64)
        )
    torch.testing.assert_close(alone, inside, atol=2e-5, rtol=1e-4)
    assert (alone - beyond).abs().max() > 0.1, "there are other factors: the test shows something"
    with pytest.raises(PolicyError, match="exceed the context of 64 tokens"):
        one(policy, "go north", max_tokens=65 - len(ids))


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
    completion = one(policy, max_tokens=5)
    assert list(completion.logprobs) == pytest.approx(forward(model, completion), abs=1e-5)


def test_a_model_that_scales_its_logits_is_called_as_a_whole(model_of, tokenizer):
    model = model_of()
    whole = type(model).forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        output = whole(model, *args, **kwargs)
        output.logits = output.logits * 0.5
        return output

    model.forward = scaled
    policy = HFPolicy(model, tokenizer)
    assert policy.engine.decoder.network.parts is None
    completion = one(policy, max_tokens=5)
    assert list(completion.logprobs) == pytest.approx(forward(model, completion), abs=1e-5)


def test_long_prompts_are_computed_in_parts(model, tokenizer, monkeypatch):
    monkeypatch.setattr("trailnotes.policies.hf.decoder.MAX_TOKENS", 16)
    policy = HFPolicy(model, tokenizer)
    for completions in play_all(policy, 5):
        for completion in completions:
            assert list(completion.logprobs) == pytest.approx(forward(model, completion), abs=1e-5)


def test_a_model_left_in_training_mode_samples_without_dropout(model_of, tokenizer):
    model = model_of("gpt2", resid_pdrop=0.5)
    policy = HFPolicy(model, tokenizer)
    model.train()
    assert one(policy, max_tokens=6) == one(policy, max_tokens=6)


@pytest.fixture
def saved(tmp_path, model, tokenizer):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_load_model_from_a_directory(saved, model, tokenizer):
    loaded, loaded_tokenizer = load_model(ModelConfig(path=str(saved), device="cpu"))
    policy = HFPolicy(loaded, loaded_tokenizer)
    assert policy.name == str(saved)
    assert policy.context_length == 256
    assert one(policy, max_tokens=5).token_ids == one(HFPolicy(model, tokenizer), max_tokens=5).token_ids


def test_a_model_that_does_not_load_names_the_key(tmp_path, monkeypatch, saved):
    monkeypatch.chdir(tmp_path)
    for path in ("", "./nowhere", "/nowhere/at/all", "."):
        with pytest.raises(ConfigError, match=r"model\.path"):
            load_model(ModelConfig(path=path))
    (saved / "config.json").write_text('{"model_type": "qwen2", "vocab_size": "many"}')
    with pytest.raises(PolicyError, match=r"model\.path"):
        load_model(ModelConfig(path=str(saved), device="cpu"))
