"""`GymnasiumEnv`: any environment of Gymnasium that has words. See ``docs/envs/gymnasium.md``."""

from __future__ import annotations

import json
import math
import re
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from trailnotes.envs.base import require_choice, require_int, require_text_list, require_type
from trailnotes.errors import ConfigError, EnvError, format_error
from trailnotes.types import Observation, Task
from trailnotes_worlds.third_party import (
    FIRST_SEED,
    SuccessRule,
    describe_success,
    format_game_name,
    make_seeded_tasks,
)

if TYPE_CHECKING:
    import gymnasium

_COLOUR_NAMES: Final = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOURED_TEXT: Final = re.compile(r"\x1b\[([0-9;]*)m(.*?)\x1b\[0?m", re.DOTALL)
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class ToyText:
    """Toy text of Gymnasium: names of its actions, its goal in words, and the last reward of a success."""

    actions: tuple[str, ...]
    instruction: str
    success_reward: float


TOY_TEXTS: Final = {
    name: ToyText(tuple(toy.pop("actions")), **toy)
    for name, toy in tomllib.loads(Path(__file__).with_name("toy_texts.toml").read_text(encoding="utf-8")).items()
}


def find_toy_text(env_id: str) -> ToyText | None:
    name = env_id.rpartition(":")[2].rpartition("/")[2].partition("-v")[0]
    return TOY_TEXTS.get(name.removesuffix("8x8").removesuffix("Slippery"))


def resolve_action_names(
    space: Any, unwrapped: Any, given: Sequence[str] | None, toy: ToyText | None
) -> tuple[str, ...]:
    """Name each action of a discrete space, in its order.

    The names are those given, those of a toy text, those of the environment (`get_action_meanings`, as in Atari, or an
    enumeration `actions`, as in MiniGrid), or the numbers themselves, the first that there are.
    """
    number, start = int(space.n), int(space.start)
    names: Iterable[Any]
    if given is not None:
        names = given
    elif toy:
        names = toy.actions
    elif callable(meanings := getattr(unwrapped, "get_action_meanings", None)):
        names = meanings()
    elif members := getattr(getattr(unwrapped, "actions", None), "__members__", None):
        names = members
    else:
        names = (str(start + index) for index in range(number))
    words = tuple(normalize_action_name(str(name)) for name in names)
    if len(words) != number or len(set(words)) != number or not all(words):
        raise ConfigError(
            f"env.options.action_names: {number} actions need {number} different names, not {', '.join(words)[:200]}"
        )
    return words


def normalize_action_name(action: str) -> str:
    return " ".join(action.lower().split())


@lru_cache(maxsize=1024)  # a game has few drawings, and each is drawn often
def render_plain(drawing: str) -> str:
    """Remove control characters from a drawing, and write colours as ``[red:S]``.

    In Gymnasium's toy texts only a colour marks the place of the player.
    """
    return _CONTROL.sub("", _COLOURED_TEXT.sub(_label_colour, drawing.replace("\r\n", "\n"))).strip("\n")


def _label_colour(match: re.Match[str]) -> str:
    for code in match[1].split(";"):
        if len(code) == 2 and code[0] in "349" and code[1] in "01234567":
            return f"[{_COLOUR_NAMES[int(code[1])]}:{match[2]}]"
    return match[2]


def format_value(value: Any) -> str:
    """Format an observation as JSON. Raises `TypeError` unless it is a number, text, sequence or mapping."""
    return _JSON_ENCODER.encode(value)


def _convert_numpy(part: Any) -> Any:
    if not hasattr(part, "tolist"):
        raise TypeError(f"{type(part).__name__} is not JSON")
    return part.tolist()


_JSON_ENCODER: Final = json.JSONEncoder(default=_convert_numpy)  # json.dumps would make one for each observation


ObservationMode = Literal["auto", "ansi", "value"]

NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
_MAX_NUMBERS: Final = 64  # of an observation that is printed as a value


class GymnasiumEnv:
    """Environments of Gymnasium whose states can be told in words: toy texts, text spaces, small games.

    Args:
        id: as for ``gymnasium.make``: ``FrozenLake-v1``, or ``module:Name-v0`` to import a module first.
        kwargs: keyword arguments of ``gymnasium.make``.
        max_steps: limit of steps of an episode; 0 keeps the environment's own.
        observation: "ansi" shows its drawing in letters, "value" the observation itself; "auto" takes a text as it is,
            else the drawing if there is one, else the value.
        action_names: of a discrete space, in its order; toy texts have them.
        instruction: the goal in words; toy texts have it.
        success_return: least sum of rewards of a success, for an episode that ends by its own rules or, without
            ``success_reward``, at the game's own limit. Default: the registered ``reward_threshold``, unless it is a
            toy text.
        success_reward: least last reward of a success; toy texts have it.
        max_return: the score is the sum of rewards, up to this; without it a success is 1 and everything else 0.

    Raises:
        ConfigError: there is no such environment, it has no words, or success is undefined.
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
        require_choice("observation", observation, get_args(ObservationMode))
        self._game = format_game_name(require_type(str, "id", id), "kwargs", kwargs)
        toy = find_toy_text(id)
        if require_int("max_steps", max_steps, 0) and "max_episode_steps" in kwargs:
            raise ConfigError("env.options.max_steps and kwargs.max_episode_steps both limit the steps: leave one out")
        self._env, self._limit = _unwrap(_make_env(id, dict(kwargs), max_steps, drawn=observation != "value"))
        self._shown = _choose_observation_mode(self._env, id, observation)
        self._space = self._env.action_space  # a property that asks every wrapper in turn, so read once
        given = None if action_names is None else require_text_list("action_names", action_names)
        self._names = self._resolve_names(id, given)
        self._numbers = {name: int(self._space.start) + place for place, name in enumerate(self._names)}
        self._instruction = require_type(str, "instruction", instruction) or (toy.instruction if toy else f"Play {id}.")
        if success_return is None and success_reward is None:
            success_reward = toy.success_reward if toy else None
            success_return = None if toy or self._env.spec is None else self._env.spec.reward_threshold
        self._success = SuccessRule(success_return, success_reward, max_return)
        # A game's own step limit is one of its ends, for a player that survives; `max_steps` only breaks a game off.
        self._survivable = not max_steps and "max_episode_steps" not in kwargs and success_reward is None
        if not self._success.is_defined:
            raise ConfigError(f"env.options.success_return is missing: {id} does not define success")
        self._total, self._steps = 0.0, 0
        self._allowed: tuple[str, ...] | None = None  # actions of the newest observation
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
        """Make one task for each seed; no seed is in two splits. Raises `ConfigError` for an unknown split."""
        numbers = {"train": num_train, "validation": num_validation, "test": num_test}
        return make_seeded_tasks("gymnasium", format_game_name(id, "kwargs", kwargs), split, numbers)

    @staticmethod
    def identity(
        *,
        id: str = "",  # noqa: A002 - Gymnasium's word
        kwargs: Mapping[str, Any] = NO_KWARGS,
        max_steps: int = 0,
        success_return: float | None = None,
        success_reward: float | None = None,
        max_return: float | None = None,
    ) -> dict[str, Any]:
        """Describe the game and its settings, what counts as success, the first seeds, and Gymnasium's version."""
        import gymnasium

        game = format_game_name(id, "kwargs", kwargs)
        rule = describe_success(success_return=success_return, success_reward=success_reward, max_return=max_return)
        version = gymnasium.__version__
        return {"game": game, "max_steps": max_steps, "seeds": dict(FIRST_SEED), "gymnasium": version, **rule}

    def reset(self, task: Task) -> Observation:
        if task.options.get("game", self._game) != self._game:
            raise ConfigError(f"task {task.id} is of another game than {self._game}: env.options must be those of both")
        self._playing = False
        value, info = self._env.reset(seed=task.seed)
        self._total, self._steps, self._playing = 0.0, 0, True
        self._allowed = self._list_actions(info)
        score, max_score = self._success.score(0.0, success=False)
        return Observation(
            self._render_value(value), actions=self._allowed, instruction=self._instruction, score=score,
            max_score=max_score,
        )  # fmt: skip

    def step(self, action: str) -> Observation:
        """Take one action; an unknown one changes nothing, and the game does not see it."""
        if not self._playing:
            raise EnvError("the episode is over: call reset first")
        taken = self._parse_action(action)
        if taken is None:
            score, max_score = self._success.score(self._total, success=False)
            text = "There is no such action." + (f" Actions: {', '.join(self._allowed)}." if self._allowed else "")
            return Observation(text, actions=self._allowed, score=score, max_score=max_score)
        self._playing = False  # an exception below ends the episode
        value, given, terminated, truncated, info = self._env.step(taken)
        reward = float(given)
        self._total += reward
        self._steps += 1
        truncated = truncated or self._steps >= self._limit
        won = bool(terminated or (truncated and self._survivable)) and self._success.is_won(self._total, reward)
        self._playing = not (terminated or truncated)
        self._allowed = self._list_actions(info)
        score, max_score = self._success.score(self._total, success=won)
        cut = bool(truncated and not terminated)
        return Observation(
            self._render_value(value), reward, terminated=bool(terminated), truncated=cut,
            actions=self._allowed, success=won, score=score, max_score=max_score,
        )  # fmt: skip

    def close(self) -> None:
        self._playing = False
        self._env.close()

    def _resolve_names(self, env_id: str, given: Sequence[str] | None) -> tuple[str, ...]:
        """Name the actions of a discrete space; () for actions that are texts."""
        from gymnasium.spaces import Discrete, Text

        if isinstance(self._space, Discrete):
            return resolve_action_names(self._space, self._env.unwrapped, given, find_toy_text(env_id))
        if isinstance(self._space, Text):
            return ()
        why = "only discrete actions and texts have words"
        raise ConfigError(f"env.options.id = {env_id!r} acts by {self._space}: {why}")

    def _parse_action(self, action: str) -> Any:
        if action in self._numbers:
            return self._numbers[action]
        if self._names:
            return self._numbers.get(normalize_action_name(action))
        return action if self._space.contains(action) else None

    def _list_actions(self, info: Mapping[str, Any]) -> tuple[str, ...] | None:
        """List the actions that the environment's mask allows, all if it has none."""
        mask = info.get("action_mask")
        if mask is None or len(mask) != len(self._names):
            return self._names or None
        return tuple(compress(self._names, mask)) or self._names

    def _render_value(self, value: Any) -> str:
        if self._shown == "value":
            return format_value(value)
        return render_plain(str(self._env.render() if self._shown == "ansi" else value))


def _make_env(env_id: str, kwargs: dict[str, Any], max_steps: int, *, drawn: bool) -> gymnasium.Env[Any, Any]:
    """Make the environment; `drawn`: render in letters if it can. Raises `ConfigError`."""
    import gymnasium

    settings = {"max_episode_steps": max_steps or None, "disable_env_checker": True, **kwargs}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of newer versions and the like, lost in a worker
            env = gymnasium.make(env_id, **settings)
            if drawn and env.render_mode is None and "ansi" in env.metadata.get("render_modes", ()):
                env.close()
                env = gymnasium.make(env_id, **settings, render_mode="ansi")
            return env
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        why = format_error(error)
        raise ConfigError(f"env.options.id = {env_id!r} with kwargs {kwargs} cannot be made: {why}") from error


def _unwrap(env: gymnasium.Env[Any, Any]) -> tuple[gymnasium.Env[Any, Any], float]:
    """Remove the two wrappers that `GymnasiumEnv` replaces, and return the limit of steps.

    Gymnasium puts them around every environment, to truncate episodes and to require a reset. An environment whose
    limit is unknown, since its settings cannot be copied, keeps them.
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
    from gymnasium.spaces import Text

    drawn = env.render_mode == "ansi"
    if wish != "ansi" and isinstance(env.observation_space, Text):
        return "text"
    if wish != "value" and drawn:
        return "ansi"
    if wish == "ansi":
        raise ConfigError(f"env.options.observation = 'ansi': {env_id} has no drawing in letters; leave it out")
    if (numbers := _count_numbers(env.observation_space)) > _MAX_NUMBERS:
        fix = "register it with a wrapper to texts (gymnasium.spaces.Text), or with a render mode 'ansi'"
        raise ConfigError(f"env.options.id = {env_id!r} shows {numbers:,} numbers: {fix}")
    return "value"


def _count_numbers(space: Any) -> int:
    from gymnasium.spaces import Dict, Tuple

    if isinstance(space, Dict | Tuple):
        return sum(map(_count_numbers, space.values() if isinstance(space, Dict) else space))
    return math.prod(space.shape or ())
