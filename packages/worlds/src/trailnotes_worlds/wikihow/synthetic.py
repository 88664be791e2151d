"""A library of our own: articles that are made of words and a seed, with the links between them that tasks need."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from trailnotes.seeds import derive_seed
from trailnotes.storage.files import get_cache_dir, open_or_make
from trailnotes_worlds.wikihow import synthetic_words as words
from trailnotes_worlds.wikihow.articles import VERIFIED, Article, Author, Category, LibraryPage
from trailnotes_worlds.wikihow.library import VERSION, Library, write_library

NAME: Final = "synthetic"
GENERATOR_VERSION: Final = 1  # of the words and the rules: another one makes other articles of a seed
NUM_ARTICLES: Final = 840  # 35 in each of 24 categories

_AUTHORS_PER_SUBJECT: Final = 6
_NEWEST: Final = date(2022, 7, 1)


def open_library(place: str | Path) -> Library:
    """The library of a folder; ``"synthetic"`` is ours, made at its first use and kept in the user's cache.

    Raises:
        ConfigError: as `Library.open`.
        RunError: ours cannot be written; set TRAILNOTES_CACHE to another folder.
    """
    return open_synthetic() if str(place) == NAME else Library.open(place)


def open_synthetic(count: int = NUM_ARTICLES, seed: int = 0) -> Library:
    """Our library, from ``wikihow`` in the user's cache, made if it is not there.

    Raises as `open_library`.
    """
    folder = get_cache_dir("wikihow") / f"{NAME}-{GENERATOR_VERSION}.{VERSION}-{count}-{seed}"
    facts = {"again": "delete its folder, and it is made again"}
    return open_or_make(
        folder, lambda: write_library(folder, make_pages(count, seed), facts), lambda: Library.open(folder)
    )


def make_pages(count: int = NUM_ARTICLES, seed: int = 0) -> list[LibraryPage]:
    """About `count` articles of a seed, evenly over the categories, with the pages of categories and authors."""
    rng = random.Random(derive_seed("wikihow synthetic", GENERATOR_VERSION, seed))
    subjects = [(broad, name) for broad, within in words.SUBJECTS.items() for name in within]
    authors = _make_authors(rng)
    articles: list[Article] = []
    for place, (broad, name) in enumerate(subjects):
        share = count * (place + 1) // len(subjects) - count * place // len(subjects)
        articles += _add_related_links(_make_articles(broad, name, share, authors[broad], rng), rng)
    rng.shuffle(articles)
    return [*articles, *_make_author_pages(authors, articles, rng), *_make_category_pages(articles)]


def _make_authors(rng: random.Random) -> Mapping[str, Sequence[str]]:
    """Names of authors, by the broadest category that they write about."""
    number = len(words.SUBJECTS) * _AUTHORS_PER_SUBJECT
    pairs = rng.sample([(first, last) for first in words.FIRST_NAMES for last in words.LAST_NAMES], number)
    names = [f"{first} {last}{rng.choice(words.CREDENTIALS)}" for first, last in pairs]
    return {broad: names[place :: len(words.SUBJECTS)] for place, broad in enumerate(words.SUBJECTS)}


def _make_articles(broad: str, name: str, count: int, authors: Sequence[str], rng: random.Random) -> list[Article]:
    verbs, things, hows = words.SUBJECTS[broad][name]
    chosen = rng.sample([(verb, thing, how) for verb in verbs for thing in things for how in hows], count)
    return [_make_article((broad, name), parts, authors, rng) for parts in chosen]


def _make_article(
    categories: tuple[str, str], parts: tuple[str, str, str], authors: Sequence[str], rng: random.Random
) -> Article:
    verb, thing, how = parts
    said = {"verb": verb.lower(), "thing": thing.lower(), "how": how.lower()}
    steps = [text.format(**said) for text in words.STEPS]
    methods = tuple(
        (heading, tuple(steps[place] for place in sorted(rng.sample(range(len(steps)), rng.randint(2, 4)))))
        for heading in words.HEADINGS[: rng.randint(2, 3)]
    )
    references = tuple(
        text.format(subject=categories[1], number=rng.randint(2, 30))
        for text in rng.sample(words.REFERENCES, rng.randint(1, 3))
    )
    article = "an" if thing[0] in "AEIOU" else "a"
    intro = rng.choice(words.INTROS).format(**said).replace(f" a {said['thing']}", f" {article} {said['thing']}")
    return Article(
        title=f"{verb} {article} {thing} {how}",
        categories=categories,
        authors=tuple(rng.sample(authors, rng.choice((1, 1, 2)))),
        byline=rng.choice(("Co-authored by", "Written by")),
        updated=(_NEWEST - timedelta(days=rng.randrange(1500))).isoformat(),
        views=int(10 ** rng.uniform(2.5, 6)),
        verified=rng.choice(VERIFIED),
        approved=rng.choice(("", "Approved", "Tested")),
        intro=_join_lines(intro),
        methods=methods,
        references=references if rng.random() < 0.8 else (),
    )


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _add_related_links(articles: list[Article], rng: random.Random) -> list[Article]:
    """Some articles of a category lead to others of it."""
    linked = []
    for article in articles:
        others = [each.path for each in articles if each is not article]
        linked.append(replace(article, related=tuple(rng.sample(others, min(3, len(others))))))
    return linked


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
            rng.choice(words.ROLES),
            _join_lines(words.BIO.format(name=name.partition(",")[0], subject=broad, number=rng.randint(3, 30))),
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
    for broad, within in words.SUBJECTS.items():
        for name, parent, topics in ((broad, "", tuple(within)), *((name, broad, ()) for name in within)):
            own = members[name]
            opening, between, closing = words.ABOUT
            about = [(opening.format(name=name), "")]
            for article in own[:3]:
                about += [(f"How to {article.title}", article.path), (between, "")]
            about[-1] = (closing, "")
            paths = tuple(article.path for article in own)
            made.append(Category(name, parent, tuple(about), topics, paths[3:9], paths))
    return made
