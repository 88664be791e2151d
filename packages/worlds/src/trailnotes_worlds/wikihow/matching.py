"""Matchers of task files: CSS selectors of views, text matchers, and the statements that compute an event's value.

In Mobile-Env's dialect of CSS ``#"a:id/b"`` is a resource-id, ``."android.view.View"`` a class, ``$"package"`` a
package, ``@2`` an index among the views of one parent; a ``$`` or ``^`` before the quotes means the end or the
beginning of the value. ``[text="x"]`` names any other attribute. A blank means a descendant, ``>`` a child, a comma
"or". Task files use no other part of CSS, such as pseudo-classes: the parser refuses them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from trailnotes.errors import ConfigError, MissingExtraError, find_missing_module, format_install_command
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


MAX_TEXT: Final = 2_000  # characters of a text that are compared: what is compared with is an agent's, or a page's
_MAX_DEPTH: Final = 20


class Matcher:
    """Comparison of a text with the expected one.

    Args:
        wanted: a pattern for mode REGEX, else a text.
        mode: REGEX searches for the pattern; DIFFLIB and FUZZ compare whole texts.
        threshold: least similarity that counts: 0 to 1 for DIFFLIB, 0 to 100 for FUZZ.
        where: place in the file, for errors.

    Raises:
        ConfigError: mode SBERT, since environments have no sentence encoder.
        MissingExtraError: mode FUZZ without rapidfuzz, which the extra webshop installs.
    """

    def __init__(self, wanted: re.Pattern[str] | str, mode: str, threshold: float, where: str) -> None:
        if mode == "SBERT":
            raise ConfigError(f"{where}: mode SBERT needs a sentence encoder: use REGEX, DIFFLIB or FUZZ")
        if mode == "FUZZ" and find_missing_module("webshop"):
            raise MissingExtraError(
                f"{where}: mode FUZZ needs the package rapidfuzz: {format_install_command('webshop')}"
            )
        self._wanted, self._mode, self._threshold = wanted, mode, threshold

    def match(self, text: str) -> object | None:
        """Return the groups of the pattern, or the similarity of the texts; None without a match."""
        text = text[:MAX_TEXT]
        if isinstance(self._wanted, re.Pattern):
            found = self._wanted.search(text)
            return None if found is None else list(found.groups())
        if self._mode == "DIFFLIB":
            score = SequenceMatcher(None, text, self._wanted[:MAX_TEXT], autojunk=False).ratio()
        else:
            from rapidfuzz import fuzz

            score = float(fuzz.ratio(self._wanted[:MAX_TEXT], text))
        return score if score >= self._threshold else None


class Transformation:
    """Statement ``y = ...`` of an event: a constant, or the event's input (``x``, ``x[0]``, ``x[1][0]``).

    Mobile-Env lets Python run these statements. This class parses them, never executes them, and refuses anything but
    constants and parts of ``x``.

    Args:
        statements: the last one counts; none is ``y = x``.
        where: place in the file, for errors.

    Raises:
        ConfigError: a statement of another kind.
    """

    def __init__(self, statements: Sequence[str], where: str) -> None:
        self._value = [ast.Name("x"), *(_parse_assignment(statement, where) for statement in statements)][-1]

    @property
    def constant(self) -> Any:
        """Value that does not depend on the input; None otherwise."""
        try:
            return ast.literal_eval(self._value)
        except ValueError:
            return None

    def apply(self, seen: Any) -> Any:
        """Compute the value of the event from its input.

        Raises:
            LookupError: ``x`` has no such part.
            TypeError: ``x`` has no parts.
        """
        return _evaluate(self._value, seen)


def _parse_assignment(statement: str, where: str) -> ast.expr:
    said = f"{where}: the transformation {statement[:60]!r}"
    try:
        body = ast.parse(statement).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigError(f"{said} is no statement") from error
    if len(body) == 1 and isinstance(body[0], ast.Assign) and len(body[0].targets) == 1:
        target, value = body[0].targets[0], body[0].value
        if isinstance(target, ast.Name) and target.id == "y" and _is_plain(value, _MAX_DEPTH):
            return value
    raise ConfigError(f"{said} is not understood: give y a constant, x, or a part of x by number, such as y = x[0]")


def _is_plain(value: ast.expr, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(value, ast.List | ast.Tuple):
        return all(_is_plain(each, depth - 1) for each in value.elts)
    if isinstance(value, ast.Subscript):
        is_number = isinstance(value.slice, ast.Constant) and isinstance(value.slice.value, int)
        return is_number and not isinstance(value.value, ast.Constant) and _is_plain(value.value, depth - 1)
    if isinstance(value, ast.Name):
        return value.id == "x"
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _evaluate(value: ast.expr, seen: Any) -> Any:
    if isinstance(value, ast.Name):
        return seen
    if isinstance(value, ast.Subscript):
        assert isinstance(value.slice, ast.Constant)
        return _evaluate(value.value, seen)[value.slice.value]
    if isinstance(value, ast.List | ast.Tuple):
        return [_evaluate(each, seen) for each in value.elts]
    return ast.literal_eval(value)
