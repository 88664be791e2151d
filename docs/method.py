"""Draws docs/method.svg: one iteration of EMPO2 with mixed groups, as the README explains it.

    python docs/method.py            # writes docs/method.svg
    python docs/method.py --check    # exit status 1 if the picture is not what this file draws

A group of four members with p = 0.25 and returns 0, 0, 0, 1; the advantages are `credit.episodes.group_advantages` of
these. Standard library only, the same bytes every time. It brings its own ground, so that it reads in dark pages, too.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from statistics import mean, stdev

from picture import main

PICTURE = Path(__file__).resolve().parent / "method.svg"
WIDTH, HEIGHT = 880, 436
INK, SOFT, PAPER, WALL, MARK, WARM = "#22303c", "#66788a", "#ffffff", "#eef3f7", "#1b6e5a", "#e3f1ec"
RETURNS = (0, 0, 0, 1)  # the last member acts with tips
TOP, ROW = 92, 38  # of the group's rows: upper edge of the first, distance


def text(x: float, y: float, words: str, size: float = 13, **look: str) -> str:
    """A line of text; `look` are attributes of SVG with _ for -."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in look.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{more}>{escape(words)}</text>'


def lines(x: float, y: float, *words: str, size: float = 12.5) -> list[str]:
    """Lines below each other."""
    return [text(x, y + 17 * i, line, size) for i, line in enumerate(words)]


def box(x: float, y: float, width: float, height: float, *, marked: bool = False) -> str:
    """A box; a marked one is about tips."""
    look = f'fill="{WARM}" stroke="{MARK}"' if marked else f'fill="{WALL}" stroke="{SOFT}"'
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" {look}/>'


def arrow(way: str, *, marked: bool = False) -> str:
    """An arrow along a path."""
    colour, head = (MARK, "tips") if marked else (SOFT, "head")
    return f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="1.7" marker-end="url(#{head})"/>'


def heading(x: float, number: int, words: str) -> list[str]:
    """The name of a step."""
    return [
        f'<circle cx="{x + 10:g}" cy="30" r="11" fill="{INK}"/>',
        text(x + 10, 34.5, str(number), 13, fill=PAPER, text_anchor="middle", font_weight="600"),
        text(x + 28, 35, words, 15, font_weight="600"),
    ]


def group() -> list[str]:
    """The members of a group: how each acts, what it gets, and what follows."""
    drawn = [
        text(34, 74, "four attempts at one task", 12.5, fill=SOFT),
        text(306, 74, "return", 12.5, fill=SOFT, text_anchor="middle"),
        text(436, 74, "advantage", 12.5, fill=SOFT, text_anchor="middle"),
    ]
    for i, value in enumerate(RETURNS):
        y, with_tips = TOP + ROW * i, i == len(RETURNS) - 1
        advantage = (value - mean(RETURNS)) / stdev(RETURNS)
        drawn += [
            box(34, y, 232, 30, marked=with_tips),
            text(46, y + 20, "acts with tips" if with_tips else "acts without tips", 13),
            text(306, y + 20, str(value), 14, text_anchor="middle"),
            arrow(f"M330,{y + 15} L388,{y + 15}"),
            text(436, y + 20, f"{advantage:+.1f}".replace("-", "\N{MINUS SIGN}"), 14, text_anchor="middle"),
            arrow(f"M476,{y + 15} L548,{TOP + 40 if not with_tips else y + 15}", marked=with_tips),
        ]
    return drawn


def memory() -> list[str]:
    """The tips, and both ways between them and the group."""
    under = TOP + ROW * 4 + 2
    return [
        box(34, 320, 430, 92, marked=True),
        text(48, 342, "Memory of tips, a file", 14, font_weight="600"),
        text(48, 366, "“amber : north east south west west south west”", 12.5),
        text(450, 366, "return 1", 12.5, text_anchor="end", fill=SOFT),
        text(48, 390, "“nothing found”", 12.5),
        text(450, 390, "return 0", 12.5, text_anchor="end", fill=SOFT),
        arrow(f"M72,{under} L72,314", marked=True),
        text(82, 286, "each attempt ends", 12.5),
        text(82, 303, "with writing a tip", 12.5),
        arrow(f"M222,318 L222,{under - 3}", marked=True),
        text(232, 286, "the best tips of the same task", 12.5),
        text(232, 303, "are shown, each once", 12.5),
    ]


def updates() -> list[str]:
    """What the weights learn from."""
    y = TOP + ROW * 3 - 16
    return [
        box(556, TOP - 4, 300, 74),
        text(570, TOP + 18, "On policy: trained as it acted", 14, font_weight="600"),
        *lines(570, TOP + 39, "the prompt is the one it saw,", "with tips or without"),
        box(556, y, 300, 102, marked=True),
        text(570, y + 22, "Off policy: the tips are taken out", 14, font_weight="600"),
        *lines(
            570,
            y + 43,
            "same actions, same advantage, but the",
            "prompt has no tips: what they taught",
            "goes into the weights",
        ),
        arrow(f"M706,{y + 102} L706,338"),
        f'<rect x="556" y="346" width="300" height="66" rx="6" fill="{INK}"/>',
        text(706, 374, "Weights", 15, fill=PAPER, text_anchor="middle", font_weight="600"),
        text(706, 396, "in the end they win without tips", 12.5, fill=PAPER, text_anchor="middle"),
        arrow("M556,379 L520,379 Q500,379 500,359 L500,274 Q500,262 488,262 L264,262 Q254,262 254,243"),
        text(510, 300, "next", 12.5, fill=SOFT),
        text(510, 316, "iteration", 12.5, fill=SOFT),
    ]


def draw() -> str:
    """The picture."""
    look = f'font-family="Helvetica, Arial, sans-serif" fill="{INK}" role="img"'
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
        for name, colour in (("head", SOFT), ("tips", MARK))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {look}>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{PAPER}"/>',
            f"<defs>{heads}</defs>",
            *heading(34, 1, "Play"),
            *heading(360, 2, "Compare"),
            *heading(556, 3, "Train"),
            *group(),
            *memory(),
            *updates(),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(PICTURE, draw()))
