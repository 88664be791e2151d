"""The memory as a service: one actor on the machine of the run directory writes, and all processes ask it.

Its state is the SQLite file of the run and nothing else, so that Ray can restart a killed one without loss: a write is
on the disk before it is answered, and has a name of its own, so that one that Ray repeats, since its answer was lost,
is not stored twice.
"""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trailnotes.cluster.waiting import await_result, get_result
from trailnotes.errors import MemoryStoreError
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.memory.owner import reconcile
from trailnotes.memory.retrieval import embedder_of
from trailnotes.memory.schema import Closeable
from trailnotes.memory.store import REQUEST, TipStore
from trailnotes.memory.tips import TipMemory, open_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trailnotes.config.schema import Config
    from trailnotes.memory.tip_stats import TipEffect
    from trailnotes.types import StrPath, Task, Tip, Trajectory

logger = logging.getLogger(__name__)
PROMPT_METHODS = ("register_tasks", "report", "record_effects")  # they concern the tips that prompts show
STOP_LIMIT = 5.0  # seconds to close the file


class VersionedAnswer(NamedTuple):
    """Answer of the service."""

    value: Any
    version: int  # of the memory that it was read from, or that it made: the number of writes so far


class MemoryService:
    """Actor that answers one call after the other, but for searches that wait for a slow embedder.

    It must see the same `folder` (device and inode) of the memory file as the run.
    """

    def __init__(self, path: str, folder: tuple[int, int], config: Config) -> None:
        self._path, self._folder, self._config = Path(path), folder, config
        self._pinned: OrderedDict[int, TipMemory] = OrderedDict()

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

    async def search_async(self, namespace: str, query: str, top_k: int, version: int | None) -> VersionedAnswer:
        """Find tips for a prompt, as they were at a version that is kept; None, or another one: as they are."""
        if version not in self._pinned and version == self._memory.store.sequence:
            self.pin_version()  # the service was restarted, and nothing was written since
        memory = self._memory if version is None else self._pinned.get(version, self._memory)
        tips = await make_prompt_memory(memory, self._config.algorithm.show_tips).search_async(namespace, query, top_k)
        return VersionedAnswer(tips, memory.store.sequence)

    def pin_version(self) -> VersionedAnswer:
        """Keep the memory as it is, for readers of this version; those of the newest few versions are kept."""
        live = self._memory.store
        assert live.path is not None
        copy = self._pinned.pop(live.sequence, None)  # its owner's changes make no version; a reader may be in it
        if copy is None:
            copy = TipMemory(TipStore(None, live.identity), self._memory.embedder, self._config.memory)
        copy.store.restore(live.path)
        version = copy.store.sequence
        self._pinned[version] = copy
        while len(self._pinned) > self._config.rollout.max_async_iterations + 2:
            self._pinned.popitem(last=False)[1].close()
        return VersionedAnswer(None, version)

    def call(self, method: str, *arguments: Any, **keywords: Any) -> VersionedAnswer:
        """Call a method of the memory, or of the part of it that prompts show."""
        memory = self._memory
        if method in PROMPT_METHODS:
            memory = make_prompt_memory(memory, self._config.algorithm.show_tips)
        return VersionedAnswer(getattr(memory, method)(*arguments, **keywords), memory.store.sequence)

    def reconcile(self, *arguments: Any) -> VersionedAnswer:
        """Reconcile the file with a checkpoint, as `owner.reconcile`."""
        return VersionedAnswer(reconcile(self._memory, *arguments), self._memory.store.sequence)

    def close(self) -> None:
        """Close the memory file."""
        self._memory.close()


class ServedMemory(Closeable):
    """The memory of a run, behind the methods that `memory.base` names; it searches only tips that prompts may show.

    `here` is the scheduling strategy that places the actor beside this process, and `place` the name of this node.

    Raises:
        MemoryStoreError: the file is damaged, of a newer version, belongs to another embedder, or is out of reach.
        ClusterError: the service does not answer within `cluster.timeout`; so does each method.
    """

    def __init__(
        self, config: Config, path: StrPath, here: Any, place: str, service: type[MemoryService] = MemoryService
    ) -> None:
        import ray

        path = Path(path).resolve()
        self.limit = config.cluster.timeout
        self._who = f"the memory service on {place}"
        kind = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)(service)
        self.actor = kind.remote(str(path), get_folder_id(path), config)
        self.version = -1  # of the last answer
        self._pinned: int | None = None  # the version that searches read
        self.stats()  # or the reason why not

    def pin_version(self) -> ServedMemory:
        """Make a reader of the memory as it is now, whatever is written meanwhile, but for its own reports."""
        reader = object.__new__(ServedMemory)
        reader.__dict__.update(self.__dict__)
        reader._repin()
        return reader

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """Find tips, as `Memory.search`."""
        return self._check_version(self._ask("search_async", namespace, query, top_k, self._pinned))

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """Find tips, as `AsyncMemory.search_async`."""
        ref = self.actor.search_async.remote(namespace, query, top_k, self._pinned)
        answer: VersionedAnswer = await await_result(ref, self._who, self.limit, "cluster.timeout")
        self.version = answer.version
        return self._check_version(answer.value)

    def add(self, tips: Sequence[Tip], *, once: str = "") -> int:
        """Add tips, as `TipMemory.add`; return 0 also where Ray repeated a write that had been stored."""
        changed: int = self._ask("call", "add", list(tips), once=once or make_request_id())
        return changed

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        """Register tasks, as `ScopedMemory.register_tasks`."""
        new: bool = self._ask("call", "register_tasks", list(tasks))
        if new and self._pinned is not None:
            self._repin()
        return new

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """Report episodes, as `FeedbackMemory.report`."""
        self._ask("call", "report", list(episodes), once=once or make_request_id())
        if self._pinned is not None:
            self._repin()

    def record_effects(self, readings: Sequence[TipEffect], *, once: str = "") -> None:
        """Record effects, as `TipEffectMemory.record_effects`."""
        self._ask("call", "record_effects", list(readings), once=once or make_request_id())

    def snapshot(self, path: StrPath) -> None:
        """Copy the file, as `Memory.snapshot`."""
        self._ask("call", "snapshot", str(Path(path).resolve()))

    def restore(self, path: StrPath) -> None:
        """Restore a copy, as `Memory.restore`."""
        self._ask("call", "restore", str(Path(path).resolve()))

    def stats(self) -> dict[str, float]:
        """Count the tips, as `Memory.stats`."""
        counts: dict[str, float] = self._ask("call", "stats")
        return counts

    def reconcile(self, saved: Path | None, start: Path, aside: Path, tips: Sequence[Tip] = ()) -> bool:
        """Reconcile the file with a checkpoint, as `owner.reconcile`."""
        begins: bool = self._ask("reconcile", saved and saved.resolve(), start.resolve(), aside.resolve(), list(tips))
        return begins

    def close(self) -> None:
        """Close the file, and end the actor. Twice is fine."""
        import ray

        ray.wait([self.actor.close.remote()], timeout=STOP_LIMIT)
        ray.kill(self.actor)

    def _ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        ref = getattr(self.actor, method).remote(*arguments, **keywords)
        answer: VersionedAnswer = get_result(ref, self._who, self.limit, "cluster.timeout")
        self.version = answer.version
        return answer.value

    def _repin(self) -> None:
        self._ask("pin_version")
        self._pinned = self.version

    def _check_version(self, tips: list[Tip]) -> list[Tip]:
        if self._pinned is not None and self.version != self._pinned:
            logger.warning(
                "the memory service was restarted: prompts show its version %d from here on, not %d",
                self.version, self._pinned,
            )  # fmt: skip
            self._pinned = self.version
        return tips


def get_folder_id(path: Path) -> tuple[int, int]:
    """Identify the folder of `path`: device and inode are the same for two processes that see the same one."""
    status = path.parent.stat()
    return status.st_dev, status.st_ino


def make_request_id() -> str:
    """Make a name for one write, so that it is stored once."""
    return f"{REQUEST}{uuid.uuid4().hex}"
