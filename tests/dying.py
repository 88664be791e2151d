"""An actor for tests in a file of its own, since Ray's worker imports what surrounds it: with a test's imports it takes
ten times as long to start, and on a busy machine longer than `cluster.timeout`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from trailnotes.runs.cluster.memory import MemoryService


class Dying(MemoryService):
    """Dies once, after it has stored, and before it answers."""

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        answer = super().call(method, *arguments, **named)
        grave = Path(self._memory.store.path or "").with_name("grave")
        if method == "add" and not grave.exists():
            grave.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
