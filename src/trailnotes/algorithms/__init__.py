"""The methods: one file each, read top to bottom; no base class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.algorithms.empo2 import empo2
from trailnotes.algorithms.empo2_tips import empo2_tips
from trailnotes.algorithms.gigpo import gigpo
from trailnotes.algorithms.grpo import grpo
from trailnotes.algorithms.naive import naive
from trailnotes.algorithms.reflexion.method import reflexion
from trailnotes.algorithms.rememberer.method import rememberer
from trailnotes.algorithms.retrospex.method import retrospex
from trailnotes.algorithms.rloo import rloo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trailnotes.runs.adaptation import Trials
    from trailnotes.runs.training import Run

ALGORITHMS: dict[str, Callable[[Run], Awaitable[None]]] = {"empo2": empo2, "gigpo": gigpo, "grpo": grpo, "rloo": rloo}
"""Those that train: `trailnotes train`."""

ADAPTERS: dict[str, Callable[[Trials], Awaitable[None]]] = {
    "empo2-tips": empo2_tips,
    "naive": naive,
    "reflexion": reflexion,
    "rememberer": rememberer,
    "retrospex": retrospex,
}
"""Those that change no weights: `trailnotes adapt --method`."""
