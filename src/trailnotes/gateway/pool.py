"""A pool whose environments are agents: it starts one for each episode, at a session of its own server.

An agent is a command in a process of its own, or a Python function in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import pkgutil
import secrets
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

from trailnotes.client import AgentSession
from trailnotes.config.methods import add_working_directory
from trailnotes.envs.base import describe_env_error
from trailnotes.envs.workers.pool import EnvPool, Host
from trailnotes.errors import ConfigError, SessionOver, sanitize_text
from trailnotes.gateway.requests import MODEL, RequestRefused
from trailnotes.gateway.session import Score, Session
from trailnotes.gateway.tasks import GatewayEnv
from trailnotes.storage.child import describe_exit, kill_group, start_child, wait_for_group
from trailnotes.storage.files import task_to_json
from trailnotes.web.loopback import LOOPBACK

if TYPE_CHECKING:
    from trailnotes.config.schema import EnvConfig
    from trailnotes.gateway.server import GatewayServer

GRACE_S: Final = 5.0  # for an agent's own end after its last report
MAX_OUTPUT: Final = 2000  # characters of an agent's output that an error shows


def import_function(key: str, target: str) -> Callable[..., Any]:
    """Import the function of a setting; the working directory counts, as for ``python script.py``."""
    add_working_directory()
    try:
        function = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"env.options.{key} = {target!r} must name module:function ({error})") from error
    if not callable(function):
        raise ConfigError(f"env.options.{key} = {target!r} is no function")
    return function  # type: ignore[no-any-return]


class AgentProcess:
    """An agent in a process group of its own, with its session in environment variables."""

    def __init__(self, command: Sequence[str], session: Session, url: str) -> None:
        self._session, self._url = session, url
        direct = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), LOOPBACK)))
        variables = {
            "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": MODEL, "OPENAI_MODEL": MODEL,
            "TRAILNOTES_SESSION": url, "TRAILNOTES_TASK": json.dumps(task_to_json(session.task)),
            "NO_PROXY": direct, "no_proxy": direct,
        }  # fmt: skip
        self._output, writable = os.pipe()
        try:
            self._process: Popen[bytes] = start_child(
                command, env={**os.environ, **variables}, stdout=writable, stderr=writable
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(writable)
        self._tail = b""  # of what it prints
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._reader.start()
        self._waiter.start()

    def stop(self) -> None:
        """Give it `GRACE_S` to end, and then kill it with its children."""
        threading.Thread(target=self._end).start()  # this process ends after it, or the children would live on

    def _end(self) -> None:
        self._waiter.join(GRACE_S)
        kill_group(self._process)
        self._waiter.join(GRACE_S)  # it kills those that left the group

    def _read(self) -> None:
        """Read what it prints, and keep the end."""
        while piece := os.read(self._output, 65_536):
            self._tail = (self._tail + piece)[-4 * MAX_OUTPUT :]
        os.close(self._output)

    def _wait(self) -> None:
        failure, code = "", wait_for_group(self._process)
        mark = f"TRAILNOTES_SESSION={self._url}\0".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):  # on Linux; processes that left the group still have it
            with contextlib.suppress(OSError):  # another user's, or gone
                if mark in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
        if code:
            self._reader.join(1.0)  # a process that left the group may write on
            output = sanitize_text(self._tail.decode(errors="replace"), 10 * MAX_OUTPUT)[-MAX_OUTPUT:]
            failure = f"the agent {describe_exit(code)}: {output or 'it printed nothing'}"
        _report_end(self._session, failure)


def play_function(play: Callable[[AgentSession], Any], session: Session, url: str) -> None:
    """Play as an agent that is a function of its session (`trailnotes.client.AgentSession`), plain or a coroutine's.

    What it returns is its report: a score, or the fields of one; None for none.
    """
    client, failure = AgentSession(url, task_to_json(session.task)), ""
    try:
        result = play(client)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        if result is not None:
            client.report(**(result if isinstance(result, Mapping) else {"score": float(result)}))
    except SessionOver:  # raised by `report` alone
        pass
    except BaseException as error:  # noqa: BLE001 (foreign code, `sys.exit` included)
        failure = f"the agent raised {describe_env_error(error)[0]}"
    _report_end(session, failure)


def _report_end(session: Session, failure: str) -> None:
    if not session.loop.is_closed():
        session.loop.call_soon_threadsafe(session.end, failure)


class GatewayPool(contextlib.AbstractContextManager["GatewayPool"]):
    """A lender of sessions, for the settings of ``env.name = "gateway"``; the server starts with the first lease."""

    def __init__(self, env: EnvConfig) -> None:
        self._env = env
        self._sessions: dict[str, Session] = {}
        self._server: GatewayServer | None = None
        self._scorer: Score | None = None
        self._agent: Callable[..., Any] | None = None
        self._command: list[str] = []

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Session]:
        """Lend a session, whose agent starts when it is reset, and ends with the lease."""
        await self._open()
        session = Session(secrets.token_urlsafe(24), self._env.timeout, self._start, self._scorer)
        self._sessions[session.key] = session
        try:
            yield session
        finally:
            session.close()
            del self._sessions[session.key]

    def find(self, key: str, task: str = "") -> Session:  # noqa: ARG002 (a serving gateway uses it)
        if session := self._sessions.get(key):
            return session
        raise RequestRefused("there is no such session, or its episode is over", 404, "session_ended")

    def close(self) -> None:
        if self._server:
            self._server.stop()
        self._server = None

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _open(self) -> None:
        if self._server and self._server.loop is asyncio.get_running_loop():
            return
        self.close()
        from trailnotes.gateway.server import GatewayServer
        from trailnotes.web.serving import open_listener

        options = self._env.options
        GatewayEnv(**options)  # checks them
        self._scorer = import_function("scorer", options["scorer"]) if options.get("scorer") else None
        self._agent = import_function("agent", options["agent"]) if options.get("agent") else None
        if not self._agent:
            program, *arguments = options["command"]
            if not (path := shutil.which(program)):
                raise ConfigError(f"env.options.command: there is no program {program!r}")
            self._command = [path, *arguments]
        self._server = GatewayServer(self.find, open_listener(LOOPBACK, 0))
        await self._server.start()

    def _start(self, session: Session) -> Callable[[], None] | None:
        assert self._server is not None, "a lease has opened it"
        url = f"{self._server.url}/sessions/{session.key}"
        if not self._agent:
            return AgentProcess(self._command, session, url).stop
        name = f"agent {session.task.id}"
        threading.Thread(target=play_function, args=(self._agent, session, url), name=name, daemon=True).start()
        return None


def open_pool(env: EnvConfig, make_host: Callable[[int], Host] | None = None) -> EnvPool | GatewayPool:
    """Open the pool of the configured environment; `make_host` as for `EnvPool`."""
    return GatewayPool(env) if env.name == "gateway" else EnvPool(env, make_host=make_host)
