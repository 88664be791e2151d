"""Embeddings from any OpenAI-compatible endpoint (its ``/embeddings``)."""

from __future__ import annotations

import json
import logging
import os
import time
import weakref
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trailnotes.config.memory_schema import EMBEDDER_KEY_VARIABLE, validate_embedder_name
from trailnotes.config.model_schema import OPENAI_PREFIX, EndpointConfig
from trailnotes.config.section import require_secret_free_url
from trailnotes.errors import ConfigError, MemoryStoreError, MissingExtraError, format_install_command
from trailnotes.memory.schema import EMBEDDER_NAME
from trailnotes.storage.files import parse_json
from trailnotes.web import faults
from trailnotes.web.faults import RetryableError, explain_refusal, extract_error_text
from trailnotes.web.wire import NO_KEY, load_api_key, redact_key

logger = logging.getLogger(__name__)
Floats = npt.NDArray[np.float32]

BASE_URL_VARIABLE: Final = "OPENAI_BASE_URL"  # as the official client calls it
BATCH_TEXTS: Final = 64
TOO_LARGE: Final = "too large to process"  # llama.cpp, of a text beyond its physical batch, with status 500
MIN_TEXT_CHARS: Final = 64  # characters: a model that takes no more finds nothing


class EndpointEmbedder:
    """The embedding model `name`: openai:NAME or openai:NAME@URL.

    Vectors belong to the model and not to its address, so the identity is openai:NAME alone. A text too long for the
    model is halved until it fits: its vector depends on the text alone.

    Args:
        name: as in `memory.embedder`.
        endpoint: of a run. Without it the address is that in the name or in the environment variable OPENAI_BASE_URL;
            without either, nothing is sent.

    Raises:
        ConfigError: there is no such model, no address, or the key is refused.
        MemoryStoreError: the server does not answer.
        MissingExtraError: the client is not installed.
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
        """Embed texts as `Embedder.embed` does; waits for the server, and retries where that may help."""
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
        """Unit vectors (len(texts), dim); None where the batch is too large for the model."""
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
                seconds = faults.compute_wait(tries, failure.wait)
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
            status, body = error.status_code, json.loads(redact_key(self._key, json.dumps(error.body)))
            text = extract_error_text(body)
            if status == 413 or faults.is_context_overflow(body) or TOO_LARGE in text:
                return None
            if faults.is_retryable(status, body):
                wait = faults.parse_retry_after(error.response.headers)
                raise RetryableError(f"{status}: {text}", wait=wait) from None
            key_env, url = self._endpoint.api_key_env, self._endpoint.base_url
            refusal = explain_refusal(status, body, url=url, model=self._model, key_env=key_env)
            raise ConfigError(f"{self.name}: {refusal}") from None
        vectors = _parse_vectors(answer.http_response.text, len(texts))
        if self.dim and vectors.shape[1] != self.dim:
            raise MemoryStoreError(
                f"{self._label} answers vectors of {vectors.shape[1]} dimensions, and a moment ago of {self.dim}: "
                "another model runs there now"
            )
        return vectors


def _resolve_endpoint(name: str, endpoint: EndpointConfig | None) -> tuple[str, EndpointConfig]:
    validate_embedder_name(name)
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
        rows = parse_json(text)["data"]
        by_index = {row["index"]: row["embedding"] for row in rows}
        vectors = np.array([by_index[number] for number in range(count)], np.float64)
    except (ValueError, KeyError, TypeError):
        raise RetryableError("an answer that is no list of vectors, one for each text") from None
    if vectors.ndim != 2 or not vectors.shape[1] or len(rows) != count:
        raise RetryableError("an answer whose vectors do not fit the texts")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.all(np.isfinite(norms) & (norms > 0)):
        raise RetryableError("a vector that is zero, or not finite")
    unit: Floats = (vectors / norms).astype(np.float32)
    return unit
