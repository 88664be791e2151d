"""Report a run to its trackers: each iteration once, however often the run is resumed.

``trackers/NAME.json`` in the run directory keeps the tracker's id of the run, the number of reported iterations
and the last iteration whose episodes were; the next start reports the rest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trailnotes.config.toml import flatten_config, load_config
from trailnotes.errors import RunError, TrailnotesError, format_error
from trailnotes.memory.store import TipStore
from trailnotes.reporting.episodes import render_episode
from trailnotes.storage.files import parse_json, read_jsonl, read_lines_from, trajectory_from_json, write_text_atomic
from trailnotes_lab.tracking.base import TRACKERS_DIR, About, Table, TableCell, Tracker, make_tracker, redact_secrets

logger = logging.getLogger(__name__)
MAX_TIPS = 1000  # in the table: the newest
_COLUMNS = ["id", "task", "tip", "score", "max_score", "step", "support", "shown", "earned", "enabled", "retired"]


class Trackers:
    """All trackers of the run in `directory`: the first error of a tracker is a warning and ends this tracker alone.

    Each is a name of ``run.trackers``.
    """

    def __init__(self, names: Iterable[str], directory: Path) -> None:
        self._reporters: dict[str, TrackerReporter] = {}
        for name in names:
            self._call(name, lambda name=name: self._reporters.update({name: TrackerReporter(name, directory)}))  # type: ignore[misc]

    def notify(self) -> None:
        for name, reporter in list(self._reporters.items()):
            self._call(name, reporter.catch_up)

    def close(self, *, finished: bool) -> None:
        """Report the rest; `finished`: the run ended by itself, and was not stopped."""
        for name, reporter in list(self._reporters.items()):
            self._call(name, lambda reporter=reporter: reporter.finish(finished=finished))  # type: ignore[misc]
        self._reporters.clear()

    def _call(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary to other people's code
            self._reporters.pop(name, None)
            why = redact_secrets(str(error) if isinstance(error, TrailnotesError) else format_error(error))
            logger.warning(
                "tracker %s shows no more of this run: %s. The run continues, and its own files are complete; "
                "docs/trackers.md", name, why.rstrip(".")
            )  # fmt: skip


class TrackerReporter:
    """Reporter of one run to one tracker; any error of the tracker's code gets out."""

    def __init__(self, name: str, directory: Path) -> None:
        self._directory = directory
        self._file = directory / TRACKERS_DIR / f"{name.replace(':', '.')}.json"
        tracker_id, iterations, episodes = _load_state(self._file)
        self._tracker: Tracker = make_tracker(name, _load_run_info(directory, tracker_id, iterations))
        self._id = self._tracker.id
        is_known = self._id and self._id == tracker_id
        self._num_shown, self._episodes_shown = (iterations, episodes) if is_known else (0, -1)
        self._offset = 0  # bytes of metrics.jsonl that were read
        self._save_state()  # a start that is killed before its first iteration leaves no second run behind

    def catch_up(self) -> None:
        for line in read_lines_from(self._directory / "metrics.jsonl", self._offset):
            self._offset += len(line)
            values = parse_json(line, "drop")
            iteration = int(values.pop("iteration"))
            if iteration < self._num_shown:
                continue
            if iteration & (iteration - 1) == 0:  # 0, 1, 2, 4, 8: a few in all, however long the run is
                self._report_episodes(iteration)  # first: where this fails, the next start repeats no curve
            self._tracker.curves(iteration, {n: float(v) for n, v in values.items() if isinstance(v, int | float)})
            self._num_shown = iteration + 1
            self._save_state()

    def finish(self, *, finished: bool) -> None:
        self.catch_up()
        if self._episodes_shown < self._num_shown - 1:
            self._report_episodes(self._num_shown - 1)
            self._save_state()
        tables = {"table": _load_results_table(self._directory), "tips": _load_tips_table(self._directory)}
        for name, table in tables.items():
            if table is not None:
                self._tracker.table(name, Table(table.columns, redact_secrets(table.rows)))
        self._tracker.close(finished=finished)

    def _report_episodes(self, iteration: int) -> None:
        """Report the best and the worst; of equals the first, and of one that is both, one."""
        records = read_jsonl(self._directory / "trajectories.jsonl")
        records = (record for record in records if record["iteration"] == iteration and record["outcome"] != "error")
        ended = [trajectory_from_json(record) for record in records]
        by_return = sorted(ended, key=lambda episode: -episode.episode_return)
        for name, episode in zip(("best", "worst"), [*by_return[:1], *by_return[1:][-1:]], strict=False):
            self._tracker.text(iteration, f"episode/{name}", redact_secrets(render_episode(episode)))
        self._episodes_shown = iteration

    def _save_state(self) -> None:
        if self._id:
            state = {"id": self._id, "iterations": self._num_shown, "episodes": self._episodes_shown}
            write_text_atomic(self._file, json.dumps(state) + "\n")


def _load_state(file: Path) -> tuple[str, int, int]:
    """The tracker's id for the run, the number of reported iterations, and the last whose episodes were."""
    if not file.is_file():
        return "", 0, -1
    try:
        record = parse_json(file.read_text(encoding="utf-8"))
        return str(record["id"]), int(record["iterations"]), int(record.get("episodes", -1))
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"{file} is damaged: delete it, and the run is reported from its beginning") from None


def _load_run_info(directory: Path, tracker_id: str, iterations: int) -> About:
    config = load_config(directory / "config.toml", trusted=False)
    name = directory.resolve().name if config.run.name == "run" else config.run.name
    settings = json.loads(json.dumps(flatten_config(config), default=str))
    return About(directory, name, redact_secrets(settings), tracker_id, iterations)


def _load_results_table(directory: Path) -> Table | None:
    file = directory / "table.json"
    rows: list[dict[str, Any]] = parse_json(file.read_text(encoding="utf-8"))["rows"] if file.is_file() else []
    if not rows:
        return None
    plain = (str, int, float, type(None))
    values = [[row.get(name) for name in rows[0]] for row in rows]
    return Table([*rows[0]], [[v if isinstance(v, plain) else json.dumps(v) for v in own] for own in values])


def _load_tips_table(directory: Path) -> Table | None:
    """The newest tips with the results of their readers; None for a method without a memory."""
    file = directory / "memory.db"
    if not file.is_file():
        return None
    rows: list[list[TableCell]] = []
    with TipStore(file) as store:
        marks = store.load_retirements()
        for tip in store.list_sorted(None, "recency", MAX_TIPS):
            assert tip.id is not None
            for readers in store.load_reader_stats(tip.id).values():  # none of one that was just deleted
                earned = readers.earned / readers.shown if readers.shown else None
                retired = marks[tip.id].rule if tip.id in marks else ""
                rows.append([tip.id, tip.namespace, tip.text, tip.score, tip.max_score, tip.step, tip.support,
                             readers.shown, earned, float(tip.enabled), retired])  # fmt: skip
    return Table(_COLUMNS, rows)
