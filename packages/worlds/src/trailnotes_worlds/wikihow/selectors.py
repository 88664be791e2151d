"""Which views of a screen a task file means: Mobile-Env's dialect of CSS selectors.

``#"a:id/b"`` is a resource-id, ``."android.view.View"`` a class, ``$"package"`` a package, ``@2`` an index among the
views of one parent; a ``$`` or ``^`` before the quotes means the end or the beginning of the value. ``[text="x"]``
names any other attribute. A blank means somewhere within, ``>`` directly within, a comma or. What CSS has besides,
pseudo-classes above all, no task file uses: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from trailnotes.errors import ConfigError
from trailnotes_worlds.wikihow.views import PACKAGE, View

ATTRIBUTES: Final = ("resource-id", "class", "package", "index", "text", "content-desc", "clickable")
_QUICK: Final = {"#": "resource-id", ".": "class", "$": "package", "@": "index"}
_SIMPLE: Final = re.compile(
    r"""(?P<quick>[\#.$@])(?P<end>[$^*]?)(?:"(?P<value>[^"]+)"|(?P<digits>\d+))
    | \[\s*(?P<name>[\w-]+)\s*(?P<sign>[$^*]?)=\s*(?:"(?P<quoted>[^"]*)"|'(?P<single>[^']*)'|(?P<word>[\w.:/-]+))\s*\]
    | (?P<any>\*)""",
    re.VERBOSE,
)
_BETWEEN: Final = re.compile(r"\s*(>|,)\s*|\s+")


class _Test(NamedTuple):
    attribute: str
    sign: str  # "" equal, "^" begins, "$" ends, "*" holds
    value: str

    def holds(self, actual: str) -> bool:
        if self.sign == "^":
            return actual.startswith(self.value)
        if self.sign == "$":
            return actual.endswith(self.value)
        return self.value in actual if self.sign == "*" else actual == self.value


class _Part(NamedTuple):
    """One view of a path, and how it lies in the one before: ">" directly, " " anywhere."""

    within: str
    tests: tuple[_Test, ...]


class Placed(NamedTuple):
    """A view, its place among its siblings, and the views around it, the outermost first."""

    view: View
    place: int
    around: tuple[Placed, ...]

    def attribute(self, name: str) -> str:
        """The value of an attribute, as the hierarchy's XML has it; "" of what it has not."""
        view = self.view
        values = (
            view.name,
            view.kind,
            PACKAGE,
            str(self.place),
            view.text,
            view.described,
            str(view.clickable).lower(),
        )
        return dict(zip(ATTRIBUTES, values, strict=True)).get(name, "")


def placed(root: View) -> list[Placed]:
    """All views, in document order."""
    return list(_placed(root, 0, ()))


def _placed(view: View, place: int, around: tuple[Placed, ...]) -> Iterator[Placed]:
    here = Placed(view, place, around)
    yield here
    for number, child in enumerate(view.children):
        yield from _placed(child, number, (*around, here))


class Selector:
    """A group of selectors; a view is meant that any of them means.

    Raises:
        ConfigError: it is none, or asks for more of CSS than is understood.
    """

    def __init__(self, texts: Sequence[str], where: str) -> None:
        self._paths = [path for text in texts for path in _paths(text, where)]

    def of(self, views: Sequence[Placed]) -> list[Placed]:
        """Those of `views` that are meant."""
        return [each for each in views if any(_ends_at(path, each) for path in self._paths)]


def _ends_at(path: Sequence[_Part], each: Placed) -> bool:
    last = path[-1]
    if not all(test.holds(each.attribute(test.attribute)) for test in last.tests):
        return False
    if len(path) == 1:
        return True
    around = each.around[-1:] if last.within == ">" else each.around
    return any(_ends_at(path[:-1], parent) for parent in around)


def _paths(text: str, where: str) -> list[list[_Part]]:
    paths: list[list[_Part]] = [[]]
    place, within, text = 0, " ", text.strip()
    while place < len(text):
        tests, start = [], place
        while match := _SIMPLE.match(text, place):
            tests += _tests(match)
            place = match.end()
        if place == start:
            raise _wrong(text, where)
        paths[-1].append(_Part(within, tuple(tests)))
        between = _BETWEEN.match(text, place)
        if between is None and place == len(text):
            return paths
        if between is None:
            break
        within, place = between[1] or " ", between.end()
        if within == ",":
            paths.append([])
            within = " "
    raise _wrong(text, where)


def _tests(match: re.Match[str]) -> list[_Test]:
    if match["any"]:
        return []
    if match["quick"]:
        return [_Test(_QUICK[match["quick"]], match["end"], match["value"] or match["digits"])]
    value = next(match[group] for group in ("quoted", "single", "word") if match[group] is not None)
    return [_Test(match["name"], match["sign"], value)]


def _wrong(text: str, where: str) -> ConfigError:
    return ConfigError(
        f"{where}: {text[:80]!r} is no selector: write paths of "
        '#"resource-id", ."class", $"package", @index and [attribute="value"], joined by blanks, ">" or ","'
    )
