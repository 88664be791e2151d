"""`OpenEnvClient`: an environment behind any OpenEnv server. See ``docs/envs/openenv.md``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from trailnotes.envs.base import sanitize_text
from trailnotes.envs.options import require_table, require_type
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task, replace_surrogates
from trailnotes_worlds.openenv.connection import (
    CAPACITY_REACHED,
    VALIDATION_ERROR,
    ClientSession,
    ConnectionLostError,
    RequestRefusedError,
    ServerAddress,
    build_headers,
    fetch_page,
)
from trailnotes_worlds.openenv.reading import ActionForm, ServerObservation, parse_observation
from trailnotes_worlds.third_party import FIRST_SEED, SuccessRule, format_game_name, make_seeded_tasks

EMPTY_MAPPING: Mapping[str, Any] = MappingProxyType({})
MAX_MESSAGE_BYTES: Final = 16 << 20  # of one answer
_PAGE_TIMEOUT_S: Final = 5.0  # for a page that says what a server is; without it the options must
_FIRST_PAUSE_S: Final = 0.1  # before a server that is full, or not there yet, is asked again; doubled each time


class OpenEnvClient:
    """Any OpenEnv server: plays what it serves, in a session of its own.

    Args:
        url: of the server: ``http://HOST:PORT``, or https, ws, wss.
        timeout: seconds that a step, or a reset with all that it takes to connect, may take.
        connect_timeout: seconds to be let in by a server that is still starting, or whose sessions are all taken.
        token_env: environment variable whose token is sent along as ``Authorization: Bearer``; "" sends none.
        action_field: field of an action that holds its text; "json": the text is the whole action, as a JSON object;
            "auto": the field that the server's schema requires, if it is one, else as "json".
        action_rest: other fields, the same in each action.
        observation_field: what is shown of an observation; "auto": its ``text``, or its only text, or all of it.
        actions_field: where an observation lists the admissible actions; "auto" knows the usual names.
        reset: what ``reset`` is told beside the seed.
        instruction: the goal in words, where neither the observation nor the server's description says it.
        success_return: an episode is won if its rewards sum to at least this, unless the server says ``success``.
        success_reward: and if its last reward is at least this.
        max_return: the score is the sum of rewards, up to this, unless the server itself says ``score`` and
            ``max_score``; without it a success is 1 and everything else 0.

    Raises:
        ConfigError: an option that cannot be.
    """

    def __init__(  # noqa: PLR0913 - options of the config, by keyword
        self,
        *,
        url: str,
        timeout: float = 50.0,
        connect_timeout: float = 10.0,
        token_env: str = "",
        action_field: str = "auto",
        action_rest: Mapping[str, Any] = EMPTY_MAPPING,
        observation_field: str = "auto",
        actions_field: str = "auto",
        reset: Mapping[str, Any] = EMPTY_MAPPING,
        instruction: str = "",
        success_return: float | None = None,
        success_reward: float | None = None,
        max_return: float | None = None,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
                raise ConfigError(f"env.options.{name} = {seconds!r}: give a number of seconds above 0")
        if connect_timeout > timeout:
            raise ConfigError(
                f"env.options.connect_timeout = {connect_timeout:g} is above env.options.timeout = {timeout:g}, which "
                "a reset has for everything: raise that (and env.timeout), or lower this"
            )
        self._address = ServerAddress.parse_url(url)
        self._headers = build_headers(require_type(str, "token_env", token_env))
        self._timeout, self._patience = timeout, connect_timeout
        self._fields = (
            require_type(str, "observation_field", observation_field),
            require_type(str, "actions_field", actions_field),
        )
        self._action = require_type(str, "action_field", action_field), require_table("action_rest", action_rest)
        self._reset = require_table("reset", reset)
        self._instruction = require_type(str, "instruction", instruction)
        self._success = SuccessRule(success_return, success_reward, max_return)
        self._form: ActionForm | None = None
        self._about: Mapping[str, Any] | None = None
        self._session: ClientSession | None = None
        self._playing = False
        self._actions: tuple[str, ...] | None = None
        self._total, self._score = 0.0, (0.0, 1.0)

    @staticmethod
    def tasks(
        split: str,
        *,
        url: str = "",
        game: str = "",
        reset: Mapping[str, Any] = EMPTY_MAPPING,
        num_train: int = 64,
        num_validation: int = 16,
        num_test: int = 64,
    ) -> list[Task]:
        """One task a seed; no seed is in two splits.

        Args:
            split: train, validation or test.
            url: as for the class.
            game: what the server serves, in task ids; by default where it is. Name it where servers move.
            reset: as for the class.
            num_train: tasks of this split.
            num_validation: the same.
            num_test: the same.
        """
        numbers = {"train": num_train, "validation": num_validation, "test": num_test}
        return make_seeded_tasks("openenv", _get_game_name(game, url, reset), split, numbers)

    @staticmethod
    def identity(*, url: str = "", game: str = "", reset: Mapping[str, Any] = EMPTY_MAPPING) -> dict[str, Any]:
        """What is played, and the first seed of each split. What the server does with a seed it alone knows."""
        return {"game": _get_game_name(game, url, reset), "seeds": dict(FIRST_SEED)}

    def reset(self, task: Task) -> Observation:
        """Start the game that the server draws from the task's seed, over a new connection where there is none."""
        self._playing = False
        until = time.monotonic() + self._timeout
        answer = self._begin_episode({**self._reset, "seed": task.seed}, until)
        self._require_served_split(task, until)
        form = self._get_action_form(until)
        if answer.done:
            raise self._close_on_error(EnvError(f"{self._address.name} says at reset that the episode is over"))
        instruction = answer.instruction or self._instruction or self._get_instruction(until)
        self._playing, self._total = True, 0.0
        self._score = answer.score or self._success.score(0.0, success=False)
        self._actions = answer.actions or form.choices or None
        score, max_score = self._score
        return Observation(
            answer.text, actions=self._actions, instruction=instruction, score=score, max_score=max_score
        )

    def step(self, action: str) -> Observation:
        """Send one action. One that cannot be what the server wants is answered here, or by the server's refusal."""
        if not self._playing or self._session is None or self._form is None:
            raise EnvError("the episode is over: call reset first")
        data = self._form.build_action(action)
        if data is None:
            return self._reject_action(f"of type {self._form.kind}" if self._form.name else "a JSON object")
        try:
            answer = self._parse_observation(self._session.send_request("step", data, self._timeout))
        except RequestRefusedError as error:
            if error.code == VALIDATION_ERROR:
                return self._reject_action(_describe_refusal(error))
            raise self._close_on_error(error) from None
        except EnvError as error:
            raise self._close_on_error(error) from None
        return self._make_observation(answer, self._form)

    def close(self) -> None:
        """End the session."""
        self._playing = False
        if self._session:
            self._session.close()
        self._session = None

    def _begin_episode(self, data: Mapping[str, Any], until: float) -> ServerObservation:
        """The answer to a reset, asked again over another connection if the one of earlier episodes has gone."""
        again_until, pause = min(until, time.monotonic() + self._patience), _FIRST_PAUSE_S
        while True:
            try:
                if self._session is None:
                    self._session = ClientSession(
                        self._address, self._headers, self._timeout, _compute_seconds_left(until), MAX_MESSAGE_BYTES
                    )
                return self._parse_observation(self._session.send_request("reset", data, _compute_seconds_left(until)))
            except (ConnectionLostError, RequestRefusedError) as error:
                self.close()
                may_pass = isinstance(error, ConnectionLostError) or error.code == CAPACITY_REACHED
                if not may_pass or time.monotonic() + pause > again_until:
                    raise self._explain_error(error) from None
                time.sleep(pause)
                pause *= 2
            except EnvError:
                self.close()
                raise

    def _explain_error(self, error: EnvError) -> EnvError:
        if isinstance(error, RequestRefusedError) and error.code == CAPACITY_REACHED:
            return EnvError(f"{error}; set env.max_envs to the number of sessions that it allows")
        return error

    def _close_on_error(self, error: EnvError) -> EnvError:
        """A session that failed is of no use: what comes next might be the answer to what came before."""
        self.close()
        return error

    def _parse_observation(self, data: Mapping[str, Any]) -> ServerObservation:
        return parse_observation(data, self._address.name, *self._fields)

    def _make_observation(self, answer: ServerObservation, form: ActionForm) -> Observation:
        self._total += answer.reward
        terminated = answer.done and not answer.truncated
        won = terminated and self._success.is_won(self._total, answer.reward)
        if answer.success is not None:
            won = answer.done and answer.success
        said, _ = answer.score or self._success.score(self._total, success=won)
        score = min(said, self._score[1])  # the highest score is that of the reset
        if won and score <= 0:
            raise self._close_on_error(EnvError(f"{self._address.name} says success with a score of {score:g}"))
        self._score = score, self._score[1]
        self._actions = answer.actions or form.choices or None
        self._playing = not answer.done
        return Observation(
            answer.text, answer.reward, terminated=terminated, truncated=answer.truncated, actions=self._actions,
            success=won, score=score, max_score=self._score[1],
        )  # fmt: skip

    def _reject_action(self, why: str) -> Observation:
        score, max_score = self._score
        return Observation(
            f"There is no such action: it must be {why}.", actions=self._actions, score=score, max_score=max_score
        )

    def _get_action_form(self, until: float) -> ActionForm:
        """How actions are to be worded, asked for once."""
        if self._form is None:
            schema = self._fetch_page("/schema", until)
            self._form = ActionForm.from_schema(schema.get("action"), *self._action)
        return self._form

    def _get_metadata(self, until: float) -> Mapping[str, Any]:
        """What the server says of itself, asked for once."""
        if self._about is None:
            self._about = self._fetch_page("/metadata", until)
        return self._about

    def _fetch_page(self, path: str, until: float) -> dict[str, Any]:
        """What the server says there, within what is left of a reset: one that came too late is none that is empty."""
        page = fetch_page(self._address, path, self._headers, min(_PAGE_TIMEOUT_S, _compute_seconds_left(until)))
        if not page and time.monotonic() >= until:
            raise self._close_on_error(
                EnvError(f"{self._address.name} did not answer within env.options.timeout = {self._timeout:g} s")
            )
        return page

    def _require_served_split(self, task: Task, until: float) -> None:
        """Refuse a server of ours that serves other splits: there the seed of this one would be a game of theirs."""
        served = self._get_metadata(until).get("splits")
        if isinstance(served, list) and task.split not in served:
            self.close()
            names = ", ".join(sanitize_text(str(name), 40) for name in served[:9])
            raise ConfigError(
                f"{self._address.name} serves the split {names}, and {task.id} is of {task.split}: serve all of them "
                "(trailnotes envs serve NAME --split all), or name a server of that split in env.options.url"
            )

    def _get_instruction(self, until: float) -> str:
        """The goal as the server's description tells it."""
        said = self._get_metadata(until).get("description")
        if not isinstance(said, str) or not said.strip():
            raise ConfigError(f"env.options.instruction is missing: {self._address.name} does not say what the goal is")
        self._instruction = replace_surrogates(said.strip())
        return self._instruction


def _get_game_name(game: object, url: object, reset: object) -> str:
    """What is played, in the ids of tasks."""
    return format_game_name(require_type(str, "game", game) or ServerAddress.parse_url(url).name, "reset", reset)


def _compute_seconds_left(until: float) -> float:
    """Seconds until then, and a moment where it has passed: what is there already may be taken."""
    return max(until - time.monotonic(), 0.01)


def _describe_refusal(error: RequestRefusedError) -> str:
    """What the server found wrong with an action, in a few words."""
    errors = error.data.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    said = first.get("msg") if isinstance(first, dict) else None
    return sanitize_text(said, 200) if isinstance(said, str) else "one that the server accepts"
