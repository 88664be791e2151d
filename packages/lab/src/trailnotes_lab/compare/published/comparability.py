"""Why published figures of these methods do not stand in one column: each was measured under a protocol of its own.

Printed wherever a published figure is. Facts quoted from the papers and releases named in docs/comparing.md.
"""

from __future__ import annotations

from trailnotes.reporting.tables import format_table

HEAD = (
    "protocol of the published figures",
    "REMEMBERER",
    "Reflexion",
    "Retrospex",
    "verl-agent (GRPO, GiGPO)",
    "EMPO²",
)
ROWS = (
    ("WebShop goals", "human, whole catalogue, test 0-99", "human, 100 fixed ones", "200 goals from 2005 on",
     "synthetic, 1,000 products, 0-499 shuffled", "as verl-agent"),
    ("WebShop success", "score 1", "score 1", "score only logged", "score 1", "score 1"),
    ("WebShop steps", "15", "15", "15, then it buys", "15", "15"),
    ("ALFWorld split", "-", "134 out of distribution, 49 steps", "134 out of distribution, 29 steps",
     "128 in distribution, 50 steps", "-"),
    ("ScienceWorld", "-", "-", "30 tasks x 10, easy, a failure keeps its last score", "-",
     "18 tasks x 20 test variations, a failure is -100, 30 steps"),
    ("attempts at a task", "1, after training on others", "many, cumulative", "1", "1", "1, without memory"),
    ("model", "davinci-003", "davinci, gpt-3.5", "T5-770M, Llama-3-8B", "Qwen2.5 of 1.5, 3, 7B", "Qwen2.5-7B"),
)  # fmt: skip


_CONSEQUENCE = (
    "Figures of two columns of this table do not compare two methods. A method with many attempts at a task is "
    "shown by its first attempt, its last, and their best, each by itself."
)


def render_comparability() -> list[str]:
    """The table as Markdown lines, with what follows from it."""
    return [*format_table(HEAD, ROWS), "", _CONSEQUENCE]
