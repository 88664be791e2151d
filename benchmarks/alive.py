"""What each way of keeping tips alive adds to an iteration of EMPO2: tokens, CPU seconds, and peak memory.

The start model of the demo plays one iteration in simulated Waymarks, whose members with tips read those of an
iteration before, and other games, to be rehearsed. Its rows then go through the learner again and again: alone, and
with the rows that each setting adds. So do those of a model that trains adapters. All episodes teach
(`loss.drop_zero_advantage = false`) and are used once (`optim.epochs = 1`): with more passes, the same rows are added
to more. `loss.kl` is on, so the start model scores the episodes in any case. Tokens are those that the model computed,
padding included; CPU seconds hardly depend on what else runs.

    python benchmarks/alive.py --json alive.json
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from shared import console, cpu_seconds, finish, make_parser, peak_mb, print_table

from trailnotes.algorithms.empo2 import draw_modes
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.credit import group_advantages
from trailnotes.learner.samples import build_anchor_samples, build_samples
from trailnotes.policies.hf.network import split_model
from trailnotes.rollout import write_tips
from trailnotes.rollout.tips import WrittenTip
from trailnotes.runs.directory import RunDir
from trailnotes.training.iteration import Iteration
from trailnotes.training.opening import open_run_with_pool
from trailnotes.training.rehearsal import Rehearsal, record_rehearsal
from trailnotes.training.run import TrainingRun
from trailnotes.types import Sample, TrajectoryGroup

ROOT = Path(__file__).parents[1]
FLOOR = 2.0  # at most: `CHOICE` with adapters, as a multiple of the update alone
SETTINGS = (
    "--env.name waymarks-simulator --optim.lr 1e-6 --optim.epochs 1 --loss.kl 0.01 --loss.mask_kl true "
    "--loss.drop_zero_advantage false --algorithm.author start --rehearsal.split spare --rehearsal.rows 32"
)
HELD = {"anchor_weight": 0.4}
CHOICE = "all of it"
SIDES: dict[str, dict[str, dict[str, float]]] = {
    "nothing": {},
    "tips 1/4": {"algorithm": {"anchor_tips": 0.25, **HELD}},
    "reading 1/4": {"algorithm": {"anchor_reading": 0.25, **HELD}},
    "rehearsal": {"rehearsal": {"hold": 0.5}},
    "+ imitated": {"rehearsal": {"hold": 0.5, "imitate": 0.3}},
    CHOICE: {"algorithm": {"anchor_tips": 0.25, **HELD}, "rehearsal": {"hold": 0.5, "imitate": 0.3}},
}


@dataclass(frozen=True)
class Workload:
    """What is played, and how often each side is measured."""

    num_tasks: int = 16
    group_size: int = 4
    rehearsed: int = 16  # games
    repetitions: int = 5


QUICK = Workload(num_tasks=4, rehearsed=4, repetitions=1)


@dataclass
class Measured:
    """A side, once for each repetition."""

    rows: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)  # MiB, growth


@dataclass(frozen=True)
class Played:
    """What was played, and written about it."""

    groups: list[TrajectoryGroup]
    written: list[WrittenTip]


def settings(load: Workload, *, lora: bool) -> Config:
    """Of a run whose rows these are."""
    words = f"{SETTINGS} --rollout.num_tasks {load.num_tasks} --rollout.group_size {load.group_size} "
    words += f"--rehearsal.num_tasks {load.rehearsed} --model.lora.enabled {str(lora).lower()} "
    return load_config(
        ROOT / "configs/demo.toml", [*words.split(), "--model.path", str(ROOT / "models/waymarks-start")]
    )


async def play(run: TrainingRun) -> Played:
    """An iteration in which there is something to read, since the same tasks were played before."""
    iteration = Iteration(run, 0)
    tasks = iteration.tasks()
    before = await iteration.write_tips(await iteration.rollout(tasks, purpose="before"), "tips before")
    assert run.memory is not None
    run.memory.add([tip for each in before for tip in each.tips])
    modes = draw_modes(run.config.algorithm, len(tasks), run.config.rollout.group_size, iteration.rng("modes"))
    groups = await iteration.rollout(tasks, modes)
    return Played(groups, await iteration.write_tips(groups))


def rows_of(side: str, run: TrainingRun, played: Played, rehearsed: Path) -> list[Sample]:
    """What one iteration learns from."""
    changed = SIDES[side]
    advantages = [group_advantages(scores, True) for scores in Iteration(run, 0).scores(played.groups)]
    rows = build_samples(played.groups, advantages)
    algorithm = run.config.algorithm.model_copy(update=changed.get("algorithm", {}))
    rows += build_anchor_samples([each.completion for each in played.written], played.groups, algorithm, "auto", seed=0)
    if "rehearsal" in changed:
        rehearsal = run.config.rehearsal.model_copy(update=changed["rehearsal"])
        config = run.config.model_copy(update={"rehearsal": rehearsal})
        rows += Rehearsal(config, rehearsed, run.policy.format).sample_rows(Iteration(run, 0).rng("rehearsal"))
    return rows


# -- measuring


@contextmanager
def counted(run: TrainingRun) -> Iterator[Counter[str]]:
    """Tokens that go through the policy and, if that is a model of its own, the start model, inside the block."""
    tokens: Counter[str] = Counter()

    def count(_module: Any, _arguments: Any, options: dict[str, Any]) -> None:
        tokens["learned" if torch.is_grad_enabled() else "read"] += options["input_ids"].numel()

    scorers = {id(scorer.model): scorer for scorer in (run.learner._score, run.learner._score_reference)}  # noqa: SLF001 - nothing public counts what the start model reads
    hooks = [
        split_model(scorer.model).body.register_forward_pre_hook(count, with_kwargs=True)  # type: ignore[union-attr]
        for scorer in scorers.values()
    ]
    try:
        yield tokens
    finally:
        for hook in hooks:
            hook.remove()


def forget_peak() -> float:
    """Give freed memory back, and begin a new peak (Linux, see proc_pid_clear_refs); returns what is held now, MiB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_mb()


def update(run: TrainingRun, rows: Sequence[Sample], into: Measured, seed: int) -> None:
    """Learn once."""
    before = forget_peak()
    with counted(run) as tokens:
        start = cpu_seconds()
        run.learner.update(rows, seed=seed)
        into.seconds.append(cpu_seconds() - start)
    into.peaks.append(peak_mb() - before)
    into.rows, into.tokens = len(rows), tokens
    run.policy.weights_changed()


async def write(run: TrainingRun, played: Played, *, by_start: bool) -> float:
    """CPU seconds of writing about all episodes."""
    start = cpu_seconds()
    async with run.weights.use_author() if by_start else nullcontext(run.policy) as author:
        await write_tips(author, played.groups, run.config, seed=0, step=0)
    return cpu_seconds() - start


async def repeat(
    runs: dict[str, TrainingRun], played: Played, rehearsed: Path, load: Workload
) -> tuple[dict[tuple[str, str], Measured], dict[tuple[str, str], list[float]]]:
    """Every side of every model in turn, so that all meet the same machine; the first turn warms up."""
    updates = {(kind, side): Measured() for kind in runs for side in SIDES}
    writing: dict[tuple[str, str], list[float]] = {(kind, who): [] for kind in runs for who in ("policy", "start")}
    rows = {(kind, side): rows_of(side, run, played, rehearsed) for kind, run in runs.items() for side in SIDES}
    for turn in range(load.repetitions + 1):
        for (kind, side), measured in updates.items():
            update(runs[kind], rows[kind, side], measured if turn else Measured(), turn)
        for (kind, who), seconds in writing.items():
            took = await write(runs[kind], played, by_start=who == "start")
            seconds.extend([took] if turn else [])
    return updates, writing


async def measure(load: Workload, directory: Path) -> dict[str, Any]:
    """Play, record, and learn from it by either model."""
    torch.set_num_threads(1)
    recorded = record_rehearsal(settings(load, lora=False), directory / "recorded")
    runs: dict[str, TrainingRun] = {}
    with ExitStack() as stack:
        for kind in ("all weights", "adapters"):
            config = settings(load, lora=kind == "adapters")
            rehearsal = config.rehearsal.model_copy(update={"split": "", "path": str(recorded)})
            config = config.model_copy(update={"rehearsal": rehearsal})
            opened = stack.enter_context(RunDir.open(directory / kind, config))
            runs[kind] = stack.enter_context(open_run_with_pool(config, opened))
        played = await play(runs["all weights"])
        updates, writing = await repeat(runs, played, recorded, load)
    rows = [row for kind in runs for row in rows_of_table(kind, updates)]
    (choice,) = (row for row in rows if row["model"] == "adapters" and row["side"] == CHOICE)
    return {
        "ratio": choice["ratio"],
        "floor": FLOOR,
        "rows": rows,
        "writing": [
            {"model": kind, "author": who, "seconds": statistics.median(seconds)}
            for (kind, who), seconds in writing.items()
        ],
        "episodes": sum(len(group.trajectories) for group in played.groups),
        "tips": len(played.written),
        "workload": vars(load),
    }


def rows_of_table(kind: str, updates: dict[tuple[str, str], Measured]) -> list[dict[str, Any]]:
    """The sides of one model, against the update alone."""
    alone = updates[kind, "nothing"]
    median: Callable[[Sequence[float]], float] = statistics.median
    return [
        {
            "model": kind,
            "side": side,
            "rows": found.rows,
            "tokens_learned": found.tokens["learned"],
            "tokens_read": found.tokens["read"],
            "seconds": median(found.seconds),
            "ratio": median(found.seconds) / median(alone.seconds),
            "peak_mb": median(found.peaks),
        }
        for (model, side), found in updates.items()
        if model == kind
    ]


def report(result: dict[str, Any]) -> None:
    """Print the tables."""
    print_table(
        f"an update of {result['episodes']} episodes, each used once",
        ("model", "added", "rows", "learned", "read", "CPU s", "ratio", "peak MB"),
        (
            (
                *(row[name] for name in ("model", "side")),
                *(f"{row[name]:,}" for name in ("rows", "tokens_learned", "tokens_read")),
                *(f"{row[name]:.2f}" for name in ("seconds", "ratio")),
                f"{row['peak_mb']:.0f}",
            )
            for row in result["rows"]
        ),
        left=("model", "added"),
    )
    print_table(
        f"writing {result['tips']} tips",
        ("model", "author", "CPU s"),
        ((row["model"], row["author"], f"{row['seconds']:.2f}") for row in result["writing"]),
        left=("model", "author"),
    )
    console.print(f"ratio of tips and rehearsal with adapters: {result['ratio']:.2f} (at most {result['floor']:g})")


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="fewer episodes, once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = asyncio.run(measure(QUICK if arguments.quick else Workload(), Path(directory)))
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()
