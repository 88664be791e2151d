"""The synthetic library: articles generated from word lists and a seed, with the links that tasks need."""

from __future__ import annotations

import random
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

from trailnotes.storage.files import get_cache_dir
from trailnotes.types import derive_seed
from trailnotes_worlds.search.mapped import open_or_write
from trailnotes_worlds.wikihow.articles import VERIFIED, Article, Author, Category, LibraryPage
from trailnotes_worlds.wikihow.library import VERSION, Library, write_library

NAME: Final = "synthetic"
GENERATOR_VERSION: Final = 1  # of words and rules: another version makes other articles of the same seed
NUM_ARTICLES: Final = 840  # 35 in each of 24 categories

_AUTHORS_PER_SUBJECT: Final = 6
_WORDS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# broadest category -> category -> verbs, things, circumstances
_SUBJECTS: Final[dict[str, dict[str, Any]]] = _WORDS["subjects"]
_NEWEST: Final = date(2022, 7, 1)


def open_library(place: str | Path) -> Library:
    """Open the library of a folder, or the ``"synthetic"`` one, which its first use writes to the user's cache."""
    return open_synthetic() if str(place) == NAME else Library.open(place)


def open_synthetic(count: int = NUM_ARTICLES, seed: int = 0) -> Library:
    """Open the synthetic library in the user's cache, and make it first if it is missing. Raises as `open_library`."""
    folder = get_cache_dir("wikihow") / f"{NAME}-{GENERATOR_VERSION}.{VERSION}-{count}-{seed}"
    return open_or_write(folder, lambda facts: write_library(folder, make_pages(count, seed), facts), Library.open)


def make_pages(count: int = NUM_ARTICLES, seed: int = 0) -> list[LibraryPage]:
    """Generate about `count` articles, evenly over the categories, with the pages of categories and authors."""
    rng = random.Random(derive_seed("wikihow synthetic", GENERATOR_VERSION, seed))
    subjects = [(broad, name) for broad, within in _SUBJECTS.items() for name in within]
    firsts, lasts, number = _WORDS["first_names"], _WORDS["last_names"], len(_SUBJECTS) * _AUTHORS_PER_SUBJECT
    pairs = rng.sample([(first, last) for first in firsts for last in lasts], number)
    names = [f"{first} {last}{rng.choice(_WORDS['credentials'])}" for first, last in pairs]
    authors = {broad: names[place :: len(_SUBJECTS)] for place, broad in enumerate(_SUBJECTS)}
    articles: list[Article] = []
    for place, (broad, name) in enumerate(subjects):
        share = count * (place + 1) // len(subjects) - count * place // len(subjects)
        verbs, things, hows = _SUBJECTS[broad][name].values()
        chosen = rng.sample([(verb, thing, how) for verb in verbs for thing in things for how in hows], share)
        made = [_make_article((broad, name), parts, authors[broad], rng) for parts in chosen]
        for article in made:
            others = [each.path for each in made if each is not article]
            articles.append(replace(article, related=tuple(rng.sample(others, min(3, len(others))))))
    rng.shuffle(articles)
    return [*articles, *_make_author_pages(authors, articles, rng), *_make_category_pages(articles)]


def _make_article(
    categories: tuple[str, str], parts: tuple[str, str, str], authors: Sequence[str], rng: random.Random
) -> Article:
    verb, thing, how = parts
    words = {"verb": verb.lower(), "thing": thing.lower(), "how": how.lower()}
    steps = [text.format(**words) for text in _WORDS["steps"]]
    methods = tuple(
        (heading, tuple(steps[place] for place in sorted(rng.sample(range(len(steps)), rng.randint(2, 4)))))
        for heading in _WORDS["headings"][: rng.randint(2, 3)]
    )
    references = tuple(
        text.format(subject=categories[1], number=rng.randint(2, 30))
        for text in rng.sample(_WORDS["references"], rng.randint(1, 3))
    )
    article = "an" if thing[0] in "AEIOU" else "a"
    intro = rng.choice(_WORDS["intros"]).format(**words).replace(f" a {words['thing']}", f" {article} {words['thing']}")
    return Article(
        title=f"{verb} {article} {thing} {how}",
        categories=categories,
        authors=tuple(rng.sample(authors, rng.choice((1, 1, 2)))),
        byline=rng.choice(("Co-authored by", "Written by")),
        updated=(_NEWEST - timedelta(days=rng.randrange(1500))).isoformat(),
        views=int(10 ** rng.uniform(2.5, 6)),
        verified=rng.choice(VERIFIED),
        approved=rng.choice(("", "Approved", "Tested")),
        intro=intro,
        methods=methods,
        references=references if rng.random() < 0.8 else (),
    )


def _make_author_pages(
    authors: Mapping[str, Sequence[str]], articles: Sequence[Article], rng: random.Random
) -> list[Author]:
    written = defaultdict(list)
    for article in articles:
        for name in article.authors:
            written[name].append(article.path)
    return [
        Author(
            name,
            rng.choice(_WORDS["roles"]),
            _WORDS["bio"].format(name=name.partition(",")[0], subject=broad, number=rng.randint(3, 30)),
            tuple(written[name]),
        )
        for broad, names in authors.items()
        for name in names
    ]


def _make_category_pages(articles: Sequence[Article]) -> list[Category]:
    members: defaultdict[str, list[Article]] = defaultdict(list)
    for article in articles:
        for name in article.categories:
            members[name].append(article)
    made = []
    for broad, within in _SUBJECTS.items():
        for name, parent, topics in ((broad, "", tuple(within)), *((name, broad, ()) for name in within)):
            own = members[name]
            opening, between, closing = _WORDS["about"]
            about = [(opening.format(name=name), "")]
            for article in own[:3]:
                about += [(f"How to {article.title}", article.path), (between, "")]
            about[-1] = (closing, "")
            paths = tuple(article.path for article in own)
            made.append(Category(name, parent, tuple(about), topics, paths[3:9], paths))
    return made
