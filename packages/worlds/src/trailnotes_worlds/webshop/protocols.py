"""Protocols that split goals into training and evaluation, pure functions of a catalogue and a dataset seed.

``original``, ``rememberer`` and ``verl-agent-small`` are published protocols, flaws included; ``by-product`` is that of
Trailnotes. Sources: `baseline_models/env.py` of WebShop's release (commit 64fa2a5); OpenDFM/Rememberer; verl-agent,
whose issue #262 describes the leak.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from trailnotes.envs.base import require_choice, require_type
from trailnotes.errors import ConfigError
from trailnotes.types import Task, derive_seed
from trailnotes_worlds.webshop.catalogue import Catalogue
from trailnotes_worlds.webshop.goals import Goal, iter_goals
from trailnotes_worlds.webshop.products import GoalKind

SPLITS: Final = ("train", "validation", "test")
KINDS: Final = ("human", "synthetic", "both")
TRAIN_SETS: Final = ("S0", "S1")
_SHUFFLE_SEED: Final = 233  # the release's seed of the order of goals
_SMALL_TEST: Final = 500  # goals that verl-agent tests on: the first of a permutation
_SMALL_WORKERS: Final = 16  # that train, a permutation each
_SMALL_EVAL_SEED_OFFSETS: Final = {"test": 1000, "validation": 1001}  # of its tests; it has no validation
_CUMULATIVE_SHARES: Final = {"test": 0.2, "validation": 0.3, "train": 1.0}  # by-product: where each share ends
_SPLIT_SEED: Final = 0  # by-product: draws the split of a product, the same for every dataset seed
_MAX_GOALS_PER_PRODUCT: Final = 4  # by-product: goals of one product; some have hundreds of combinations


@dataclass(frozen=True, slots=True)
class GoalSelection:
    """Options that determine the goals and their order."""

    protocol: str = "by-product"
    goals: str = ""  # "human", "synthetic", "both"; "" = as the protocol has it
    seed: int = 0  # of the dataset
    train_set: str = "S0"  # of rememberer

    def __post_init__(self) -> None:
        protocol = PROTOCOLS[require_choice("protocol", self.protocol, PROTOCOLS)]
        require_choice("goals", self.goals or protocol.goals, KINDS)
        require_choice("train_set", self.train_set, TRAIN_SETS)
        require_type(int, "dataset_seed", self.seed)


class NumberedGoal(NamedTuple):
    number: int
    goal: Goal
    seed: int  # of its price limit, and of the prices of ranges


Splits = Mapping[str, Sequence[NumberedGoal]]


@dataclass(frozen=True, slots=True)
class SplitProtocol:
    """One way to split goals into training and evaluation."""

    split: Callable[[Catalogue, GoalSelection], Splits]
    goals: str  # by default
    leaks: str = ""  # why its test says nothing about unseen goals; "" if it does


def make_tasks(splits: Splits, split: str, protocol: str) -> list[Task]:
    """Make the goals of one split tasks ``webshop/PROTOCOL/ASIN/NUMBER``, in the protocol's order.

    The options of a task are those of `Goal.to_json`: an environment needs no list of goals to play it.
    """
    require_choice("split", split, SPLITS, where="")
    if not any(splits.values()):
        raise ConfigError(
            f'protocol = "{protocol}" finds no goal in this catalogue: import it with --attributes (synthetic goals) '
            "or --human, or set another env.options.goals"
        )
    if not splits[split]:
        raise ConfigError(
            f'protocol = "{protocol}" has no goal in split {split!r} with this catalogue: use protocol = "by-product", '
            "another env.options.goals, or a catalogue with more goals"
        )
    tasks = []
    for number, goal, seed in splits[split]:
        name = f"webshop/{protocol}/{goal.asin}/{number}" + (f"@{seed}" if seed else "")
        tasks.append(Task(name, "webshop", seed, split, goal.to_json()))
    return tasks


def compute_splits(shelves: Catalogue, choice: GoalSelection) -> Splits:
    return PROTOCOLS[choice.protocol].split(shelves, choice)


def normalize_title(title: str) -> str:
    """Normalize the title of a product: products with the same words are one, whatever their asins."""
    return " ".join(title.casefold().split())


def require_leak_free_split(split: str, protocol: str, allow: bool) -> None:
    """Raise `ConfigError` for an evaluation split of a protocol that leaks, unless it is allowed."""
    why = PROTOCOLS[protocol].leaks
    if why and split != "train" and not allow:
        raise ConfigError(
            f'protocol = "{protocol}" {why}: its results say nothing about unseen goals. Train and evaluate with '
            'protocol = "by-product", or set env.options.allow_leak = true to repeat published results'
        )


def build_identity(splits: Splits, choice: GoalSelection) -> dict[str, Any]:
    """Describe the goals of a run as JSON: names, and for each split the number of goals and their hash."""
    protocol = PROTOCOLS[choice.protocol]
    return {
        "protocol": choice.protocol,
        "leaks": bool(protocol.leaks),
        "goals": choice.goals or protocol.goals,
        "dataset_seed": choice.seed,
        "train_set": choice.train_set,
        "splits": {split: {"goals": len(splits[split]), "sha256": _hash_goals(splits[split])} for split in SPLITS},
    }


def _hash_goals(placed: Iterable[NumberedGoal]) -> str:
    digest = hashlib.sha256()
    for number, goal, seed in placed:
        digest.update(json.dumps([number, seed, goal.to_json()], sort_keys=True).encode())
    return digest.hexdigest()


def _iter_catalogue_goals(shelves: Catalogue, kind: str, seed: int) -> Iterator[tuple[Goal, int | None]]:
    known: tuple[GoalKind, ...] = ("human", "synthetic")
    kinds = [each for each in known if kind in (each, "both")]
    for product in shelves.iter_by_goal_kind(kinds):
        yield from itertools.chain(*(iter_goals(product, each, seed) for each in kinds))


def _list_official_goals(shelves: Catalogue, choice: GoalSelection) -> list[NumberedGoal]:
    kind = choice.goals or "human"
    if kind == "both":
        fix = 'set env.options.goals to "human" or "synthetic"'
        raise ConfigError(f'protocol = "{choice.protocol}" orders goals of one kind: {fix}')
    listed = list(_iter_catalogue_goals(shelves, kind, choice.seed))
    official = [NumberedGoal(order, goal, choice.seed) for goal, order in listed if order is not None]
    if official:  # a goal without a place, which the import has reported, is in no split
        return sorted(official, key=lambda each: each.number)
    random.Random(_SHUFFLE_SEED).shuffle(listed)
    return [NumberedGoal(number, goal, choice.seed) for number, (goal, _) in enumerate(listed)]


def _split_by_ranges(placed: Sequence[NumberedGoal], **numbers: range) -> Splits:
    return {split: [each for each in placed if each.number in numbers[split]] for split in SPLITS}


def _split_original(shelves: Catalogue, choice: GoalSelection) -> Splits:
    placed = _list_official_goals(shelves, choice)
    last = placed[-1].number + 1 if placed else 0
    return _split_by_ranges(placed, test=range(500), validation=range(500, 1500), train=range(1500, last))


def _split_rememberer(shelves: Catalogue, choice: GoalSelection) -> Splits:
    """Train on ten goals. The publication has no validation split; here no checkpoint is chosen on the test split."""
    train = range(500, 510) if choice.train_set == "S0" else range(510, 520)
    placed = _list_official_goals(shelves, choice)
    return _split_by_ranges(placed, test=range(100), validation=range(1400, 1500), train=train)


def _split_verl_agent_small(shelves: Catalogue, choice: GoalSelection) -> Splits:
    """Let every worker shuffle the goals by a seed of its own, and take its first 500 for the test.

    A goal that several workers train on is listed once, with the seed of the first of them.
    """
    kind = choice.goals or "synthetic"
    train: dict[int, NumberedGoal] = {}
    for seed in range(choice.seed, choice.seed + _SMALL_WORKERS):
        goals, order = _shuffle_goals(shelves, kind, seed)
        for number, index in enumerate(order[_SMALL_TEST:], start=_SMALL_TEST):
            train.setdefault(index, NumberedGoal(number, goals[index], seed))
        if len(train) == len(goals):
            break
    splits = {"train": list(train.values())}
    for split, more in _SMALL_EVAL_SEED_OFFSETS.items():
        goals, order = _shuffle_goals(shelves, kind, seed := choice.seed + more)
        splits[split] = [NumberedGoal(number, goals[index], seed) for number, index in enumerate(order[:_SMALL_TEST])]
    return splits


def _shuffle_goals(shelves: Catalogue, kind: str, seed: int) -> tuple[list[Goal], list[int]]:
    goals = [goal for goal, _ in _iter_catalogue_goals(shelves, kind, seed)]
    order = list(range(len(goals)))
    random.Random(seed).shuffle(order)
    return goals, order


def _split_by_product(shelves: Catalogue, choice: GoalSelection) -> Splits:
    """Assign all goals of a product to one split, by its title alone, whatever its asins.

    The split depends neither on the rest of the catalogue nor on the dataset seed: no seed evaluates on the products
    that another trains on. Training leaves out every instruction of an evaluation goal, even of another product
    (the same wish with another price limit is another instruction).
    """
    splits: dict[str, list[NumberedGoal]] = {split: [] for split in SPLITS}
    listed = enumerate(_iter_catalogue_goals(shelves, choice.goals or "both", choice.seed))
    for asin, own in itertools.groupby(listed, key=lambda item: item[1][0].asin):
        placed = list({goal: NumberedGoal(number, goal, choice.seed) for number, (goal, _) in own}.values())
        title = normalize_title(shelves[asin].title)
        drawn = random.Random(derive_seed("webshop", _SPLIT_SEED, "by-product", title)).random()
        if len(placed) > _MAX_GOALS_PER_PRODUCT:
            rng = random.Random(derive_seed("webshop", choice.seed, "some of", asin))
            placed = sorted(rng.sample(placed, _MAX_GOALS_PER_PRODUCT), key=lambda each: each.number)
        splits[next(split for split, end in _CUMULATIVE_SHARES.items() if drawn < end)] += placed
    examined = {each.goal.instruction for split in ("validation", "test") for each in splits[split]}
    splits["train"] = [each for each in splits["train"] if each.goal.instruction not in examined]
    return splits


PROTOCOLS: Final[Mapping[str, SplitProtocol]] = MappingProxyType(
    {
        "by-product": SplitProtocol(_split_by_product, "both"),
        "original": SplitProtocol(_split_original, "human"),
        "rememberer": SplitProtocol(_split_rememberer, "human"),
        "verl-agent-small": SplitProtocol(
            _split_verl_agent_small, "synthetic", "trains on goals that it tests, since each worker shuffles its own"
        ),
    }
)
