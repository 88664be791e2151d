"""A gateway that is open to agents: they begin sessions as they come, read tips, and report how it went."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.errors import TrailnotesError
from trailnotes.gateway.requests import MODEL_FAILED, RequestRefused
from trailnotes.gateway.server import GatewayServer
from trailnotes.gateway.session import Session
from trailnotes.memory import TipMemory
from trailnotes.policies.base import Policy
from trailnotes.rollout.episode import compute_prompt_limit, run_episode
from trailnotes.rollout.tips import write_tips
from trailnotes.runs.signals import run_until_signal
from trailnotes.storage.files import append_jsonl, split_after, trajectory_to_json
from trailnotes.types import Sampling, Task, Trajectory, TrajectoryGroup, derive_seed

logger = logging.getLogger(__name__)
MAX_SESSIONS = 1000  # alive at a time, unless `env.max_envs` says otherwise
MAX_NAME_CHARS = 512  # of a session or task
MAX_ENDED = 10_000
CLOSE_TIMEOUT_S = 20.0  # for what has been reported to be kept
SWITCH_INTERVAL_S = 0.0005  # a thread that writes to disk holds up answers no longer than that
DEFAULT_TASK = "default"
EPISODES_FILE = "episodes.jsonl"


class OpenGateway:
    """The sessions of agents that come by themselves. Each is an episode of `policy`, appended to the file `path`.

    Sessions read tips of `memory`, except the share `plain_share`, with which readers are compared; the policy writes
    tips about those that report. `env.timeout` ends a session that asks and reports nothing for so long.
    """

    def __init__(
        self, policy: Policy, memory: TipMemory | None, config: Config, path: Path, plain_share: float
    ) -> None:
        self._policy, self._memory, self._config = policy, memory, config
        self._path, self._plain_share = path, plain_share
        split_after(path)  # half a line, of a gateway that was killed while it wrote one
        self._sessions: dict[str, Session] = {}
        self._playing: dict[asyncio.Task[None], Session] = {}
        self._count = 0
        self._writing, self._learning = asyncio.Lock(), asyncio.Lock()
        self._defaults: dict[str, Session] = {}  # by task: of clients that name no session
        self._ended: dict[str, None] = {}  # names that begin no other session, the newest `MAX_ENDED`

    def find(self, key: str, task: str = "") -> Session:
        """Find a session, or begin one of `task`.

        Raises:
            RequestRefused: it has ended, its name is too long, or too many are alive.
        """
        if session := self._sessions.get(key):
            if task not in {"", session.task.id}:
                raise RequestRefused(f"this session plays {session.task.id!r}: name another for {task!r}", 409)
            return session
        if not task or key in self._ended:
            raise RequestRefused("there is no such session, or it is over: begin one by its task", 404, "session_ended")
        if "/" in key:
            raise RequestRefused("the name of a session has no /")
        if max(len(key), len(task)) > MAX_NAME_CHARS:
            raise RequestRefused(f"a session and its task have names of {MAX_NAME_CHARS} characters at most")
        self._make_room()
        key = key or secrets.token_urlsafe(24)
        session = Session(key, self._config.env.timeout)
        session.task, session.kept = Task(task, "gateway"), session.loop.create_future()
        if self._memory is not None:
            self._memory.register_unknown_task(session.task)  # may fail: no session is alive yet
        rollout = self._config.rollout  # a request may come at once
        session.sampling = Sampling(max_tokens=rollout.max_action_tokens, stop=rollout.stop)
        session.describe_tools = getattr(self._policy, "describe_tools", None)
        session.decode = getattr(self._policy, "decode", None)
        session.max_prompt_tokens = compute_prompt_limit(self._policy, self._config)
        self._sessions[key], self._count = session, self._count + 1
        playing = asyncio.create_task(self._play(session, self._count))
        self._playing[playing] = session
        playing.add_done_callback(self._playing.pop)
        return session

    def find_default(self, task: str) -> Session:
        """Find the session of all clients that name none, of one task ("default"); begin another where it is over."""
        task = task or DEFAULT_TASK
        session = self._defaults.get(task)
        if session is None or not session.takes_requests:
            if session is not None:
                session.end()  # no report can come
            session = self._defaults[task] = self.find("", task)
            logger.warning("a client names no session: it plays session %s of the task %r", self._count, task)
        return session

    def _make_room(self) -> None:
        """End the oldest session without a request where too many are alive."""
        if len(self._sessions) < (limit := self._config.env.max_envs or MAX_SESSIONS):
            return
        for playing, session in self._playing.items():
            if session.is_unused and session.key in self._sessions:
                del self._sessions[session.key]
                playing.cancel()
                return
        raise RequestRefused(f"{limit} sessions are alive: end some, or raise env.max_envs", 429, "too_many")

    async def close(self) -> None:
        """End all sessions; those that have reported are kept, and the others as failed."""
        for session in self._sessions.values():
            session.end("the gateway was stopped")
        if self._playing:
            await asyncio.wait(self._playing, timeout=CLOSE_TIMEOUT_S)
        for playing in list(self._playing):
            playing.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)

    async def _play(self, session: Session, number: int) -> None:
        config = self._config
        seed = derive_seed(config.run.seed, "session", session.key)  # after a restart another, unless agents name it
        is_plain = self._memory is None or random.Random(seed).random() < self._plain_share
        name = f"session/{session.key}"  # of the episode with the policy, where authors have theirs
        self._policy.open_episode(name)
        lost = "the report is not kept, or not in full: the server failed, and its log says why"
        failure: RequestRefused | None = None  # what requests that wait are told
        refusal: RequestRefused | None = RequestRefused(lost, 500, "not_kept")
        try:
            episode = await run_episode(
                self._policy, session, session.task, "plain" if is_plain else "on_policy_tips", self._memory, config,
                member=0, seed=seed, episode=name,
            )  # fmt: skip
            session.end()  # the episode is made: a report from now on would be lost
            async with self._writing:
                await asyncio.to_thread(self._keep, episode, session)
            why = f"the report is not kept, since the episode has failed: {episode.error}"
            refusal = RequestRefused(why, 422, "not_kept") if episode.error else None
        except Exception as error:  # noqa: BLE001 (the other sessions go on)
            logger.error("session %s of %r: %s", number, session.task.id, error)  # noqa: TRY400 (the text says it)
            if isinstance(error, TrailnotesError):  # its text is fit for a user
                failure = RequestRefused(str(error), 502, MODEL_FAILED)
            else:
                text = f"this session ended by an error of the server: {type(error).__name__}"
                failure = RequestRefused(text, code="episode_over")
            return
        finally:
            self._policy.close_episode(name)
            session.close(failure)
            if session.kept is not None and not session.kept.done():
                session.kept.set_result(refusal)
            self._sessions.pop(session.key, None)
            if self._defaults.get(session.task.id) is session:
                del self._defaults[session.task.id]
            self._ended[session.key] = None
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]
        if self._memory is not None and session.has_reported and episode.outcome != "error":
            await self._learn(episode, seed)

    def _keep(self, episode: Trajectory, session: Session) -> None:
        """Write an episode to the disk, and its outcome to the memory."""
        append_jsonl(self._path, [trajectory_to_json(episode)], sync=True)
        if self._memory is not None and session.has_reported and episode.outcome != "error":
            tips = {tip.id: tip for step in episode.steps for tip in step.tips}
            attempt = self._memory.record_attempt(episode.task.id, [*tips.values()])
            most, success = episode.max_score, episode.success
            self._memory.report_attempt(attempt, episode.score, max_score=most, success=success)

    async def _learn(self, episode: Trajectory, seed: int) -> None:
        assert self._memory is not None, "checked before"
        group = TrajectoryGroup(episode.task, (episode,))
        try:
            async with self._learning:  # an author writes about one session at a time
                written = await write_tips(self._policy, [group], self._config, seed=seed, step=0)
            await asyncio.to_thread(self._memory.add, [tip for each in written for tip in each.tips])
        except TrailnotesError as error:
            logger.error("no tip about %r: %s", episode.task.id, error)  # noqa: TRY400 (the text says it)


async def serve_agents(
    gateway: OpenGateway, listener: socket.socket, ready: Callable[[str], None], *, token: str, public: bool
) -> None:
    """Serve until a signal comes, and raise `Interrupted`; `ready` gets the address.

    `token` and `public` as for `GatewayServer`.
    """
    server = GatewayServer(gateway.find, listener, token=token, public=public, find_default=gateway.find_default)

    async def serve() -> None:
        await server.start()
        ready(server.url)
        await asyncio.Event().wait()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        await run_until_signal(serve())
    finally:
        server.stop()  # first, so that no session begins meanwhile
        await gateway.close()
        sys.setswitchinterval(interval)
