"""Each method stands alone in its file, and what two of them would both spell out belongs in a layer below."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections import defaultdict
from pathlib import Path

import trailnotes

FOLDER = Path(trailnotes.__file__).parent / "algorithms"
FILES = [*sorted(FOLDER.glob("[!_]*.py")), *sorted(FOLDER.glob("*/method.py"))]
LINES = 6
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


def shapes(source: str) -> list[tuple[int, str]]:
    """Number and shape of each logical line: names and literals are blanked; imports and docstrings are left out."""
    left_out = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: dict[int, list[str]] = defaultdict(list)
    start = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            start = 0
        elif token.type not in SKIPPED and token.start[0] not in left_out:
            start = start or token.start[0]
            named = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
            lines[start].append(
                "name" if named else token.string if token.type in {tokenize.NAME, tokenize.OP} else "1"
            )
    return [(number, " ".join(words)) for number, words in sorted(lines.items())]


def shared(sources: dict[str, str], length: int = LINES) -> list[str]:
    """Places of the blocks of `length` logical lines whose shape stands in more than one file."""
    places: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
    for name, source in sources.items():
        lines = shapes(source)
        for i in range(len(lines) - length + 1):
            block = lines[i : i + length]
            places[tuple(shape for _, shape in block)].setdefault(name, block[0][0])
    return [", ".join(f"{name}:{line}" for name, line in where.items()) for where in places.values() if len(where) > 1]


def test_no_two_methods_share_a_block() -> None:
    assert len(FILES) >= 4
    assert shared({str(path): path.read_text(encoding="utf-8") for path in FILES}) == []


def test_a_block_is_found_whatever_its_names_are() -> None:
    block = "import {0}\nfor {0} in range(3):\n    {1} = {0}({1}, 2)  # so\n    {1}.go(\n        {0}\n    )\n"
    one, other = block.format("a", "b"), "x = 1\n\n" + block.format("longer", "names")
    assert shared({"one": one, "other": other}, 3) == ["one:2, other:4"]
    assert shared({"one": one, "other": other.replace("2)", "2, 2)")}, 3) == []
    assert len(shapes(one)) == 3, "the import is left out, and the last statement is one line"
