"""What one GPU gives: tokens a second of each engine and of updates, and peaks of memory against their estimates.

Models are Qwen2.5 of random weights, built on the spot. Engines play 0.5 and 3 billion parameters in batches of 1 to
128. Updates train the largest of 0.5 to 7 billion whose update of all weights fits the card by the estimate of `train
--dry-run`. Without a GPU all models are a toy, and the same lines run on the CPU: its figures say nothing. All is done
twice, and the second time counts; an update is from random rows, whose lengths vary by a half.

MFU is the share of the card's peak (PEAKS, dense bfloat16) that the update's arithmetic needs: for each token 6
operations a weight, 4 where the weights are frozen; recomputation does not count. Peaks of memory are those of torch's
allocator, and there are none on a CPU; estimates have no share for fragments. What does not fit, does not work, or
would begin after --seconds is listed as never run, with the reason.

    python benchmarks/gpu.py --markdown gpu.md --json gpu.json
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from engines import play, start_vllm
from shared import LARGEST_TIED, QWEN_SHAPES, finish, make_parser, make_tokenizer, print_table, save_shape
from torch.distributed import FileStore
from transformers.integrations.liger import apply_liger_kernel

from rollout import Workload, observations
from trailnotes.config.schema import Config
from trailnotes.learner.learner import Learner
from trailnotes.learner.ranks import LOOPBACK, init_process_group
from trailnotes.learner.sharded import make_learner
from trailnotes.learner.sharding import ShardedRank
from trailnotes.policies.hf.adapters import add_adapters
from trailnotes.policies.hf.graphs import StaticDecoder
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.runs.estimate.footprint import estimate_footprint, estimate_weight_copies, fit_microbatch
from trailnotes.runs.estimate.model_shape import infer_model_shape
from trailnotes.runs.training import WeightSync
from trailnotes.types import Sample

UPDATED = (7, 3, 1.5, 0.5)  # billions, of which the first that fits is trained
PLAYED = (0.5, 3)  # billions
BATCHES = (1, 8, 32, 128)  # episodes side by side
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "4090": 165e12}
TOY = (2, 64, 128, 2, 1, 512)  # in the order of QWEN_SHAPES
LORA, AGAIN, FLASH, FLEX = (
    {"lora": {"enabled": True}},
    {"gradient_checkpointing": True},
    "flash_attention_2",
    "flex_attention",
)
HALF = {"dtype": "bfloat16"}
# What plays: settings of the model and of the engine.
ENGINES: dict[str, dict[str, Any]] = {
    "hf, a wait a token": {"model": HALF, "engine": {"burst": 1}},
    "hf, a wait for 8 tokens": {"model": HALF, "engine": {"burst": 8}},
    "hf, adapters apart": {"model": HALF | LORA, "engine": {"burst": 8}},
    "hf, adapters folded": {"model": HALF | LORA, "engine": {"burst": 8, "fold_adapters": True}},
    "static eager": {"model": HALF, "engine": {"burst": 8, "graphs": True}},
    "captured": {"model": HALF, "engine": {"burst": 8, "graphs": True}},
    "vllm": {"model": HALF, "engine": {"name": "vllm"}},
}
# What is learned how: settings of the model and of the learner; `sharded` is FSDP2 with one rank.
UPDATES: dict[str, dict[str, Any]] = {
    "all weights, checkpointing": {"model": HALF | AGAIN},
    "all weights": {"model": HALF},
    "adapters, checkpointing": {"model": HALF | AGAIN | LORA},
    "adapters": {"model": HALF | LORA},
    "adapters, checkpointing, micro-batches that fit": {
        "model": HALF | AGAIN | LORA, "optim": {"microbatch_tokens": 0},
    },
    "adapters, checkpointing, Liger": {"model": HALF | AGAIN | LORA | {"liger": True}},
    "adapters, checkpointing, float32": {"model": AGAIN | LORA},
    "adapters, checkpointing, float32, TF32": {"model": AGAIN | LORA | {"tf32": True}},
    "adapters, checkpointing, joined rows": {"model": HALF | AGAIN | LORA, "learner": {"packed": "always"}},
    "adapters, checkpointing, flash, padded": {
        "model": HALF | AGAIN | LORA | {"attn_implementation": FLASH}, "learner": {"packed": "never"},
    },
    "adapters, checkpointing, flash, joined rows": {"model": HALF | AGAIN | LORA | {"attn_implementation": FLASH}},
    "adapters, checkpointing, FSDP2 with one rank": {"model": HALF | AGAIN | LORA, "sharded": {}},
    "all weights, checkpointing, FSDP2 with one rank": {"model": HALF | AGAIN, "sharded": {}},
    "adapters, checkpointing, flex, joined rows": {"model": HALF | AGAIN | LORA | {"attn_implementation": FLEX}},
}  # fmt: skip
FOR_GPUS = ("flash", "flex", "Liger", "TF32", "that fit", "captured", "vllm")  # words in the names of cases
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# --- what is measured


def config_of(folder: Path, tokens: int, sections: dict[str, Any]) -> Config:
    """The settings of a case; the model that acts is said to be elsewhere, and so free to attend otherwise."""
    return Config(
        model={"path": str(folder), "device": DEVICE, **sections.get("model", {})},
        learner=sections.get("learner", {}),
        optim={"microbatch_tokens": 4 * tokens, "minibatch": 0, **sections.get("optim", {})},
        rollout={"max_context_tokens": tokens},
        engine=sections.get("engine", {"name": "vllm", "urls": ["http://elsewhere:1"]}),
    )


def build(config: Config, *, learns: bool = True) -> Any:
    """The model of a config, of random weights, on the device."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = config.model.tf32
    shape = transformers.AutoConfig.from_pretrained(config.model.path, trust_remote_code=False)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(
            shape, dtype=getattr(torch, config.model.dtype), trust_remote_code=False,
            attn_implementation=config.model.attn_implementation or None,
        )  # fmt: skip
        if config.model.liger:
            apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})
        if learns and config.model.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if config.model.lora.enabled:
            model = add_adapters(model, config.model.lora, base="")
    return model.to(DEVICE).eval()


def make_rows(num: int, tokens: int, vocabulary: int) -> list[Sample]:
    """Random rows of half to all of `tokens`, of which every other stretch of eight is trained."""
    rng, rows = random.Random(0), []
    for row in range(num):
        length = tokens - rng.randrange(tokens // 2)
        mask = tuple(i // 8 % 2 for i in range(length))
        behavior, advantages = (tuple(m * value for m in mask) for value in (-11.0, (-1.0) ** row))
        ids = tuple(rng.randrange(vocabulary) for _ in range(length))
        rows.append(Sample(ids, mask, behavior, advantages, trajectory=row))
    return rows


@contextlib.contextmanager
def learner_of(config: Config, *, sharded: bool) -> Iterator[Learner]:
    """As `make_learner` builds it for one process; or as one rank of those of FSDP2 would be, had it all for itself."""
    if not sharded:
        yield make_learner(config, build(config), None, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(f"{folder}/store", 1)
        group = init_process_group(0, config, store, interface=LOOPBACK)
        try:
            dtype = torch.bfloat16 if not config.model.lora.enabled else None
            ranks = ShardedRank(group.mesh, group.object_group, dtype)
            yield Learner(build(config), config.optim, config.loss, ranks=ranks)
        finally:
            dist.destroy_process_group()


def fresh() -> None:
    """Let go of what the last case held, and count the peak of memory from here."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_mb() -> float | None:
    """The most that torch has held of the device; of a CPU's memory it does not say."""
    return torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else None


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that the call takes on the device, and its result."""
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    found = call()
    wait()
    return time.perf_counter() - start, found


def update_case(name: str, folder: Path, rows: list[Sample], tokens: int) -> dict[str, Any]:
    """Two updates, of which the second counts."""
    sections = UPDATES[name]
    config = config_of(folder, tokens, sections)
    shape = infer_model_shape(config.model)
    assert shape is not None
    config = fit_microbatch(config, shape)
    told = estimate_footprint(config)
    assert told is not None
    if not told.fits:
        raise MemoryError(f"about {told.peak / 2**30:.0f} GiB by the estimate")
    with learner_of(config, sharded="sharded" in sections) as learner:
        learner.update(rows)
        seconds, metrics = timed(lambda: learner.update(rows))
        found = {"tokens": int(metrics["tokens_forward"]), "seconds": seconds, "peak_mb": peak_mb()}
    if "sharded" not in sections:  # one process alone never shards
        for_acting = sum(estimate_weight_copies(config, shape).values()) if told.together else 0.0  # nobody acts here
        found["estimated_mb"] = (told.devices[0].peak_without_overhead - for_acting) / 2**20
    speed = sum(len(row.token_ids) for row in rows) / seconds
    peak = next((most for name, most in PEAKS.items() if DEVICE == "cuda" and name in torch.cuda.get_device_name()), 0)
    if peak and config.model.dtype == "bfloat16":
        found["mfu"] = speed * (4 if config.model.lora.enabled else 6) * shape.whole / peak
    return found | {"tokens_per_second": speed}


def play_case(name: str, folder: Path, load: Workload) -> dict[str, Any]:
    """Episodes side by side by one engine; twice, of which the second counts."""
    config = config_of(folder, 1 << 13, ENGINES[name])
    tokenizer, texts = make_tokenizer(load.vocab_size), observations(load)
    with contextlib.ExitStack() as opened:
        policy: Any
        if config.engine.name == "vllm":
            build(config, learns=False).save_pretrained(folder)
            policy = opened.enter_context(start_vllm(config, tokenizer))
            policy.endings.end_ids = frozenset()
        else:
            policy = HFPolicy(
                build(config, learns=False), tokenizer, deterministic=False, engine=config.engine,
                max_context_tokens=config.rollout.max_context_tokens,
            )  # fmt: skip
            policy.engine.endings.end_ids = frozenset()
            if config.engine.graphs:
                assert isinstance(policy.engine.decoder, StaticDecoder), "the model has no static step"
                policy.engine.decoder.captures = name == "captured"
        play(policy, texts, load)
        seconds, (speed, _) = timed(lambda: play(policy, texts, load))
    return {"seconds": seconds, "tokens_per_second": speed, "peak_mb": peak_mb()}


def turns_case(folder: Path, tokens: int) -> dict[str, Any]:
    """Updates of a learner that takes turns with vLLM on its card: with sleep, wake, and the new weights."""
    config = config_of(folder, tokens, {"model": HALF, "engine": {"name": "vllm", "shared_card": True}})
    model = build(config, learns=False)
    rows, tokenizer = make_rows(16, tokens, model.config.vocab_size), make_tokenizer(model.config.vocab_size)
    model.save_pretrained(folder)
    del model
    fresh()

    async def turn(sync: WeightSync, version: int) -> None:
        await sync.acquire()
        await policy.sleep()
        sync.release()
        learner.update(rows)
        sync.publish(version, sync.snapshot(version))

    engine = start_vllm(config, tokenizer, trains=True)
    with engine as policy, learner_of(config, sharded=False) as learner:
        sync = WeightSync(config, policy, learner, None)
        asyncio.run(turn(sync, 1))
        seconds, _ = timed(lambda: asyncio.run(turn(sync, 2)))
    speed = sum(len(row.token_ids) for row in rows) / seconds
    return {"seconds": seconds, "tokens_per_second": speed, "peak_mb": peak_mb()}


# --- all of it


def choose(folder: Path) -> tuple[str, tuple[int, ...], bool]:
    """Name, shape, and whether the embeddings are tied, of the largest model whose update fits the card."""
    if DEVICE == "cpu":
        return "a toy", TOY, True
    for billions in UPDATED:
        save_shape(QWEN_SHAPES[billions], folder, tied=billions <= LARGEST_TIED)
        config = config_of(folder, 1024, UPDATES["all weights, checkpointing"])
        told = estimate_footprint(config)
        if told is not None and told.fits:
            break
    return f"Qwen2.5-{billions:g}B", QWEN_SHAPES[billions], billions <= LARGEST_TIED


def list_plays(folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Engines, sizes and batches; folders get the config.json of a size when their first case runs."""
    for billions in PLAYED if DEVICE == "cuda" else (0,):
        shape = QWEN_SHAPES[billions] if billions else TOY
        own = save_shape(shape, folder / f"{billions:g}", tied=True)
        for engine in ENGINES:
            for batch in BATCHES if DEVICE == "cuda" else BATCHES[:2]:
                load = Workload(vocab_size=shape[-1], batch=batch)
                load = load if DEVICE == "cuda" else replace(load, turns=3, observation_tokens=6)
                case = f"play, {f'{billions:g}B' if billions else 'a toy'}, {engine}, {batch} episodes"
                yield case, partial(play_case, engine, own, load)


def measure(seconds: float) -> dict[str, Any]:
    """Every case that fits into the time."""
    until, found = time.monotonic() + seconds, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, shape, tied = choose(folder)
        save_shape(shape, folder, tied=tied)
        tokens, num = (1024, 16) if DEVICE == "cuda" else (64, 4)
        rows = make_rows(num, tokens, shape[-1])
        cases: dict[str, Callable[[], dict[str, Any]]] = {
            f"learn, {case}": partial(update_case, case, folder, rows, tokens) for case in UPDATES
        }
        cases |= list_plays(folder)
        cases["learn, 0.5B, all weights, vllm asleep on the card"] = partial(turns_case, folder / "0.5", tokens)
        for case, run in cases.items():
            if DEVICE == "cpu" and any(word in case for word in FOR_GPUS):
                found.append({"case": case, "not": "for GPUs"})
            elif time.monotonic() > until:
                found.append({"case": case, "not": "no time was left"})
            else:
                found.append({"case": case, **attempt(run)})
    return {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "a CPU",
        "model": model,
        "torch": torch.__version__,
        "rows_tokens": sum(len(row.token_ids) for row in rows),
        "turns": Workload().turns,
        "rows": found,
    }


def attempt(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The figures, or why there are none: one case must not cost the others."""
    fresh()
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - whatever a kernel, a compiler or the card has to say
        return {"not": f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"}


COLUMNS = ("case", "tokens/s", "MFU", "tokens computed", "peak MB", "estimated MB", "estimate over peak")


def cells(row: dict[str, Any]) -> list[str]:
    """A line of the table of figures."""
    told, peak = row.get("estimated_mb"), row["peak_mb"]
    numbers = [row.get("tokens"), peak, told]
    ratio = f"{told / peak:.2f}" if told and peak else ""
    mfu = f"{row['mfu']:.0%}" if "mfu" in row else ""
    texts = ("" if number is None else f"{number:,.0f}" for number in numbers)
    return [row["case"], f"{row['tokens_per_second']:,.0f}", mfu, *texts, ratio]


def title(result: dict[str, Any]) -> str:
    """What the table is of."""
    return (
        f"random weights on {result['device']}, torch {result['torch']}; episodes of {result['turns']} turns; "
        f"updates of {result['model']} from {result['rows_tokens']:,} tokens"
    )


def tables(result: dict[str, Any]) -> tuple[list[list[str]], list[list[str]]]:
    """Lines of the table of figures, and of the table of what was tested and what never run."""
    figures = [cells(row) for row in result["rows"] if "not" not in row]
    return figures, [[row["case"], f"never run: {row['not']}" if "not" in row else "tested"] for row in result["rows"]]


def markdown(result: dict[str, Any]) -> str:
    """The tables for a page."""

    def table(columns: Sequence[str], rows: list[list[str]]) -> str:
        rule = ["---", *["---:"] * (len(columns) - 1)]
        return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *rows))

    figures, states = tables(result)
    return (
        f"# On a GPU\n\n`make gpu`: {title(result)}.\n\n{table(COLUMNS, figures)}\n\n"
        f"## Tested or never run\n\n{table(('case', 'state'), states)}\n"
    )


def report(result: dict[str, Any]) -> None:
    """Print both tables."""
    figures, states = tables(result)
    print_table(title(result), COLUMNS, figures)
    print_table("tested or never run", ("case", "state"), states, left=("case", "state"))


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="stop after two minutes")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table here")
    parser.add_argument("--seconds", type=float, default=900.0, help="begin no case after this many (900)")
    arguments = parser.parse_args()
    result = measure(min(arguments.seconds, 120.0) if arguments.quick else arguments.seconds)
    finish(result, report, arguments.json)
    if arguments.markdown:
        arguments.markdown.write_text(markdown(result), encoding="utf-8")


if __name__ == "__main__":
    main()
