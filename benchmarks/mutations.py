"""Change lines of the arithmetic, one at a time, and count how many changes the quick tests notice.

    python benchmarks/mutations.py --lines 30 --seed 0

A mutation swaps an operator or a comparison, adds one to a number, drops a `not`, or swaps `and` and `or`, in a line
drawn at random from credit, losses, rows, and the memory's rules and store. The tests run in a copy of the sources.
Prints a line for each mutation and the share noticed. It takes some minutes for each change that no test notices.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEARNER_TESTS, MEMORY_TESTS = ("tests/learner", "tests/algorithms", "tests/rollout"), ("tests/memory", "tests/rollout")
TARGETS = {
    "learner/credit/*.py": LEARNER_TESTS,
    "learner/losses.py": LEARNER_TESTS,
    "learner/samples.py": LEARNER_TESTS,
    "memory/[!ml_]*.py": MEMORY_TESTS,
}
"""Files below src/trailnotes -> the tests that are to notice a change in them, in this order."""
SWAPS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Eq: "!=", ast.NotEq: "==", ast.And: "or", ast.Or: "and",
}  # fmt: skip
Mutation = tuple[Path, int, str, str]
"""File, line number, the whole line before and after."""


def list_edits(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Expressions at or directly below `node` that can change, each with its new source."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            yield node, f"({ast.unparse(left)}) {SWAPS[type(op)]} ({ast.unparse(right)})"
        case ast.Compare(left, [op], [right]) if type(op) in SWAPS:
            yield node, f"{ast.unparse(left)} {SWAPS[type(op)]} {ast.unparse(right)}"
        case ast.BoolOp(op, values):
            yield node, f" {SWAPS[type(op)]} ".join(f"({ast.unparse(value)})" for value in values)
        case ast.UnaryOp(ast.Not(), operand):
            yield node, f"bool({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield node, repr(not value)
        case ast.Constant(int() | float() as value):
            yield node, repr(value + 1)


def list_mutations(path: Path) -> Iterator[Mutation]:
    """Changes inside functions, of expressions that stand on one line; annotations and messages of errors stay."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    pending: list[ast.AST] = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Raise | ast.arg | ast.JoinedStr):
            continue
        for expression, changed in list_edits(node):
            if expression.lineno == expression.end_lineno:
                line = lines[expression.lineno - 1].encode()  # columns count bytes
                after = line[: expression.col_offset] + f"({changed})".encode() + line[expression.end_col_offset :]
                yield path, expression.lineno, line.decode(), after.decode()
        if isinstance(node, ast.FunctionDef):
            pending += [child for child in node.body if not isinstance(child, ast.FunctionDef)]
        else:
            pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef)]


def is_noticed(copy: Path, tests: tuple[str, ...]) -> bool:
    paths = [str(copy / "src"), *(str(copy / "packages" / name / "src") for name in ("worlds", "lab"))]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--basetemp", str(copy / "tmp")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    try:
        run = subprocess.run(
            [*command, *tests], check=False, cwd=copy, env=environment, capture_output=True, timeout=1200
        )
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Count how many changes of the arithmetic the quick tests notice.")
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sources = ROOT / "src" / "trailnotes"
    candidates = [(tests, mutation) for pattern, tests in TARGETS.items() for path in sorted(sources.glob(pattern))
                  for mutation in {m[1]: m for m in list_mutations(path)}.values()]  # fmt: skip
    noticed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "models", "build", "__pycache__"))
        for tests in {*TARGETS.values()}:
            if is_noticed(copy, tests):
                sys.exit(f"the unchanged sources do not pass {' '.join(tests)}")
        for tests, (path, number, before, after) in random.Random(args.seed).sample(candidates, args.lines):
            changed = copy / path.relative_to(ROOT)
            lines = changed.read_text(encoding="utf-8").splitlines()
            lines[number - 1] = after
            whole = changed.read_bytes()
            changed.write_text("\n".join(lines) + "\n", encoding="utf-8")
            seen = is_noticed(copy, tests)
            changed.write_bytes(whole)
            noticed += seen
            print(
                f"{'noticed' if seen else 'MISSED '} {path.relative_to(sources)}:{number}: {after.strip()}", flush=True
            )
            print(f"        was: {before.strip()}", flush=True)
    print(f"{noticed} of {args.lines} noticed")


if __name__ == "__main__":
    main()
