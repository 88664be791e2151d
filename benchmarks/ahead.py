"""What playing ahead saves: iterations of EMPO2 with `rollout.max_async_iterations` 0 and 1, in turns, on one machine.

Each side trains the demo's start model in simulated Waymarks, in a process of its own, for a number of iterations; the
first does not count. Playing and learning are then as long as one, and as the longer of the two at best. On a machine
with fewer free cores than two nothing can be saved.

    python benchmarks/ahead.py --json ahead.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from shared import finish, in_a_process, make_parser, print_table

from trailnotes.commands.train import train
from trailnotes.config.toml import load_config
from trailnotes.storage.files import read_jsonl

ROOT = Path(__file__).parents[1]
FLOOR = 1.0  # at least: seconds without, over seconds with
SETTINGS = (
    "--env.name waymarks-simulator --env.num_workers 0 --train.max_env_steps 0 --train.save_every 1000 "
    "--train.eval_every 0 --rehearsal.num_tasks 8 --run.threads 1"
)


def one_side(ahead: int, iterations: int, epochs: int) -> dict[str, Any]:
    """Seconds of an iteration, and of its parts, by a training of its own."""
    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        words = f"{SETTINGS} --rollout.max_async_iterations {ahead} --train.iterations {iterations + 1}"
        words += f" --optim.epochs {epochs}"
        start = ["--model.path", str(ROOT / "models/waymarks-start")]
        train(load_config(ROOT / "configs/demo.toml", [*words.split(), *start]), name)
        lines = list(read_jsonl(Path(name) / "metrics.jsonl"))
    parts = ("rollout", "write_tips", "update", "staleness")
    return {
        "seconds": (lines[-1]["seconds"] - lines[0]["seconds"]) / iterations,
        **{part: statistics.mean(line.get(f"seconds/{part}", 0.0) for line in lines[1:]) for part in parts},
        "weight": statistics.mean(line.get("stale/weight", 1.0) for line in lines[1:]),
        "truncated": statistics.mean(line.get("stale/truncated", 0.0) for line in lines[1:]),
    }


def measure(repetitions: int, iterations: int, epochs: int) -> dict[str, Any]:
    """Both sides in turns."""
    rows: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for _ in range(repetitions):
        for ahead, found in rows.items():
            found.append(in_a_process(__file__, "--side", str(ahead), "--work", f"{iterations},{epochs}"))
    ratios = [one["seconds"] / other["seconds"] for one, other in zip(rows[0], rows[1], strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "floor": FLOOR,
        "sides": {
            str(ahead): {key: statistics.median(row[key] for row in found) for key in found[0]}
            for ahead, found in rows.items()
        },
        "cores": len(os.sched_getaffinity(0)),
        "iterations": iterations,
        "epochs": epochs,
    }


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    print_table(
        f"{result['iterations']} iterations of the demo's EMPO², {result['epochs']} passes, {result['cores']} cores",
        ("max_async_iterations", "s an iteration", "playing", "writing", "learning", "weighing", "weight", "truncated"),
        (
            (ahead, *(f"{side[key]:.2f}" for key in ("seconds", "rollout", "write_tips", "update", "staleness")),
             f"{side['weight']:.3f}", f"{side['truncated']:.4f}")
            for ahead, side in result["sides"].items()
        ),
    )  # fmt: skip
    print(f"ratio {result['ratio']:.2f} (floor {result['floor']}); each turn: "
          + ", ".join(f"{ratio:.2f}" for ratio in result["ratios"]))  # fmt: skip


def main() -> None:
    """Measure both sides, or one of them in a process of its own."""
    parser = make_parser(__doc__, "one turn of two iterations")
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", default="6,8", metavar="N,E", help="iterations, and passes of each (6,8)")
    args = parser.parse_args()
    iterations, epochs = (2, 1) if args.quick else map(int, args.work.split(","))
    if args.side is not None:
        print(json.dumps(one_side(args.side, iterations, epochs)))
        return
    finish(measure(1 if args.quick else 3, iterations, epochs), report, args.json)


if __name__ == "__main__":
    main()
