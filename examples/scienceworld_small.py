"""Three ScienceWorld tasks, three methods, some seeds: train, evaluate on unseen variations, draw. Resumable.

    python examples/scienceworld_small.py --out runs/scienceworld --seeds 2 --jobs 2

Every run is an ordinary run directory, ``OUT/TASK/METHOD-SEED``; what is finished is not done again. Afterwards

    trailnotes compare table --panel scienceworld-18 OUT/*/*-? --out OUT/table
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trailnotes.config.toml import load_config

TASKS = ("find-non-living-thing", "lifespan-longest-lived", "chemistry-mix-paint-secondary-color")
PUBLISHED = ("--empo2.mode_unit", "iteration", "--memory.duplicates", "reject", "--memory.order", '["score"]')
METHODS = {
    "grpo": ("--algorithm.name", "grpo"),
    "mixed": (),
    "published": PUBLISHED,
}
LABELS = {"grpo": "GRPO", "mixed": "EMPO², mixed groups", "published": "EMPO², as published"}
COLOURS = {"grpo": "#b5651d", "mixed": "#1b6e5a", "published": "#4a6fa5"}
Curve = list[tuple[float, float]]


def trailnotes(log: Path, *arguments: str) -> None:
    """One command, its output in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as sink:
        command = [sys.executable, "-m", "trailnotes", *arguments]
        subprocess.run(command, check=True, stdout=sink, stderr=sink, env=os.environ | {"NO_COLOR": "1"})  # noqa: S603


def run(out: Path, task: str, method: str, seed: int, settings: list[str]) -> None:
    """Train one run, then play the unseen variations without memory."""
    folder, config = out / task / f"{method}-{seed}", f"scienceworld/small-{task}"
    log = out / "logs" / f"{task}-{method}-{seed}.log"
    options = [*METHODS[method], "--run.seed", str(seed), *settings]
    trailnotes(log, "train", config, "--run-dir", str(folder), *options)
    if not (folder / "eval" / "table.json").is_file():
        trailnotes(log, "eval", str(folder), "--out", str(folder / "eval"))
    print(f"{task} {method} seed {seed}: {result(folder)}", flush=True)


def start(out: Path, task: str, settings: list[str]) -> None:
    """What the start model does on the same variations."""
    folder, config = out / task / "start", f"scienceworld/small-{task}"
    if not (folder / "table.json").is_file():
        model = load_config(config).model.path
        log = out / "logs" / f"{task}-start.log"
        trailnotes(log, "eval", model, "--config", config, "--out", str(folder), *settings)
    print(f"{task} start: {result(folder.parent / 'start', '.')}", flush=True)


def result(folder: Path, below: str = "eval") -> str:
    """Mean return and its interval."""
    (row,) = json.loads((folder / below / "table.json").read_text())["rows"]
    bracket = "no interval" if row["ci_low"] is None else f"[{row['ci_low']:.1f}, {row['ci_high']:.1f}]"
    return f"{row['mean']:.1f} {bracket}"


def curve(folder: Path, window: int = 3) -> Curve:
    """Environment steps against the return of tip-free members, a moving mean over iterations that had some."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = [(row["env_steps"], row[key]) for row in rows if (key := "rollout/return/plain") in row]
    return [
        (x, sum(y for _, y in points[max(0, i + 1 - window) : i + 1]) / min(i + 1, window))
        for i, (x, _) in enumerate(points)
    ]


def draw(out: Path, seeds: int) -> None:
    """A panel for each task: the seeds of each method, and their mean."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from trailnotes.reporting.plots import compute_seed_band

    figure, panels = plt.subplots(1, len(TASKS), figsize=(14, 4.2), layout="constrained", sharey=True)
    for axes, task in zip(panels, TASKS, strict=True):
        for method in METHODS:
            folders = [out / task / f"{method}-{seed}" for seed in range(seeds)]
            curves = [curve(folder) for folder in folders if (folder / "eval" / "table.json").is_file()]
            if curves:
                draw_band(axes, compute_seed_band(curves), curves, method)
        (row,) = json.loads((out / task / "start" / "table.json").read_text())["rows"]
        axes.axhline(row["mean"], color="#777777", linestyle=":", label="start model, unseen variations")
        axes.set(title=task, xlabel="environment steps", ylim=(-105, 105))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    panels[0].set_ylabel("return without notes, five training variations")
    panels[-1].legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(out / "curves.png", dpi=130)


def draw_band(axes: Any, edges: tuple[Any, Any, Any, Any], curves: list[Curve], method: str) -> None:
    """The mean over seeds, the range between them, and each seed."""
    xs, low, mean, high = edges
    axes.fill_between(xs, low, high, color=COLOURS[method], alpha=0.15, linewidth=0)
    axes.plot(xs, mean, color=COLOURS[method], linewidth=2.2, label=LABELS[method])
    for points in curves:
        axes.plot(*zip(*points, strict=True), color=COLOURS[method], linewidth=0.6, alpha=0.5)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/scienceworld"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    arguments, settings = parser.parse_known_args()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [pool.submit(start, arguments.out, task, settings) for task in arguments.tasks]
        jobs += [
            pool.submit(run, arguments.out, task, method, seed, settings)
            for seed in range(arguments.seeds)
            for task in arguments.tasks
            for method in arguments.methods
        ]
    failed = [error for job in jobs if (error := job.exception())]
    draw(arguments.out, arguments.seeds)
    sys.exit("\n".join(map(str, failed)))


if __name__ == "__main__":
    main()
