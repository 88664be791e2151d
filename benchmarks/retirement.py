"""What each way to keep tips within a limit costs and gains, in the runs of `configs/compare/retirement.toml`.

The comparison is run first, where that has not been done: some ten minutes of CPU. Each model plays its panel once
more, with the tips that its training has left (`trailnotes eval RUN --memory`; what is there already is read). The rest
is in the runs: tips that are found and those that are not by rule, success of members with tips and without in the last
quarter of the iterations, and what tips still changed there. Search time is CPU time for one search of each game of the
panel, in a copy of the memory.

    python benchmarks/retirement.py --json retirement.json
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from shared import finish, make_parser, print_table

from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_panel, tasks_of
from trailnotes.memory import open_memory
from trailnotes.runs.directory import load_run_config
from trailnotes.storage.files import read_jsonl

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measure what the comparison has left."""
    parser = make_parser(__doc__, "search a tenth of the games")
    parser.add_argument(
        "comparison", type=Path, metavar="DIR", nargs="?", default=Path("runs/compare/retirement"),
        help="what the comparison has written, or is to write (runs/compare/retirement)",
    )  # fmt: skip
    args = parser.parse_args()
    if not (args.comparison / "table.json").is_file():
        trailnotes("compare", "run", str(ROOT / "configs/compare/retirement.toml"), "--out", str(args.comparison))
    runs = sorted(folder.parent for folder in args.comparison.glob("runs/*/eval"))
    finish({"runs": {run.name: measured(run, quick=args.quick) for run in runs}}, report, args.json)


def measured(run: Path, *, quick: bool) -> dict[str, Any]:
    """All figures of one run."""
    config, lines = load_run_config(run), list(read_jsonl(run / "metrics.jsonl"))
    return {
        "plain": success(run / "eval"),
        "with_tips": success(with_tips(run)),
        **tips_of(run, config, quick=quick),
        **late(lines[3 * len(lines) // 4 :]),
    }


def with_tips(run: Path) -> Path:
    """The panel as it was played with the tips of the training."""
    folder = run / "with-tips"
    if not (folder / "table.json").is_file():
        trailnotes("eval", str(run), "--memory", "--out", str(folder))
    return folder


def trailnotes(*command: str) -> None:
    """A command of the package, in a process of its own."""
    subprocess.run([sys.executable, "-m", "trailnotes", *command], check=True)


def success(folder: Path) -> tuple[float, float, float]:
    """Mean and interval beyond the panel, of this one model."""
    (row,) = json.loads((folder / "table.json").read_text(encoding="utf-8"))["rows"]
    return row["mean"], row["ci_low"], row["ci_high"]


def tips_of(run: Path, config: Config, *, quick: bool) -> dict[str, Any]:
    """How many are kept, how many went by which rule, and what a search takes."""
    panel = load_panel(config)[:: 10 if quick else 1]
    with closing(open_memory(None, config.memory)) as memory:
        memory.restore(run / "memory.db")
        memory.register_tasks([*tasks_of(config, config.train.split), *panel])
        took = []
        for task in panel[:1] + panel:
            began = time.process_time()
            memory.search(task.id, f"what is seen in {task.id}", config.memory.top_k)
            took.append(1000 * (time.process_time() - began))
        gone = Counter(mark.rule for mark in memory.store.load_retirements().values())
        return {
            "tips": int(memory.stats()["tips"]), "gone": dict(sorted(gone.items())),
            "search_ms": statistics.median(took[1:]),
        }  # fmt: skip


def late(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Means of the last iterations."""
    names = {
        "train_plain": "rollout/success/plain",
        "train_off_policy": "rollout/success/off_policy",
        "train_tips": "rollout/success/on_policy_tips",
        "lead": "tips/lead",
    }
    found = {ours: [line[name] for line in lines if name in line] for ours, name in names.items()}
    return {ours: statistics.fmean(values) for ours, values in found.items() if values}


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    columns = ("run", "without tips", "with tips", "tips", "gone", "search, ms", "lead, nats")
    rows = []
    for name, found in result["runs"].items():
        means = [f"{mean:.2f} [{low:.2f}, {high:.2f}]" for mean, low, high in (found["plain"], found["with_tips"])]
        gone = ", ".join(f"{count} {rule}" for rule, count in found["gone"].items())
        rows.append((name, *means, str(found["tips"]), gone, f"{found['search_ms']:.2f}", f"{found['lead']:.2f}"))
    print_table("Tips within a limit", columns, rows)


if __name__ == "__main__":
    main()
