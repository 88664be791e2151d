"""Checkpoints of a training run, from which it resumes exactly.

They hold no random state: every draw follows from seed and iteration.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file as save_numpy

from trailnotes.errors import RunError
from trailnotes.learner.states import REST, STATE
from trailnotes.storage import checkpoint
from trailnotes.training.run import Counters

if TYPE_CHECKING:
    from pathlib import Path

    from trailnotes.config.schema import Config
    from trailnotes.training.run import TrainingRun


def save_checkpoint(run: TrainingRun) -> None:
    """Write a checkpoint, whole or not at all, and delete old ones by `train.keep_last`.

    Raises:
        RunError: the disk is full or not writable; earlier checkpoints are as they were.
    """
    root, count = run.directory.checkpoints, run.count
    try:
        run.saved = checkpoint.save(root, count.iteration, lambda path: _write_state(run, path), meta=asdict(count))
        _mark_best(run, run.saved)
        checkpoint.prune(root, keep_last=run.config.train.keep_last)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"cannot save iteration {count.iteration} in {root} ({reason}): free space or fix the "
                       "permissions") from error  # fmt: skip


def delete_optimizer_state(root: Path) -> None:
    """Delete the optimizer's state from all checkpoints of a finished run; models and tips stay.

    Raises:
        RunError: they are not writable.
    """
    try:
        for found in checkpoint.scan(root, contents=False):  # the newest last: until then the run can be opened again
            if not found.problems:
                checkpoint.strip(found.path, STATE)
    except OSError as error:
        raise RunError(f"cannot delete the optimiser's state in {root} ({error.strerror}): fix the permissions, or set "
                       "train.keep_optimizer = true") from error  # fmt: skip


def find_final_model(config: Config, run_dir: Path) -> Path | None:
    """Find the last model of a finished run without an optimizer's state; None where it can be opened.

    Raises:
        RunError: the settings ask for more than it has been trained for, or its last checkpoint is damaged.
    """
    root = run_dir / "checkpoints"
    found = checkpoint.scan(root, contents=False)
    if not found or (found[-1].path / REST).is_file():
        return None
    saved = checkpoint.find_latest(root)
    assert saved is not None, "there is one"
    if config.train.compute_progress(checkpoint.load_meta(saved)) < 1.0:
        raise RunError(
            f"{run_dir} has ended, and its optimiser's state was not kept (train.keep_optimizer = false), so it cannot "
            f"be trained further: begin another run with its model, --model.path {saved / 'model'}"
        )
    return saved / "model"


def load_checkpoint(run: TrainingRun, path: Path) -> None:
    """Restore the state of a checkpoint directory, except for the memory, which `open_run` rewinds.

    Raises:
        RunError: it is the state of another model or of another embedder.
    """
    run.count = Counters(**checkpoint.load_meta(path))
    novelty = load_numpy(path / "novelty.safetensors")
    try:
        run.learner.load(path)
        run.novelty.load_state_dict(novelty, checkpoint.read_json(path / "novelty.json"))
        if run.archive is not None and (path / "archive.json").exists():  # it may have been off until now
            run.archive.load_state_dict(checkpoint.read_json(path / "archive.json"))
        if run.authors is not None and (path / "authors.json").exists():
            run.authors.load_state_dict(checkpoint.read_json(path / "authors.json")["written"])
    except (ValueError, RuntimeError) as error:  # torch's word for tensors of other shapes is RuntimeError
        raise RunError(f"{path} does not fit the settings of this start: {error}") from error
    run.weights.publish(run.count.iteration, run.weights.snapshot(run.count.iteration))
    run.saved = path
    _mark_best(run, path)  # a kill may have come between the checkpoint and its mark


def _write_state(run: TrainingRun, path: Path) -> None:
    run.learner.export(path / "model", run.policy.tokenizer)
    run.learner.save(path)
    arrays, rest = run.novelty.state_dict()
    save_numpy(dict(arrays), path / "novelty.safetensors")
    checkpoint.write_json(path / "novelty.json", rest)
    if run.archive is not None:
        checkpoint.write_json(path / "archive.json", run.archive.state_dict())
    if run.authors is not None:
        checkpoint.write_json(path / "authors.json", {"written": run.authors.state_dict()})
    if run.memory is not None:
        run.memory.snapshot(path / "memory.db")


def _mark_best(run: TrainingRun, saved: Path) -> None:
    count = run.count
    if count.best_validation is not None and count.best_iteration == count.iteration:
        checkpoint.mark_best(run.directory.checkpoints, saved, count.best_validation)
