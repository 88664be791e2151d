"""Goals and protocols: instructions with the pages that they ask for, and the split of goals into training and testing.

The number behind the name of a task is its template: 8 an article, 0 from it to the page about trust in wikiHow, 4 to
the page of an author, 6 to that of a category (and from either to another article), 7 to the references. Each page is
worth 1, once. The protocol ``by-article`` is specific to Trailnotes; ``rememberer`` has the sizes of REMEMBERER's
experiments: ten goals to train on, seventy to test. Everything is a pure function of library, files and dataset seed.

Source: the sentences of the 10 public task files of X-LANCE/Mobile-Env (commit 976145e).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, cast

from trailnotes.envs.base import require_choice, require_type
from trailnotes.errors import ConfigError
from trailnotes.types import Task, derive_seed
from trailnotes_worlds.wikihow.articles import ABOUT, Article, Author, Category, author_path, category_path, make_slug
from trailnotes_worlds.wikihow.goals import Goal, TargetPage
from trailnotes_worlds.wikihow.library import Library

Template = Literal["about", "author", "category", "references", "article"]
TEMPLATE_NUMBERS: Final[Mapping[str, int]] = {"about": 0, "author": 4, "category": 6, "references": 7, "article": 8}
_STOPWORDS: Final = frozenset((
    "a", "an", "and", "as", "at", "by", "for", "from", "how", "in", "into", "is", "it", "of", "on", "or", "over", "the",
    "to", "under", "with", "without", "your",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class WikiHowGoal:
    """Goal that is generated from a library."""

    template: Template
    title: str  # of the article to search for
    slug: str  # its path
    name: str = ""  # of the author or the category
    path: str = ""  # of that page
    then_title: str = ""  # of a second article to open from there; "" for none
    then_slug: str = ""

    @property
    def id(self) -> str:
        return f"{re.sub(r'[^a-z0-9]+', '_', self.title.lower()).strip('_')}-{TEMPLATE_NUMBERS[self.template]}"

    @property
    def kind(self) -> str:
        return f"{self.template}+article" if self.then_slug else self.template

    @property
    def instructions(self) -> tuple[str, ...]:
        """Instructions in their order; the first one is the task itself."""
        follow_up = {
            "about": "Access the about page to learn why people trust wikihow.",
            "author": f"Check the author page of {self.name}.",
            "category": f"Access the page of category {self.name}",
            "references": "Check the reference list",
        }.get(self.template)
        texts = (
            f"Search an article to learn how to {self.title.lower()}.",
            f'Access the article "How to {self.title}"',
            follow_up,
            f'Access the article "How to {self.then_title}"' if self.then_title else None,
        )
        return tuple(text for text in texts if text is not None)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> WikiHowGoal:
        try:
            goal = cls(**values)
            TEMPLATE_NUMBERS[goal.template]
        except (TypeError, LookupError) as error:
            raise ConfigError(f"the options of a task are no goal of WikiHow: {error}") from error
        return goal

    def to_pages(self) -> Goal:
        """Convert to the pages to reach, each with the instruction that follows it."""
        command, *later = self.instructions
        pages = zip_longest(_iter_patterns(self), later, fillvalue="")
        return Goal(command, tuple(TargetPage(re.compile(pattern), text) for pattern, text in pages))


def extract_keywords(title: str) -> list[str]:
    words = [word for word in re.findall(r"\w+", title.lower()) if word not in _STOPWORDS]
    return words or re.findall(r"\w+", title.lower())


def _iter_patterns(goal: WikiHowGoal) -> Iterator[str]:
    # Log lines of the wanted pages. Unlike those of the public files, a pattern does not match a longer path.
    host = r"https://www\.wikihow\.com/"
    words = "|".join(map(re.escape, extract_keywords(goal.title)))
    yield rf"\bmUrl is: {host}wikiHowTo\?search=.*\b({words})\b.*"
    yield rf"\bmUrl is: {host}{re.escape(goal.slug)}(\?|$)"
    if goal.template == "references":
        yield rf"\burl is: {host}{re.escape(goal.slug)}\?wh_an=1&amp=1#References\b"
    elif goal.template != "article":
        yield rf"\bmUrl is: {host}{re.escape(ABOUT if goal.template == 'about' else goal.path)}(\?|$)"
    if goal.then_slug:
        yield rf"\bmUrl is: {host}{re.escape(goal.then_slug)}(\?|$)"


def make_goal(
    template: Template, title: str, slug: str, name: str = "", then: tuple[str, str] = ("", "")
) -> WikiHowGoal:
    """Make a goal; `name` is that of the template's author or category, `then` (title, slug) of a second article."""
    path = {"author": author_path, "category": category_path}.get(template, lambda _: "")(name)
    return WikiHowGoal(template, title, slug or make_slug(title), name, path, *then)


SPLITS: Final = ("train", "validation", "test")
KINDS: Final = (*TEMPLATE_NUMBERS, "author+article", "category+article")

_CUMULATIVE_SHARES: Final = {"test": 0.2, "validation": 0.3, "train": 1.0}  # cumulative shares of the splits
_GOALS_PER_TEMPLATE: Final = {"train": 2, "validation": 6, "test": 14}  # rememberer, for each of the five templates
_PUBLISHED_TRAIN_SETS: Final = {  # rememberer: task files of its README (commit 552cb62)
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
class TaskSelection:
    """Options that determine the goals."""

    protocol: str = "by-article"
    tasks: str = ""  # folder of task files; "" = generated goals
    seed: int = 0  # of the dataset
    train_set: str = "S0"  # of the protocol rememberer
    templates: tuple[str, ...] = ()  # kinds of generated goals, see `WikiHowGoal.kind`; () = all

    def __post_init__(self) -> None:
        for kind in self.templates:
            require_choice("templates", kind, KINDS)
        if require_type(str, "tasks", self.tasks) and self.templates:
            raise ConfigError("env.options.templates chooses generated goals, env.options.tasks others: leave one out")
        require_type(int, "dataset_seed", self.seed)
        require_choice("protocol", self.protocol, ("by-article", "rememberer"))
        require_choice("train_set", self.train_set, _PUBLISHED_TRAIN_SETS)


Splits = Mapping[str, Sequence[WikiHowGoal | str]]  # goals, or names of task files


def compute_splits(library: Library, choice: TaskSelection) -> Splits:
    """Compute all splits. Some may be empty for a small library or a folder of few files."""
    if choice.tasks:
        return _split_files(Path(choice.tasks), choice)
    splits: dict[str, list[WikiHowGoal]] = {split: [] for split in SPLITS}
    for goal in _iter_goals(library, choice.seed):
        if not choice.templates or goal.kind in choice.templates:
            splits[_assign_split(goal.slug)].append(goal)
    return splits if choice.protocol == "by-article" else _limit_sizes(splits, choice.train_set)


def make_tasks(splits: Splits, split: str, choice: TaskSelection) -> list[Task]:
    """Make tasks ``wikihow/PROTOCOL/NAME`` of the goals of one split, in the protocol's order."""
    require_choice("split", split, SPLITS, where="")
    if not splits[split]:
        where = f"folder {choice.tasks}" if choice.tasks else "library"
        raise ConfigError(
            f"the {where} has no goal in split {split!r} by protocol {choice.protocol!r}: name one with more of them"
            + (f", or put task files into {choice.tasks}/{split}" if choice.tasks else "")
        )
    return [_make_task(goal, split, choice) for goal in splits[split]]


def build_identity(splits: Splits, choice: TaskSelection) -> dict[str, Any]:
    """Identify the goals of a run, as JSON: its options, and for each split the number and a hash of its goals."""
    return {
        "protocol": choice.protocol,
        "goals": "files" if choice.tasks else "ours",
        "dataset_seed": choice.seed,
        "train_set": choice.train_set,
        "templates": [*choice.templates],
        "splits": {
            split: {"goals": len(splits[split]), "sha256": _hash_goals(splits[split], choice)} for split in SPLITS
        },
    }


def _hash_goals(goals: Sequence[WikiHowGoal | str], choice: TaskSelection) -> str:
    digest = hashlib.sha256()
    for goal in goals:
        if isinstance(goal, str):
            digest.update(f"{goal}\n".encode() + (Path(choice.tasks) / goal).read_bytes())
        else:
            digest.update(json.dumps(goal.to_json(), sort_keys=True).encode())
    return digest.hexdigest()


def _make_task(goal: WikiHowGoal | str, split: str, choice: TaskSelection) -> Task:
    if isinstance(goal, str):
        name = goal.removesuffix(".textproto")
        return Task(f"wikihow/files/{name}", "wikihow", choice.seed, split, {"file": goal})
    name = f"wikihow/{choice.protocol}/{goal.id}" + (f"@{choice.seed}" if choice.seed else "")
    return Task(name, "wikihow", choice.seed, split, goal.to_json())


def _iter_goals(library: Library, seed: int) -> Iterator[WikiHowGoal]:
    taken: set[str] = set()
    for page in library:
        if not isinstance(page, Article):
            continue
        rng = random.Random(derive_seed("wikihow", seed, "template", page.path))
        goal = _draw_goal(library, page, rng)
        if goal.id not in taken:  # two titles may differ in punctuation alone
            taken.add(goal.id)
            yield goal


def _draw_goal(library: Library, article: Article, rng: random.Random) -> WikiHowGoal:
    possible = {
        "about": True,
        "author": any(author_path(name) in library for name in article.authors),
        "category": any(category_path(name) in library for name in article.categories),
        "references": bool(article.references),
        "article": True,
    }
    template = cast("Template", rng.choice([name for name in TEMPLATE_NUMBERS if possible[name]]))
    if template not in ("author", "category"):
        return make_goal(template, article.title, article.path)
    names, path_of = (article.authors, author_path) if template == "author" else (article.categories, category_path)
    name = rng.choice([name for name in names if path_of(name) in library])
    page = library[path_of(name)]
    assert isinstance(page, Author | Category)
    # Sometimes a second article follows, of the same split.
    others, split = (path for path in page.articles[:12] if path != article.path), _assign_split(article.path)
    near = [path for path in others if _assign_split(path) == split]
    articles = [*library.articles(rng.sample(near, 1))] if near and rng.random() < 0.7 else []
    then = (articles[0].title, articles[0].path) if articles else ("", "")
    return make_goal(template, article.title, article.path, name, then)


def _assign_split(slug: str) -> str:
    # By its path alone, so that no dataset seed trains on an article that another evaluates.
    drawn = derive_seed("wikihow", "by-article", slug.casefold()) / 2**63
    return next(split for split, end in _CUMULATIVE_SHARES.items() if drawn < end)


def _limit_sizes(splits: Mapping[str, Sequence[WikiHowGoal]], train_set: str) -> Splits:
    # The two training sets are disjoint.
    chosen: dict[str, list[WikiHowGoal]] = {split: [] for split in SPLITS}
    for split, count in _GOALS_PER_TEMPLATE.items():
        first = count if split == "train" and train_set == "S1" else 0
        for template in TEMPLATE_NUMBERS:
            goals = [goal for goal in splits[split] if goal.template == template]
            chosen[split] += goals[first : first + count]
    return chosen


def _split_files(folder: Path, choice: TaskSelection) -> Splits:
    # A folder named like a split is that split; other files are split by the article of their names. The protocol
    # rememberer trains on the published names in any folder, and leaves the other training set out.
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.textproto"))
    if not names:
        raise ConfigError(f"env.options.tasks = {str(folder)!r} holds no .textproto file: name a folder that does")
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    published = {stem: train_set for train_set, stems in _PUBLISHED_TRAIN_SETS.items() for stem in stems}
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
            split = _assign_split(stem.rpartition("-")[0] or stem)
        if split:
            splits[split].append(name)
    return splits
