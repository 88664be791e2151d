"""`OpenEnvClient`: an environment behind any OpenEnv server. See ``docs/envs/openenv.md``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from trailnotes.envs.base import require_table, require_type
from trailnotes.errors import ConfigError, EnvError, sanitize_text
from trailnotes.types import Observation, Task, replace_surrogates
from trailnotes_worlds.openenv.connection import (
    CAPACITY_REACHED,
    SESSION_ERROR,
    VALIDATION_ERROR,
    ClientSession,
    ConnectionLostError,
    RequestRefusedError,
    ServerAddress,
    build_headers,
    fetch_page,
)
from trailnotes_worlds.openenv.reading import ActionForm, ServerObservation, parse_observation
from trailnotes_worlds.third_party import FIRST_SEED, SuccessRule, describe_success, format_game_name, make_seeded_tasks

EMPTY_MAPPING: Mapping[str, Any] = MappingProxyType({})
_PAGE_TIMEOUT_S: Final = 5.0  # for a page that describes the server, which is optional
_FIRST_PAUSE_S: Final = 0.1  # before another attempt to connect; doubled each time


class OpenEnvClient:
    """Any environment behind an OpenEnv server.

    Args:
        url: of the server: ``http://HOST:PORT``, or https, ws, wss.
        timeout: seconds that a step may take, or a reset with all its attempts to connect.
        connect_timeout: seconds to wait for a server that is still starting, or whose sessions are all taken.
        token_env: environment variable of a token for ``Authorization: Bearer``; "" sends none.
        action_field: field of an action that holds its text; "json": the text is the whole action, as a JSON object;
            "auto": the field that the server's schema requires, if it is one, else as "json".
        action_rest: other fields, the same in each action.
        observation_field: field of an observation to show; "auto": its ``text``, or its only text, or all of it.
        actions_field: field of an observation that lists the admissible actions; "auto" knows the usual names.
        reset: arguments of ``reset`` beside the seed.
        instruction: the goal in words, if neither the observation nor the server's description has it.
        success_return: least sum of rewards of a success, unless the server says ``success``.
        success_reward: least last reward of a success.
        max_return: the score is the sum of rewards, up to this, unless the server itself says ``score`` and
            ``max_score``; without it a success is 1 and everything else 0.

    Raises:
        ConfigError: an invalid option.
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
        if not 0 < connect_timeout <= timeout:
            limits = f"connect_timeout = {connect_timeout:g}, timeout = {timeout:g}"
            raise ConfigError(f"env.options.{limits}: both must be above 0, and the first not above the second")
        self._address = ServerAddress.parse_url(require_type(str, "url", url))
        self._headers = build_headers(require_type(str, "token_env", token_env))
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._observation_field = require_type(str, "observation_field", observation_field)
        self._actions_field = require_type(str, "actions_field", actions_field)
        self._action = require_type(str, "action_field", action_field), require_table("action_rest", action_rest)
        self._reset = require_table("reset", reset)
        self._instruction = require_type(str, "instruction", instruction)
        self._success = SuccessRule(success_return, success_reward, max_return)
        self._form: ActionForm | None = None
        self._metadata: Mapping[str, Any] = EMPTY_MAPPING
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
        """Make one task for each seed; no seed is in two splits.

        Args:
            split: train, validation or test.
            url: as for the class.
            game: name of the game in task ids, by default the server's address; name it if servers move.
            reset: as for the class.
            num_train: number of training tasks.
            num_validation: number of validation tasks.
            num_test: number of test tasks.
        """
        numbers = {"train": num_train, "validation": num_validation, "test": num_test}
        return make_seeded_tasks("openenv", _get_game_name(game, url, reset), split, numbers)

    @staticmethod
    def identity(
        *,
        url: str = "",
        game: str = "",
        reset: Mapping[str, Any] = EMPTY_MAPPING,
        success_return: float | None = None,
        success_reward: float | None = None,
        max_return: float | None = None,
    ) -> dict[str, Any]:
        """Describe the game, what counts as success, and the first seeds; only the server knows its use of a seed."""
        rule = describe_success(success_return=success_return, success_reward=success_reward, max_return=max_return)
        return {"game": _get_game_name(game, url, reset), "seeds": dict(FIRST_SEED), **rule}

    def reset(self, task: Task) -> Observation:
        """Start the server's game of the task's seed, over a new connection if there is none."""
        self._playing = False
        answer = self._begin_episode({**self._reset, "seed": task.seed})
        if self._form is None:
            self._metadata = self._fetch_page("/metadata")
            self._form = ActionForm.from_schema(self._fetch_page("/schema").get("action") or {}, *self._action)
        self._require_served_split(task)
        if answer.done:
            raise self._close_on_error(EnvError(f"{self._address.name} says at reset that the episode is over"))
        instruction = self._instruction or answer.instruction or self._get_description()
        self._playing, self._total = True, 0.0
        self._score = answer.score or self._success.score(0.0, success=False)
        self._actions = answer.actions or self._form.choices or None
        score, max_score = self._score
        return Observation(
            answer.text, actions=self._actions, instruction=instruction, score=score, max_score=max_score
        )

    def step(self, action: str) -> Observation:
        """Send one action. An action that does not fit the server's schema, or that it refuses, changes nothing."""
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
        self._playing = False
        if self._session:
            self._session.close()
        self._session = None

    def _begin_episode(self, data: Mapping[str, Any]) -> ServerObservation:
        """Send a reset, and again over another connection if the server is starting or full, or has ended this one."""
        start, pause = time.monotonic(), _FIRST_PAUSE_S
        while True:
            is_used = self._session is not None
            try:
                if self._session is None:
                    self._session = ClientSession(self._address, self._headers, self._connect_timeout)
                left = max(start + self._timeout - time.monotonic(), 0.0)
                return self._parse_observation(self._session.send_request("reset", data, left))
            except EnvError as error:
                self.close()
                code = error.code if isinstance(error, RequestRefusedError) else ""
                is_full, was_idle = code == CAPACITY_REACHED, is_used and code == SESSION_ERROR
                may_pass = isinstance(error, ConnectionLostError) or is_full or was_idle
                if not may_pass or time.monotonic() + pause > start + self._connect_timeout:
                    fix = "set env.max_envs to the number of sessions that it allows"
                    raise (EnvError(f"{error}; {fix}") if is_full else error) from None
                time.sleep(pause)
                pause *= 2

    def _close_on_error(self, error: EnvError) -> EnvError:
        self.close()  # its next answer might belong to an earlier request
        return error

    def _parse_observation(self, data: Mapping[str, Any]) -> ServerObservation:
        return parse_observation(data, self._address.name, self._observation_field, self._actions_field)

    def _make_observation(self, answer: ServerObservation, form: ActionForm) -> Observation:
        self._total += answer.reward
        terminated = answer.done and not answer.truncated
        won = terminated and self._success.is_won(self._total, answer.reward)
        if answer.success is not None:
            won = answer.done and answer.success
        latest, most = answer.score or self._success.score(self._total, success=won)
        score = min(latest * self._score[1] / most, self._score[1])  # the highest score is that of the reset
        if won and score <= 0:
            if answer.score:
                raise self._close_on_error(EnvError(f"{self._address.name} says success with a score of {score:g}"))
            score = self._score[1]  # the steps have cost more than the success has brought
        self._score = score, self._score[1]
        self._actions = answer.actions or form.choices or None
        self._playing = not answer.done
        return Observation(
            answer.text, answer.reward, terminated=terminated, truncated=answer.truncated, actions=self._actions,
            success=won, score=score, max_score=self._score[1],
        )  # fmt: skip

    def _reject_action(self, why: str) -> Observation:
        score, max_score = self._score
        text = f"There is no such action: it must be {why}."
        return Observation(text, actions=self._actions, score=score, max_score=max_score)

    def _fetch_page(self, path: str) -> dict[str, Any]:
        return fetch_page(self._address, path, self._headers, min(_PAGE_TIMEOUT_S, self._timeout))

    def _require_served_split(self, task: Task) -> None:
        """Refuse a Trailnotes server of other splits, which would play the seed as a game of theirs."""
        served = self._metadata.get("splits")
        if isinstance(served, list) and task.split not in served:
            self.close()
            names = ", ".join(sanitize_text(str(name), 40) for name in served[:9])
            raise ConfigError(
                f"{self._address.name} serves the split {names}, and {task.id} is of {task.split}: serve all of them "
                "(trailnotes envs serve NAME --split all), or name a server of that split in env.options.url"
            )

    def _get_description(self) -> str:
        text = self._metadata.get("description")
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"env.options.instruction is missing: {self._address.name} does not say what the goal is")
        return replace_surrogates(text.strip())


def _get_game_name(game: str, url: str, reset: object) -> str:
    return format_game_name(require_type(str, "game", game) or ServerAddress.parse_url(url).name, "reset", reset)


def _describe_refusal(error: RequestRefusedError) -> str:
    match error.data.get("errors"):
        case [{"msg": str(message)}, *_]:
            return sanitize_text(message, 200)
    return "one that the server accepts"
