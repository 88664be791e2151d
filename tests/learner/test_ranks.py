"""How rows are shared out, and that two processes learn what one does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForCausalLM

from sharded_cases import CASES, alone, among, learn, model_of
from small import small_config
from tiny import VOCABULARY, tiny_model
from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner.learner import Learner
from trailnotes.learner.logprobs import TokenScorer, first_layers, is_packing_supported
from trailnotes.learner.ranks import LOOPBACK, LearnerGroup, init_process_group
from trailnotes.learner.samples import PackingMode, make_microbatches, split_microbatches
from trailnotes.learner.sharding import ShardedRank
from trailnotes.types import Sample

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does more to its logits:UserWarning"),
]
TIMES = ("seconds", "seconds_reference", "tokens_forward")  # what the cut of a batch changes


def rows(*lengths: int) -> list[Any]:
    return [SimpleNamespace(token_ids=(0,) * length) for length in lengths]


def test_the_longest_rows_go_to_different_ranks() -> None:
    def share(world: int, *lengths: int) -> list[list[int]]:
        ranks: list[Any] = [SimpleNamespace(rank=rank, world=world) for rank in range(world)]
        cuts = [split_microbatches(rows(*lengths), 1000, each) for each in ranks]
        return [sorted(i for batch in cut for i in batch) for cut in cuts]

    assert share(2, 1, 9, 5, 8, 2) == [[0, 1, 4], [2, 3]]  # 9 | 8 5 | 2 1 |
    assert share(3, 3) == [[0], [], []]


@given(
    lengths=st.lists(st.integers(1, 40), max_size=20),
    world=st.integers(1, 5),
    budget=st.integers(1, 60),
    packing=st.sampled_from(["padded", "joined", "shared"]),
)
def test_ranks_partition_rows_into_equally_many_micro_batches(
    lengths: list[int], world: int, budget: int, packing: PackingMode
) -> None:
    cuts = []
    for rank in range(world):
        ranks: Any = SimpleNamespace(rank=rank, world=world)
        cuts.append(split_microbatches(rows(*lengths), budget, ranks, packing))
    assert sorted(i for cut in cuts for batch in cut for i in batch) == list(range(len(lengths)))
    assert len({len(cut) for cut in cuts}) == 1
    assert all(any(batches) for batches in zip(*cuts, strict=True))  # nobody passes nothing with everybody


def test_joined_rows_count_without_padding() -> None:
    lengths = [(0,) * length for length in (1, 2, 4, 8)]
    assert make_microbatches(lengths, 8, "joined") == [[0, 1, 2], [3]]
    assert make_microbatches(lengths, 8) == [[0, 1], [2], [3]]


@pytest.mark.parametrize("name", ["empo2, held rows", "lora, KL"])
def test_joined_rows_equal_padded_rows(name: str) -> None:
    whole = replace(CASES[name], settings=CASES[name].settings | {"microbatch_tokens": 10_000})
    padded, joined = learn(whole), learn(replace(whole, packing="joined"))
    assert furthest(padded, joined) <= 1e-5
    assert joined["metrics"]["tokens_forward"] < padded["metrics"]["tokens_forward"]
    assert_equal_metrics(padded, joined)


def test_a_group_of_one_prompt_learns_the_same_from_a_tree() -> None:
    rng = random.Random(0)
    prompt = tuple(rng.randrange(VOCABULARY) for _ in range(12))
    group = []
    for member in range(6):
        ids = prompt[: 12 if member < 5 else 3] + tuple(rng.randrange(VOCABULARY) for _ in range(2 + member))
        mask = tuple(int(i >= 12 or (member == 5 and i >= 3)) for i in range(len(ids)))
        behavior, advantages = (tuple(m * value for m in mask) for value in (-3.0, (-1.0) ** member))
        group.append(Sample(ids, mask, behavior, advantages, trajectory=member))
    results = []
    for packing in ("padded", "shared"):
        learner = Learner(tiny_model(), OptimConfig(lr=1e-4, minibatch=0), LossConfig())
        learner.packing = packing
        metrics = [learner.update(group, seed=seed) for seed in range(3)][-1]
        results.append({"weights": learner.weights(), "metrics": metrics})
    padded, tree = results
    assert furthest(padded, tree) <= 1e-5
    assert_equal_metrics(padded, tree)
    assert padded["metrics"]["tokens_forward"] == 6 * 18  # the longest row is the fifth
    assert tree["metrics"]["tokens_forward"] == 12 + 1 + 2 + 3 + 4 + 5 + 6  # six of the last are its own


@pytest.mark.parametrize("packing", ["joined", "shared"])
def test_packing_probe_detects_mixed_rows(packing: PackingMode) -> None:
    mixing = tiny_model()
    assert is_packing_supported(TokenScorer(mixing), packing, 256)
    body = mixing.model.forward
    mixing.model.forward = lambda **inputs: body(**{k: v for k, v in inputs.items() if k != "position_ids"})
    assert not is_packing_supported(TokenScorer(mixing), packing, 256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_windows_rule_out_shared_rows(dtype: torch.dtype) -> None:
    """Mistral 0.1 and Phi-3 have one in all layers, and none by kinds; the probe's rows are shorter than it."""
    config = MistralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, sliding_window=16,
    )  # fmt: skip
    score = TokenScorer(MistralForCausalLM(config).to(dtype).eval())
    assert not is_packing_supported(score, "shared", 17)
    assert is_packing_supported(score, "shared", 16), "no row is longer than the window"
    assert is_packing_supported(score, "joined", 17), "positions tell the window"


def test_packing_probe_detects_mixed_rows_in_bfloat16() -> None:
    mixing = tiny_model(dtype=torch.bfloat16)
    with torch.no_grad():
        mixing.model.embed_tokens.weight.mul_(0.05)  # flat distributions, on which the context has little influence
    before = [weight.clone() for weight in mixing.parameters()]
    assert is_packing_supported(TokenScorer(mixing), "shared", 256)
    body = mixing.model.forward
    mixing.model.forward = lambda **inputs: body(**{k: v for k, v in inputs.items() if k != "shared_rows"})
    assert not is_packing_supported(TokenScorer(mixing), "shared", 256)
    assert all(w.dtype == torch.bfloat16 and w.equal(b) for w, b in zip(mixing.parameters(), before, strict=True))


def test_packing_probe_computes_the_first_layers_alone() -> None:
    """A float32 copy of all layers would be the largest thing in memory."""
    config = tiny_model().config
    config.num_hidden_layers, config.layer_types = 4, ["full_attention"] * 4
    model = type(tiny_model())(config).to(torch.bfloat16).eval()
    seen, layers = set[tuple[int, torch.dtype]](), list(model.model.layers)
    for layer in layers:
        layer.register_forward_hook(lambda each, *_: seen.add((layers.index(each), each.mlp.up_proj.weight.dtype)))
    last = layers[3].mlp.up_proj.weight.data_ptr()
    assert is_packing_supported(TokenScorer(model), "joined", 256)
    assert {dtype for index, dtype in seen if index > 1} <= {torch.bfloat16}, "the head is found in bfloat16"
    assert {(0, torch.float32), (1, torch.float32)} <= seen
    assert (list(model.model.layers), config.num_hidden_layers) == (layers, 4)
    assert layers[3].mlp.up_proj.weight.data_ptr() == last


def test_the_first_layers_have_each_kind_of_attention() -> None:
    model = tiny_model()
    model.config.num_hidden_layers, model.config.layer_types = 4, ["sliding_attention"] * 3 + ["full_attention"]
    model.model.layers.extend(tiny_model().model.layers)
    with first_layers(model):
        assert len(model.model.layers) == 4
    model.config.layer_types = ["sliding_attention", "full_attention"] * 2
    with first_layers(model):
        assert (len(model.model.layers), model.config.num_hidden_layers) == (2, 2)
    assert (len(model.model.layers), model.config.num_hidden_layers) == (4, 4)


@pytest.fixture
def lone_rank() -> Iterator[LearnerGroup]:
    """A process group of this process alone."""
    config = small_config(model={"device": "cpu"})
    yield init_process_group(0, config, dist.HashStore(), interface=LOOPBACK)
    dist.destroy_process_group()


def test_sharded_rows_keep_float32_beside_bfloat16_weights(lone_rank: LearnerGroup) -> None:
    case = replace(CASES["empo2, held rows"], dtype=torch.bfloat16)
    whole, sharded = learn(case), learn(case, ShardedRank(lone_rank.mesh, lone_rank.object_group, case.dtype))
    assert furthest(whole, sharded) == 0.0, "not even the last bit of an old log-probability or advantage is lost"
    assert_equal_metrics(whole, sharded)


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of any weight."""
    assert list(one["weights"]) == list(other["weights"])
    return max(float((tensor - other["weights"][name]).abs().max()) for name, tensor in one["weights"].items())


def assert_equal_metrics(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["metrics"].keys() == other["metrics"].keys()
    for name in one["metrics"].keys() - set(TIMES):
        assert other["metrics"][name] == pytest.approx(one["metrics"][name], rel=1e-3, abs=1e-5), name


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """What one process finds and what two find."""
    path = tmp_path_factory.mktemp("ranks")
    mp.get_context("forkserver").set_forkserver_preload(["sharded_cases"])  # torch is loaded once
    arguments = (2, str(path / "store"), str(path / "two"))
    started = mp.start_processes(among, arguments, nprocs=2, join=False, start_method="forkserver")
    alone(path / "one")
    while not started.join():
        pass
    return torch.load(path / "one"), torch.load(path / "two")


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_does(both: tuple[Any, Any], name: str) -> None:
    one, two = (found[name] for found in both)
    start = model_of(CASES[name]).state_dict()
    assert furthest(one, two) <= 1e-5
    assert_equal_metrics(one, two)
    for mine, theirs in zip(one["said"], two["said"], strict=True):
        for row, other in zip(mine, theirs, strict=True):
            assert other == pytest.approx(row, abs=1e-4)
    if not CASES[name].lora:
        assert max(float((start[n] - w).abs().max()) for n, w in one["weights"].items()) > 1e-4  # all has moved
