"""Tokens that an update must compute for episodes of 20 turns: one row a step, or one row an episode.

Both cuts of the same episodes hold the same trained tokens under the same contexts; a row for each step computes the
history again at every turn. Time is of one update (forward, backward, step); peak is the growth of resident memory.
Each side runs in a process of its own, with the same budget of tokens in a micro-batch.

    python benchmarks/rows.py --json rows.json
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from shared import console, finish, in_a_process, make_model, make_parser, peak_mb, print_table

from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import build_samples
from trailnotes.types import Completion, Observation, Sample, Step, Task, TokenIds, Trajectory, TrajectoryGroup

FLOOR = 10.0
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Workload:
    """What both sides learn from."""

    hidden_size: int = 128
    num_layers: int = 4
    vocab_size: int = 2048
    episodes: int = 4
    turns: int = 20
    instruction_tokens: int = 100
    observation_tokens: int = 70
    action_tokens: int = 15


QUICK = Workload(hidden_size=64, num_layers=2, episodes=2)


def make_group(load: Workload) -> TrajectoryGroup:
    """Episodes of random tokens whose lengths vary by a third around the mean."""
    rng, task = random.Random(0), Task("task", "numbers")

    def some(mean: int) -> TokenIds:
        return tuple(rng.randrange(load.vocab_size) for _ in range(mean + rng.randint(-mean // 3, mean // 3)))

    trajectories = []
    for member in range(load.episodes):
        prompt, steps = some(load.instruction_tokens), []
        for _ in range(load.turns):
            prompt += some(load.observation_tokens)
            action = some(load.action_tokens)
            completion = Completion(prompt, action, (-7.0,) * len(action), "")
            steps.append(Step(Observation(""), (), completion, prompt, "", 0.0))
            prompt += action
        trajectories.append(Trajectory(task, tuple(steps), Observation(""), "truncated", False, 0.0, member=member))
    return TrajectoryGroup(task, tuple(trajectories))


def make_samples(load: Workload, side: str) -> list[Sample]:
    """The rows of one side."""
    advantages = [[(-1.0) ** member for member in range(load.episodes)]]
    return build_samples([make_group(load)], advantages, rows="step" if side == "step" else "auto")


def run_side(side: str, load: Workload) -> dict[str, Any]:
    """One side in this process."""
    torch.set_num_threads(1)
    samples = make_samples(load, side)
    model = make_model(load.vocab_size, load.hidden_size, load.num_layers, max_position_embeddings=8192)
    learner = Learner(model, OptimConfig(minibatch=0), LossConfig())
    found = learner.logprobs(samples)
    before = peak_mb()
    start = time.perf_counter()
    metrics = learner.update([replace(s, behavior_logprobs=p) for s, p in zip(samples, found, strict=True)])
    seconds = time.perf_counter() - start
    return {
        "side": side,
        "rows": len(samples),
        "tokens": sum(len(sample.token_ids) for sample in samples),
        "trained": int(metrics["tokens_trained"]),
        "seconds": seconds,
        "peak_mb": peak_mb() - before,
        "gradient_norm": metrics["grad_norm"],
        "logprobs": [
            p for s, row in zip(samples, found, strict=True) for p, m in zip(row, s.loss_mask, strict=True) if m
        ],
    }


def measure(load: Workload, quick: bool) -> dict[str, Any]:
    """Both sides, each in a process of its own."""
    step, auto = (in_a_process(__file__, "--side", side, *(["--quick"] if quick else [])) for side in ("step", "auto"))
    pairs = zip(step.pop("logprobs"), auto.pop("logprobs"), strict=True)
    difference = max(abs(mine - theirs) for mine, theirs in pairs)
    return {
        "ratio": step["tokens"] / auto["tokens"],
        "floor": FLOOR,
        "time_ratio": step["seconds"] / auto["seconds"],
        "memory_ratio": step["peak_mb"] / auto["peak_mb"],
        "largest_difference": difference,
        "equal": difference <= TOLERANCE,
        "rows": [step, auto],
        "workload": vars(load),
    }


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    load = result["workload"]
    print_table(
        f"{load['episodes']} episodes of {load['turns']} turns, one update",
        ("rows", "number", "tokens", "trained", "seconds", "peak MB"),
        (
            (
                row["side"],
                *(f"{row[name]:,}" for name in ("rows", "tokens", "trained")),
                f"{row['seconds']:.1f}",
                f"{row['peak_mb']:.0f}",
            )
            for row in result["rows"]
        ),
    )
    console.print(
        f"ratio of tokens {result['ratio']:.2f} (floor {result['floor']:g}), of time {result['time_ratio']:.1f}, "
        f"of peak memory {result['memory_ratio']:.1f}; largest difference of a log-probability "
        f"{result['largest_difference']:.1e}, equal to {TOLERANCE:g}: {result['equal']}"
    )


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="a smaller model and fewer episodes")
    parser.add_argument("--side", choices=("step", "auto"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    load = QUICK if arguments.quick else Workload()
    if arguments.side:
        sys.stdout.write(json.dumps(run_side(arguments.side, load)) + "\n")
        return
    result = measure(load, arguments.quick)
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()
