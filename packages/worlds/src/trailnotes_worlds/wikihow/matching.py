"""How a text is compared with what a task file expects, and what an event is worth."""

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
    """Finds out whether a text is the expected one.

    Args:
        wanted: a pattern for mode REGEX, else a text.
        mode: REGEX finds it anywhere; DIFFLIB and FUZZ compare the whole texts.
        threshold: of the likeness that counts: 0 to 1 for DIFFLIB, 0 to 100 for FUZZ.
        where: of the file, for errors.

    Raises:
        ConfigError: mode SBERT, which needs a sentence encoder that an environment has not.
        MissingExtraError: mode FUZZ without rapidfuzz, which the extra webshop brings.
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
        """The groups of the pattern, or how alike the texts are; None where that is not enough."""
        text = text[:MAX_TEXT]
        if isinstance(self._wanted, re.Pattern):
            found = self._wanted.search(text)
            return None if found is None else list(found.groups())
        score = self._compute_similarity(text, self._wanted)
        return score if score >= self._threshold else None

    def _compute_similarity(self, text: str, wanted: str) -> float:
        if self._mode == "DIFFLIB":
            return SequenceMatcher(None, text, wanted[:MAX_TEXT], autojunk=False).ratio()
        from rapidfuzz import fuzz

        return float(fuzz.ratio(wanted[:MAX_TEXT], text))


class Transformation:
    """``y = ...`` of an event: a constant, or what the event has seen (``x``, ``x[0]``, ``x[1][0]``).

    Mobile-Env hands these statements to Python. Here they are read and never executed, and whatever is no constant and
    no part of ``x`` is refused.

    Args:
        statements: the last one that gives ``y`` counts; none at all is ``y = x``.
        where: of the file, for errors.

    Raises:
        ConfigError: a statement of another kind.
    """

    def __init__(self, statements: Sequence[str], where: str) -> None:
        self._value: ast.expr = ast.Name("x")
        for statement in statements:
            self._value = _parse_assignment(statement, where)

    @property
    def constant(self) -> Any:
        """What it gives whatever was seen; None where that depends."""
        try:
            return ast.literal_eval(self._value)
        except ValueError:
            return None

    def apply(self, seen: Any) -> Any:
        """What the event gives for what it has seen.

        Raises:
            LookupError: ``x`` has no such part.
            TypeError: nor any parts.
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
