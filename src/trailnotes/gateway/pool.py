"""A pool whose environments are agents: it starts one for each episode, at a session of its own server."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import ConfigError
from trailnotes.gateway.requests import RequestRefused
from trailnotes.gateway.session import Agent, Score, Session
from trailnotes.gateway.tasks import GatewayEnv

if TYPE_CHECKING:
    from trailnotes.config.schema import EnvConfig
    from trailnotes.envs.workers.hosts import Host
    from trailnotes.gateway.server import GatewayServer


class GatewayPool(AbstractContextManager["GatewayPool"]):
    """A lender of sessions, for the settings of ``env.name = "gateway"``; the server starts with the first lease.

    Use it as a context manager, or call `close`.
    """

    def __init__(self, env: EnvConfig) -> None:
        self._env = env
        self._sessions: dict[str, Session] = {}
        self._server: GatewayServer | None = None
        self._scorer: Score | None = None
        self._agent: Callable[..., Any] | None = None
        self._command: list[str] = []

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Session]:
        """Lend a session, whose agent starts when it is reset, and ends with the lease.

        Raises:
            ConfigError: the agent or the scorer cannot be found.
        """
        await self._open()
        session = Session(secrets.token_urlsafe(24), self._env.timeout, self._start, self._scorer)
        self._sessions[session.key] = session
        try:
            yield session
        finally:
            session.close()
            del self._sessions[session.key]

    def find(self, key: str, task: str = "") -> Session:  # noqa: ARG002 (a serving gateway uses it)
        """Find the session of a running agent, as `GatewayServer` asks for it."""
        if session := self._sessions.get(key):
            return session
        raise RequestRefused("there is no such session, or its episode is over", 404, "session_ended")

    def close(self) -> None:
        """Stop the server. A second call is harmless."""
        if self._server:
            self._server.stop()
        self._server = None

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _open(self) -> None:
        if self._server and self._server.loop is asyncio.get_running_loop():
            return
        self.close()
        from trailnotes.gateway.launch import import_function
        from trailnotes.gateway.server import GatewayServer
        from trailnotes.web.loopback import LOOPBACK
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

    def _start(self, session: Session) -> Agent:
        from trailnotes.gateway.launch import AgentProcess, AgentThread

        assert self._server is not None, "a lease has opened it"
        url = f"{self._server.url}/sessions/{session.key}"
        if self._agent:
            return AgentThread(self._agent, session, url)
        return AgentProcess(self._command, session, url)


def open_pool(env: EnvConfig, make_host: Callable[[int], Host] | None = None) -> EnvPool | GatewayPool:
    """Open the pool of the configured environment; `make_host` as for `EnvPool`."""
    return GatewayPool(env) if env.name == "gateway" else EnvPool(env, make_host=make_host)
