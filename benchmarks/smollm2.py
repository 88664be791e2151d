"""SmolLM2-135M in bfloat16 on a CPU: tokens a second of acting and learning, beside others' on the same work.

Acting: our embedded engine, transformers' `generate` on the whole batch anew in each turn, and vLLM where `make vllm`
has put it or --python names it. Learning: our scoring and update (AdamW's step included) beside forward and backward
passes of bare transformers, and of peft for adapters, over the same padded rows with transformers' own loss; medians of
three rounds. Sides take turns, after a warm-up, with one thread each; ratios are of CPU seconds, since wall time is
whoever else's, too. One more play and update under torch's profiler tell how much of them is in matrix products and in
attention. Without --model the weights are random and of the same shape, which computes as fast.

    python benchmarks/smollm2.py --model HuggingFaceTB/SmolLM2-135M-Instruct --json smollm2.json
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import peft
import torch
from engines import context_of, loaded, measure_vllm, play, words_of
from shared import cpu_seconds, finish, make_model, make_parser, make_tokenizer, print_table
from torch.profiler import ProfilerActivity, profile

from gpu import make_rows
from rollout import Workload, observations, play_generate
from trailnotes.config.model_schema import LoraConfig
from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.errors import MissingExtraError, PolicyError
from trailnotes.learner.learner import Learner
from trailnotes.learner.logprobs import Batch
from trailnotes.policies.hf.adapters import add_adapters
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.types import Sample

VOCABULARY = 49152
LOAD = Workload(576, 30, VOCABULARY, batch=16, turns=6, observation_tokens=32, action_tokens=16, repeats=1)
QUICK = replace(LOAD, hidden_size=192, num_layers=2, batch=4, turns=2)
ROUNDS = 3  # of learning
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
ATTENTION = "aten::_scaled_dot_product"
Speeds = dict[str, dict[str, float]]


def model_of(load: Workload, path: str, dtype: str) -> tuple[Any, Any]:
    """The model named, or one of random weights; and its tokenizer."""
    if path:
        return loaded(load, path, dtype)
    model = make_model(
        load.vocab_size, load.hidden_size, load.num_layers, heads=load.hidden_size // 64,
        num_key_value_heads=load.hidden_size // 192, intermediate_size=load.hidden_size * 8 // 3, pad_token_id=0,
        max_position_embeddings=8192, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return model.to(getattr(torch, dtype)), make_tokenizer(load.vocab_size)


def in_turn(sides: dict[str, Callable[[], object]], tokens: int, repeats: int) -> Speeds:
    """Medians of tokens a second and a CPU second."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            start, spent = time.perf_counter(), cpu_seconds()
            call()
            seconds[name].append((time.perf_counter() - start, cpu_seconds() - spent))
    return {
        name: {
            "tokens_per_second": tokens / statistics.median(wall for wall, _ in taken),
            "tokens_per_cpu_second": tokens / statistics.median(cpu for _, cpu in taken),
        }
        for name, taken in seconds.items()
    }


def shares(call: Callable[[], object]) -> dict[str, float]:
    """Which part of a call's time is in matrix products, and in torch's kernel of attention."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    spent = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    whole = sum(spent.values())
    return {
        "products": sum(spent.get(name, 0.0) for name in PRODUCTS) / whole,
        "attention": sum(time for name, time in spent.items() if name.startswith(ATTENTION)) / whole,
    }


# --- acting


def acting(load: Workload, model: Any, tokenizer: Any, python: str) -> dict[str, Any]:
    """The engines on the same texts."""
    texts = observations(load, words_of(tokenizer))
    policy = HFPolicy(model, tokenizer, deterministic=False)
    policy.engine.endings.end_ids = frozenset()
    model.generation_config.eos_token_id = None
    context = context_of(policy, texts, load)
    sides: dict[str, Callable[[], object]] = {
        "trailnotes": lambda: play(policy, texts, load),
        "generate": lambda: play_generate(policy, texts, load),
    }
    play(policy, texts[:1], load)
    play_generate(policy, texts[:1], load)
    result: dict[str, Any] = {"speeds": in_turn(sides, load.batch * load.turns * load.action_tokens, load.repeats)}
    result["shares"] = shares(sides["trailnotes"])
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        try:
            found = measure_vllm(Path(folder), model, texts, load, python, context, faults=False)
            result["speeds"]["vllm"] = found
        except (MissingExtraError, PolicyError) as error:
            result["vllm_missing"] = str(error)
    return result


# --- learning


def bare(model: Any, rows: list[Sample], *, backward: bool) -> None:
    """What transformers does with rows of labels, as it comes."""
    batch = Batch.from_samples(rows, model.device)
    with torch.set_grad_enabled(backward):
        loss = model(input_ids=batch.token_ids, labels=batch.token_ids.masked_fill(~batch.mask, -100)).loss
    if backward:
        loss.backward()
        model.zero_grad()


def learning(model_again: Callable[[], Any], rows: list[Sample]) -> dict[str, Any]:
    """Passes over the same rows: bare ones, and ours; of all weights, and of adapters alone."""
    tokens = sum(len(row.token_ids) for row in rows)
    whole, adapters = model_again(), LoraConfig(enabled=True)
    theirs = peft.get_peft_model(
        model_again(), peft.LoraConfig(task_type="CAUSAL_LM", r=adapters.rank, target_modules="all-linear")
    )
    optim = OptimConfig(lr=1e-7, minibatch=0)
    ours = Learner(model_again(), optim, LossConfig())
    ours_adapted = Learner(add_adapters(model_again(), adapters, base=""), optim, LossConfig())
    sides: dict[str, Callable[[], object]] = {
        "transformers, forward": lambda: bare(whole, rows, backward=False),
        "trailnotes, forward": lambda: ours.logprobs(rows),
        "transformers, forward and backward": lambda: bare(whole, rows, backward=True),
        "trailnotes, update": lambda: ours.update(rows),
        "peft, forward and backward": lambda: bare(theirs, rows, backward=True),
        "trailnotes, update of adapters": lambda: ours_adapted.update(rows),
    }
    for call in sides.values():  # whole: whoever comes first fetches the memory that all others find
        call()
    return {
        "speeds": in_turn(sides, tokens, ROUNDS),
        "shares": {name: shares(sides[name]) for name in ("trailnotes, update", "trailnotes, update of adapters")},
    }


PAIRS = (
    ("acting", "trailnotes", "generate"),
    ("acting", "trailnotes", "vllm"),
    ("learning", "trailnotes, forward", "transformers, forward"),
    ("learning", "trailnotes, update", "transformers, forward and backward"),
    ("learning", "trailnotes, update of adapters", "peft, forward and backward"),
)


def measure(load: Workload, path: str, dtype: str, python: str, num_rows: int) -> dict[str, Any]:
    """Both halves, and the ratios."""
    torch.set_num_threads(1)
    result: dict[str, Any] = {"workload": asdict(load), "model": path or "random", "dtype": dtype, "rows": num_rows}
    rows = make_rows(num_rows, 600, load.vocab_size)
    result["learning"] = learning(lambda: model_of(load, path, dtype)[0], rows)
    result["acting"] = acting(load, *model_of(load, path, dtype), python)
    speed = {half: result[half]["speeds"] for half in ("acting", "learning")}
    result["ratios"] = {
        f"{one} over {other}": speed[half][one]["tokens_per_cpu_second"] / speed[half][other]["tokens_per_cpu_second"]
        for half, one, other in PAIRS
        if other in speed[half]
    }
    return result


def report(result: dict[str, Any]) -> None:
    """As tables."""
    load = result["workload"]
    titles = {
        "acting": f"{load['batch']} episodes of {load['turns']} turns of {load['action_tokens']} sampled tokens",
        "learning": f"{result['rows']} rows of 300 to 600 tokens",
    }
    for half, title in titles.items():
        rows = [
            (name, f"{found['tokens_per_second']:.0f}", f"{found['tokens_per_cpu_second']:.0f}")
            for name, found in result[half]["speeds"].items()
        ]
        print_table(f"{half}: {title}, {result['dtype']}, one thread", ("side", "tokens/s", "tokens/CPU s"), rows)
    for name, ratio in result["ratios"].items():
        print(f"tokens a CPU second, {name}: {ratio:.2f}")
    if "vllm_missing" in result["acting"]:
        print(result["acting"]["vllm_missing"])
    for name, found in {"acting": result["acting"]["shares"], **result["learning"]["shares"]}.items():
        print(f"{name}: {found['products']:.0%} in matrix products, {found['attention']:.0%} in attention")


def main() -> None:
    """Measure and report."""
    parser = make_parser(__doc__, "a model of two layers")
    parser.add_argument("--model", default="", metavar="PATH", help="a causal LM of transformers")
    parser.add_argument("--python", default="", metavar="PATH", help="as engine.python")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--episodes", type=int, metavar="N", help="side by side (16)")
    parser.add_argument("--turns", type=int, metavar="N", help="of each episode (6)")
    parser.add_argument("--rows", type=int, default=4, metavar="N", help="of an update (4)")
    args = parser.parse_args()
    load = QUICK if args.quick else LOAD
    load = replace(load, batch=args.episodes or load.batch, turns=args.turns or load.turns)
    finish(measure(load, args.model, args.dtype, args.python, args.rows), report, args.json)


if __name__ == "__main__":
    main()
