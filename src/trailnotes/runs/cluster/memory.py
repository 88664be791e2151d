"""The memory as a service: one actor on the machine of the run directory writes, and all processes ask it.

Its state is the SQLite file of the run alone, so that Ray can restart a killed one without loss: a write is on the disk
before it is answered, and has a name of its own, so that one that Ray repeats is not stored twice.
"""

from __future__ import annotations

import uuid
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from trailnotes.errors import MemoryStoreError
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.memory.exchange import reconcile
from trailnotes.memory.retrieval import embedder_of
from trailnotes.memory.schema import Closeable
from trailnotes.memory.tips import TipMemory, open_memory
from trailnotes.runs.cluster.waiting import await_result, get_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trailnotes.config.schema import Config
    from trailnotes.memory.tip_stats import TipEffect
    from trailnotes.types import StrPath, Task, Tip, Trajectory

PROMPT_METHODS = ("register_tasks", "report", "record_effects")  # they concern the tips that prompts show
STOP_LIMIT = 5.0  # seconds to close the file


class MemoryService:
    """Actor that must see the same `folder` (device and inode) of the memory file as the run."""

    def __init__(self, path: str, folder: tuple[int, int], config: Config) -> None:
        self._path, self._folder, self._config = Path(path), folder, config

    @cached_property
    def _memory(self) -> TipMemory:
        """Open the file at the first call, since Ray would wrap what the constructor raises."""
        if not self._path.parent.is_dir() or get_folder_id(self._path) != self._folder:
            raise MemoryStoreError(
                f"the memory service does not see {self._path.parent} of the run: start the training on a machine of "
                "the cluster, with cluster.address = auto"
            )
        on_cpu = self._config.model_copy(update={"model": self._config.model.model_copy(update={"device": "cpu"})})
        return open_memory(self._path, self._config.memory, embedder=embedder_of(on_cpu))

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        memory = make_prompt_memory(self._memory, self._config.algorithm.show_tips)
        return await memory.search_async(namespace, query, top_k)

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        memory = self._memory
        if method in PROMPT_METHODS:
            memory = make_prompt_memory(memory, self._config.algorithm.show_tips)
        return getattr(memory, method)(*arguments, **keywords)

    def reconcile(self, *arguments: Any) -> bool:
        return reconcile(self._memory, *arguments)

    def close(self) -> None:
        self._memory.close()


class ServedMemory(Closeable):
    """The memory of a run, with the methods of `memory.base` and `owner`; it searches only tips that prompts may show.

    `here` is the scheduling strategy that places the actor beside this process, and `place` the name of this node. All
    methods raise `ClusterError` where the service does not answer within `cluster.timeout`.
    """

    def __init__(
        self, config: Config, path: StrPath, here: Any, place: str, service: type[MemoryService] = MemoryService
    ) -> None:
        path = Path(path).resolve()
        self.limit = config.cluster.timeout
        self._who = f"the memory service on {place}"
        kind = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)(service)
        self.actor = kind.remote(str(path), get_folder_id(path), config)
        self.stats()  # or the reason why not

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        return self._ask("search_async", namespace, query, top_k)  # type: ignore[no-any-return]

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        ref = self.actor.search_async.remote(namespace, query, top_k)
        return await await_result(ref, self._who, self.limit, "cluster.timeout")  # type: ignore[no-any-return]

    def add(self, tips: Sequence[Tip], *, once: str = "") -> int:
        """Add tips; 0 is returned, too, where Ray repeated a write that had been stored."""
        return self._ask("call", "add", list(tips), once=once or make_request_id())  # type: ignore[no-any-return]

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        return self._ask("call", "register_tasks", list(tasks))  # type: ignore[no-any-return]

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        self._ask("call", "report", list(episodes), once=once or make_request_id())

    def record_effects(self, readings: Sequence[TipEffect], *, once: str = "") -> None:
        self._ask("call", "record_effects", list(readings), once=once or make_request_id())

    def snapshot(self, path: StrPath) -> None:
        self._ask("call", "snapshot", str(Path(path).resolve()))

    def restore(self, path: StrPath) -> None:
        self._ask("call", "restore", str(Path(path).resolve()))

    def stats(self) -> dict[str, float]:
        return self._ask("call", "stats")  # type: ignore[no-any-return]

    def reconcile(self, saved: Path | None, start: Path, backup: Path, tips: Sequence[Tip] = ()) -> bool:
        files = saved and saved.resolve(), start.resolve(), backup.resolve()
        return self._ask("reconcile", *files, list(tips))  # type: ignore[no-any-return]

    def close(self) -> None:
        ray.wait([self.actor.close.remote()], timeout=STOP_LIMIT)
        ray.kill(self.actor)

    def _ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        ref = getattr(self.actor, method).remote(*arguments, **keywords)
        return get_result(ref, self._who, self.limit, "cluster.timeout")


def get_folder_id(path: Path) -> tuple[int, int]:
    status = path.parent.stat()
    return status.st_dev, status.st_ino


def make_request_id() -> str:
    return f"request/{uuid.uuid4().hex}"
