"""Waymarks: games where tips matter, played as compiled TextWorld games or simulated byte for byte.

The hidden rule of a family tells how to win. Reading it, in the archive one step west of the start, ends the episode
without reward, so that only written tips profit from it. See ``docs/envs/waymarks.md``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from trailnotes.envs.base import require_choice, require_int, require_text_list, strip_intent
from trailnotes.envs.textworld.env import (
    GamePosition,
    build_cached_game,
    open_interpreter,
    play_command,
    require_textworld,
    sanitize_action,
)
from trailnotes.envs.waymarks import spec as ws
from trailnotes.envs.waymarks.build import BUILDER_VERSION, build_game
from trailnotes.envs.waymarks.spec import GameSpec, Kind, Rule, Scene, advance_scene, list_admissible, make_first_scene
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

Families = Sequence[str] | int  # ``kind/name`` each; or how many, half of either kind

FEW_FAMILIES = ("route/amber", "route/birch", "keys/granite", "keys/hazel")
NUM_VARIATIONS = {"train": 5, "validation": 5, "test": 20, "new": 20, "new-validation": 5, "spare": 20}
NO_SIZES: Mapping[str, int] = MappingProxyType({})
COMPARE_SIZES: Mapping[str, int] = MappingProxyType(  # the half of the comparison's panel that luck can solve
    {f"route/{name}": 3 for name in ("glade", "heron", "indigo")}
    | {f"keys/{name}": 2 for name in ("basalt", "copper", "flint")}
)

_MAX_WORDS = 10
_ARTICLES = frozenset({"a", "an", "the"})
# Words by which Inform's parser repeats, chains, points back or counts; one step is one plain command.
_SHORTCUTS = """
    again all and another any both but each either every everything except first former g half her him his it its lots
    many me my myself none o of oops other second self some that their them then these third this those undo your yours
    yourself one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty
"""
_REFUSED_WORDS = frozenset(_SHORTCUTS.split())


def make_tasks(
    split: str, families: Families = FEW_FAMILIES, dataset_seed: int = 0, sizes: Mapping[str, int] = NO_SIZES,
    new_families: Families = 0, new_validation: Families = 0,
) -> list[Task]:  # fmt: skip
    """Make all variations of `split`, family by family; a pure function of its arguments.

    "new", "new-validation" and "spare" (all families left) are never trained; each variation of "spare" draws a rule
    that no panel has. A number of families takes the first free ones, half of either kind. `sizes` gives moves or boxes
    of a family or kind other than `spec.DEFAULT_SIZE`.
    """
    require_choice("split", split, NUM_VARIATIONS, where="")
    names = select_families(families, new_families, new_validation)
    own = names[split if split in names else "train"]
    if not own:
        wanted = {"new": "new_families = 12", "new-validation": "new_validation = 4", "spare": "families to fewer"}
        raise ConfigError(f"split {split!r} has no family: set env.options.{wanted.get(split, 'families = 4')}")
    tasks = []
    panels = [name for side in names if side != "spare" for name in names[side]] if split == "spare" else []
    examined = _list_rules(panels, dataset_seed, sizes)
    for kind, family, rule in _list_rules(own, dataset_seed, sizes):
        size = "" if len(rule) == ws.DEFAULT_SIZE[kind] else f":{len(rule)}"
        excluded = {rule, *(other for other_kind, _, other in examined if other_kind == kind)}
        for i in range(NUM_VARIATIONS[split]):
            seed = ws.stable_seed(dataset_seed, kind, family, split, i)
            hidden = _draw_spare_rule(kind, excluded, len(rule), seed) if split == "spare" else rule
            suffix = size + (f"@{dataset_seed}" if dataset_seed else "")
            spec = ws.make_spec(kind, family, hidden, seed)
            tasks.append(make_task(spec, f"{kind}/{family}/{split}-{i}{suffix}", split))
    return tasks


def _draw_spare_rule(kind: Kind, excluded: Collection[Rule], size: int, seed: int) -> Rule:
    """Draw the rule of one spare variation: never one that a panel holds, so that none is rehearsed."""
    if sum(len(rule) == size for rule in excluded) == ws.count_rules(kind, size):
        raise ConfigError(f'all rules of {kind} games of this size are evaluated: raise env.options.sizes."{kind}"')
    rng = random.Random(ws.stable_seed(seed, "own rule"))
    while (rule := ws.draw_rule(kind, rng, size)) in excluded:
        pass
    return rule


def make_task(spec: GameSpec, name: str, split: str = "train") -> Task:
    options = {"kind": spec.kind, "family": spec.family, "rule": list(spec.rule)}
    return Task(f"waymarks/{name}", "waymarks", spec.seed, split, options, f"waymarks/{spec.kind}/{spec.family}")


def parse_spec(task: Task) -> GameSpec:
    return ws.make_spec(task.options["kind"], task.options["family"], task.options["rule"], task.seed)


def list_panel_rules(
    families: Families = FEW_FAMILIES, dataset_seed: int = 0, sizes: Mapping[str, int] = NO_SIZES
) -> frozenset[tuple[Kind, str, Rule]]:
    """List the (kind, family, rule) triples of the panels, which a warm start must not show."""
    return frozenset(_list_rules(select_families(families)["train"], dataset_seed, sizes))


def select_families(families: Families, new: Families = 0, new_validation: Families = 0) -> dict[str, list[str]]:
    """Select the families of each side, which share none: "train", "new", "new-validation", "spare"."""
    free = {kind: [f"{kind}/{name}" for name in ws.FAMILY_NAMES[kind]] for kind in ws.KINDS}
    taken: dict[str, list[str]] = {}
    named = [
        ("train", "families", families), ("new", "new_families", new),
        ("new-validation", "new_validation", new_validation),
    ]  # fmt: skip
    for side, option, wanted in sorted(named, key=lambda each: isinstance(each[2], int)):  # whoever names them first
        if isinstance(wanted, int):
            most = len(ws.KINDS) * min(map(len, free.values()))
            if wanted % len(ws.KINDS) or not 0 <= wanted <= most:
                raise ConfigError(f"{option} = {wanted} is no even number up to {most}: use one, or list names")
            taken[side] = [name for names in free.values() for name in names[: wanted // len(ws.KINDS)]]
        else:
            taken[side] = [*require_text_list(option, wanted)]
        for name in taken[side]:
            kind, _ = ws.parse_family(name)
            if name not in free[kind]:
                raise ConfigError(f"{name} is to be trained and new, or new twice: give it to one side")
            free[kind].remove(name)
    return taken | {"spare": [name for names in free.values() for name in names]}


def get_size(family: str, sizes: Mapping[str, int]) -> int | None:
    """Return the size that `sizes` gives a family (``kind/name``) or its kind; None for none."""
    return sizes.get(family, sizes.get(family.partition("/")[0]))


def _list_rules(families: Sequence[str], dataset_seed: int, sizes: Mapping[str, int]) -> list[tuple[Kind, str, Rule]]:
    if not isinstance(sizes, Mapping) or not all(type(size) is int for size in sizes.values()):
        raise ConfigError(f'sizes = {sizes!r} is not a table of whole numbers; write {{"route/birch" = 3}}')
    for name, size in sizes.items():
        family = f"{name}/{ws.FAMILY_NAMES[name][0]}" if name in ws.KINDS else name
        ws.draw_family_rule(*ws.parse_family(family), dataset_seed, size)
    named = [(*ws.parse_family(name), get_size(name, sizes)) for name in families]
    return [(kind, family, ws.draw_family_rule(kind, family, dataset_seed, size)) for kind, family, size in named]


@lru_cache(maxsize=4096)
def compile_game(spec: GameSpec, folder: Path | None = None) -> Path:
    """Compile the ``.z8`` of `spec`, or take it from the cache (about a second)."""
    require_textworld()
    description = {"builder": BUILDER_VERSION, "textworld": version("textworld"), **asdict(spec)}
    return build_cached_game(description, lambda path: build_game(spec, path), folder)


class _WaymarksBase:
    def __init__(
        self, *, actions: bool = False, max_steps: int | None = None, cache_dir: str | Path | None = None
    ) -> None:
        """`max_steps` replaces the game's own (route: moves + 2, keys: boxes); `cache_dir` is for compiled games."""
        self._offers_actions = actions
        self._max_steps = None if max_steps is None else require_int("max_steps", max_steps)
        self._folder = Path(cache_dir) if cache_dir else None
        self._scene: Scene | None = None
        self._steps_left = 0

    tasks = staticmethod(make_tasks)

    @staticmethod
    def solution(task: Task) -> tuple[str, ...]:
        """Return actions that win `task`."""
        return ws.gold_actions(parse_spec(task))

    def close(self) -> None:
        self._scene = None
        self._steps_left = 0

    def _start_episode(self, spec: GameSpec, text: str, scene: Scene | None) -> Observation:
        self._steps_left = self._max_steps or spec.max_steps
        self._scene = scene
        return Observation(text, instruction=ws.instruction_text(spec), actions=self._list_actions())

    def _count_step(self) -> None:
        if not self._steps_left:
            raise EnvError("the episode is over: call reset before step")
        self._steps_left -= 1

    def _build_observation(self, text: str, won: bool, lost: bool, refused: bool) -> Observation:
        over, score, info = won or lost, float(won), {"action_refused": True} if refused else {}
        truncated = not over and self._steps_left == 0
        if over:
            self._steps_left = 0
        actions = () if over and self._offers_actions else self._list_actions()
        return Observation(text, score, over, truncated, actions, success=won, score=score, info=info)

    def _list_actions(self) -> tuple[str, ...] | None:
        return list_admissible(self._scene) if self._offers_actions and self._scene else None


class WaymarksEnv(_WaymarksBase):
    """Mazes and locked boxes that only tips explain, as TextWorld games that compile at the first play."""

    _position: GamePosition | None = None

    def reset(self, task: Task) -> Observation:
        spec = parse_spec(task)
        self._position = open_interpreter(compile_game(spec, self._folder)).start
        scene = make_first_scene(spec) if self._offers_actions else None
        return self._start_episode(spec, self._position.answer.text.lower(), scene)

    def step(self, action: str) -> Observation:
        self._count_step()
        assert self._position is not None
        command, refused = parse_command(action)
        self._position = play_command(self._position, command)
        if self._scene:
            self._scene = advance_scene(self._scene, command)
        answer = self._position.answer
        return self._build_observation(answer.text.lower(), answer.won, answer.lost, refused)


class WaymarksSimulator(_WaymarksBase):
    """The same mazes and boxes, with the same texts, from a fast simulator that needs nothing else.

    Observations equal those of `WaymarksEnv` byte for byte.
    """

    def reset(self, task: Task) -> Observation:
        return self.reset_spec(parse_spec(task))

    def reset_spec(self, spec: GameSpec) -> Observation:
        scene = make_first_scene(spec)
        return self._start_episode(spec, scene.text, scene)

    def step(self, action: str) -> Observation:
        self._count_step()
        assert self._scene is not None
        command, refused = parse_command(action)
        self._scene = scene = advance_scene(self._scene, command)
        return self._build_observation(scene.text, scene.won, scene.lost, refused)


@lru_cache(maxsize=4096)
def parse_command(action: str) -> tuple[str, bool]:
    """Parse `action` into the game's line, and whether it was cut or refused.

    Lower case, words and single spaces, no articles, no "I will". A line with a parser's shortcut ("again", "then",
    "it", "all", numbers), or of more than ten words, becomes the empty line, which the game does not understand.
    """
    line, cut = sanitize_action(strip_intent(action))
    words = [word for word in re.sub(r"[^a-z0-9]+", " ", line.lower()).split() if word not in _ARTICLES]
    if cut or len(words) > _MAX_WORDS or any(w in _REFUSED_WORDS or not w.isalpha() for w in words):
        return "", True
    return " ".join(words), False
