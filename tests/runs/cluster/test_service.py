"""The memory service, without an actor around it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from small import small_config
from trailnotes.memory.store import REQUESTS_KEPT
from trailnotes.runs.cluster.memory import MemoryService, get_folder_id, make_request_id
from trailnotes.types import Tip


def test_only_the_newest_requests_stay_marked(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with closing(MemoryService(str(path), get_folder_id(path), small_config())) as service:
        store = service._memory.store
        names = [make_request_id() for _ in range(REQUESTS_KEPT + 3)]
        assert service.call("add", [Tip("task", "first", "key", 0.0)], once="phase") == 1
        for name in names:
            assert service.call("add", [Tip("task", name, "key", 0.0)], once=name) == 1
        assert service.call("add", [Tip("task", "again", "key", 0.0)], once=names[-1]) == 0
        assert service.call("add", [Tip("task", "again", "key", 0.0)], once=names[3]) == 0
        assert service.call("add", [Tip("task", "again", "key", 0.0)], once="phase") == 0, "that of a phase stays"
        marks = store._query("SELECT name FROM meta WHERE name GLOB 'once/*'")
        assert {name for (name,) in marks} == {f"once/{name}" for name in ("phase", *names[3:])}
