"""trackio: its local database, or where ``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL`` says."""

from __future__ import annotations

import os
from uuid import uuid4

import trackio

from trailnotes_lab.tracking.base import PROJECT, About, LoggedRun, Table, render_plain_text


class Trackio(LoggedRun):
    """One run of trackio, which knows runs by their names: six letters of its own end the name."""

    def __init__(self, about: About) -> None:
        super().__init__(about)
        self.id = about.id or f"{about.name}-{uuid4().hex[:6]}"
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT), name=self.id, config=dict(about.settings),
            resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip

    def text(self, iteration: int, name: str, text: str) -> None:
        self._run.log({name: trackio.Markdown(render_plain_text(text))}, step=iteration)

    def table(self, name: str, table: Table) -> None:
        rows = [[*row] for row in table.rows]
        self._run.log({name: trackio.Table(columns=table.columns, data=rows)}, step=self._last)

    def close(self, *, finished: bool) -> None:  # noqa: ARG002 - trackio does not ask
        self._run.finish()
