"""The server's side of one session: requests of the protocol in, answers out. It knows no web."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

from trailnotes.errors import EnvError, TrailnotesError
from trailnotes.storage.parsing import parse_json
from trailnotes_worlds.third_party import FIRST_SEED

if TYPE_CHECKING:
    from trailnotes.envs.workers.pool import EnvPool, Lease
    from trailnotes.types import Observation, Task

Code = Literal[
    "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED", "FACTORY_ERROR",
    "SESSION_ERROR",
]  # fmt: skip
Reply = dict[str, Any]

_KINDS: Final = ("reset", "step", "state", "close")

ACTION: Final = {
    "title": "Action",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "action": {"type": "string", "title": "Action", "description": "What to do, in the environment's words"},
        "metadata": {"type": "object", "title": "Metadata", "additionalProperties": True},
    },
    "required": ["action"],
}
OBSERVATION: Final = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What the environment answers"},
        "instruction": {"type": ["string", "null"], "description": "The goal in words; at reset only"},
        "actions": {"type": ["array", "null"], "items": {"type": "string"}, "description": "Admissible actions"},
        "success": {"type": "boolean", "description": "Whether the goal has been reached: done does not say so"},
        "truncated": {"type": "boolean", "description": "Whether the episode was cut off, e.g. by a step limit"},
        "score": {"type": "number", "description": "How well it goes so far"},
        "max_score": {"type": "number", "description": "The highest score"},
        "task": {"type": "string", "description": "Which game this is"},
    },
}
STATE: Final = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
        "task": {"type": ["string", "null"]},
    },
}


class _RefusedError(Exception):
    """A request that is answered with an error; the session goes on."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Games:
    """The tasks that are served, in the environment's order: of one split, or of several."""

    tasks: Sequence[Task]

    @cached_property
    def splits(self) -> Mapping[str, Sequence[Task]]:
        """The tasks of each split."""
        found: dict[str, list[Task]] = {}
        for task in self.tasks:
            found.setdefault(task.split, []).append(task)
        return found

    def chosen(self, data: Mapping[str, Any]) -> Task:
        """The task that a reset asks for: by its id, by a seed, or any.

        A seed counts through the tasks of the one split that is served. Of several, each has the seeds that our client
        gives it (`FIRST_SEED`), and any task is one of training.

        Raises:
            _RefusedError: there is no such task, or the seed is no number from 0 on.
        """
        wanted, seed = data.get("task"), data.get("seed")
        if wanted is not None:
            found = next((task for task in self.tasks if task.id == wanted), None)
            if found is None:
                text = f"there is no task {str(wanted)[:100]!r} among the {len(self.tasks)} that are served"
                raise _RefusedError("VALIDATION_ERROR", text)
            return found
        if seed is None:
            return random.SystemRandom().choice(self.splits.get("train", self.tasks))
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise _RefusedError("VALIDATION_ERROR", "seed must be a whole number from 0 on")
        if len(self.splits) == 1:
            return self.tasks[seed % len(self.tasks)]
        split = max((name for name, first in FIRST_SEED.items() if first <= seed), key=FIRST_SEED.__getitem__)
        if split not in self.splits:
            text = f"seed {seed} is of split {split}, which is not served: there are {', '.join(self.splits)}"
            raise _RefusedError("VALIDATION_ERROR", text)
        return self.splits[split][(seed - FIRST_SEED[split]) % len(self.splits[split])]


class Visitor:
    """Who is in a session, with an environment of its own. One request at a time.

    Args:
        pool: lends environments.
        games: what can be played.
    """

    def __init__(self, pool: EnvPool, games: Games) -> None:
        self._pool, self._games = pool, games
        self._borrowed = AsyncExitStack()
        self._lease: Lease | None = None
        self._task: Task | None = None
        self._playing = False
        self._episode, self._steps = "", 0

    async def answer(self, text: str | None) -> Reply | None:
        """The answer to one message (None: bytes); None where it says that the session is over."""
        try:
            kind, data = _read(text)
            if kind == "close":
                return None
            if kind == "reset":
                return await self._reset(data)
            return await self._step(data) if kind == "step" else self._state()
        except _RefusedError as refused:
            return refusal(refused.code, str(refused))
        except EnvError as error:
            await self.leave()  # an environment that failed is of no use; the next reset gets another
            return refusal("EXECUTION_ERROR", str(error))
        except TrailnotesError as error:
            await self.leave()
            return refusal("FACTORY_ERROR", str(error))

    async def leave(self) -> None:
        """Give the environment back."""
        self._playing, self._lease = False, None
        await self._borrowed.aclose()

    async def _reset(self, data: Mapping[str, Any]) -> Reply:
        task = self._games.chosen(data)
        if self._lease is None:
            self._lease = await self._borrowed.enter_async_context(self._pool.lease())
        self._playing = False
        observation = await self._lease.reset(task)
        name = data.get("episode_id")
        self._episode = name[:255] if isinstance(name, str) and name else str(uuid4())
        self._task, self._steps, self._playing = task, 0, True
        return self._observed(observation, reward=None)

    async def _step(self, data: Mapping[str, Any]) -> Reply:
        action = data.get("action")
        if not isinstance(action, str) or set(data) - {"action", "metadata"}:
            raise _RefusedError("VALIDATION_ERROR", 'an action is {"action": TEXT}')
        if self._lease is None or not self._playing:
            raise _RefusedError("EXECUTION_ERROR", "no episode is under way: send a reset first")
        observation = await self._lease.step(action)
        self._steps += 1
        self._playing = not observation.done
        return self._observed(observation, reward=observation.reward)

    def _state(self) -> Reply:
        task = self._task.id if self._task else None
        return {
            "type": "state",
            "data": {"episode_id": self._episode or None, "step_count": self._steps, "task": task},
        }

    def _observed(self, observation: Observation, reward: float | None) -> Reply:
        assert self._task is not None
        seen = {
            "text": observation.text,
            "instruction": observation.instruction,
            "actions": observation.actions,
            "success": observation.success,
            "truncated": observation.truncated,
            "score": observation.score,
            "max_score": observation.max_score,
            "task": self._task.id,
        }
        return {"type": "observation", "data": {"observation": seen, "reward": reward, "done": observation.done}}


def _read(text: str | None) -> tuple[str, dict[str, Any]]:
    """Kind and data of a message."""
    try:
        message = parse_json(text or "")
    except ValueError:
        raise _RefusedError("INVALID_JSON", "a message is a JSON text") from None
    if not isinstance(message, dict) or message.get("type") not in _KINDS:
        raise _RefusedError("UNKNOWN_TYPE", f"the type of a message is one of {', '.join(_KINDS)}")
    data = message.get("data", {})
    if not isinstance(data, dict):
        raise _RefusedError("VALIDATION_ERROR", "the data of a message is a JSON object")
    return message["type"], data


def refusal(code: Code, message: str, **more: Any) -> Reply:
    """An error of the protocol. `errors` has the message as the official server lists what it found."""
    errors = {"errors": [{"msg": message}]} if code == "VALIDATION_ERROR" else {}
    return {"type": "error", "data": {"message": message, "code": code, **errors, **more}}
