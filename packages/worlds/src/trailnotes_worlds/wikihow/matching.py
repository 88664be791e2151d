"""Text matchers of task files, and the statements that compute the value of an event."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any, Final

from trailnotes.errors import ConfigError, MissingExtraError, find_missing_module, format_install_command

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
