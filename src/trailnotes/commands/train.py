"""`trailnotes train`: open or resume a run directory, and train."""

from __future__ import annotations

import contextlib
import re
import resource
import shutil
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.arguments import ALLOW_CHANGE, OPTIONAL_CONFIG, load_command_config
from trailnotes.commands.command import Command, argument
from trailnotes.config.methods import resolve_method
from trailnotes.errors import Interrupted
from trailnotes.runs.signals import request_stop_on_signals
from trailnotes.storage.files import read_jsonl

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from trailnotes.config.schema import Config
    from trailnotes.runs.cluster.cluster import Cluster
    from trailnotes.runs.directory import RunDir
    from trailnotes.runs.training import TrainingRun
    from trailnotes.types import StrPath, Tip

FIXED_TRAIN_KEYS = ("algorithm.name", "run.seed")
"""What tables know a run by: one that has begun keeps both, since half of it would count as another's."""


def train(config: Config, run_dir: StrPath, *, allow_change: Sequence[str] = (), memory: StrPath | None = None) -> Path:
    """Train `config.algorithm` until it is done, and return the directory of the last model.

    The same call on an existing run resumes exactly at its last checkpoint. Ctrl-C finishes the iteration, saves, and
    raises; a second one raises at once; so do SIGTERM, and SIGHUP of a closed terminal. A finished run is not opened
    again where `train.keep_optimizer` is off.

    Args:
        config: the whole configuration.
        run_dir: directory of the run; made if it does not exist.
        allow_change: keys that may differ from the resumed run, except `FIXED_TRAIN_KEYS`.
        memory: tips to begin with: a file of `trailnotes memory export`, a memory file, or a run directory. A run that
            has begun keeps its own.

    Raises:
        ConfigError: a setting that cannot work, before anything is built or written.
        MissingExtraError: a package that the settings need is not installed; as early.
        ClusterError: `cluster.address` does not lead to a Ray cluster with the required resources; likewise.
        MemoryStoreError: `memory` cannot be read; likewise.
        RunError: the directory is in use, damaged, not writable, or belongs to another config; or the run has ended for
            good, and the settings ask for more.
        Interrupted: a `KeyboardInterrupt`: asked to stop before the end; the last checkpoint is safe.
    """
    from trailnotes.memory.tipfile import read_tips
    from trailnotes.runs.directory import RunDir
    from trailnotes.runs.loop import run_to_end
    from trailnotes.runs.preflight import run_preflight

    tips = None if memory is None else read_tips(memory)
    run_preflight(config, tips)
    from trailnotes.runs.training import find_final_model  # takes the extra `train`

    last = find_final_model(config, Path(run_dir))
    opened = partial(RunDir.open, run_dir, config, allow_change=allow_change, fixed=FIXED_TRAIN_KEYS)
    with _open_cluster(config) as cluster, opened() as directory:
        if last is not None:
            return last
        _record_rehearsal(config, directory)
        return run_to_end(_train(config, directory, tips or (), cluster))


def _open_cluster(config: Config) -> AbstractContextManager[Cluster | None]:
    if not config.cluster.address:
        return contextlib.nullcontext()
    from trailnotes.runs.cluster.connection import connect_cluster

    return connect_cluster(config)


def _record_rehearsal(config: Config, directory: RunDir) -> None:
    from trailnotes.runs.console import ProgressBar
    from trailnotes.runs.directory import has_begun
    from trailnotes.runs.rehearsal import find_rehearsal, record_rehearsal

    path = find_rehearsal(config, directory.path)
    if path is None or config.rehearsal.path:
        return
    if not (path.is_file() and has_begun(directory.path)):  # what a run has begun with stays, whatever may change
        with ProgressBar(1.0, "rehearsal") as bar:
            record_rehearsal(config, path.parent, bar)


async def _train(config: Config, directory: RunDir, tips: Sequence[Tip], cluster: Cluster | None) -> Path:
    from trailnotes.runs.iteration import run_method
    from trailnotes.runs.training import delete_optimizer_state, open_run, save_checkpoint
    from trailnotes.storage import checkpoint

    with open_run(config, directory, tips, cluster) as run:
        try:
            with request_stop_on_signals(partial(_request_stop, run)) as received:
                await run_method(resolve_method(config.algorithm.name).load(), run)
                if run.saved is None or checkpoint.load_meta(run.saved)["iteration"] != run.count.iteration:
                    save_checkpoint(run)
        except BaseException:
            safe = f"{run.saved} is saved, and the same command resumes there" if run.saved else "nothing is saved"
            run.progress.note(f"stopped: {safe}")
            raise
        ended = config.train.compute_progress(asdict(run.count)) >= 1.0
        if run.ledger is not None:
            total, cost = run.ledger.count.total, run.ledger.count.compute_cost(config.learner)
            run.progress.note(f"{total:,} tokens at the server so far" + (f", {cost:,.2f}" if cost else ""))
        if run.is_spent and not ended:
            run.progress.note(f"stopped after iteration {run.count.iteration}: another could pass "
                              "learner.max_tokens_total; raise it, with --allow-change learner.max_tokens_total, and "
                              "the run goes on")  # fmt: skip
        elif received and not ended:
            kept = f"stopped after iteration {run.count.iteration}; the same command resumes there"
            raise Interrupted(received[0], kept)
        if ended and not config.train.keep_optimizer:
            delete_optimizer_state(directory.checkpoints)
        assert run.saved is not None
        return run.saved / "model"


def _request_stop(run: TrainingRun) -> None:
    run.stop_requested = True
    with contextlib.suppress(RuntimeError):  # the signal came in the middle of a line that is being printed
        run.progress.note("stopping after this iteration; once more to stop at once")


def dry_run(
    config: Config, *, memory: StrPath | None = None, show: Callable[[str], object] = lambda _table: None
) -> str:
    """Estimate the memory of the device, then train one iteration in a temporary directory, and extrapolate.

    The estimates are rough (see `estimate/`); the first iteration also compiles games. A model that is not on this
    machine is not downloaded, and nothing is played. For a server of the Tinker API the report is of tokens and cost,
    and the server is not asked.

    Args:
        config: the whole configuration.
        memory: tips to begin with, as for `train`.
        show: receives the table of the device's memory before anything is played.

    Returns:
        A report for people: time, memory and disk.

    Raises:
        ConfigError: a setting that cannot work, or a device that is too small; so do all early errors of a real run.
    """
    from trailnotes.memory.tipfile import read_tips
    from trailnotes.runs.preflight import run_preflight

    run_preflight(config, None if memory is None else read_tips(memory), machine=False)
    if config.is_hosted:
        from trailnotes.runs.estimate.hosted import estimate_hosted

        return estimate_hosted(config).report(config)
    from trailnotes.policies.hf.policy import is_downloaded
    from trailnotes.runs.estimate.footprint import estimate_footprint

    if footprint := estimate_footprint(config):
        show(footprint.report())
        footprint.require_room()
    if not is_downloaded(config.model):
        return (f"{config.model.path} is not on this machine, and a dry run downloads nothing: no time and no disk can "
                "be told; `trailnotes train` downloads it\n")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        return _extrapolate(config, Path(name), memory)


def _extrapolate(config: Config, path: Path, memory: StrPath | None) -> str:
    """Train one iteration in `path`, and report what the whole run takes."""
    from trailnotes.runs.console import format_duration, format_megabytes
    from trailnotes.runs.estimate import forecast
    from trailnotes.runs.rehearsal import REHEARSAL_DIR, read_recording_usage, require_remaining_budget

    copy = forecast.shrink_config(config)
    train(copy, path, memory=memory)
    recorded = read_recording_usage(path / REHEARSAL_DIR)
    line, before = forecast.split_usage(config, copy, next(read_jsonl(path / "metrics.jsonl")), recorded)
    require_remaining_budget(config.train, before)
    repeats = forecast.estimate_iterations(config, line, before)
    disk, free = forecast.estimate_disk(config, path, repeats), shutil.disk_usage(Path.cwd()).free
    seconds = float(line["seconds"]) * repeats + before.get("seconds", 0.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in kilobytes
    later = "" if config.train.keep_optimizer else f", {format_megabytes(disk.kept)} MB once it has ended"
    lines = [
        f"everything could be built; one iteration took {line['seconds']:.1f} s and {line['env_steps']:,} env steps",
        f"iterations   about {repeats:,}",
        f"time         about {format_duration(seconds)}",
        f"memory       {format_megabytes(peak)} MB at the peak of this process",
        f"disk         about {format_megabytes(disk.most)} MB{later} ({format_megabytes(free)} MB are free here)",
    ]
    if before:
        num, spent = forecast.count_rehearsal_episodes(config), format_duration(before["seconds"])
        lines.insert(2, f"before them  {num:,} episodes in {spent}")
    if disk.most > free:
        lines.append("the disk is too small: lower train.keep_last, or choose another --run-dir")
    return "\n".join(lines) + "\n"


def _run(args: Namespace) -> None:
    from trailnotes.config.builtin import BUILTIN_PREFIX
    from trailnotes.learner.ranks import is_torchrun_worker, run_torchrun_rank

    config = load_command_config(None, args.config, args.settings)
    if is_torchrun_worker():
        run_torchrun_rank(config)
    elif args.dry_run:
        print(dry_run(config, memory=args.memory, show=partial(print, flush=True)), end="")
    else:
        name = args.config.stem.removeprefix(BUILTIN_PREFIX) if args.config else re.sub(r"\W+", "-", config.env.name)
        run_dir = args.run_dir or Path("runs") / name
        print(f"last model: {train(config, run_dir, allow_change=args.allow_change, memory=args.memory)}")


TRAIN = Command(
    name="train", summary="train a model in an environment",
    about="Train a model by the method that the config names, and write a run directory. If the directory holds a run "
    "already, the same command resumes it from its last checkpoint. After Ctrl-C, SIGTERM or a closed terminal, "
    "training finishes the iteration, saves, and exits with 130, 143 or 129; a second signal stops it at once. An "
    "environment of your own needs no CONFIG: --env.name module:Class and --model.path MODEL are enough.",
    example="trailnotes train smoke --run-dir runs/smoke --dry-run", run=_run,
    arguments=(
        OPTIONAL_CONFIG,
        argument("--run-dir", type=Path, metavar="DIR",
            help="run directory, created if missing (default: runs/NAME after CONFIG or the environment)"),
        ALLOW_CHANGE,
        argument("--memory", type=Path, metavar="FILE",
            help="start with these tips: a file of `memory export`, a memory file, or a run directory"),
        argument("--dry-run", action="store_true",
            help="run all checks, estimate time, disk, and memory of host and device, or tokens and cost at a server, "
            "then exit"),
    ),
    settings=True,
)  # fmt: skip
