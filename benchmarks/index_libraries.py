"""Libraries that find the nearest of many vectors, side by side: what docs/results/memory-scale.md chooses from.

384 dimensions, cosine, one query at a time, one core; the vectors are those of `memory_scale.py`. A library that keeps
less than whole vectors is asked for more ids than ten, which are then ranked by the full vectors, in a file here.
Recall is of the true nearest ten after that, and time is CPU time with the ranking. Each library has a process of its
own; what is not installed is named, and left out:

    pip install faiss-cpu usearch turbovec sqlite-vec apsw
    python benchmarks/index_libraries.py --json index_libraries.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from memory_scale import BATCH, CHUNK, DIM, SIZES, TOP, Clock, Floats, draw
from shared import cpu_seconds, finish, in_a_process, make_parser, print_table

Ids = npt.NDArray[np.int64]

QUERIES, WRITES = 100, 10
SAMPLE = 100_000  # vectors that an index is trained with, at most


class Built(NamedTuple):
    """An index that holds all vectors, under their row numbers."""

    search: Callable[[Floats, int], Ids]  # vector (DIM,), number of ids
    add: Callable[[Ids, Floats], object]
    num_bytes: Callable[[], int]  # of its file
    look_into: Callable[[int], None] = lambda _: None  # so many lists


class Kind(NamedTuple):
    """An index of a library."""

    package: str  # as it is installed, and imported but for a hyphen
    says: str
    build: Callable[[Floats], Built]
    named: int  # ids that it is asked for
    lists: tuple[int, ...] = (0,)  # to look into; 0 = all, or it has none
    most: int = SIZES["1m"]  # vectors beyond which it takes too long


def pieces(vectors: Floats) -> Iterator[tuple[Ids, Floats]]:
    """All ids and vectors, `CHUNK` at a time."""
    for start in range(0, len(vectors), CHUNK):
        piece = np.asarray(vectors[start : start + CHUNK])
        yield np.arange(start, start + len(piece)), piece


def exact(vectors: Floats) -> Built:
    """One product with all of them."""
    held = [np.array(vectors)]

    def add(_: Ids, new: Floats) -> None:
        held[0] = np.concatenate([held[0], new])

    return Built(lambda query, count: np.argpartition(-(held[0] @ query), count)[:count], add, lambda: held[0].nbytes)


def of_faiss(layout: str) -> Callable[[Floats], Built]:
    """What its factory makes of a description."""

    def build(vectors: Floats) -> Built:
        import faiss

        faiss.omp_set_num_threads(1)
        index = faiss.index_factory(DIM, layout, faiss.METRIC_INNER_PRODUCT)
        if has_lists := layout.startswith("IVF"):
            index.cp.max_points_per_centroid, index.cp.niter = 40, 5  # as memory/index.py
        index.train(np.array(vectors[:: max(1, len(vectors) // SAMPLE)]))
        for _, piece in pieces(vectors):
            index.add(piece)

        def look_into(lists: int) -> None:
            if has_lists:
                index.nprobe = lists or index.nlist

        return Built(lambda query, count: index.search(query[None], count)[1][0], lambda _, new: index.add(new),
                     lambda: faiss.serialize_index(index).nbytes, look_into)  # fmt: skip

    return build


def usearch_hnsw(vectors: Floats) -> Built:
    """A graph over bytes."""
    from usearch.index import Index

    index = Index(ndim=DIM, metric="cos", dtype="i8", expansion_add=64, expansion_search=256)
    for ids, piece in pieces(vectors):
        index.add(ids, piece, threads=1)
    return Built(lambda query, count: index.search(query, count, threads=1).keys.astype(np.int64),
                 lambda ids, new: index.add(ids, new, threads=1), lambda: index.serialized_length)  # fmt: skip


def of_turbovec(bits: int) -> Callable[[Floats], Built]:
    """Some bits a number, without lists."""

    def build(vectors: Floats) -> Built:
        import turbovec

        index = turbovec.IdMapIndex(dim=DIM, bit_width=bits)
        index.calibrate(np.array(vectors[:: max(1, len(vectors) // 4096)]))
        for ids, piece in pieces(vectors):
            index.add_with_ids(piece, ids.astype(np.uint64))
        index.prepare()

        def num_bytes() -> int:
            with tempfile.TemporaryDirectory() as folder:
                index.sync(f"{folder}/index")
                return Path(f"{folder}/index").stat().st_size

        return Built(lambda query, count: index.search(query[None], k=count)[1][0].astype(np.int64),
                     lambda ids, new: index.add_with_ids(new, ids.astype(np.uint64)), num_bytes)  # fmt: skip

    return build


def sqlite_vec(vectors: Floats) -> Built:
    """A table in SQLite, through a Python module that may load extensions."""
    import apsw
    import sqlite_vec

    file = apsw.Connection(":memory:")
    file.enable_load_extension(True)
    file.load_extension(sqlite_vec.loadable_path())
    file.execute(f"CREATE VIRTUAL TABLE v USING vec0(vector float[{DIM}] distance_metric=cosine)")

    def add(ids: Ids, new: Floats) -> None:
        rows = [(each, vector.tobytes()) for each, vector in zip(ids.tolist(), new, strict=True)]
        with file:
            file.executemany("INSERT INTO v (rowid, vector) VALUES (?, ?)", rows)

    def search(query: Floats, count: int) -> Ids:
        found = file.execute("SELECT rowid FROM v WHERE vector MATCH ? AND k = ?", (query.tobytes(), count))
        return np.array([row[0] for row in found], np.int64)

    for ids, piece in pieces(vectors):
        add(ids, piece)
    return Built(search, add, lambda: len(file.serialize("main")))


COUNTS = {size: SIZES[size] for size in ("10k", "100k", "1m")}  # of fewer, 2,048 lists cannot be made
KINDS = {
    "numpy": Kind("numpy", "float32, exact", exact, TOP, most=SIZES["100k"]),
    "sqlite-vec": Kind("sqlite-vec", "float32, exact", sqlite_vec, TOP, most=SIZES["100k"]),
    "usearch": Kind("usearch", "HNSW, int8, expansion_search 256", usearch_hnsw, 30, most=SIZES["100k"]),
    "turbovec-4": Kind("turbovec", "4 bits a number", of_turbovec(4), 30),
    "turbovec-2": Kind("turbovec", "2 bits a number", of_turbovec(2), 30),
    "faiss-bytes": Kind("faiss-cpu", "flat, int8", of_faiss("SQ8"), 30, most=SIZES["100k"]),
    "faiss-bits": Kind("faiss-cpu", "flat, PQ192x4fs", of_faiss("PQ192x4fs"), 100),
    "faiss-ivf-bytes": Kind("faiss-cpu", "IVF1024,SQ8", of_faiss("IVF1024,SQ8"), 64, (64, 128)),
    "faiss-ivf-1024": Kind("faiss-cpu", "IVF1024,PQ192x4fs", of_faiss("IVF1024,PQ192x4fs"), 128, (64, 128, 0)),
    "faiss-ivf-2048": Kind("faiss-cpu", "IVF2048,PQ192x4fs", of_faiss("IVF2048,PQ192x4fs"), 128, (128, 192, 256)),
}


def fill(folder: Path, count: int, *, uniform: bool) -> None:
    """The vectors, in a file that is not read whole; the queries, and the row numbers truly nearest to each."""
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float32, (count, DIM))
    queries = draw(QUERIES, count, 10**6, uniform=uniform)
    for start in range(0, count, CHUNK):
        vectors[start : start + CHUNK] = draw(min(CHUNK, count - start), count, start // CHUNK, uniform=uniform)
    similar = np.empty((QUERIES, count), np.float32)
    for ids, piece in pieces(vectors):
        similar[:, ids] = queries @ piece.T
    nearest = np.stack([np.argpartition(-row, TOP)[:TOP] for row in similar])
    np.savez(folder / "asked.npz", queries=queries, nearest=nearest,
             more=draw(BATCH * WRITES, count, 10**6 + 1, uniform=uniform))  # fmt: skip


def measure(kind: Kind, folder: Path) -> list[dict[str, Any]]:
    """A row for each number of lists."""
    vectors, asked = np.load(folder / "vectors.npy", mmap_mode="r"), np.load(folder / "asked.npz")
    began = cpu_seconds()
    index = kind.build(vectors)
    build_cpu_s = cpu_seconds() - began
    rows = []
    for lists in kind.lists:
        index.look_into(lists)
        clock, hits = Clock(), 0
        for query, nearest in zip(asked["queries"], asked["nearest"], strict=True):
            found = clock.of(lambda query=query: ranked(index.search(query, kind.named), query, vectors))
            hits += len(set(found.tolist()) & set(nearest.tolist()))
        rows.append({
            "library": f"{kind.package} {metadata.version(kind.package)}", "kind": kind.says, "lists": lists,
            "named": kind.named, **clock.figures("search"), "recall": hits / TOP / len(asked["queries"]),
            "build_cpu_s": build_cpu_s, "mb": index.num_bytes() / 2**20,
        })  # fmt: skip
    return [*rows[:-1], rows[-1] | written(index, len(vectors), asked["more"], asked["queries"][0], kind.named)]


def ranked(ids: Ids, query: Floats, vectors: Floats) -> Ids:
    """The nearest ten of what was named."""
    ids = ids[ids >= 0]
    return ids[np.argsort(-(vectors[ids] @ query))[:TOP]]


def written(index: Built, count: int, more: Floats, query: Floats, named: int) -> dict[str, float]:
    """Writes of `BATCH`, and the search after each."""
    writes, after = Clock(), Clock()
    for start in range(0, len(more), BATCH):
        batch = more[start : start + BATCH]
        writes.of(lambda batch=batch, start=start: index.add(np.arange(count + start, count + start + BATCH), batch))
        after.of(lambda: index.search(query, named))
    return {"write_cpu_ms": writes.figures("")["_cpu_ms"], "next_search_cpu_ms": after.figures("")["_cpu_ms"]}


def compare(sizes: Sequence[str], names: Sequence[str], *, uniform: bool) -> dict[str, Any]:
    """All figures, by size; libraries that are missing are named."""
    needs = {name: [KINDS[name].package, *["apsw"] * (name == "sqlite-vec")] for name in names}
    missing = sorted({each for packages in needs.values() for each in packages if not is_installed(each)})
    if missing:
        print(f"left out, since they are not installed: {', '.join(missing)} (pip install {' '.join(missing)})")
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")  # of the others
    result: dict[str, Any] = {"vectors": "uniform" if uniform else "clustered", "dim": DIM, "missing": missing}
    for size in sizes:
        fitting = [name for name in names if SIZES[size] <= KINDS[name].most and not set(needs[name]) & set(missing)]
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder), SIZES[size], uniform=uniform)
            result[size] = [row for name in fitting
                            for row in in_a_process(__file__, "--part", name, folder)["rows"]]  # fmt: skip
    return result


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec({"faiss-cpu": "faiss"}.get(package, package.replace("-", "_"))) is not None


def report(result: dict[str, Any]) -> None:
    """Print a table for each size."""
    columns = {
        "lists": "lists", "named": "named", "search_cpu_ms": "CPU ms", "search_cpu_ms_p95": "p95", "recall": "recall",
        "write_cpu_ms": "write ms", "next_search_cpu_ms": "next ms", "build_cpu_s": "build s", "mb": "MB",
    }  # fmt: skip
    for size in (size for size in COUNTS if size in result):
        rows = [[row["library"], row["kind"], *(f"{row[name]:.3g}" if name in row else "" for name in columns)]
                for row in result[size]]  # fmt: skip
        title = f"{size} {result['vectors']} vectors of {result['dim']} dimensions"
        print_table(title, ("library", "kind", *columns.values()), rows, left=("library", "kind"))


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="10k only")
    parser.add_argument(
        "--sizes", nargs="+", choices=list(COUNTS), metavar="SIZE", help=f"{', '.join(COUNTS)} (100k 1m)"
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), metavar="KIND", help=f"{', '.join(KINDS)} (all)")
    parser.add_argument("--uniform", action="store_true", help="vectors without clusters")
    parser.add_argument("--part", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        name, folder = arguments.part
        print(json.dumps({"rows": measure(KINDS[name], Path(folder))}))
        return
    sizes = arguments.sizes or (["10k"] if arguments.quick else ["100k", "1m"])
    finish(compare(sizes, arguments.kinds or list(KINDS), uniform=arguments.uniform), report, arguments.json)


if __name__ == "__main__":
    main()
