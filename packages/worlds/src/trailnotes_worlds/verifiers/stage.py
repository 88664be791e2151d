"""Episodes of a verifiers environment with an external player in place of its model.

The environment runs in an event loop of its own, in a thread; a question that waits for an answer is an observation.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import verifiers.v1 as vf

from trailnotes.errors import ConfigError, EnvError, format_error

_T = TypeVar("_T")
_NO_PROMPT_REASON: Final = "it wants the user to open the conversation, and has no user"
_MACHINE_HOOKS: Final = ("setup", "finalize")


def require_playable(env: vf.Env[Any], task: vf.Task[Any, Any, Any], name: str) -> None:
    """Raise `ConfigError` for a task that needs more of verifiers than turns of text, with the reasons."""
    config, hooks = env.taskset.config, task.hooks("reward") + task.hooks("metric")
    lacking = {
        f"it has {len(env._agent_specs)} agents": len(env._agent_specs) != 1,  # noqa: SLF001 - no public name has it
        "its tasks run in a container": bool(task.NEEDS_CONTAINER or task.data.image),
        "its tasks have tools": bool(type(task).toolsets(config.task) or type(env.taskset).toolsets(config)),
        "its tasks prepare a machine": any(getattr(type(task), x) is not getattr(vf.Task, x) for x in _MACHINE_HOOKS),
        "it starts servers": type(env).start is not vf.Env.start,
        "a reward or a metric looks at a machine": any(map(_needs_machine, hooks)),
        "its rewards come from judge models": bool(task.config.judges),
        "it has conditions to stop (@vf.stop)": bool(task.hooks("stop")),
    }
    if reasons := [reason for reason, lacks in lacking.items() if lacks]:
        raise ConfigError(f"env.options.taskset = {name!r} cannot be played here: {'; '.join(reasons)}")


def _needs_machine(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


@dataclass(frozen=True)
class EpisodeEnd:
    reward: float


class EpisodeRunner:
    """Runner of tasks of an environment with one agent, one after the other. Not thread-safe."""

    def __init__(self, env: vf.Env[Any]) -> None:
        self._env = env
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="verifiers", daemon=True)
        self._thread.start()
        self._episode: asyncio.Task[float] | None = None
        self._asked: asyncio.Future[str] = self._loop.create_future()
        self._answer: asyncio.Future[str] = self._loop.create_future()

    def begin(self, task: vf.Task[Any, Any, Any]) -> str | EpisodeEnd:
        return self._run_in_loop(self._begin(task))

    def reply(self, text: str) -> str | EpisodeEnd:
        return self._run_in_loop(self._reply(text))

    def close(self) -> None:
        """End the episode and the thread, once or more."""
        if self._thread.is_alive():
            with suppress(EnvError):
                self._run_in_loop(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def ask_player(self, text: str) -> str:
        self._answer = self._loop.create_future()
        self._asked.set_result(text)
        return await self._answer

    def _run_in_loop(self, doing: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result()

    async def _begin(self, task: vf.Task[Any, Any, Any]) -> str | EpisodeEnd:
        await self._end()
        self._asked = self._loop.create_future()
        self._episode = self._loop.create_task(self._run(task))
        return await self._wait_for_next()

    async def _reply(self, text: str) -> str | EpisodeEnd:
        self._asked = self._loop.create_future()
        self._answer.set_result(text)
        return await self._wait_for_next()

    async def _wait_for_next(self) -> str | EpisodeEnd:
        assert self._episode
        either: set[asyncio.Future[Any]] = {self._asked, self._episode}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return self._asked.result() if self._asked.done() else EpisodeEnd(await self._episode)

    async def _end(self) -> None:
        if self._episode and not self._episode.done():
            self._episode.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._episode

    async def _run(self, task: vf.Task[Any, Any, Any]) -> float:
        episode = vf.Episode(env=vf.EnvInfo(id=self._env.config.env_id), task=_make_trace_task(task))
        agents: Any = vf.Agents(self._env.config, lambda name, spec: AgentProxy(self, name, spec, episode.traces))
        try:
            await self._env.setup(agents)
            await self._env.run(task, agents)
            await self._env.finalize(task, episode)
        except (Exception, SystemExit) as error:  # SystemExit out of a task would end the loop and hang the caller
            raise EnvError(f"{type(self._env).__name__} raised {format_error(error)}") from error
        return float(sum(trace.reward for trace in episode.traces))


class AgentProxy:
    """Proxy of the agent that an environment expects."""

    def __init__(self, stage: EpisodeRunner, name: str, spec: vf.AgentConfig, finished: list[Any]) -> None:
        self.name, self.trainable = name, True
        self._stage, self._spec, self._finished = stage, spec, finished

    async def run(self, task: vf.Task[Any, Any, Any], **_: Any) -> Any:
        """Ask one question and take its answer."""
        async with self.interaction(task) as talk:
            await talk.turn()
        return talk.trace

    def interaction(self, task: vf.Task[Any, Any, Any], **_: Any) -> AgentConversation:
        agent = vf.AgentInfo(config=self._spec, name=self.name)
        return AgentConversation(self._stage, task, vf.Trace(task=_make_trace_task(task), agent=agent), self._finished)


class AgentConversation:
    """Conversation, recorded for verifiers' rewards."""

    def __init__(self, stage: EpisodeRunner, task: vf.Task[Any, Any, Any], trace: Any, finished: list[Any]) -> None:
        self.trace = trace
        self._stage, self._task, self._finished = stage, task, finished

    async def __aenter__(self) -> Self:
        if self._task.data.system_prompt:
            self._record(vf.SystemMessage(content=self._task.data.system_prompt))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.trace.is_completed = self.trace.ok = True
            await self._task.score(self.trace)
            self._finished.append(self.trace)

    async def turn(self, message: Any = None) -> vf.Segment:
        """Show a message (the task's prompt if there is none), and take the answer."""
        if message is None:
            text = self._task.data.prompt_text
            if not text:
                raise EnvError(_NO_PROMPT_REASON)
        else:
            text = message if isinstance(message, str) else "\n\n".join(map(_extract_text, message))
        self._record(vf.UserMessage(content=text))
        reply = vf.AssistantMessage(content=await self._stage.ask_player(text))
        self._record(reply, sampled=True)
        return vf.Segment(messages=[reply])

    def _record(self, message: Any, *, sampled: bool = False) -> None:
        nodes = self.trace.nodes
        nodes.append(vf.MessageNode(message=message, sampled=sampled, parent=len(nodes) - 1 if nodes else None))


def _extract_text(message: Any) -> str:
    content = message["content"] if isinstance(message, dict) else message.content
    if not isinstance(content, str):
        raise EnvError("a turn of it is more than text, which cannot be played here")
    return content


def _make_trace_task(task: vf.Task[Any, Any, Any]) -> Any:
    return vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
