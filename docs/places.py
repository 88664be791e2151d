"""Draws docs/places.svg: which processes a run on a Ray cluster has, on which machine, and who speaks to whom.

python docs/places.py            # writes docs/places.svg
python docs/places.py --check    # exit status 1 if the picture is not what is written here
"""

from __future__ import annotations

import sys
from html import escape

from picture import INK, MARK, PAPER, ROOT, SOFT, WALL, main

PICTURE = ROOT / "docs" / "places.svg"
WIDTH, HEIGHT, GAP, MARGIN = 250, 64, 18, 24
MACHINES = {
    "the machine of the run": {
        "trailnotes train": (
            "iterations, prompts, tips, rank 0 of the",
            'learner, engine.name = "hf"; the run directory',
        ),
        "env worker 0": ("env.num_workers actors, spread;", "1 CPU each"),
    },
    "another machine": {
        "rank 1 of the learner": ("learner.world_size - 1 actors;", "1 GPU each, or 1 CPU"),
        "engine 0": ('engine.name = "vllm": engine.replicas', "actors with their GPUs, or CPUs"),
        "env worker 1": ("many environments in each",),
    },
    "as many as you like": {
        "rank 2 of the learner": ("Ray chooses the machine",),
        "engine 1": ("an episode stays with its engine",),
        "env worker 2": ("a lost one: another is placed",),
    },
}
SAID = (
    "All but the process of the run are actors, declared to Ray with their CPUs and GPUs. They answer the run:",
    "observations, tokens with their log-probabilities, gradients. Only ranks speak to each other as well.",
    "The third machine hangs on the run as the second does.",
)


def box(name: str, lines: tuple[str, ...], x: float, y: float, *, ours: bool) -> list[str]:
    """One process, its upper left corner at (x, y)."""
    edge = f'stroke="{MARK}" stroke-width="2"' if ours else f'stroke="{SOFT}"'
    return [
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="{WALL}" {edge}/>',
        f'<text x="{x + 10:g}" y="{y + 19:g}" font-size="14" font-weight="600">{escape(name)}</text>',
        *(
            f'<text x="{x + 10:g}" y="{y + 36 + 14 * i:g}" font-size="10.5">{escape(line)}</text>'
            for i, line in enumerate(lines)
        ),
    ]


def draw() -> str:
    """The picture."""
    column = WIDTH + 2 * GAP
    width = len(MACHINES) * (column + 2 * MARGIN)
    height = 3 * (HEIGHT + GAP) + 136
    look = f'font-family="Helvetica, Arial, sans-serif" fill="{INK}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {look}>',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
    ]
    for number, (machine, processes) in enumerate(MACHINES.items()):
        left = MARGIN + number * (column + 2 * MARGIN)
        room = f'x="{left}" y="{MARGIN}" width="{column}" height="{3 * (HEIGHT + GAP) + 34}" rx="8"'
        lines += [
            f'<rect {room} fill="{PAPER}" stroke="{SOFT}" stroke-dasharray="5 4"/>',
            f'<text x="{left + GAP}" y="{MARGIN + 22}" font-size="13" fill="{MARK}">{escape(machine)}</text>',
        ]
        for row, (name, words) in enumerate(processes.items()):
            y = MARGIN + 34 + row * (HEIGHT + GAP)
            lines += box(name, words, left + GAP, y, ours=(number, row) == (0, 0))
            if number == 1:
                start, end = MARGIN + GAP + WIDTH, left + GAP
                top, middle = MARGIN + 34 + HEIGHT / 2, y + HEIGHT / 2
                way = f"M{start},{top:g} C{start + 60},{top:g} {end - 60},{middle:g} {end},{middle:g}"
                lines.append(f'<path d="{way}" fill="none" stroke="{SOFT}" stroke-width="1.3"/>')
    for i, line in enumerate(SAID):
        lines.append(f'<text x="{MARGIN}" y="{height - 52 + 16 * i}" font-size="11">{escape(line)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.exit(main(PICTURE, draw()))
