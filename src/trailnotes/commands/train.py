"""`trailnotes train`: open or resume a run directory, train, and leave it in order however it ends."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.arguments import ALLOW_CHANGE, CONFIG
from trailnotes.commands.command import Command, argument
from trailnotes.config.methods import method_of
from trailnotes.errors import ConfigError
from trailnotes.storage.files import read_jsonl

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from trailnotes.config.schema import Config
    from trailnotes.runs.directory import RunDir
    from trailnotes.runs.training import TrainingRun

MEGABYTE = 1 << 20


def train(
    config: Config,
    run_dir: Path,
    *,
    allow_change: Sequence[str] = (),
) -> Path:
    """Train `config.algorithm` until it is done, and return the directory of the last model.

    A directory that holds a run is resumed exactly where its last checkpoint stands. Ctrl-C finishes the iteration,
    saves, and says how to resume; a second one stops at once.

    Args:
        config: the whole configuration.
        run_dir: directory of the run; made if it does not exist.
        allow_change: keys that may differ from those of the run that is resumed.

    Raises:
        ConfigError: a setting that cannot work, before anything is built or written.
        RunError: the directory is in use, damaged, or belongs to another config; or it cannot be written.
        KeyboardInterrupt: interrupted twice; what the last checkpoint holds is safe.
    """
    import asyncio

    from trailnotes.runs.directory import RunDir

    _refuse_early(config)
    with RunDir.open(run_dir, config, allow_change=allow_change) as directory:
        return asyncio.run(_train(config, directory))


async def _train(config: Config, directory: RunDir) -> Path:
    from trailnotes.runs.saving import save
    from trailnotes.runs.training import opened_run
    from trailnotes.storage import checkpoint

    with opened_run(config, directory) as run:
        try:
            with _stop_on_signal(run):
                await method_of(config.algorithm.name).load()(run)
                if run.saved is None or checkpoint.load_meta(run.saved)["iteration"] != run.count.iteration:
                    save(run)
        except BaseException:
            safe = f"{run.saved} is saved, and the same command resumes there" if run.saved else "nothing is saved"
            run.progress.note(f"stopped: {safe}")
            raise
        if run.stop_requested:
            run.progress.note(f"stopped after iteration {run.count.iteration}; the same command resumes there")
        assert run.saved is not None
        return run.saved / "model"


def _refuse_early(config: Config) -> None:
    """Refuse all that can be refused without loading weights, so that a bad setting leaves no directory behind."""
    from trailnotes.envs.tasks import refuse_examined
    from trailnotes.policies.hf.policy import context_length_of

    config.refuse_training()
    refuse_examined(config)
    room, wanted = context_length_of(config.model), config.rollout.max_context_tokens
    if wanted > room:
        raise ConfigError(
            f"rollout.max_context_tokens = {wanted}, but the model at model.path holds {room} tokens: "
            f"set rollout.max_context_tokens to {room} or less"
        )


@contextlib.contextmanager
def _stop_on_signal(run: TrainingRun) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the run to stop after its iteration; the second one stops it at once.

    Plain handlers, not those of the event loop, which does not come round while the learner computes.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)

    def ask(_number: int, _frame: object) -> None:
        run.stop_requested = True
        for number in signals:
            signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(RuntimeError):  # it came in the middle of a line that is being printed
            run.progress.note("stopping after this iteration; once more to stop at once")

    before = {number: signal.signal(number, ask) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def dry_run(config: Config) -> str:
    """Train one iteration in a temporary directory, checkpoint included, and extrapolate.

    The estimate is rough, as `runs.forecast` says, and the first iteration also compiles games.

    Returns:
        A report for people: time, memory and disk.

    Raises:
        ConfigError: a setting that cannot work; whatever else would end the real run early ends this one.
    """
    from trailnotes.runs.console import clock
    from trailnotes.runs.forecast import iterations, small

    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        path = Path(name)
        train(small(config), path)
        line = next(read_jsonl(path / "metrics.jsonl"))
        saved = sum(file.stat().st_size for file in (path / "checkpoints").rglob("*") if file.is_file())
        logged = (path / "trajectories.jsonl").stat().st_size
    repeats = iterations(config, line)
    seconds = float(line["seconds"]) * repeats
    kept = config.train.keep_last + bool(config.train.eval_every) + 1  # one more while the next is written
    disk = saved * kept + logged * repeats
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in kilobytes
    free = shutil.disk_usage(Path.cwd()).free
    lines = [
        f"everything could be built; one iteration took {line['seconds']:.1f} s and {line['env_steps']:,} env steps",
        f"iterations   about {repeats:,}",
        f"time         about {clock(seconds)}",
        f"memory       {peak / MEGABYTE:,.0f} MB at the peak of this process",
        f"disk         about {disk / MEGABYTE:,.0f} MB ({free / MEGABYTE:,.0f} MB are free here)",
    ]
    if disk > free:
        lines.append("the disk is too small: lower train.keep_last, or choose another --run-dir")
    return "\n".join(lines) + "\n"


def _run(args: Namespace) -> None:
    from trailnotes.config.toml import load_config

    config = load_config(args.config, args.settings)
    if args.dry_run:
        print(dry_run(config), end="")
    else:
        print(f"last model: {train(config, args.run_dir, allow_change=args.allow_change)}")


TRAIN = Command(
    name="train",
    summary="train a model in an environment",
    about="Train a model by the method that the config names, in a run directory of its own. The same command on a "
    "directory that holds a run resumes where its last checkpoint stands. Ctrl-C finishes the iteration and saves; "
    "a second one stops at once.",
    example="trailnotes train configs/smoke.toml --run-dir runs/smoke --dry-run",
    run=_run,
    arguments=(
        CONFIG,
        argument("--run-dir", type=Path, metavar="DIR", required=True, help="directory of the run, made if absent"),
        ALLOW_CHANGE,
        argument("--dry-run", action="store_true", help="check everything, estimate time, memory and disk, and stop"),
    ),
    settings=True,
)
