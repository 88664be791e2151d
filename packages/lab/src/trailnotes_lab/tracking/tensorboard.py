"""TensorBoard: event files in the run directory, written anew by each start, so that they never disagree with it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.metadata import create_summary_metadata as scalar_metadata
from tensorboard.plugins.text.metadata import create_summary_metadata as text_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from trailnotes_lab.tracking.base import About, Table, render_plain_text, render_table_markdown


class TensorBoard:
    """A writer of ``tensorboard/`` in the run directory."""

    id = ""

    def __init__(self, about: About) -> None:
        place = about.directory / "tensorboard"
        shutil.rmtree(place, ignore_errors=True)
        self._writer: Any = EventFileWriter(str(place))
        self._last = 0
        settings = "\n".join(f"{name} = {value!r}" for name, value in about.settings.items())
        self._add_text("config", render_plain_text(settings), 0)

    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        self._last = iteration
        for name, value in values.items():
            self._add_event(name, make_tensor_proto(value, dtype="float32"), scalar_metadata("", ""), iteration)
        self._writer.flush()

    def text(self, iteration: int, name: str, text: str) -> None:
        self._add_text(name, render_plain_text(text), iteration)

    def table(self, name: str, table: Table) -> None:
        self._add_text(name, render_table_markdown(table), self._last)

    def close(self, *, finished: bool) -> None:  # noqa: ARG002 - event files do not say
        self._writer.close()

    def _add_text(self, name: str, markdown: str, iteration: int) -> None:
        self._add_event(name, make_tensor_proto(markdown, dtype="string"), text_metadata("", ""), iteration)
        self._writer.flush()

    def _add_event(self, name: str, tensor: Any, metadata: Any, iteration: int) -> None:
        summary = Summary(value=[Summary.Value(tag=name, metadata=metadata, tensor=tensor)])
        self._writer.add_event(Event(wall_time=time.time(), step=iteration, summary=summary))
