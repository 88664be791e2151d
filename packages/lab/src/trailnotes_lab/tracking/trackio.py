"""trackio: its local database, or where ``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL`` says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import trackio

from trailnotes_lab.tracking.base import PROJECT, About, Table, render_plain_text


class Trackio:
    """One run of trackio, which knows runs by their names: ours ends with letters of its own."""

    def __init__(self, about: About) -> None:
        self.id = about.id or f"{about.name}-{uuid4().hex[:6]}"
        self._run: Any = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=self.id,
            config=dict(about.settings),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._last = 0

    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        """A step of each metric."""
        self._last = iteration
        self._run.log(dict(values), step=iteration)

    def text(self, iteration: int, name: str, text: str) -> None:
        """Markdown that shows it as it is."""
        self._run.log({name: trackio.Markdown(render_plain_text(text))}, step=iteration)

    def table(self, name: str, table: Table) -> None:
        """A table of trackio's own."""
        rows = [[*row] for row in table.rows]
        self._run.log({name: trackio.Table(columns=table.columns, data=rows)}, step=self._last)

    def close(self, *, finished: bool) -> None:  # noqa: ARG002 - trackio does not ask
        """Write or send what is left."""
        self._run.finish()
