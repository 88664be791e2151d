"""Games of TextWorldExpress with their settings and folds, without a simulator.

Source: Jansen and Côté 2022, "TextWorldExpress: Simulating Text Games at One Million Steps Per Second" (arXiv
2208.01174), package 1.1.0.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trailnotes.envs.base import require_choice, require_int, suggest_nearest
from trailnotes.errors import ConfigError
from trailnotes.types import Task
from trailnotes_worlds.third_party import resolve_names

# Split -> the simulator's fold and its first seed. Each fold has its own objects, recipes or rules.
FOLDS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"train": ("train", 0), "validation": ("dev", 10_000), "test": ("test", 20_000)}
)
NUM_SEEDS = 1000  # of each fold
# Game -> its settings -> the values that each may have.
GAMES: Mapping[str, Mapping[str, range]] = MappingProxyType(
    {
        game: {key: range(least, most + 1) for key, (least, most) in settings.items()}
        for game, settings in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
    }
)


def textworld_express_tasks(
    split: str, game: str | Sequence[str] = "coin", params: Mapping[str, int] | None = None, num_games: int = 100
) -> list[Task]:
    """List the games of one split, family by family, in the order of their seeds.

    Args:
        split: train, validation or test: the package's folds train, dev and test.
        game: a name, "all", or a list of names.
        params: settings of the games, such as ``{numLocations = 5}``; each game ignores those of others.
        num_games: number of seeds of each game, from the first of the fold.

    Returns:
        Tasks ``textworld-express/<game>/<seed>``, with the given settings after the name of the game.

    Raises:
        ConfigError: an unknown split, game or setting, or a number out of range.
    """
    require_choice("split", split, FOLDS)
    require_int("num_games", num_games, 1, NUM_SEEDS)
    names = resolve_names("game", game, GAMES)
    settings, known = dict(params or {}), {key: allowed for name in names for key, allowed in GAMES[name].items()}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"params.{key}: {' and '.join(names)} have no such setting{suggest_nearest(key, known)}")
        require_int(f"params.{key}", value, known[key][0], known[key][-1])
    fold, first = FOLDS[split]
    tasks = []
    for name in names:
        own = {key: settings[key] for key in sorted(settings) if key in GAMES[name]}
        family = "textworld-express/" + "-".join([name, *(f"{key}{value}" for key, value in own.items())])
        options = {"game": name, "params": own, "fold": fold}
        seeds = range(first, first + num_games)
        tasks += [Task(f"{family}/{seed}", "textworld-express", seed, split, options, family) for seed in seeds]
    return tasks
