"""Weights & Biases: offline beside the run, unless ``WANDB_MODE`` says online; `wandb sync` uploads it later."""

from __future__ import annotations

import html
import os
from uuid import uuid4

import wandb

from trailnotes_lab.tracking.base import PROJECT, TRACKERS_DIR, About, LoggedRun, Table


class Wandb(LoggedRun):
    """One run of W&B. Key, server, project, entity, group and tags are those of its own environment variables."""

    def __init__(self, about: About) -> None:
        super().__init__(about)
        self.id = about.id or uuid4().hex
        place = about.directory / TRACKERS_DIR
        place.mkdir(exist_ok=True)
        private = wandb.Settings(  # nothing of this machine unless it was asked for
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True,
            x_disable_machine_info=True,
        )  # fmt: skip
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=about.name, id=self.id, resume="allow", dir=place,
            mode=os.environ.get("WANDB_MODE", "offline"), config=dict(about.settings), settings=private,
        )  # fmt: skip

    def text(self, iteration: int, name: str, text: str) -> None:
        self._run.log({name: wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)}, step=iteration)

    def table(self, name: str, table: Table) -> None:
        rows = [[*row] for row in table.rows]
        self._run.log({name: wandb.Table(columns=table.columns, data=rows, allow_mixed_types=True)}, step=self._last)

    def close(self, *, finished: bool) -> None:
        """Write or send the rest; a run that was stopped is marked as failed."""
        self._run.finish(exit_code=0 if finished else 1)
