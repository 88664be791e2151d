"""One update by one process and by two that share it: the same weights, the time, and the memory of a rank.

Both sides learn three times from the same rows of GRPO: random ones, whose lengths vary by a half around the mean, with
ratios spread around 1. Each side runs in processes of its own, on one thread each. "held" is what a rank keeps between
updates: its part of weights and moments. "peak" is the most resident memory of rank 0 during the updates, less what it
had before any model. On a machine whose cores are as many as the ranks, seconds tell what the exchange costs, no more.

The third row joins rows to one without padding: in the attention of a CPU every token of the joined row still meets
every other, so the tokens are what is saved here, not the time.

    python benchmarks/sharded.py --json sharded.json
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from shared import console, finish, in_a_process, make_model, make_parser, make_tokenizer, print_table, resident_mb
from torch.distributed.tensor import DTensor

from trailnotes.config.schema import Config
from trailnotes.learner.sharded import ShardedLearner, make_learner
from trailnotes.policies.hf.policy import load_model
from trailnotes.types import Sample

FLOOR = 1e-5
SIDES = {"1 process": (1, "never"), "2 processes": (2, "never"), "1 process, joined rows": (1, "always")}


@dataclass(frozen=True)
class Workload:
    """What all sides learn from."""

    hidden_size: int = 192
    num_layers: int = 4
    vocab_size: int = 4096
    rows: int = 24
    tokens: int = 192
    updates: int = 3
    lr: float = 1e-5


QUICK = Workload(hidden_size=64, num_layers=2, rows=8, tokens=64)


def make_samples(load: Workload) -> list[Sample]:
    """Rows of random tokens, of which every other stretch of eight is trained."""
    rng = random.Random(0)
    samples = []
    for row in range(load.rows):
        length = load.tokens + rng.randint(-load.tokens // 2, load.tokens // 2)
        mask = tuple(i // 8 % 2 for i in range(length))
        behavior = tuple(m * (-8.3 + rng.gauss(0, 0.2)) for m in mask)
        advantages = tuple(m * (-1.0) ** row for m in mask)
        ids = tuple(rng.randrange(load.vocab_size) for _ in range(length))
        samples.append(Sample(ids, mask, behavior, advantages, trajectory=row))
    return samples


def held_mb(learner: Any) -> float:
    """What this rank keeps between updates, in MiB."""
    inner = learner._learner if isinstance(learner, ShardedLearner) else learner  # noqa: SLF001 - its own rank's part
    tensors = inner._optimizer.live_tensors().values()  # noqa: SLF001
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors) / 2**20


def run_side(side: str, load: Workload, folder: Path) -> dict[str, Any]:
    """One side in this process, and those that it starts."""
    torch.set_num_threads(1)
    world, packed = SIDES[side]
    config = Config(
        model={"path": str(folder), "device": "cpu"},
        learner={"world_size": world, "packed": packed},
        optim={"lr": load.lr, "minibatch": 0},
        run={"threads": 1},
    )
    samples = make_samples(load)
    before = resident_mb("VmRSS")
    model = load_model(config.model)[0] if world == 1 else None
    learner = make_learner(config, model, None, None)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak counts from here
    seconds = []
    for seed in range(load.updates):
        started = time.perf_counter()
        metrics = learner.update(samples, seed=seed)
        seconds.append(time.perf_counter() - started)
    peak = resident_mb("VmHWM") - before
    held = held_mb(learner)
    save_file(learner.weights(), folder / f"{list(SIDES).index(side)}.weights")
    learner.close()
    return {
        "side": side,
        "seconds": min(seconds),
        "tokens": int(metrics["tokens_forward"]),
        "held_mb": held,
        "peak_mb": peak,
        "grad_norm": metrics["grad_norm"],
    }


def measure(load: Workload, quick: bool) -> dict[str, Any]:
    """All sides, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(load.vocab_size, load.hidden_size, load.num_layers, max_position_embeddings=4096)
        parameters = sum(p.numel() for p in model.parameters())
        model.save_pretrained(folder)
        make_tokenizer(load.vocab_size).save_pretrained(folder)
        start = load_file(folder / "model.safetensors")
        options = ["--quick"] if quick else []
        rows = [in_a_process(__file__, "--side", side, "--folder", name, *options) for side in SIDES]
        found = [load_file(folder / f"{i}.weights") for i in range(len(SIDES))]
    for row, weights in zip(rows, found, strict=True):
        row["max_difference"] = max(float((tensor - found[0][name]).abs().max()) for name, tensor in weights.items())
    return {
        "max_difference": max(row["max_difference"] for row in rows),
        "floor": FLOOR,
        "moved": max(float((tensor - start[name]).abs().max()) for name, tensor in found[0].items()),
        "rows": rows,
        "parameters": parameters,
        "workload": vars(load),
    }


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    load = result["workload"]
    print_table(
        f"{load['updates']} updates from {load['rows']} rows of about {load['tokens']} tokens, "
        f"{result['parameters'] / 1e6:.1f}M parameters",
        ("side", "seconds of one", "tokens computed", "held MB", "peak MB", "furthest weight"),
        (
            (
                row["side"],
                f"{row['seconds']:.1f}",
                f"{row['tokens']:,}",
                f"{row['held_mb']:.0f}",
                f"{row['peak_mb']:.0f}",
                f"{row['max_difference']:.1e}",
            )
            for row in result["rows"]
        ),
    )
    console.print(
        f"largest difference of a weight {result['max_difference']:.1e} (at most {result['floor']:g}), where weights "
        f"have moved by up to {result['moved']:.1e}"
    )


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="a smaller model and fewer rows")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    load = QUICK if arguments.quick else Workload()
    if arguments.side:
        sys.stdout.write(json.dumps(run_side(arguments.side, load, arguments.folder)) + "\n")
        return
    result = measure(load, arguments.quick)
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()
