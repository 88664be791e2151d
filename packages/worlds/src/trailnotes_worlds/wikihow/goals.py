"""Goals: instructions to find pages in a library, and the task file that judges them.

The number behind the name of a task is its template: 8 an article, 0 from it to the page about trust in wikiHow, 4 to
the page of an author, 6 to that of a category (and from either to another article), 7 to the references. Each page is
worth 1, once.

Source: the sentences of the 10 public task files of X-LANCE/Mobile-Env (commit 976145e).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from trailnotes_worlds.wikihow.articles import ABOUT, author_path, category_path, make_slug

Template = Literal["about", "author", "category", "references", "article"]
TEMPLATE_NUMBERS: Final[Mapping[str, int]] = {"about": 0, "author": 4, "category": 6, "references": 7, "article": 8}
_STOPWORDS: Final = frozenset((
    "a", "an", "and", "as", "at", "by", "for", "from", "how", "in", "into", "is", "it", "of", "on", "or", "over", "the",
    "to", "under", "with", "without", "your",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class WikiHowGoal:
    """Goal of an episode on generated task files."""

    template: Template
    title: str  # of the article to search for
    slug: str  # its path
    name: str = ""  # of the author or the category
    path: str = ""  # of that page
    then_title: str = ""  # of a second article to open from there; "" for none
    then_slug: str = ""

    @property
    def id(self) -> str:
        """Name and template number, as in the names of task files."""
        return f"{re.sub(r'[^a-z0-9]+', '_', self.title.lower()).strip('_')}-{TEMPLATE_NUMBERS[self.template]}"

    @property
    def kind(self) -> str:
        """Template, with "+article" for a second article."""
        return f"{self.template}+article" if self.then_slug else self.template

    @property
    def instructions(self) -> tuple[str, ...]:
        """Instructions in their order; the first one is the task itself."""
        told = [f"Search an article to learn how to {self.title.lower()}.", f'Access the article "How to {self.title}"']
        if self.template == "about":
            told.append("Access the about page to learn why people trust wikihow.")
        elif self.template == "author":
            told.append(f"Check the author page of {self.name}.")
        elif self.template == "category":
            told.append(f"Access the page of category {self.name}")
        elif self.template == "references":
            told.append("Check the reference list")
        return (*told, f'Access the article "How to {self.then_title}"') if self.then_title else tuple(told)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values for `from_json`."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> WikiHowGoal:
        """Read a goal from JSON values. Raises `ValueError`: they are no goal."""
        known = set(cls.__dataclass_fields__)
        if not {"template", "title", "slug"} <= set(values) <= known or values["template"] not in TEMPLATE_NUMBERS:
            raise ValueError(f"options {sorted(map(str, values))} instead of {sorted(known)}")
        if not all(isinstance(value, str) for value in values.values()):
            raise ValueError("its options are texts")
        return cls(**values)

    def render_task_file(self) -> str:
        """Render the task file."""
        return "".join(_iter_file_lines(self))


def extract_keywords(title: str) -> list[str]:
    """Extract the words of a title that identify a search for it."""
    found = [word for word in re.findall(r"\w+", title.lower()) if word not in _STOPWORDS]
    return found or re.findall(r"\w+", title.lower())


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


def _iter_file_lines(goal: WikiHowGoal) -> Iterator[str]:
    patterns = list(_iter_patterns(goal))
    yield f"id: {_quote(goal.id)}\ncommand: {_quote(goal.instructions[0])}\n"
    for number, pattern in enumerate(patterns, start=1):
        yield f'event_sources {{ id: {number} log_event {{ filters: "jd:D" pattern: {_quote(pattern)} }} }}\n'
    yield "event_slots {\n  reward_listener {\n    type: OR\n"
    for number in range(1, len(patterns) + 1):
        yield f"    events {{ event {{ id: {100 + number} events {{ id: {number} }} "
        yield 'transformation: "y = 1" repeatability: NONE } }\n'
    yield f'  }}\n  episode_end_listener {{ events {{ id: {100 + len(patterns)} }} transformation: "y = True" }}\n'
    yield "  instruction_listener {\n    type: OR\n"
    for number, text in enumerate(goal.instructions[1:], start=1):
        yield f"    events {{ event {{ events {{ id: {100 + number} }} "
        yield f"transformation: {_quote('y = ' + repr([text]))} }} }}\n"
    yield "  }\n}\n"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def make_goal(
    template: Template, title: str, slug: str, name: str = "", then: tuple[str, str] = ("", "")
) -> WikiHowGoal:
    """Make a goal; `name` is that of the template's author or category, `then` (title, slug) of a second article."""
    path = {"author": author_path, "category": category_path}.get(template, lambda _: "")(name)
    return WikiHowGoal(template, title, slug or make_slug(title), name, path, *then)
