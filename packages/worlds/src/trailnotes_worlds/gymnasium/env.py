"""`GymnasiumEnv`: any of Gymnasium's environments that can be played in words. See ``docs/envs/gymnasium.md``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import compress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from trailnotes.envs.base import format_error
from trailnotes.envs.options import require_int, require_text_list, require_type
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.gymnasium.words import (
    find_toy_text,
    format_value,
    normalize_action_name,
    render_plain,
    resolve_action_names,
)
from trailnotes_worlds.third_party import FIRST_SEED, SuccessRule, format_game_name, make_seeded_tasks

if TYPE_CHECKING:
    import gymnasium

ObservationMode = Literal["auto", "ansi", "value"]

NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
_MAX_NUMBERS: Final = 64  # of an array that is shown as a value


class GymnasiumEnv:
    """Any environment of Gymnasium that can be played in words: toy texts, text spaces, small discrete games.

    Args:
        id: as for ``gymnasium.make``: ``FrozenLake-v1``, or ``module:Name-v0`` to import a module first.
        kwargs: of the environment, as ``gymnasium.make`` takes them.
        max_steps: cut an episode off after that many; 0 leaves the environment's own limit.
        observation: "ansi" shows its drawing in letters, "value" the observation itself; "auto" takes a text as it is,
            else the drawing if there is one, else the value.
        action_names: of a discrete space, in its order; for toy texts they are known.
        instruction: the goal in words; for toy texts it is known.
        success_return: an episode that ends by its own rules is won if its rewards sum to at least this. By default the
            ``reward_threshold`` that it is registered with, unless it is a toy text.
        success_reward: and if its last reward is at least this; for toy texts it is known.
        max_return: the score is the sum of rewards, up to this; without it a success is 1 and everything else 0.

    Raises:
        ConfigError: there is no such environment, it cannot be played in words, or nothing says what a success is.
    """

    def __init__(  # noqa: PLR0913 - options of the config, by keyword
        self,
        *,
        id: str,  # noqa: A002 - Gymnasium's word
        kwargs: Mapping[str, Any] = NO_KWARGS,
        max_steps: int = 0,
        observation: ObservationMode = "auto",
        action_names: Sequence[str] | None = None,
        instruction: str = "",
        success_return: float | None = None,
        success_reward: float | None = None,
        max_return: float | None = None,
    ) -> None:
        if observation not in get_args(ObservationMode):
            raise ConfigError(f"env.options.observation = {observation!r}: use {', '.join(get_args(ObservationMode))}")
        self._game = format_game_name(require_type(str, "id", id), "kwargs", kwargs)
        toy = find_toy_text(id)
        self._env, self._limit = _unwrap(
            _make_env(id, dict(kwargs), require_int("max_steps", max_steps, 0), drawn=observation != "value")
        )
        self._shown = _choose_observation_mode(self._env, id, observation)
        self._space = self._env.action_space  # asked of every wrapper in turn, so once
        self._names = self._resolve_names(
            id, None if action_names is None else require_text_list("action_names", action_names)
        )
        self._numbers = {name: int(self._space.start) + place for place, name in enumerate(self._names)}
        self._instruction = require_type(str, "instruction", instruction) or (toy.instruction if toy else f"Play {id}.")
        if success_return is None and success_reward is None:
            success_reward = toy.success_reward if toy else None
            success_return = None if toy or self._env.spec is None else self._env.spec.reward_threshold
        self._success = SuccessRule(success_return, success_reward, max_return)
        if not self._success.is_defined:
            raise ConfigError(
                f"env.options.success_return is missing: {id} says nowhere when it is won, and that it is over does not"
            )
        self._total, self._steps = 0.0, 0
        self._playing = False

    @staticmethod
    def tasks(
        split: str,
        *,
        id: str = "",  # noqa: A002 - Gymnasium's word
        kwargs: Mapping[str, Any] = NO_KWARGS,
        num_train: int = 64,
        num_validation: int = 16,
        num_test: int = 64,
    ) -> list[Task]:
        """One task a seed; no seed is in two splits. Raises `ConfigError` for an unknown split."""
        numbers = {"train": num_train, "validation": num_validation, "test": num_test}
        return make_seeded_tasks("gymnasium", format_game_name(id, "kwargs", kwargs), split, numbers)

    @staticmethod
    def identity(
        *,
        id: str = "",  # noqa: A002 - Gymnasium's word
        kwargs: Mapping[str, Any] = NO_KWARGS,
        max_steps: int = 0,
    ) -> dict[str, Any]:
        """The game with its settings, its limit, the first seed of each split, and the release that plays it."""
        import gymnasium

        game = format_game_name(id, "kwargs", kwargs)
        return {"game": game, "max_steps": max_steps, "seeds": dict(FIRST_SEED), "gymnasium": gymnasium.__version__}

    def reset(self, task: Task) -> Observation:
        """Start the game that the task's seed draws."""
        if task.options.get("game", self._game) != self._game:
            raise ConfigError(f"task {task.id} is of another game than {self._game}: env.options must be those of both")
        self._playing = False
        value, info = self._env.reset(seed=task.seed)
        self._total, self._steps, self._playing = 0.0, 0, True
        score, max_score = self._success.score(0.0, success=False)
        return Observation(
            self._render_value(value),
            actions=self._list_actions(info),
            instruction=self._instruction,
            score=score,
            max_score=max_score,
        )

    def step(self, action: str) -> Observation:
        """Take one action; one that has no such name changes nothing, and the game does not hear of it."""
        if not self._playing:
            raise EnvError("the episode is over: call reset first")
        taken = self._parse_action(action)
        if taken is None:
            score, max_score = self._success.score(self._total, success=False)
            text = "There is no such action." + (f" Actions: {', '.join(self._names)}." if self._names else "")
            return Observation(text, actions=self._names or None, score=score, max_score=max_score)
        self._playing = False  # what raises below ends the episode
        value, given, terminated, truncated, info = self._env.step(taken)
        reward = float(given)
        self._total += reward
        self._steps += 1
        truncated = truncated or self._steps >= self._limit
        won = bool(terminated) and self._success.is_won(self._total, reward)
        self._playing = not (terminated or truncated)
        score, max_score = self._success.score(self._total, success=won)
        return Observation(
            self._render_value(value), reward, terminated=bool(terminated), truncated=bool(truncated and not terminated),
            actions=self._list_actions(info), success=won, score=score, max_score=max_score,
        )  # fmt: skip

    def close(self) -> None:
        """Close the environment."""
        self._playing = False
        self._env.close()

    def _resolve_names(self, env_id: str, given: Sequence[str] | None) -> tuple[str, ...]:
        """The names of a discrete space; () where an action is a text."""
        from gymnasium.spaces import Discrete, Text

        space = self._space
        if isinstance(space, Discrete):
            return resolve_action_names(space, self._env.unwrapped, given, find_toy_text(env_id))
        if isinstance(space, Text):
            return ()
        raise ConfigError(f"env.options.id = {env_id!r} acts by {space}: only discrete actions and texts have words")

    def _parse_action(self, action: str) -> Any:
        """What the environment is given for an action; None if there is nothing like it."""
        if action in self._numbers:
            return self._numbers[action]
        if self._names:
            return self._numbers.get(normalize_action_name(action))
        return action if self._space.contains(action) else None

    def _list_actions(self, info: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Names of the actions that the environment's mask leaves, where it has one; else all."""
        mask = info.get("action_mask")
        if mask is None or len(mask) != len(self._names):
            return self._names or None
        return tuple(compress(self._names, mask)) or self._names

    def _render_value(self, value: Any) -> str:
        if self._shown == "value":
            return format_value(value)
        return render_plain(str(self._env.render() if self._shown == "ansi" else value))


def _make_env(env_id: str, kwargs: dict[str, Any], max_steps: int, *, drawn: bool) -> gymnasium.Env[Any, Any]:
    """The environment, drawing in letters where it can and is asked to. Raises `ConfigError`."""
    import gymnasium

    settings = {"max_episode_steps": max_steps or None, "disable_env_checker": True, **kwargs}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of newer versions and the like: nobody reads them in a worker
            env = gymnasium.make(env_id, **settings)
            if drawn and env.render_mode is None and "ansi" in env.metadata.get("render_modes", ()):
                env.close()
                env = gymnasium.make(env_id, **settings, render_mode="ansi")
            return env
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ConfigError(
            f"env.options.id = {env_id!r} with kwargs {kwargs} cannot be made: {format_error(error)}"
        ) from error


def _unwrap(env: gymnasium.Env[Any, Any]) -> tuple[gymnasium.Env[Any, Any], float]:
    """The environment without the two wrappers whose work `GymnasiumEnv` does itself, and its limit of steps.

    Gymnasium puts them around every environment, to cut it off and to ask for a reset first. One that does not tell its
    limit, as where the settings of the environment cannot be copied, keeps them.
    """
    from gymnasium.wrappers import OrderEnforcing, TimeLimit

    limit = math.inf
    if isinstance(env, TimeLimit):
        if env.spec is None or env.spec.max_episode_steps is None:
            return env, limit
        limit, env = env.spec.max_episode_steps, env.env
    return env.env if isinstance(env, OrderEnforcing) else env, limit


def _choose_observation_mode(
    env: gymnasium.Env[Any, Any], env_id: str, wish: ObservationMode
) -> Literal["text", "ansi", "value"]:
    from gymnasium.spaces import Box, Text

    drawn = env.render_mode == "ansi"
    if wish != "ansi" and isinstance(env.observation_space, Text):
        return "text"
    if wish != "value" and drawn:
        return "ansi"
    if wish == "ansi":
        raise ConfigError(f"env.options.observation = 'ansi': {env_id} has no drawing in letters; leave it out")
    space = env.observation_space
    if isinstance(space, Box) and math.prod(space.shape) > _MAX_NUMBERS:
        raise ConfigError(
            f"env.options.id = {env_id!r} shows {math.prod(space.shape):,} numbers: register it with a wrapper that "
            "makes a text of them (gymnasium.spaces.Text), or with a render mode 'ansi'"
        )
    return "value"
