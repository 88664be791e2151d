"""A large memory: searching, writing and opening by its size, with one task that holds all tips.

Each size is measured in a process of its own: the file is opened, and 100 searches are timed with a write of 128 tips
before every fourth, which has the next search read all tips again. Vectors (384 dimensions) are handed in. In the same
run: the product of a matrix in memory (numpy), and LangGraph's InMemoryStore if it is installed, up to 10,000 tips.

    python benchmarks/memory_scale.py --json memory_scale.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sqlite3
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from shared import cpu_seconds, finish, in_a_process, make_parser, print_table, resident_mb

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import open_memory
from trailnotes.memory.schema import EmbedderIdentity
from trailnotes.memory.store import COLUMNS, TipStore
from trailnotes.types import Tip

Floats = npt.NDArray[np.float32]
DIM, TOP, BATCH = 384, 10, 128
QUERIES, WRITE_EVERY = 100, 4
SIZES = {"1k": 1000, "10k": 10_000, "100k": 100_000}
LANGGRAPH_UP_TO = 10_000
TASK = "task"


class KnownVectors:
    """An embedder that looks vectors up: embedding is not what is measured."""

    name, dim = "known", DIM

    def __init__(self, tips: int) -> None:
        self.vectors = draw_vectors(tips, 0)
        written, queries = draw_vectors(BATCH * QUERIES // WRITE_EVERY, 1), draw_vectors(QUERIES, 2)
        self.known = {f"key {number}": vector for number, vector in enumerate(written, tips + 1)}
        self.known |= {f"query {number}": vector for number, vector in enumerate(queries)}

    def embed(self, texts: Sequence[str]) -> Floats:
        return np.stack([self.known[text] for text in texts]) if texts else np.empty((0, DIM), np.float32)


def draw_vectors(count: int, seed: int) -> Floats:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_tip(number: int) -> Tip:
    text = f"tip {number}: the door behind the red lamp opens when the brass key is turned twice, then go north"
    return Tip(TASK, text, f"key {number}", number % 7 / 7)


def fill(path: Path, vectors: Floats) -> None:
    """Write a memory file with these tips, faster than the memory itself would."""
    TipStore(path, EmbedderIdentity(KnownVectors.name, DIM)).close()
    with closing(sqlite3.connect(path)) as file:
        rows = (
            (*(getattr(make_tip(number), name) for name in COLUMNS), vector.tobytes(), number)
            for number, vector in enumerate(vectors, 1)
        )
        places = ", ".join("?" * (len(COLUMNS) + 2))
        file.executemany(f"INSERT INTO tips ({', '.join(COLUMNS)}, vector, age) VALUES ({places})", rows)  # noqa: S608
        file.execute("UPDATE meta SET value = ? WHERE name = 'sequence'", (len(vectors),))
        file.commit()


class Clock:
    """Wall and CPU milliseconds of calls, by name."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        start, cpu = time.perf_counter(), cpu_seconds()
        result = call()
        self.times[f"{name}_ms"].append(1e3 * (time.perf_counter() - start))
        self.times[f"{name}_cpu_ms"].append(1e3 * (cpu_seconds() - cpu))
        return result

    def medians(self) -> dict[str, float]:
        return {name: float(np.median(values)) for name, values in self.times.items()}


def measure_memory(tips: int) -> dict[str, float]:
    embedder, clock = KnownVectors(tips), Clock()
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "memory.db", embedder.vectors)
        del embedder.vectors
        config, before = MemoryConfig(threshold=-1, order=("similarity",), capacity=2 * tips), resident_mb("VmRSS")
        memory = clock.time("open", lambda: open_memory(Path(folder) / "memory.db", config, embedder=embedder))
        clock.time("open", lambda: memory.search(TASK, "query 0", TOP))
        for number in range(QUERIES):
            if number % WRITE_EVERY == 0:
                first = tips + 1 + BATCH * (number // WRITE_EVERY)
                clock.time("write", lambda first=first: memory.add([make_tip(first + i) for i in range(BATCH)]))
                found = clock.time("after_write", lambda first=first: memory.search(TASK, f"key {first}", TOP))
                assert found[0].id == first, "what was written is found by the next search"
            else:
                clock.time("search", lambda number=number: memory.search(TASK, f"query {number}", TOP))
        memory_mb = resident_mb("VmRSS") - before
        memory.close()
    return clock.medians() | {"open_s": sum(clock.times["open_ms"]) / 1e3, "memory_mb": memory_mb}


def measure_numpy(tips: int) -> dict[str, float]:
    vectors, clock = draw_vectors(tips, 0), Clock()
    for query in draw_vectors(QUERIES, 2):
        clock.time("numpy", lambda query=query: np.argpartition(-(vectors @ query), TOP)[:TOP])
    return clock.medians()


def measure_langgraph(tips: int) -> dict[str, float]:
    from langgraph.store.memory import InMemoryStore

    embedder, clock = KnownVectors(tips), Clock()
    embedder.known |= {f"key {number}": vector for number, vector in enumerate(embedder.vectors, 1)}
    index: Any = {"dims": DIM, "embed": lambda keys: embedder.embed(keys).tolist(), "fields": ["key"]}
    store = InMemoryStore(index=index)
    for number in range(1, tips + 1):
        store.put((TASK,), str(number), {"key": f"key {number}", "text": make_tip(number).text})
    for number in range(20):
        clock.time("langgraph", lambda number=number: store.search((TASK,), query=f"query {number}", limit=TOP))
    return clock.medians()


PARTS = {"memory": measure_memory, "numpy": measure_numpy, "langgraph": measure_langgraph}


def measure(sizes: Sequence[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for size in sizes:
        tips = SIZES[size]
        has_langgraph = tips <= LANGGRAPH_UP_TO and importlib.util.find_spec("langgraph") is not None
        for part in ("memory", "numpy", *["langgraph"] * has_langgraph):
            measured = in_a_process(__file__, "--part", part, str(tips))
            result |= {f"{name}_{size}": round(value, 4) for name, value in measured.items()}
    return result


def report(result: dict[str, Any]) -> None:
    columns = {
        "search_ms": "search ms", "search_cpu_ms": "CPU ms", "after_write_ms": "after a write ms",
        "after_write_cpu_ms": "CPU ms", "write_ms": "write ms", "write_cpu_ms": "CPU ms", "memory_mb": "MB",
        "open_s": "open s", "numpy_cpu_ms": "numpy CPU ms", "langgraph_cpu_ms": "LangGraph CPU ms",
    }  # fmt: skip
    sizes = [size for size in SIZES if f"search_ms_{size}" in result]
    lines = [
        [f"{SIZES[size]:,}", *(f"{result[key]:.3g}" if (key := f"{name}_{size}") in result else "" for name in columns)]
        for size in sizes
    ]
    print_table(f"{DIM} dimensions", ("tips", *columns.values()), lines)


def main() -> None:
    parser = make_parser(__doc__, quick="1k and 10k only")
    parser.add_argument("--part", nargs=2, metavar=("PART", "TIPS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        part, tips = arguments.part
        print(json.dumps(PARTS[part](int(tips))))
        return
    sizes = [size for size in SIZES if not arguments.quick or size != "100k"]
    finish(measure(sizes), report, arguments.json)


if __name__ == "__main__":
    main()
