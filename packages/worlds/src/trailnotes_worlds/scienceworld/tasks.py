"""ScienceWorld's tasks, variations, splits, step limits and simplifications, without a simulator.

Source: Wang et al. 2022, "ScienceWorld: Is your Agent Smarter than a 5th Grader?" (arXiv 2203.07540), simulator 1.2.3;
the protocol is that of EMPO2 (arXiv 2602.23008) and of its release (commit 0b40cb72).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trailnotes.envs.base import require_choice, require_int, suggest_nearest
from trailnotes.errors import ConfigError
from trailnotes.types import Task

SPLITS = ("train", "validation", "test")
PROTOCOLS = ("paper", "simulator", "interleaved")
DEFAULT_TASK = "find-non-living-thing"
MAX_STEPS = 30  # actions in an episode (paper)

_TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TASK_IDS: Mapping[str, str] = MappingProxyType({name: task_id for name, (task_id, _) in _TABLE["tasks"].items()})
NUM_VARIATIONS: Mapping[str, int] = MappingProxyType({name: num for name, (_, num) in _TABLE["tasks"].items()})
PAPER_PANEL: tuple[str, ...] = tuple(_TABLE["panel"])
# Name -> several tasks.
TASK_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"panel": PAPER_PANEL, "scienceworld-18": PAPER_PANEL, "all": tuple(TASK_IDS)}
)

# Actions in an episode. The release lists 24 tasks; the six others keep 30.
RELEASE_STEP_LIMITS: Mapping[str, int] = MappingProxyType(
    {**dict.fromkeys(TASK_IDS, MAX_STEPS), **_TABLE["release_step_limits"]}
)
STEP_LIMITS = ("paper", "release")

SIMPLIFICATIONS = ("teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction")
_EASY_SIMPLIFICATIONS = ("teleportAction", "openDoors", "selfWateringFlowerPots")


def resolve_task(name: str) -> str:
    """Resolve a task's name or id (``"4-2"``) to the simulator's name. Raises `ConfigError` with the nearest ones."""
    wanted = str(name).strip().lower()
    if wanted in TASK_IDS:
        return wanted
    by_id = {task_id: known for known, task_id in TASK_IDS.items()}
    if wanted in by_id:
        return by_id[wanted]
    known = [*TASK_IDS, *TASK_GROUPS, *TASK_IDS.values()]
    raise ConfigError(f"unknown ScienceWorld task {name!r}{suggest_nearest(wanted, known)}")


def resolve_tasks(task: str | Sequence[str]) -> tuple[str, ...]:
    """Resolve an option `task` to names: a name, an id, "panel" (or "scienceworld-18"), "all", or a list."""
    words = [task] if isinstance(task, str) else list(task)
    names: list[str] = []
    for word in words:
        names += TASK_GROUPS.get(str(word).strip().lower()) or [resolve_task(word)]
    if not names:
        raise ConfigError("task = [] names no ScienceWorld task: name one, or 'panel', or 'all'")
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise ConfigError(f"task names {twice[0]} twice: name it once")
    return tuple(names)


def validate_variation(task: str, variation: int) -> int:
    """Return `variation` if the task has it, else raise `ConfigError`: the simulator only answers with a text."""
    num = NUM_VARIATIONS[resolve_task(task)]
    if isinstance(variation, bool) or not isinstance(variation, int) or not 0 <= variation < num:
        raise ConfigError(f"{task} has no variation {variation!r}: use 0 to {num - 1}")
    return variation


def get_simulator_split(task: str) -> dict[str, range]:
    """Return the simulator's own variations of each split; its "dev" is validation.

    They are groups of a quarter of the variations, rounded down: two for training, one, and up to two for testing.
    """
    num = NUM_VARIATIONS[resolve_task(task)]
    size = num // 4
    last = min(num, 5 * size)
    return {"train": range(2 * size), "validation": range(2 * size, 3 * size), "test": range(3 * size, last)}


def get_paper_split(task: str, num_train: int = 5, num_validation: int = 20, num_test: int = 20) -> dict[str, range]:
    """Return the first variations of each of the simulator's splits, or all if a task has fewer.

    Paper and release train on the first 5 and test on the first 20, and neither validates: the release evaluates test
    variations during training. Trailnotes adds the first 20 dev variations, to choose no checkpoint on the test split.
    """
    nums = (num_train, num_validation, num_test)
    return {name: whole[:num] for (name, whole), num in zip(get_simulator_split(task).items(), nums, strict=True)}


def get_interleaved_split(task: str, num_train: int, num_validation: int, num_test: int) -> dict[str, list[int]]:
    """Return variations of a split in which sorting separates no answers: each third variation is for testing.

    The others are for training and what is left of them for validation. All three are evenly spaced, so that the games
    of one split lie between those of the others; the same numbers give the same variations everywhere.
    """
    variations = range(NUM_VARIATIONS[resolve_task(task)])
    others = [variation for variation in variations if variation % 3 != 2]
    trained = _space_evenly(others, num_train)
    left = [variation for variation in others if variation not in trained]
    return {
        "train": trained,
        "validation": _space_evenly(left, num_validation),
        "test": _space_evenly(variations[2::3], num_test),
    }


def _space_evenly(of: Sequence[int], num: int) -> list[int]:
    num = min(num, len(of))
    return [of[index * len(of) // num] for index in range(num)]


def scienceworld_tasks(
    split: str,
    task: str | Sequence[str] = DEFAULT_TASK,
    protocol: str = "paper",
    num_train: int = 5,
    num_validation: int = 20,
    num_test: int = 20,
    step_limits: str | Mapping[str, int] = "paper",
) -> list[Task]:
    """List the episodes of one split, task by task, in the order of the variations.

    Args:
        split: train, validation or test.
        task: a name, an id, "panel" (or "scienceworld-18"), "all", or a list of names and ids.
        protocol: "paper" takes the first `num_train`, `num_validation` and `num_test` of each split; "simulator" takes
            the whole splits; "interleaved" spaces these numbers evenly over all variations, each third for testing.
        num_train: training variations of each task.
        num_validation: validation variations of each task.
        num_test: test variations of each task.
        step_limits: "paper" keeps the environment's ``max_steps``; "release" sets that of the release; a table sets
            that of each task that it names.

    Returns:
        Tasks ``scienceworld/<task>/<variation>`` with the options ``task``, ``variation`` and, with the release's step
        limits, ``max_steps``.

    Raises:
        ConfigError: an unknown split, task, protocol or step limits, or a number below 1.
    """
    require_choice("split", split, SPLITS, where="")
    require_choice("protocol", protocol, PROTOCOLS)
    limits = _resolve_step_limits(step_limits)
    nums = {"num_train": num_train, "num_validation": num_validation, "num_test": num_test}
    for key, num in nums.items():
        require_int(key, num)
    tasks = []
    for name in resolve_tasks(task):
        splits = _get_splits(name, protocol, nums)
        limit = {"max_steps": limits[name]} if name in limits else {}
        for variation in splits[split]:
            options = {"task": name, "variation": variation, **limit}
            family = f"scienceworld/{name}"
            tasks.append(Task(f"{family}/{variation}", "scienceworld", 0, split, options, family))
    return tasks


def _get_splits(name: str, protocol: str, nums: Mapping[str, int]) -> Mapping[str, Sequence[int]]:
    if protocol == "simulator":
        return get_simulator_split(name)
    return get_paper_split(name, **nums) if protocol == "paper" else get_interleaved_split(name, **nums)


def _resolve_step_limits(step_limits: str | Mapping[str, int]) -> Mapping[str, int]:
    if isinstance(step_limits, Mapping):
        return {resolve_task(name): require_int(f"step_limits.{name}", num, 1) for name, num in step_limits.items()}
    return RELEASE_STEP_LIMITS if require_choice("step_limits", step_limits, STEP_LIMITS) == "release" else {}


def resolve_simplifications(task: str, simplification: str | Sequence[str] = "easy") -> str:
    """Resolve simplifications to the simulator's labels between commas, in one order; "" for none."""
    name = resolve_task(task)
    electrical = "power-component" in name or "conductivity" in name  # the simulator's own rule for its preset "easy"
    words = simplification.split(",") if isinstance(simplification, str) else [str(word) for word in simplification]
    labels = [word.strip() for word in words if word.strip() not in ("", "none")]
    if labels == ["easy"]:
        return ",".join(_EASY_SIMPLIFICATIONS if electrical else (*_EASY_SIMPLIFICATIONS, "noElectricalAction"))
    if "easy" in labels:
        raise ConfigError(
            f"simplification = 'easy' stands alone: with others write {','.join(_EASY_SIMPLIFICATIONS)},... instead"
        )
    for label in labels:
        if label not in SIMPLIFICATIONS:
            raise ConfigError(f"unknown simplification {label!r}{suggest_nearest(label, ['easy', *SIMPLIFICATIONS])}")
    if electrical and "noElectricalAction" in labels:
        raise ConfigError(f"{name} needs electricity: leave noElectricalAction out of the simplification")
    return ",".join(label for label in SIMPLIFICATIONS if label in labels)
