"""Which ScienceWorld episodes there are: tasks, variations, splits, step limits, simplifications. No simulator needed.

Source: Wang et al. 2022, "ScienceWorld: Is your Agent Smarter than a 5th Grader?" (arXiv 2203.07540), simulator 1.2.3;
the protocol is that of EMPO2 (arXiv 2602.23008) and of its release (commit 0b40cb72).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trailnotes.envs.options import require_choice
from trailnotes.errors import ConfigError
from trailnotes.storage.parsing import parse_toml
from trailnotes.types import Task

SPLITS = ("train", "validation", "test")
PROTOCOLS = ("paper", "simulator")
MAX_STEPS = 30  # actions in an episode (paper)

_TABLE: dict[str, Any] = parse_toml(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TASK_IDS: Mapping[str, str] = MappingProxyType({name: task_id for name, (task_id, _) in _TABLE["tasks"].items()})
NUM_VARIATIONS: Mapping[str, int] = MappingProxyType({name: num for name, (_, num) in _TABLE["tasks"].items()})
PAPER_PANEL: tuple[str, ...] = tuple(_TABLE["panel"])
# Words that stand for several tasks where one may be named.
TASK_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"panel": PAPER_PANEL, "scienceworld-18": PAPER_PANEL, "all": tuple(TASK_IDS)}
)

# Actions in an episode, as the release sets them for the 24 tasks that it lists; the six others keep 30.
RELEASE_STEP_LIMITS: Mapping[str, int] = MappingProxyType(
    {**dict.fromkeys(TASK_IDS, MAX_STEPS), **_TABLE["release_step_limits"]}
)
STEP_LIMITS = ("paper", "release")

SIMPLIFICATIONS = ("teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction")
_EASY_SIMPLIFICATIONS = ("teleportAction", "openDoors", "selfWateringFlowerPots")


# ---------------------------------------------------------------------------------------------- names


def resolve_task(name: str) -> str:
    """The simulator's name of a task, from its name or its id (``"4-2"``).

    Raises:
        ConfigError: there is no such task; the text has the nearest.
    """
    wanted = str(name).strip().lower()
    if wanted in TASK_IDS:
        return wanted
    by_id = {task_id: known for known, task_id in TASK_IDS.items()}
    if wanted in by_id:
        return by_id[wanted]
    raise ConfigError(
        f"unknown ScienceWorld task {name!r}{_suggest_nearest(wanted, [*TASK_IDS, *TASK_GROUPS, *TASK_IDS.values()])}"
    )


def resolve_tasks(task: str | Sequence[str]) -> tuple[str, ...]:
    """The names that an option `task` stands for: a name, an id, "panel" (or "scienceworld-18"), "all", or a list.

    Raises:
        ConfigError: an unknown name, no name, or one task twice.
    """
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
    """`variation`, if the task has it. The simulator itself only answers with a text.

    Raises:
        ConfigError: it is not a number, or out of range; the text names the range.
    """
    num = NUM_VARIATIONS[resolve_task(task)]
    if isinstance(variation, bool) or not isinstance(variation, int) or not 0 <= variation < num:
        raise ConfigError(f"{task} has no variation {variation!r}: use 0 to {num - 1}")
    return variation


# ---------------------------------------------------------------------------------------------- splits


def compute_split_ranges(num: int) -> dict[str, range]:
    """How the simulator splits `num` variations: groups of floor(num / 4), two to train on, one, and up to two to test.

    With four variations or fewer it has a table of its own, which no task of version 1.2.3 needs.
    """
    few = {0: (0, 0, 0), 1: (1, 1, 0), 2: (1, 1, 1), 3: (1, 2, 2), 4: (2, 3, 3)}  # end of train, of dev, begin of test
    size = num // 4
    train, dev, test = few.get(num, (2 * size, 3 * size, 3 * size))
    last = num if num in few else min(num, 5 * size)
    return {"train": range(train), "validation": range(train, dev), "test": range(test, last)}


def get_simulator_split(task: str) -> dict[str, range]:
    """The simulator's own variations of each split; its "dev" is our validation."""
    return compute_split_ranges(NUM_VARIATIONS[resolve_task(task)])


def get_paper_split(task: str, num_train: int = 5, num_validation: int = 20, num_test: int = 20) -> dict[str, range]:
    """The first variations of each of the simulator's splits; all of them where a task has fewer.

    Paper and release train on the first 5 and test on the first 20, and neither validates: the release looks at the
    test variations while it trains. Validation on the first 20 dev variations is ours, so that a checkpoint is never
    chosen on the test.
    """
    nums = (num_train, num_validation, num_test)
    return {name: whole[:num] for (name, whole), num in zip(get_simulator_split(task).items(), nums, strict=True)}


def get_split(task: str, variation: int) -> str:
    """The split of the simulator that a variation belongs to."""
    validate_variation(task, variation)
    return next(name for name, variations in get_simulator_split(task).items() if variation in variations)


def scienceworld_tasks(
    split: str,
    task: str | Sequence[str] = "find-non-living-thing",
    protocol: str = "paper",
    num_train: int = 5,
    num_validation: int = 20,
    num_test: int = 20,
    step_limits: str = "paper",
) -> list[Task]:
    """The episodes of one split, task by task, in the order of the variations.

    Args:
        split: train, validation or test.
        task: a name, an id, "panel" (or "scienceworld-18"), "all", or a list of names and ids.
        protocol: "paper" takes the first `num_train`, `num_validation` and `num_test` of each split; "simulator" takes
            the whole splits.
        num_train: training variations of each task.
        num_validation: validation variations of each task.
        num_test: test variations of each task.
        step_limits: "paper" leaves the environment's ``max_steps``; "release" gives each task that of the release.

    Returns:
        Tasks ``scienceworld/<task>/<variation>`` with the options ``task``, ``variation`` and, with the release's step
        limits, ``max_steps``.

    Raises:
        ConfigError: an unknown split, task, protocol or step limits, or a number below 1.
    """
    require_choice("split", split, SPLITS)
    require_choice("protocol", protocol, PROTOCOLS)
    require_choice("step_limits", step_limits, STEP_LIMITS)
    nums = {"num_train": num_train, "num_validation": num_validation, "num_test": num_test}
    for key, num in nums.items():
        if isinstance(num, bool) or not isinstance(num, int) or num < 1:
            raise ConfigError(f"{key} = {num!r} leaves nothing to play: set it to 1 or more")
    tasks = []
    for name in resolve_tasks(task):
        splits = get_paper_split(name, **nums) if protocol == "paper" else get_simulator_split(name)
        limit = {"max_steps": RELEASE_STEP_LIMITS[name]} if step_limits == "release" else {}
        for variation in splits[split]:
            options = {"task": name, "variation": variation, **limit}
            family = f"scienceworld/{name}"
            tasks.append(Task(f"{family}/{variation}", "scienceworld", 0, split, options, family))
    return tasks


# ---------------------------------------------------------------------------------------------- simplifications


def resolve_simplifications(task: str, simplification: str | Sequence[str] = "easy") -> str:
    """What the simulator is told: labels between commas, in one order; "" for none.

    Args:
        task: name or id.
        simplification: "easy", "" or "none", or labels of `SIMPLIFICATIONS` as a list or between commas.

    Raises:
        ConfigError: an unknown label, "easy" beside others (the simulator takes that for an error in every step), or
            noElectricalAction for a task that is about electricity.
    """
    name = resolve_task(task)
    electrical = needs_electricity(name)
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
            raise ConfigError(f"unknown simplification {label!r}{_suggest_nearest(label, ['easy', *SIMPLIFICATIONS])}")
    if electrical and "noElectricalAction" in labels:
        raise ConfigError(f"{name} needs electricity: leave noElectricalAction out of the simplification")
    return ",".join(label for label in SIMPLIFICATIONS if label in labels)


def needs_electricity(task: str) -> bool:
    """Whether a task cannot be done without connecting anything: the simulator's own rule for its preset "easy"."""
    return "power-component" in task or "conductivity" in task


def _suggest_nearest(word: str, known: Iterable[str]) -> str:
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=2)
    if close:
        return f"; did you mean {' or '.join(lowered[name] for name in close)}?"
    return f" (known: {', '.join(lowered.values())})"
