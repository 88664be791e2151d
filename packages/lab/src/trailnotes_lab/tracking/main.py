"""The process of one tracker: it shows the run whenever a line of its input says that there is more.

The last line, ``end``, says that the run ended by itself. Nothing that a package prints gets out; an error that ends
this process early is its one line of output. A call to the tracker that takes longer than the limit ends the process
by a signal, even in the middle of foreign code, so that a run that was killed leaves no such process behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from functools import partial
from pathlib import Path

from trailnotes.envs.base import format_error
from trailnotes.errors import TrailnotesError
from trailnotes_lab.tracking.base import make_tracker, redact_secrets
from trailnotes_lab.tracking.showing import TrackerReporter

END_MESSAGE = b"end\n"
CALL_TIMEOUT = 120.0  # seconds for one call to a tracker, the start of its package among them
NICE = 10  # training comes first


def main(name: str, directory: str, limit: float) -> None:
    """Serve standard input until it ends, for the run in `directory`."""
    told, said = os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno())
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):  # packages and their children get no stream of the run
        os.dup2(nothing, stream.fileno())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.nice(NICE)
    before = partial(signal.setitimer, signal.ITIMER_REAL, limit)
    rest = partial(signal.setitimer, signal.ITIMER_REAL, 0)  # an iteration of the run may take hours
    try:
        showing = TrackerReporter(name, Path(directory), partial(make_tracker, name), before)
        finished = False
        with os.fdopen(told, "rb") as lines:
            showing.catch_up()
            rest()
            for line in lines:
                finished = line == END_MESSAGE
                showing.catch_up()
                rest()
        showing.finish(finished=finished)
    except BaseException as error:  # noqa: BLE001 - the boundary to other people's code
        text = str(error) if isinstance(error, TrailnotesError) else format_error(error)
        with contextlib.suppress(OSError):  # the run may be gone
            os.write(said, redact_secrets(text).encode(errors="replace"))
        os._exit(1)
    os._exit(0)  # the exit handlers of a package could take for ever
