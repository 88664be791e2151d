"""Mobile-Env's dialect of CSS selectors, by which a task file selects views of a screen.

``#"a:id/b"`` is a resource-id, ``."android.view.View"`` a class, ``$"package"`` a package, ``@2`` an index among the
views of one parent; a ``$`` or ``^`` before the quotes means the end or the beginning of the value. ``[text="x"]``
names any other attribute. A blank means a descendant, ``>`` a child, a comma "or". Task files use no other part of CSS,
such as pseudo-classes: the parser refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from trailnotes.errors import ConfigError
from trailnotes_worlds.wikihow.views import PACKAGE, View

ATTRIBUTES: Final = ("resource-id", "class", "package", "index", "text", "content-desc", "clickable")
_SHORTHANDS: Final = {"#": "resource-id", ".": "class", "$": "package", "@": "index"}
_SIMPLE_SELECTOR: Final = re.compile(
    r"""(?P<quick>[\#.$@])(?P<end>[$^*]?)(?:"(?P<value>[^"]+)"|(?P<digits>\d+))
    | \[\s*(?P<name>[\w-]+)\s*(?P<sign>[$^*]?)=\s*(?:"(?P<quoted>[^"]*)"|'(?P<single>[^']*)'|(?P<word>[\w.:/-]+))\s*\]
    | (?P<any>\*)""",
    re.VERBOSE,
)
_COMBINATOR: Final = re.compile(r"\s*(>|,)\s*|\s+")


class _AttributeTest(NamedTuple):
    attribute: str
    sign: str  # "" equal, "^" begins, "$" ends, "*" holds
    value: str

    def matches(self, actual: str) -> bool:
        if self.sign == "^":
            return actual.startswith(self.value)
        if self.sign == "$":
            return actual.endswith(self.value)
        return self.value in actual if self.sign == "*" else actual == self.value


class _PathStep(NamedTuple):
    within: str  # ">" child, " " descendant of the step before
    tests: tuple[_AttributeTest, ...]


class LocatedView(NamedTuple):
    """View with its index among its siblings and its ancestors, the outermost first."""

    view: View
    place: int
    around: tuple[LocatedView, ...]

    def get_attribute(self, name: str) -> str:
        """Return an attribute as the hierarchy's XML has it; "" for an unknown one."""
        view, place = self.view, str(self.place)
        values = (view.name, view.kind, PACKAGE, place, view.text, view.described, str(view.clickable).lower())
        return dict(zip(ATTRIBUTES, values, strict=True)).get(name, "")


def locate_views(root: View) -> list[LocatedView]:
    """List all views in document order."""

    def walk(view: View, place: int, around: tuple[LocatedView, ...]) -> Iterator[LocatedView]:
        here = LocatedView(view, place, around)
        yield here
        for number, child in enumerate(view.children):
            yield from walk(child, number, (*around, here))

    return list(walk(root, 0, ()))


class Selector:
    """Group of selectors: it selects a view that any of them selects.

    Raises:
        ConfigError: a text is no selector, or uses an unsupported part of CSS.
    """

    def __init__(self, texts: Sequence[str], where: str) -> None:
        self._paths = [path for text in texts for path in _parse_paths(text, where)]

    def select(self, views: Sequence[LocatedView]) -> list[LocatedView]:
        """Return those of `views` that match."""
        return [each for each in views if any(_matches_path(path, each) for path in self._paths)]


def _matches_path(path: Sequence[_PathStep], each: LocatedView) -> bool:
    last = path[-1]
    if not all(test.matches(each.get_attribute(test.attribute)) for test in last.tests):
        return False
    if len(path) == 1:
        return True
    around = each.around[-1:] if last.within == ">" else each.around
    return any(_matches_path(path[:-1], parent) for parent in around)


def _parse_paths(text: str, where: str) -> list[list[_PathStep]]:
    paths: list[list[_PathStep]] = [[]]
    place, within, text = 0, " ", text.strip()
    while place < len(text):
        tests, start = [], place
        while match := _SIMPLE_SELECTOR.match(text, place):
            place = match.end()
            if match["quick"]:
                value = match["value"] or match["digits"]
                tests.append(_AttributeTest(_SHORTHANDS[match["quick"]], match["end"], value))
            elif not match["any"]:
                value = next(match[group] for group in ("quoted", "single", "word") if match[group] is not None)
                tests.append(_AttributeTest(match["name"], match["sign"], value))
        if place == start:
            break
        paths[-1].append(_PathStep(within, tuple(tests)))
        between = _COMBINATOR.match(text, place)
        if between is None and place == len(text):
            return paths
        if between is None:
            break
        within, place = between[1] or " ", between.end()
        if within == ",":
            paths.append([])
            within = " "
    raise ConfigError(
        f"{where}: {text[:80]!r} is no selector: write paths of "
        '#"resource-id", ."class", $"package", @index and [attribute="value"], joined by blanks, ">" or ","'
    )
