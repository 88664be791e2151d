"""Starts agents: a command in a process of its own, or a Python function in a thread."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trailnotes.client import AgentSession
from trailnotes.envs.base import format_error, sanitize_text
from trailnotes.errors import ConfigError, SessionOver
from trailnotes.gateway.requests import MODEL
from trailnotes.gateway.session import Session
from trailnotes.storage.child import describe_exit, kill_group, start_child, wait_for_group
from trailnotes.storage.records import task_to_json
from trailnotes.web.loopback import LOOPBACK

if TYPE_CHECKING:
    from subprocess import Popen

GRACE_S: Final = 5.0  # for an agent's own end after its last report
MAX_OUTPUT: Final = 2000  # characters of an agent's output that an error shows


def import_function(key: str, target: str) -> Callable[..., Any]:
    """Import the function of a setting; the working directory counts, as for ``python script.py``.

    Raises:
        ConfigError: there is none.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"env.options.{key} = {target!r} must name module:function ({error})") from error
    if not callable(found):
        raise ConfigError(f"env.options.{key} = {target!r} is no function")
    return found  # type: ignore[no-any-return]


class AgentProcess:
    """An agent in a process group of its own, told its session in environment variables.

    Args:
        command: the path of the program and its arguments.
        session: which hears of the agent's end.
        url: of the session.
    """

    def __init__(self, command: Sequence[str], session: Session, url: str) -> None:
        self._session = session
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the agent)
        direct = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), LOOPBACK)))
        told = {
            "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": MODEL, "OPENAI_MODEL": MODEL,
            "TRAILNOTES_SESSION": url, "TRAILNOTES_TASK": json.dumps(task_to_json(session.task)),
            "NO_PROXY": direct, "no_proxy": direct,
        }  # fmt: skip
        self._process: Popen[bytes] = start_child(
            command, env={**os.environ, **told}, stdout=self._output, stderr=self._output
        )
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def stop(self) -> None:
        """Give it `GRACE_S` to end, and then kill it with its children."""
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        self._waiter.join(GRACE_S)
        kill_group(self._process)
        self._waiter.join()
        self._output.close()

    def _wait(self) -> None:
        code = wait_for_group(self._process)
        failure = "" if code == 0 else f"the agent {describe_exit(code)}: {self._read_output() or 'it printed nothing'}"
        _tell_end(self._session, failure)

    def _read_output(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - 4 * MAX_OUTPUT))
        return sanitize_text(self._output.read().decode(errors="replace"), 10 * MAX_OUTPUT)[-MAX_OUTPUT:]


class AgentThread:
    """An agent that is a function of its session (`trailnotes.client.AgentSession`), plain or a coroutine's.

    What it returns is its report: a score, or the fields of one; None for none.
    """

    def __init__(self, play: Callable[[AgentSession], Any], session: Session, url: str) -> None:
        self._play, self._session = play, session
        self._client = AgentSession(url, task_to_json(session.task))
        threading.Thread(target=self._run, name=f"agent {session.task.id}", daemon=True).start()

    def stop(self) -> None:
        """Leave it alone: a thread cannot be stopped, and its next request is refused."""

    def _run(self) -> None:
        failure = ""
        try:
            said = self._play(self._client)
            if inspect.iscoroutine(said):
                said = asyncio.run(said)
            if said is not None:
                self._client.report(**(said if isinstance(said, Mapping) else {"score": float(said)}))
        except SessionOver:  # raised by `report` alone
            pass
        except BaseException as error:  # noqa: BLE001 (foreign code, `sys.exit` included)
            failure = f"the agent raised {format_error(error)}"
        _tell_end(self._session, failure)


def _tell_end(session: Session, failure: str) -> None:
    if not session.loop.is_closed():
        session.loop.call_soon_threadsafe(session.end, failure)
