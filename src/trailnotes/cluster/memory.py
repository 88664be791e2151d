"""The memory as a service: one actor writes, on the machine of the run directory, and everybody asks it.

Its state is the SQLite file of the run and nothing else, so that a killed one is brought back by Ray and has lost
nothing that it had answered: a write is on the disk before it is answered, and has a name of its own, so that one
that Ray repeats, since its answer was lost, is not stored twice.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trailnotes.cluster.waiting import Deadline, await_result, get_result
from trailnotes.errors import MemoryStoreError, TrailnotesError
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.memory.openfile import Closeable
from trailnotes.memory.owner import reconcile
from trailnotes.memory.retrieval import embedder_of
from trailnotes.memory.store import REQUEST, TipStore
from trailnotes.memory.tips import TipMemory, open_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trailnotes.config.schema import Config
    from trailnotes.memory.tip_stats import TipEffect
    from trailnotes.types import StrPath, Task, Tip, Trajectory

logger = logging.getLogger(__name__)
STOP_LIMIT = 5.0  # seconds to close the file


class VersionedAnswer(NamedTuple):
    """What the service answers."""

    value: Any
    version: int  # of the memory that it was read from, or that it made: the number of writes so far


class MemoryService:
    """The actor. One call after the other, but for searches that wait for a slow embedder.

    Args:
        path: of the memory file.
        folder: device and inode of its folder as the run sees it, which must be the same here.
        config: of the run.
    """

    def __init__(self, path: str, folder: tuple[int, int], config: Config) -> None:
        self._config = config
        self._pinned: OrderedDict[int, TipMemory] = OrderedDict()
        self._broken: TrailnotesError | None = None  # told whoever asks: Ray wraps what a constructor raises
        try:
            if not Path(path).parent.is_dir() or _get_folder_id(Path(path)) != folder:
                raise MemoryStoreError(
                    f"the memory service does not see {Path(path).parent} of the run: start the training on a machine "
                    "of the cluster, with cluster.address = auto"
                )
            on_cpu = config.model_copy(update={"model": config.model.model_copy(update={"device": "cpu"})})
            self._memory = open_memory(path, config.memory, embedder=embedder_of(on_cpu))
        except TrailnotesError as error:
            self._broken = error

    async def search_async(self, namespace: str, query: str, top_k: int, at: int | None) -> VersionedAnswer:
        """What prompts show, as it was at the version `at`; None: as it is."""
        memory = self._at(at)
        tips = await make_prompt_memory(memory, self._config.algorithm.show_tips).search_async(namespace, query, top_k)
        return VersionedAnswer(tips, memory.store.sequence)

    def pin(self) -> VersionedAnswer:
        """Keep the memory as it is, for readers of this version; those of the newest few versions are kept."""
        held = self._whole().store
        assert held.path is not None
        frozen = self._pinned.pop(held.sequence, None)  # what its owner changed makes no version; a reader may be in it
        if frozen is None:
            frozen = TipMemory(TipStore(None, held.identity), self._memory.embedder, self._config.memory)
        frozen.store.restore(held.path)
        version = frozen.store.sequence
        self._pinned[version] = frozen
        while len(self._pinned) > self._config.rollout.ahead + 2:
            self._pinned.popitem(last=False)[1].close()
        return VersionedAnswer(None, version)

    def add(self, tips: Sequence[Tip], once: str) -> VersionedAnswer:
        """`TipMemory.add`."""
        return self._answer(self._whole().add(tips, once=once))

    def register_tasks(self, tasks: Sequence[Task]) -> VersionedAnswer:
        """`TipMemory.register_tasks`, of what is shown."""
        return self._answer(make_prompt_memory(self._whole(), self._config.algorithm.show_tips).register_tasks(tasks))

    def report(self, episodes: Sequence[Trajectory], once: str) -> VersionedAnswer:
        """`TipMemory.report`, of what was shown."""
        make_prompt_memory(self._whole(), self._config.algorithm.show_tips).report(episodes, once=once)
        return self._answer(None)

    def record_effects(self, readings: Sequence[TipEffect], once: str) -> VersionedAnswer:
        """`TipMemory.measure`, of what was shown."""
        make_prompt_memory(self._whole(), self._config.algorithm.show_tips).record_effects(readings, once=once)
        return self._answer(None)

    def snapshot(self, path: str) -> VersionedAnswer:
        """`TipMemory.snapshot`."""
        self._whole().snapshot(path)
        return self._answer(None)

    def restore(self, path: str) -> VersionedAnswer:
        """`TipMemory.restore`."""
        self._whole().restore(path)
        return self._answer(None)

    def stats(self) -> VersionedAnswer:
        """`TipMemory.stats`."""
        return self._answer(self._whole().stats())

    def reconcile(self, saved: Path | None, start: Path, aside: Path, tips: Sequence[Tip]) -> VersionedAnswer:
        """`owner.reconcile`."""
        return self._answer(reconcile(self._whole(), saved, start, aside, tips))

    def pid(self) -> VersionedAnswer:
        """Its process."""
        return self._answer(os.getpid())

    def close(self) -> None:
        """Close the file."""
        if self._broken is None:
            self._memory.close()

    def _whole(self) -> TipMemory:
        if self._broken is not None:
            raise self._broken
        return self._memory

    def _at(self, version: int | None) -> TipMemory:
        """Who began anew meanwhile keeps no old version: the newest is what there is, and the answer says so."""
        memory = self._whole()
        if version is not None and version not in self._pinned and memory.store.sequence == version:
            self.pin()
        return memory if version is None else self._pinned.get(version, memory)

    def _answer(self, value: Any) -> VersionedAnswer:
        return VersionedAnswer(value, self._memory.store.sequence)


class ServedMemory(Closeable):
    """The memory of a run, behind the methods that `memory.base` names; it finds what prompts are to show.

    Args:
        config: of the run.
        path: of the memory file.
        here: the scheduling strategy that places the actor beside this process.
        place: what messages call this node.
        service: the actor's class.

    Raises:
        MemoryStoreError: the file is damaged, of a newer version, belongs to another embedder, or is out of reach.
        ClusterError: the service does not answer within `cluster.timeout`; so does each method.
    """

    def __init__(
        self, config: Config, path: StrPath, here: Any, place: str, service: type[MemoryService] = MemoryService
    ) -> None:
        import ray

        path = Path(path).resolve()
        self._config, self._place = config, place
        self._at: int | None = None
        actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)(service)
        self._actor = actor.remote(str(path), _get_folder_id(path), config)
        self.version = -1  # of the last answer
        self.stats()  # or the reason why not

    def pinned(self) -> ServedMemory:
        """A reader of the memory as it is now, whatever is written meanwhile, but for what it reports itself."""
        reader = object.__new__(ServedMemory)
        reader.__dict__.update(self.__dict__)
        reader._ask("pin")
        reader._at = reader.version
        return reader

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """See `Memory.search`."""
        return self._found(self._ask("search_async", namespace, query, top_k, self._at))

    async def search_async(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """See `AsyncMemory.find`."""
        answer = self._actor.search_async.remote(namespace, query, top_k, self._at)
        return self._found(self._taken(await await_result(answer, self._patience())))

    def add(self, tips: Sequence[Tip], *, once: str = "") -> int:
        """See `TipMemory.add`; 0 also where Ray repeated a write that had been stored."""
        changed: int = self._ask("add", list(tips), once or _make_request_id())
        return changed

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        """See `ScopedMemory.register_tasks`."""
        hears = self._config.memory.scope != "task" or self._config.algorithm.show_tips == "other"
        new: bool = hears and self._ask("register_tasks", list(tasks))
        if new and self._at is not None:
            self._ask("pin")
            self._at = self.version
        return new

    def report(self, episodes: Sequence[Trajectory], *, once: str = "") -> None:
        """See `FeedbackMemory.report`."""
        self._ask("report", list(episodes), once or _make_request_id())
        if self._at is not None:
            self._ask("pin")
            self._at = self.version

    def record_effects(self, readings: Sequence[TipEffect], *, once: str = "") -> None:
        """See `TipEffectMemory.measure`."""
        self._ask("record_effects", list(readings), once or _make_request_id())

    def snapshot(self, path: StrPath) -> None:
        """See `Memory.snapshot`."""
        self._ask("snapshot", str(Path(path).resolve()))

    def restore(self, path: StrPath) -> None:
        """See `Memory.restore`."""
        self._ask("restore", str(Path(path).resolve()))

    def stats(self) -> dict[str, float]:
        """See `Memory.stats`."""
        counts: dict[str, float] = self._ask("stats")
        return counts

    def reconcile(self, saved: Path | None, start: Path, aside: Path, tips: Sequence[Tip] = ()) -> bool:
        """See `owner.reconcile`."""
        begins: bool = self._ask("reconcile", saved and saved.resolve(), start.resolve(), aside.resolve(), list(tips))
        return begins

    def pid(self) -> int:
        """The actor's process, on the machine of the run."""
        number: int = self._ask("pid")
        return number

    def close(self) -> None:
        """Close the file, and end the actor. Twice is fine."""
        import ray

        ray.wait([self._actor.close.remote()], timeout=STOP_LIMIT)
        ray.kill(self._actor)

    def _patience(self) -> Deadline:
        return Deadline(lambda: f"the memory service on {self._place}", self._config.cluster.timeout, "cluster.timeout")

    def _ask(self, method: str, *arguments: Any) -> Any:
        answer = getattr(self._actor, method).remote(*arguments)
        return self._taken(get_result(answer, self._patience()))

    def _taken(self, answer: VersionedAnswer) -> Any:
        self.version = answer.version
        return answer.value

    def _found(self, tips: list[Tip]) -> list[Tip]:
        if self._at is not None and self.version != self._at:
            logger.warning(
                "the memory service began anew: what is shown from here on is its version %d, not %d",
                self.version, self._at,
            )  # fmt: skip
            self._at = self.version
        return tips


def _get_folder_id(path: Path) -> tuple[int, int]:
    """Device and inode of the folder of `path`: the same for two processes that see the same one."""
    found = path.parent.stat()
    return found.st_dev, found.st_ino


def _make_request_id() -> str:
    """A name for one write."""
    return f"{REQUEST}{uuid.uuid4().hex}"
