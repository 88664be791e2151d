"""Protocols: which goals are for training, which are for testing. Pure functions of a catalogue and a dataset seed.

``original``, ``rememberer`` and ``verl-agent-small`` are published, with what is wrong with them; ``by-product`` is
ours. Sources: `baseline_models/env.py` of WebShop's release (commit 64fa2a5); OpenDFM/Rememberer; verl-agent, whose
issue #262 describes the leak.
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

from trailnotes.errors import ConfigError
from trailnotes.seeds import derive_seed
from trailnotes.types import Task
from trailnotes_worlds.webshop.goals import Goal, iter_goals
from trailnotes_worlds.webshop.products import GoalKind
from trailnotes_worlds.webshop.shop import ProductCatalogue

SPLITS: Final = ("train", "validation", "test")
KINDS: Final = ("human", "synthetic", "both")
TRAIN_SETS: Final = ("S0", "S1")
_SHUFFLE_SEED: Final = 233  # the release's seed of the order of goals
_SMALL_TEST: Final = 500  # goals that verl-agent tests on: the first of a permutation
_SMALL_WORKERS: Final = 16  # that train, a permutation each
_SMALL_EVAL_SEED_OFFSETS: Final = {
    "test": 1000,
    "validation": 1001,
}  # added to the seed of those that test; the second is ours
_CUMULATIVE_SHARES: Final = {
    "test": 0.2,
    "validation": 0.3,
    "train": 1.0,
}  # by-product: where the share of each side ends
_SPLIT_SEED: Final = 0  # by-product: what sides are drawn from, the same for every dataset seed
_MAX_GOALS_PER_PRODUCT: Final = 4  # by-product: goals of one product; some have hundreds of combinations


@dataclass(frozen=True, slots=True)
class GoalSelection:
    """What decides which goals there are."""

    protocol: str = "by-product"
    goals: str = ""  # "human", "synthetic", "both"; "" = as the protocol has it
    seed: int = 0  # of the dataset
    train_set: str = "S0"  # of rememberer


class NumberedGoal(NamedTuple):
    """A goal, and its place in the order of its protocol."""

    number: int
    goal: Goal
    seed: int  # that its limit of price was drawn from, and the prices of ranges are


Splits = Mapping[str, Sequence[NumberedGoal]]


@dataclass(frozen=True, slots=True)
class SplitProtocol:
    """One way to split goals."""

    split: Callable[[ProductCatalogue, GoalSelection], Splits]
    goals: str  # by default
    leaks: str = ""  # why its test says nothing about unseen goals; "" where it does


def make_tasks(splits: Splits, split: str, protocol: str) -> list[Task]:
    """The goals of one split as tasks ``webshop/PROTOCOL/ASIN/NUMBER``, in the protocol's order.

    The options of a task are those of `Goal.to_json`: whoever plays it needs no list of goals.

    Raises:
        ConfigError: an unknown split, or one that is empty; the text names the fix.
    """
    if split not in SPLITS:
        raise ConfigError(f"split {split!r} is unknown: use {', '.join(SPLITS)}")
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
    return [_make_task(protocol, split, each) for each in splits[split]]


def compute_splits(shelves: ProductCatalogue, choice: GoalSelection) -> Splits:
    """All splits of a protocol. A catalogue may have too few goals for some of them.

    Raises:
        ConfigError: an unknown name, or kinds of goals that the protocol cannot order; the text names the fix.
    """
    for key, value, known in (
        ("protocol", choice.protocol, tuple(PROTOCOLS)),
        ("goals", choice.goals or PROTOCOLS.get(choice.protocol, _DEFAULT_PROTOCOL).goals, KINDS),
        ("train_set", choice.train_set, TRAIN_SETS),
    ):
        if value not in known:
            raise ConfigError(f"{key} = {value!r} is unknown: use {' or '.join(map(repr, known))}")
    return PROTOCOLS[choice.protocol].split(shelves, choice)


def normalize_title(title: str) -> str:
    """A title as products are told apart by it: two with the same words are one, whatever their asins."""
    return " ".join(title.casefold().split())


def require_leak_free_split(split: str, protocol: str, allow: bool) -> None:
    """Refuse to examine on goals that were trained on.

    Raises:
        ConfigError: the protocol is one that leaks, and nobody has allowed it.
    """
    why = PROTOCOLS[protocol].leaks if protocol in PROTOCOLS else ""
    if why and split != "train" and not allow:
        raise ConfigError(
            f'protocol = "{protocol}" {why}: its results say nothing about unseen goals. Train and examine on protocol '
            '= "by-product", or set env.options.allow_leak = true to repeat what was published'
        )


def build_identity(splits: Splits, choice: GoalSelection) -> dict[str, Any]:
    """Which goals a run has, as JSON: names, and for each split how many goals and a hash of all of them."""
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


def _make_task(protocol: str, split: str, placed: NumberedGoal) -> Task:
    suffix = f"@{placed.seed}" if placed.seed else ""
    name = f"webshop/{protocol}/{placed.goal.asin}/{placed.number}{suffix}"
    return Task(name, "webshop", placed.seed, split, placed.goal.to_json())


# -- orders


def _iter_catalogue_goals(shelves: ProductCatalogue, kind: str, seed: int) -> Iterator[tuple[Goal, int | None]]:
    """All goals in the order of the catalogue."""
    known: tuple[GoalKind, ...] = ("human", "synthetic")
    kinds = [each for each in known if kind in (each, "both")]
    for product in shelves.iter_by_goal_kind(kinds):
        yield from itertools.chain(*(iter_goals(product, each, seed) for each in kinds))


def _list_official_goals(shelves: ProductCatalogue, choice: GoalSelection) -> list[NumberedGoal]:
    """Goals in the release's order: told by the catalogue, or shuffled as the release does."""
    kind = choice.goals or "human"
    if kind == "both":
        raise ConfigError(f'protocol = "{choice.protocol}" orders goals of one kind: set env.options.goals to '
                          '"human" or "synthetic"')  # fmt: skip
    listed = list(_iter_catalogue_goals(shelves, kind, choice.seed))
    official = [NumberedGoal(order, goal, choice.seed) for goal, order in listed if order is not None]
    if official:  # a goal without a place, which the import has reported, is in no split
        return sorted(official, key=lambda each: each.number)
    random.Random(_SHUFFLE_SEED).shuffle(listed)
    return [NumberedGoal(number, goal, choice.seed) for number, (goal, _) in enumerate(listed)]


def _split_by_ranges(placed: Sequence[NumberedGoal], **numbers: range) -> Splits:
    return {split: [each for each in placed if each.number in numbers[split]] for split in SPLITS}


# -- protocols


def _split_original(shelves: ProductCatalogue, choice: GoalSelection) -> Splits:
    placed = _list_official_goals(shelves, choice)
    last = placed[-1].number + 1 if placed else 0
    return _split_by_ranges(placed, test=range(500), validation=range(500, 1500), train=range(1500, last))


def _split_rememberer(shelves: ProductCatalogue, choice: GoalSelection) -> Splits:
    """Ten goals to train on. The validation is ours: a checkpoint is never chosen on the test."""
    train = range(500, 510) if choice.train_set == "S0" else range(510, 520)
    return _split_by_ranges(
        _list_official_goals(shelves, choice), test=range(100), validation=range(1400, 1500), train=train
    )


def _split_verl_agent_small(shelves: ProductCatalogue, choice: GoalSelection) -> Splits:
    """Every worker shuffles the goals by a seed of its own, and calls its first 500 the test.

    A goal that several workers train on stands here once, with the seed of the first of them.
    """
    kind = choice.goals or "synthetic"
    train: dict[int, NumberedGoal] = {}
    for seed in range(choice.seed, choice.seed + _SMALL_WORKERS):
        goals, order = _shuffle_goals(shelves, kind, seed)
        for number, index in enumerate(order[_SMALL_TEST:], start=_SMALL_TEST):
            train.setdefault(index, NumberedGoal(number, goals[index], seed))
        if len(train) == len(goals):
            break
    return {"train": list(train.values())} | {
        split: _make_small_test(shelves, kind, choice.seed + more) for split, more in _SMALL_EVAL_SEED_OFFSETS.items()
    }


def _make_small_test(shelves: ProductCatalogue, kind: str, seed: int) -> list[NumberedGoal]:
    goals, order = _shuffle_goals(shelves, kind, seed)
    return [NumberedGoal(number, goals[index], seed) for number, index in enumerate(order[:_SMALL_TEST])]


def _shuffle_goals(shelves: ProductCatalogue, kind: str, seed: int) -> tuple[list[Goal], list[int]]:
    goals = [goal for goal, _ in _iter_catalogue_goals(shelves, kind, seed)]
    order = list(range(len(goals)))
    random.Random(seed).shuffle(order)
    return goals, order


def _split_by_product(shelves: ProductCatalogue, choice: GoalSelection) -> Splits:
    """No product of a test goal is that of a training goal, under whatever asin: who has the title has the side.

    Nor is an instruction that is examined trained on, where different products have the same one.

    The side of a product depends on its title alone, not on the others of the catalogue, nor on the dataset seed: what
    one seed trains on, no other examines.
    """
    splits: dict[str, list[NumberedGoal]] = {split: [] for split in SPLITS}
    listed = enumerate(_iter_catalogue_goals(shelves, choice.goals or "both", choice.seed))
    for asin, own in itertools.groupby(listed, key=lambda item: item[1][0].asin):
        placed = list({goal: NumberedGoal(number, goal, choice.seed) for number, (goal, _) in own}.values())
        splits[_assign_split(shelves[asin].title)] += _sample_goals(placed, asin, choice.seed)
    examined = {each.goal.instruction for split in ("validation", "test") for each in splits[split]}
    splits["train"] = [each for each in splits["train"] if each.goal.instruction not in examined]
    return splits


def _assign_split(title: str) -> str:
    drawn = random.Random(derive_seed("webshop", _SPLIT_SEED, "by-product", normalize_title(title))).random()
    return next(split for split, end in _CUMULATIVE_SHARES.items() if drawn < end)


def _sample_goals(placed: Sequence[NumberedGoal], asin: str, seed: int) -> list[NumberedGoal]:
    """At most `_MAX_GOALS_PER_PRODUCT`, drawn."""
    if len(placed) <= _MAX_GOALS_PER_PRODUCT:
        return list(placed)
    rng = random.Random(derive_seed("webshop", seed, "some of", asin))
    return sorted(rng.sample(placed, _MAX_GOALS_PER_PRODUCT), key=lambda each: each.number)


_DEFAULT_PROTOCOL: Final = SplitProtocol(_split_by_product, "both")
PROTOCOLS: Final[Mapping[str, SplitProtocol]] = MappingProxyType(
    {
        "by-product": _DEFAULT_PROTOCOL,
        "original": SplitProtocol(_split_original, "human"),
        "rememberer": SplitProtocol(_split_rememberer, "human"),
        "verl-agent-small": SplitProtocol(
            _split_verl_agent_small, "synthetic", "trains on goals that it tests, since each worker shuffles its own"
        ),
    }
)
