"""Protocols: which goals are for training, which for testing. Pure functions of library, task files and dataset seed.

``by-article`` is ours; ``rememberer`` has the sizes of REMEMBERER's experiments: ten goals to train on, seventy to
test.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from trailnotes.envs.options import one_of
from trailnotes.errors import ConfigError
from trailnotes.seeds import derive_seed
from trailnotes.types import Task
from trailnotes_worlds.wikihow.articles import Article, Author, Category, Page, author_path, category_path
from trailnotes_worlds.wikihow.goals import SUFFIXES, Goal, Template, goal_of
from trailnotes_worlds.wikihow.library import Library

SPLITS: Final = ("train", "validation", "test")
KINDS: Final = (*SUFFIXES, "author+article", "category+article")
PROTOCOLS: Final = ("by-article", "rememberer")
TRAIN_SETS: Final = ("S0", "S1")

_UP_TO: Final = {"test": 0.2, "validation": 0.3, "train": 1.0}  # where the share of each side ends
_EACH: Final = {"train": 2, "validation": 6, "test": 14}  # rememberer: goals of each of the five templates
_PUBLISHED: Final = {  # rememberer: the task files that its README lists (commit 552cb62)
    "S0": (
        "add_a_contact_on_whatsapp-8", "avoid_misgendering-0", "become_a_grandmaster-7", "become_a_hooters_girl-8",
        "become_a_pro_footballP28soccerP29_manager-7", "become_a_specialist_physician-4",
        "be_cool_in_high_school_P28boysP29-0", "care_for_florida_white_rabbits-4", "fix_wet_suede_shoes-6",
        "get_zorua_in_pokPC3PA9mon_white-6",
    ),
    "S1": (
        "be_free-0", "build_a_robot_car-8", "change_an_excel_sheet_from_read_only-4", "choose_a_swiss_army_knife-8",
        "color_streak_a_ponytail-0", "come_up_with_a_movie_idea-4", "contact_avast_customer_support-7",
        "drink_mezcal-7", "identify_hickory_nuts-6", "wear_a_dress_to_school-6",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """What decides which goals there are."""

    protocol: str = "by-article"
    tasks: str = ""  # folder of task files; "" = goals of our own
    seed: int = 0  # of the dataset
    train_set: str = "S0"  # of rememberer
    templates: tuple[str, ...] = ()  # kinds of our own goals, see `Goal.kind`; () = all

    def __post_init__(self) -> None:
        for kind in self.templates:
            one_of("templates", kind, KINDS)
        for key, value, known in (
            ("protocol", self.protocol, PROTOCOLS),
            ("train_set", self.train_set, TRAIN_SETS),
        ):
            if value not in known:
                raise ConfigError(f"env.options.{key} = {value!r} is unknown: use {' or '.join(map(repr, known))}")


Splits = Mapping[str, Sequence[Goal | str]]  # goals, or names of task files


def splits_of(library: Library, choice: Choice) -> Splits:
    """All splits. A small library, or a folder of few files, may have nothing in some of them.

    Raises:
        ConfigError: the folder of task files cannot be read, or holds none.
    """
    if choice.tasks:
        return _of_files(Path(choice.tasks), choice)
    splits: dict[str, list[Goal]] = {split: [] for split in SPLITS}
    for goal in _goals(library, choice.seed):
        if not choice.templates or goal.kind in choice.templates:
            splits[_side(goal.slug)].append(goal)
    return splits if choice.protocol == "by-article" else _of_sizes(splits, choice.train_set)


def tasks_in(splits: Splits, split: str, choice: Choice) -> list[Task]:
    """The goals of one split as tasks ``wikihow/PROTOCOL/NAME``, in the protocol's order.

    Raises:
        ConfigError: an unknown split, or one that is empty; the text names the fix.
    """
    if split not in SPLITS:
        raise ConfigError(f"split {split!r} is unknown: use {', '.join(SPLITS)}")
    if not splits[split]:
        where = f"folder {choice.tasks}" if choice.tasks else "library"
        raise ConfigError(
            f"the {where} has no goal in split {split!r} by protocol {choice.protocol!r}: name one with more of them"
            + (f", or put task files into {choice.tasks}/{split}" if choice.tasks else "")
        )
    return [_task(goal, split, choice) for goal in splits[split]]


def identity_of(splits: Splits, choice: Choice) -> dict[str, Any]:
    """Which goals a run has, as JSON: names, and for each split how many goals and a hash of all of them."""
    return {
        "protocol": choice.protocol,
        "goals": "files" if choice.tasks else "ours",
        "dataset_seed": choice.seed,
        "train_set": choice.train_set,
        "templates": [*choice.templates],
        "splits": {split: {"goals": len(splits[split]), "sha256": _hash(splits[split], choice)} for split in SPLITS},
    }


def _hash(goals: Sequence[Goal | str], choice: Choice) -> str:
    digest = hashlib.sha256()
    for goal in goals:
        if isinstance(goal, str):
            digest.update(f"{goal}\n".encode() + (Path(choice.tasks) / goal).read_bytes())
        else:
            digest.update(json.dumps(goal.to_json(), sort_keys=True).encode())
    return digest.hexdigest()


def _task(goal: Goal | str, split: str, choice: Choice) -> Task:
    if isinstance(goal, str):
        name = goal.removesuffix(".textproto")
        return Task(f"wikihow/files/{name}", "wikihow", choice.seed, split, {"file": goal})
    return Task(f"wikihow/{choice.protocol}/{goal.id}", "wikihow", choice.seed, split, goal.to_json())


# -- goals of our own


def _goals(library: Library, seed: int) -> Iterator[Goal]:
    """A goal of each article, of a template that is drawn among those that its page allows."""
    taken: set[str] = set()
    for page in library:
        if not isinstance(page, Article):
            continue
        rng = random.Random(derive_seed("wikihow", seed, "template", page.path))
        template = rng.choice(_templates(library, page))
        goal = _goal(library, page, template, rng)
        if goal.id not in taken:  # two titles may differ in signs alone
            taken.add(goal.id)
            yield goal


def _templates(library: Library, article: Article) -> list[Template]:
    possible = {
        "about": True,
        "author": any(author_path(name) in library for name in article.authors),
        "category": any(category_path(name) in library for name in article.categories),
        "references": bool(article.references),
        "article": True,
    }
    return [cast("Template", name) for name in SUFFIXES if possible[name]]


def _goal(library: Library, article: Article, template: Template, rng: random.Random) -> Goal:
    if template not in ("author", "category"):
        return goal_of(template, article.title, article.path)
    names, path_of = (article.authors, author_path) if template == "author" else (article.categories, category_path)
    name = rng.choice([name for name in names if path_of(name) in library])
    then = _another(library, library[path_of(name)], article, rng)
    return goal_of(template, article.title, article.path, name, then)


def _another(library: Library, page: Page, article: Article, rng: random.Random) -> tuple[str, str]:
    """An article that the page leads to, of the same side as the first; now and then none."""
    assert isinstance(page, Author | Category)
    near = [path for path in page.articles[:12] if path != article.path and _side(path) == _side(article.path)]
    found = [*library.articles(rng.sample(near, 1))] if near and rng.random() < 0.7 else []
    return (found[0].title, found[0].path) if found else ("", "")


def _side(slug: str) -> str:
    """Of an article: it depends on its path alone, so that what one dataset seed trains on, no other examines."""
    drawn = derive_seed("wikihow", "by-article", slug.casefold()) / 2**63
    return next(split for split, end in _UP_TO.items() if drawn < end)


def _of_sizes(splits: Mapping[str, Sequence[Goal]], train_set: str) -> Splits:
    """The first goals of each template; the two training sets have none in common."""
    chosen: dict[str, list[Goal]] = {split: [] for split in SPLITS}
    for split, count in _EACH.items():
        first = count if split == "train" and train_set == "S1" else 0
        for template in SUFFIXES:
            goals = [goal for goal in splits[split] if goal.template == template]
            chosen[split] += goals[first : first + count]
    return chosen


# -- task files


def _of_files(folder: Path, choice: Choice) -> Splits:
    """Files in folders that are named like splits belong to these; others by the article that they begin with.

    Of rememberer the published names are trained on, wherever they lie, and the other set is left out.
    """
    try:
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.textproto"))
    except OSError as error:
        raise ConfigError(f"env.options.tasks = {str(folder)!r} cannot be read: {error.strerror}") from error
    if not names:
        raise ConfigError(f"env.options.tasks = {str(folder)!r} holds no .textproto file: name a folder that does")
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    published = {stem: train_set for train_set, stems in _PUBLISHED.items() for stem in stems}
    has_test = any(Path(name).parts[0] == "test" for name in names)
    for name in names:
        stem, folder_name = Path(name).stem, Path(name).parts[0]
        if choice.protocol == "rememberer" and stem in published:
            split = "train" if published[stem] == choice.train_set else ""
        elif folder_name in SPLITS:
            split = folder_name
        elif choice.protocol == "rememberer":
            split = "validation" if has_test else "test"
        else:
            split = _side(stem.rpartition("-")[0] or stem)
        if split:
            splits[split].append(name)
    return splits
