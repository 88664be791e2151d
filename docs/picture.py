"""Draw the folders of the three packages and their imports, from the code.

    python docs/picture.py            # writes docs/layers.svg, docs/layers-worlds.svg and docs/layers-lab.svg
    python docs/picture.py --check    # exit status 1 if a picture is out of date

A room is a folder of a package, or a file at its top. It is drawn one row below the lowest room that imports it. The
picture leaves out arrows that a longer path implies, and those to the base that all rooms import. It needs only the
standard library, and gives the same bytes for the same imports.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "layers": ROOT / "src" / "trailnotes",
    "layers-worlds": ROOT / "packages" / "worlds" / "src" / "trailnotes_worlds",
    "layers-lab": ROOT / "packages" / "lab" / "src" / "trailnotes_lab",
}
"""Picture -> the package that it shows."""
GROUND = ("types", "errors", "seeds")
LEFT_OUT = ("__init__", "__main__")  # the package's face hands names on
WAY = ("envs", "policies", "rollout", "memory", "learner")  # of the data, in one iteration

WIDTH, HEIGHT, GAP, FLOOR, MARGIN = 236, 62, 26, 118, 24
INK, SOFT, PAPER, WALL, MARK = "#22303c", "#8a9aa8", "#ffffff", "#eef3f7", "#b5651d"


def imports(path: Path, package: str) -> set[str]:
    """Modules of the package that a file imports anywhere in it, dotted, without the package's name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = node.module == package
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if whole else {node.module}
    return {name.partition(".")[2] for name in names if name.startswith(f"{package}.")}


def rooms(package: Path) -> dict[str, set[str]]:
    """Room -> the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for path in (path for path in sorted(package.rglob("*.py")) if "builtin" not in path.parts):
        room = path.relative_to(package).with_suffix("").parts[0]
        found.setdefault(room, set()).update(name.partition(".")[0] for name in imports(path, package.name))
    return {room: (others - {room}) & set(found) for room, others in found.items()}


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """Room -> how far below the top it stands: one below the lowest of those that import it.

    Raises:
        ValueError: rooms import each other in a circle.
    """
    above = {room: {other for other, own in graph.items() if room in own} for room in graph}
    found: dict[str, int] = {}

    def level(room: str, below: tuple[str, ...] = ()) -> int:
        if room in below:
            raise ValueError(f"a circle: {' <- '.join([*below[below.index(room) :], room])}")
        if room not in found:
            found[room] = max((1 + level(other, (*below, room)) for other in sorted(above[room])), default=0)
        return found[room]

    for room in sorted(graph):
        level(room)
    return found


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without the arrows that a longer way implies."""

    def reachable(room: str) -> set[str]:
        return graph[room] | {far for other in graph[room] for far in reachable(other)}

    return {room: {o for o in own if not any(o in reachable(other) for other in own)} for room, own in graph.items()}


def arranged(graph: dict[str, set[str]]) -> list[list[str]]:
    """Rooms floor by floor from the top, each floor ordered so that arrows cross little."""
    rows: dict[int, list[str]] = defaultdict(list)
    for room, level in sorted(levels(graph).items()):
        rows[level].append(room)
    ordered = [rows[level] for level in sorted(rows)]

    def neighbours(room: str, row: list[str]) -> list[int]:
        return [i for i, other in enumerate(row) if other in graph[room] or room in graph[other]]

    for _ in range(8):
        for sweep in (pairwise(range(len(ordered))), pairwise(range(len(ordered) - 1, -1, -1))):
            for before, now in sweep:
                near = {r: neighbours(r, ordered[before]) or [ordered[now].index(r)] for r in ordered[now]}
                ordered[now] = sorted(ordered[now], key=lambda room: (sum(near[room]) / len(near[room]), room))
    return ordered


def caption(package: Path, room: str) -> str:
    """First sentence of the room's docstring."""
    path = package / room / "__init__.py" if (package / room).is_dir() else package / f"{room}.py"
    return (
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        .partition("\n")[0]
        .partition(". ")[0]
        .replace("`", "")
    )


def wrapped(text: str, width: int = 38, most: int = 2) -> list[str]:
    """At most two lines; what is left is dotted."""
    lines = [""]
    for word in text.split():
        if len(f"{lines[-1]} {word}") <= width:
            lines[-1] = f"{lines[-1]} {word}".strip()
        else:
            lines.append(word)
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1][: width - 2]} …"]


def box(package: Path, room: str, x: float, y: float) -> list[str]:
    """A room as SVG, its upper left corner at (x, y); those on the data's way bear their number."""
    number = WAY.index(room) + 1 if room in WAY else 0
    edge = f'stroke="{MARK}" stroke-width="2"' if number else f'stroke="{SOFT}"'
    name = f"{room}/" if (package / room).is_dir() else f"{room}.py"
    lines = [
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="{WALL}" {edge}/>',
        f'<text x="{x + 10:g}" y="{y + 19:g}" font-size="14" font-weight="600">{escape(name)}</text>',
    ]
    if number:
        lines.append(f'<circle cx="{x + WIDTH - 15:g}" cy="{y + 15:g}" r="9" fill="{MARK}"/>')
        spot = f'x="{x + WIDTH - 15:g}" y="{y + 19:g}" text-anchor="middle"'
        lines.append(f'<text {spot} font-size="11" fill="{PAPER}">{number}</text>')
    for i, line in enumerate(wrapped(caption(package, room))):
        lines.append(f'<text x="{x + 10:g}" y="{y + 36 + 14 * i:g}" font-size="10.5">{escape(line)}</text>')
    return lines


def draw(package: Path) -> str:
    """The picture of one package."""
    whole = rooms(package)
    ground_rooms = [name for name in GROUND if name in whole]
    graph = {r: own - {*GROUND, *LEFT_OUT} for r, own in whole.items() if r not in {*GROUND, *LEFT_OUT}}
    rows = arranged(graph)
    width = max(map(len, rows)) * (WIDTH + GAP) - GAP + 2 * MARGIN
    place = {}
    for level, row in enumerate(rows):
        left = (width - len(row) * (WIDTH + GAP) + GAP) / 2
        place |= {room: (left + i * (WIDTH + GAP), MARGIN + level * FLOOR) for i, room in enumerate(row)}
    ground = MARGIN + len(rows) * FLOOR
    height = ground + HEIGHT + 58
    look = f'font-family="Helvetica, Arial, sans-serif" fill="{INK}"'
    head = 'id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {look}>',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        f'<defs><marker {head}><path d="M0,0 L8,4 L0,8 z" fill="{SOFT}"/></marker></defs>',
    ]
    for room, others in sorted(reduced(graph).items()):
        for other in sorted(others):
            (x1, y1), (x2, y2) = place[room], place[other]
            x1, y1, x2, middle = x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2, (y1 + HEIGHT + y2) / 2
            lines.append(
                f'<path d="M{x1:g},{y1:g} C{x1:g},{middle:g} {x2:g},{middle:g} {x2:g},{y2 - 2:g}" fill="none" '
                f'stroke="{SOFT}" stroke-width="1.3" marker-end="url(#head)"/>'
            )
    for room, (x, y) in place.items():
        lines += box(package, room, x, y)
    names = "   ".join(f"{name}.py" for name in ground_rooms) or "trailnotes"
    lines += [
        f'<rect x="{MARGIN}" y="{ground}" width="{width - 2 * MARGIN}" height="{HEIGHT - 26}" rx="5" fill="{INK}"/>',
        f'<text x="{width / 2:g}" y="{ground + 23}" font-size="13" fill="{PAPER}" text-anchor="middle">{names}</text>',
        f'<text x="{MARGIN}" y="{height - 40}" font-size="11">{legend(whole)}</text>',
        f'<text x="{MARGIN}" y="{height - 22}" font-size="11" fill="{MARK}">{way() if ground_rooms else ""}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def legend(graph: dict[str, set[str]]) -> str:
    """Text below the picture."""
    arrows = sum(map(len, graph.values()))
    return (
        f"Each folder is above all that it imports: {len(graph)} folders or files, {arrows} imports, none upward. "
        "Not drawn: imports that a longer path implies, and those of the base."
    )


def way() -> str:
    """The numbers in words."""
    return "Data flow of one iteration: " + " → ".join(f"{i} {room}" for i, room in enumerate(WAY, 1))


def main(path: Path, drawn: str) -> int:
    """Write a picture, or check it; the exit status."""
    if "--check" in sys.argv[1:]:
        return int(not path.exists() or path.read_text(encoding="utf-8") != drawn)
    path.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(max(main(ROOT / "docs" / f"{name}.svg", draw(package)) for name, package in PACKAGES.items()))
