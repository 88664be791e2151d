"""A memory of a million tips: searching, writing and opening by its size, with one task that holds all of them.

Each size is filled, and measured in a process of its own: the index is made, the file is opened again, 100 searches are
held against the true nearest 10, and 100 more are timed with a write of 128 tips before every fourth. The vectors (384
dimensions) are handed in: clusters of a hundred, of which no two tips are alike, as tips of one task are; or, with
--uniform, directions without any structure, which no index likes. Beside it the product of a matrix in memory (numpy),
and LangGraph's InMemoryStore where it is installed (pip install langgraph-checkpoint), at sizes that these manage.

    python benchmarks/memory_scale.py --json memory_scale.json

Of vectors of your own, such as those of your texts by your embedder, some drawn at random are asked for and written,
and the rest are the tips; equal ones count once. The file is a float array (n, dimensions) that numpy.save wrote:

    python benchmarks/memory_scale.py --vectors vectors.npy
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from shared import cpu_seconds, finish, in_a_process, make_parser, peak_mb, print_table, resident_mb

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import TipMemory, open_memory
from trailnotes.memory.schema import EmbedderIdentity
from trailnotes.memory.store import COLUMNS, TipStore
from trailnotes.types import Tip

Floats = npt.NDArray[np.float32]

DIM, TOP, BATCH, CHUNK = 384, 10, 128, 20_000
QUERIES, WRITE_EVERY = 100, 4
SIZES = {"1k": 1000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000}
NUMPY_UP_TO, LANGGRAPH_UP_TO = 300_000, 10_000
NAMESPACE = "task"
ASKED, WRITTEN = 10**6, 10**6 + 1  # seeds of what is asked for, and of what is written meanwhile; below, of the tips
NUM_WRITTEN = BATCH * QUERIES // WRITE_EVERY


class Given:
    """An embedder that knows the vectors of some texts beforehand: embedding is not what is measured."""

    name = "given"

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.known: dict[str, Floats] = {}

    def embed(self, texts: Sequence[str]) -> Floats:
        """As `Embedder.embed`."""
        return np.stack([self.known[text] for text in texts]) if texts else np.empty((0, self.dim), np.float32)


class Source(NamedTuple):
    """Where vectors come from."""

    says: str
    dim: int
    draw: Callable[[int, int, int], Floats]  # unit vectors (count, dim): their count, that of all tips, a seed
    sizes: Mapping[str, int]  # that it has vectors for


def draw(count: int, tips: int, seed: int, *, uniform: bool) -> Floats:
    """Unit vectors (count, DIM), of the clusters that a memory of so many tips has."""
    rng = np.random.default_rng((1, seed))
    vectors = rng.standard_normal((count, DIM), np.float32)
    if not uniform:
        fall = ((1 + np.arange(DIM)) ** -0.5).astype(np.float32)  # few directions carry much, as in real embeddings
        centres = np.random.default_rng(0).standard_normal((max(1, tips // 100), DIM), np.float32)
        vectors = (centres[rng.integers(len(centres), size=count)] + 0.7 * vectors) * fall
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def made_up(*, uniform: bool) -> Source:
    """The vectors of `draw`."""
    return Source("uniform" if uniform else "clustered", DIM, partial(draw, uniform=uniform), SIZES)


def prepared(file: Path, folder: Path) -> Path:
    """The vectors of a file as `of_file` takes them: of unit length, each once, in an order drawn at random."""
    vectors = np.unique(np.load(file).astype(np.float32), axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.random.default_rng(0).shuffle(vectors)
    np.save(folder / file.name, vectors)
    return folder / file.name


def of_file(path: Path) -> Source:
    """The rows of a file (n, dimensions), which is not read whole: what is asked for, what is written, the tips."""
    vectors = np.load(path, mmap_mode="r")
    starts = {ASKED: 0, WRITTEN: QUERIES}
    tips = len(vectors) - QUERIES - NUM_WRITTEN

    def taken(count: int, _: int, seed: int) -> Floats:
        start = starts.get(seed, QUERIES + NUM_WRITTEN + CHUNK * seed)
        return np.array(vectors[start : start + count])

    sizes = {size: count for size, count in SIZES.items() if count < tips} | {"all": tips}
    return Source(path.name, vectors.shape[1], taken, sizes)


def all_of(source: Source, tips: int) -> Floats:
    """The vectors of all tips."""
    starts = range(0, tips, CHUNK)
    return np.concatenate([source.draw(min(CHUNK, tips - start), tips, start // CHUNK) for start in starts])


def fill(folder: Path, tips: int, source: Source) -> None:
    """A memory file of so many tips, the queries, and the numbers of the tips that are truly nearest to each."""
    TipStore(folder / "memory.db", EmbedderIdentity(Given.name, source.dim)).close()
    queries = source.draw(QUERIES, tips, ASKED)
    best = np.full((QUERIES, TOP), -2.0, np.float32), np.zeros((QUERIES, TOP), np.int64)
    with closing(sqlite3.connect(folder / "memory.db", isolation_level=None)) as file:
        file.execute("BEGIN")
        for start in range(0, tips, CHUNK):
            vectors = source.draw(min(CHUNK, tips - start), tips, start // CHUNK)
            file.executemany(
                f"INSERT INTO tips ({', '.join(COLUMNS)}, vector, age) VALUES ({', '.join('?' * len(COLUMNS))}, ?, ?)",  # noqa: S608
                rows(vectors, start),
            )
            numbers = np.broadcast_to(np.arange(start + 1, start + 1 + len(vectors)), (QUERIES, len(vectors)))
            found = np.hstack([best[0], queries @ vectors.T]), np.hstack([best[1], numbers])
            order = np.argpartition(-found[0], TOP, axis=1)[:, :TOP]
            best = np.take_along_axis(found[0], order, 1), np.take_along_axis(found[1], order, 1)
        file.execute("UPDATE meta SET value = ? WHERE name = 'sequence'", (tips,))
        file.execute("COMMIT")
    np.savez(folder / "asked.npz", queries=queries, nearest=best[1])


def rows(vectors: Floats, start: int) -> Iterator[tuple[Any, ...]]:
    """Rows of the table of tips."""
    for number, vector in enumerate(vectors, start + 1):
        tip = a_tip(number)
        yield (*(getattr(tip, name) for name in COLUMNS), vector.tobytes(), number)


def a_tip(number: int) -> Tip:
    """One of about twenty words."""
    text = f"tip {number}: the door behind the red lamp opens when the brass key is turned twice, then go north"
    return Tip(NAMESPACE, text, f"key {number}", number % 7 / 7)


def opened(folder: Path, tips: int, texts: Given) -> TipMemory:
    """The memory, the most similar first."""
    config = MemoryConfig(threshold=-1, order=("similarity",), capacity=2 * tips)
    return open_memory(folder / "memory.db", config, embedder=texts)


def build(folder: Path, tips: int, source: Source) -> dict[str, float]:
    """Open for the first time: the index is made and saved."""
    texts, asked = Given(source.dim), np.load(folder / "asked.npz")["queries"]
    texts.known["query 0"] = asked[0]
    start, cpu = time.perf_counter(), cpu_seconds()
    with opened(folder, tips, texts) as memory:
        memory.search(NAMESPACE, "query 0", TOP)
    return {"build_s": time.perf_counter() - start, "build_cpu_s": cpu_seconds() - cpu, "build_peak_mb": peak_mb()}


def use(folder: Path, tips: int, source: Source) -> dict[str, float]:
    """Open again, search, and search with writes going on."""
    texts, asked = Given(source.dim), np.load(folder / "asked.npz")
    texts.known = {f"query {number}": vector for number, vector in enumerate(asked["queries"])}
    fresh = source.draw(NUM_WRITTEN, tips, WRITTEN)
    texts.known |= {f"key {number}": vector for number, vector in enumerate(fresh, tips + 1)}
    before, start = resident_mb("VmRSS"), time.perf_counter()
    memory = opened(folder, tips, texts)
    memory.search(NAMESPACE, "query 0", TOP)
    result = {"open_s": time.perf_counter() - start}
    searches, writes = Clock(), Clock()
    hits = 0
    for number, nearest in enumerate(asked["nearest"].tolist()):
        found = memory.search(NAMESPACE, f"query {number}", TOP)
        hits += len({tip.id for tip in found} & set(nearest))
    for number in range(QUERIES):
        if number % WRITE_EVERY == 0:
            first = tips + 1 + BATCH * (number // WRITE_EVERY)
            batch = [a_tip(new) for new in range(first, first + BATCH)]
            assert writes.of(lambda batch=batch: memory.add(batch)) == BATCH
            found = searches.of(lambda first=first: memory.search(NAMESPACE, f"key {first}", TOP))
            assert found[0].id == first, "what was written is found by the next search"
        else:
            searches.of(lambda number=number: memory.search(NAMESPACE, f"query {number}", TOP))
    result |= {"recall": hits / TOP / QUERIES, "rss_mb": resident_mb("VmRSS"), "rss_before_mb": before}
    memory.close()
    return result | searches.figures("search") | writes.figures("write") | {"peak_mb": peak_mb()}


class Clock:
    """Wall and CPU seconds of calls."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def of(self, call: Callable[[], Any]) -> Any:
        """What `call` returns, timed."""
        start, cpu = time.perf_counter(), cpu_seconds()
        result = call()
        self.wall.append(time.perf_counter() - start)
        self.cpu.append(cpu_seconds() - cpu)
        return result

    def figures(self, name: str) -> dict[str, float]:
        """Medians and 95th percentiles, in ms."""
        kinds = {f"{name}_ms": self.wall, f"{name}_cpu_ms": self.cpu}
        medians = {key: 1e3 * float(np.median(values)) for key, values in kinds.items()}
        return medians | {f"{key}_p95": 1e3 * float(np.percentile(values, 95)) for key, values in kinds.items()}


def numpy_alone(folder: Path, tips: int, source: Source) -> dict[str, float]:
    """A matrix in memory, and its product with the query."""
    vectors = all_of(source, tips)
    clock = Clock()
    for query in np.load(folder / "asked.npz")["queries"]:
        clock.of(lambda query=query: np.argpartition(-(vectors @ query), TOP)[:TOP])
    return clock.figures("numpy_search") | {"numpy_rss_mb": resident_mb("VmRSS")}


def langgraph(folder: Path, tips: int, source: Source) -> dict[str, float]:
    """LangGraph's InMemoryStore with the same vectors."""
    from langgraph.store.memory import InMemoryStore

    texts = Given(source.dim)
    texts.known = {f"key {number}": vector for number, vector in enumerate(all_of(source, tips), 1)}
    queries = np.load(folder / "asked.npz")["queries"][:20]
    texts.known |= {f"query {number}": query for number, query in enumerate(queries)}
    embed = lambda keys: texts.embed(keys).tolist()  # noqa: E731
    store = InMemoryStore(index={"dims": source.dim, "embed": embed, "fields": ["key"]})
    for number in range(1, tips + 1):
        store.put((NAMESPACE,), str(number), {"key": f"key {number}", "text": a_tip(number).text})
    clock = Clock()
    for number in range(len(queries)):
        clock.of(lambda number=number: store.search((NAMESPACE,), query=f"query {number}", limit=TOP))
    return clock.figures("langgraph_search") | {"langgraph_rss_mb": resident_mb("VmRSS")}


def measure(sizes: Sequence[str], source: Source, told: Sequence[str]) -> dict[str, Any]:
    """All figures, each with its size in its name; `told` are the arguments that say what the source is."""
    result: dict[str, Any] = {"vectors": source.says, "dim": source.dim}
    for size in sizes:
        tips = source.sizes[size]
        parts = ["fill", "build", "use"]
        parts += ["numpy"] if tips <= NUMPY_UP_TO else []
        parts += ["langgraph"] if tips <= LANGGRAPH_UP_TO and importlib.util.find_spec("langgraph") else []
        result[f"tips_{size}"] = tips
        with tempfile.TemporaryDirectory() as folder:
            for part in parts:
                done = in_a_process(__file__, "--part", part, folder, str(tips), *told)
                result |= {f"{name}_{size}": round(value, 4) for name, value in done.items()}
    return result


def run_part(part: str, folder: Path, tips: int, source: Source) -> dict[str, float]:
    """One process's work."""
    if part == "fill":
        fill(folder, tips, source)
        return {}
    return {"build": build, "use": use, "numpy": numpy_alone, "langgraph": langgraph}[part](folder, tips, source)


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    columns = {
        "search_ms": "search ms", "search_ms_p95": "p95", "search_cpu_ms": "CPU ms", "search_cpu_ms_p95": "p95 CPU",
        "write_ms": "write ms", "write_cpu_ms": "CPU ms", "recall": "recall", "rss_mb": "MB", "open_s": "open s",
        "build_cpu_s": "build CPU s", "numpy_search_cpu_ms": "numpy CPU ms",
        "langgraph_search_cpu_ms": "LangGraph CPU ms",
    }  # fmt: skip
    sizes = [size for size in (*SIZES, "all") if f"search_ms_{size}" in result]
    lines = [[f"{result[f'tips_{size}']:,}",
              *(f"{result[f'{name}_{size}']:.3g}" if f"{name}_{size}" in result else "" for name in columns)]
             for size in sizes]  # fmt: skip
    title = f"{result['vectors']} vectors of {result['dim']} dimensions"
    print_table(title, ("tips", *columns.values()), lines)


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="1k and 10k only")
    parser.add_argument("--sizes", nargs="+", metavar="SIZE", help=f"{', '.join(SIZES)}; with --vectors also all")
    parser.add_argument("--uniform", action="store_true", help="vectors without clusters")
    parser.add_argument("--vectors", type=Path, metavar="FILE", help="those of a .npy file, (n, dimensions), instead")
    parser.add_argument("--part", nargs=3, metavar=("PART", "FOLDER", "TIPS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        part, folder, tips = arguments.part
        source = of_file(arguments.vectors) if arguments.vectors else made_up(uniform=arguments.uniform)
        print(json.dumps(run_part(part, Path(folder), int(tips), source)))
        return
    with tempfile.TemporaryDirectory() as folder:
        told = ["--uniform"] * arguments.uniform
        source = made_up(uniform=arguments.uniform)
        if arguments.vectors:
            file = prepared(arguments.vectors, Path(folder))
            source, told = of_file(file), ["--vectors", str(file)]
        sizes = arguments.sizes or [size for size in source.sizes if not arguments.quick or size in {"1k", "10k"}]
        if unknown := set(sizes) - set(source.sizes):
            parser.error(f"no vectors for {', '.join(sorted(unknown))}: there are those of {', '.join(source.sizes)}")
        finish(measure(sizes, source, told), report, arguments.json)


if __name__ == "__main__":
    main()
