"""The methods: one file each, read top to bottom; no base class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.algorithms.empo2 import empo2
from trailnotes.algorithms.grpo import grpo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trailnotes.run import Run
    from trailnotes.trials import Trials

ALGORITHMS: dict[str, Callable[[Run], Awaitable[None]]] = {"empo2": empo2, "grpo": grpo}
"""Those that train: `trailnotes train`."""

ADAPTERS: dict[str, Callable[[Trials], Awaitable[None]]] = {}
"""Those that change no weights: `trailnotes adapt --method`."""
