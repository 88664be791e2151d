"""A rank above 0: a process that has a part of the model and repeats the calls of rank 0 until that ends it.

    python -m trailnotes.learner.rank RANK WORLD DIRECTORY DEVICE SECONDS

is how rank 0 starts those of its machine; torchrun's ranks above 0 call `run_torchrun_rank` instead of the command.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.learner.rank_handles import SHARED_ERRORS, STORE_FILE, make_failure, write_failure

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.learner.process_group import LearnerGroup


def main(arguments: list[str]) -> None:
    """Join the process group and follow rank 0. Ends with 1 on a failure, whose reason is then in the directory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank, world, directory = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    speaking = threading.Lock()
    watch = threading.Thread(target=_end_with_rank_0, args=(directory, speaking), daemon=True)
    watch.start()  # before torch: that takes seconds
    try:
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        from trailnotes.learner.process_group import bind_interface, init_process_group

        with bind_interface():
            group = init_process_group(
                rank, world, arguments[3], float(arguments[4]), FileStore(str(directory / STORE_FILE), world)
            )
        run_call_loop(group)
        gc.freeze()  # or its end takes a second, in which the collector looks at all of torch
    except BaseException as error:  # noqa: BLE001 - the boundary: rank 0 must learn the reason, whatever it is
        with speaking:
            write_failure(directory, rank, make_failure(error))
        watch.join(1.0)  # where it is rank 0 that is gone, it tidies up
        os._exit(1)


def is_torchrun_worker(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun started this process as one that does not hold the run."""
    return "MASTER_ADDR" in environ and environ.get("RANK", "0") not in ("", "0")


def run_torchrun_rank(config: Config) -> None:
    """Run a rank that torchrun started.

    Raises:
        ConfigError: torchrun started another number of processes than `learner.world_size`.
        LearnerError: rank 0, or another, is gone.
    """
    from trailnotes.errors import LearnerError
    from trailnotes.learner.process_group import (
        get_torchrun_rank,
        init_process_group,
        resolve_device_type,
        validate_world_size,
    )

    validate_world_size(config)
    given = get_torchrun_rank()
    if given is None:
        raise ValueError("nobody started this process as one of several")
    try:
        run_call_loop(init_process_group(*given, resolve_device_type(config), config.learner.timeout))
    except RuntimeError as error:
        raise LearnerError(f"rank {given[0]} of the learner failed: {make_failure(error).text}") from error


def run_call_loop(group: LearnerGroup) -> None:
    """Repeat the calls of rank 0 until it ends this rank. Raises `RuntimeError` if a rank is gone."""
    import torch

    from trailnotes.learner.sharded import build_rank

    learner = None
    while (call := group.receive_call()) is not None:
        name, given, named = call
        try:
            if name == "build":
                config: Config = given[0]
                threads = config.run.threads or max(1, torch.get_num_threads() // config.learner.world_size)
                torch.set_num_threads(threads)
                learner = build_rank(group, *given)
            else:
                getattr(learner, name)(*given, **named)
        except SHARED_ERRORS:
            if learner is None:
                raise
    group.destroy()


def _end_with_rank_0(directory: Path, speaking: threading.Lock) -> None:
    """Wait for the end of the pipe from rank 0, and remove what rank 0 may not have had the time to remove."""
    while os.read(0, 1):
        pass
    with speaking:  # a last word that came while the directory is emptied would keep it
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
