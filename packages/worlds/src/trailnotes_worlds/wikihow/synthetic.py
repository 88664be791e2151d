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
from trailnotes.storage.files import made_once, user_cache
from trailnotes_worlds.wikihow import synthetic_words as words
from trailnotes_worlds.wikihow.articles import VERIFIED, Article, Author, Category, Page
from trailnotes_worlds.wikihow.library import VERSION, Library, write_library

NAME: Final = "synthetic"
RELEASE: Final = 1  # of the words and the rules: another one makes other articles of a seed
ARTICLES: Final = 840  # 35 in each of 24 categories

_AUTHORS_OF_A_SUBJECT: Final = 6
_NEWEST: Final = date(2022, 7, 1)


def open_library(place: str | Path) -> Library:
    """The library of a folder; ``"synthetic"`` is ours, made at its first use and kept in the user's cache.

    Raises:
        ConfigError: as `Library.open`.
        RunError: ours cannot be written; set TRAILNOTES_CACHE to another folder.
    """
    return open_synthetic() if str(place) == NAME else Library.open(place)


def open_synthetic(count: int = ARTICLES, seed: int = 0) -> Library:
    """Our library, from ``wikihow`` in the user's cache, made if it is not there.

    Raises as `open_library`.
    """
    folder = user_cache("wikihow") / f"{NAME}-{RELEASE}.{VERSION}-{count}-{seed}"
    facts = {"again": "delete its folder, and it is made again"}
    return made_once(
        folder, lambda: write_library(folder, make_pages(count, seed), facts), lambda: Library.open(folder)
    )


def make_pages(count: int = ARTICLES, seed: int = 0) -> list[Page]:
    """About `count` articles of a seed, evenly over the categories, with the pages of categories and authors."""
    rng = random.Random(derive_seed("wikihow synthetic", RELEASE, seed))
    subjects = [(broad, name) for broad, within in words.SUBJECTS.items() for name in within]
    authors = _authors(rng)
    articles: list[Article] = []
    for place, (broad, name) in enumerate(subjects):
        share = count * (place + 1) // len(subjects) - count * place // len(subjects)
        articles += _related(_articles(broad, name, share, authors[broad], rng), rng)
    rng.shuffle(articles)
    return [*articles, *_author_pages(authors, articles, rng), *_category_pages(articles)]


def _authors(rng: random.Random) -> Mapping[str, Sequence[str]]:
    """Names of authors, by the broadest category that they write about."""
    number = len(words.SUBJECTS) * _AUTHORS_OF_A_SUBJECT
    pairs = rng.sample([(first, last) for first in words.FIRST_NAMES for last in words.LAST_NAMES], number)
    names = [f"{first} {last}{rng.choice(words.CREDENTIALS)}" for first, last in pairs]
    return {broad: names[place :: len(words.SUBJECTS)] for place, broad in enumerate(words.SUBJECTS)}


def _articles(broad: str, name: str, count: int, authors: Sequence[str], rng: random.Random) -> list[Article]:
    verbs, things, hows = words.SUBJECTS[broad][name]
    chosen = rng.sample([(verb, thing, how) for verb in verbs for thing in things for how in hows], count)
    return [_article((broad, name), parts, authors, rng) for parts in chosen]


def _article(
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
        intro=_on_one_line(intro),
        methods=methods,
        references=references if rng.random() < 0.8 else (),
    )


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _related(articles: list[Article], rng: random.Random) -> list[Article]:
    """Some articles of a category lead to others of it."""
    linked = []
    for article in articles:
        others = [each.path for each in articles if each is not article]
        linked.append(replace(article, related=tuple(rng.sample(others, min(3, len(others))))))
    return linked


def _author_pages(
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
            _on_one_line(words.BIO.format(name=name.partition(",")[0], subject=broad, number=rng.randint(3, 30))),
            tuple(written[name]),
        )
        for broad, names in authors.items()
        for name in names
    ]


def _category_pages(articles: Sequence[Article]) -> list[Category]:
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
