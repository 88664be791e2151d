"""A server of embeddings on the loopback, which answers with real vectors, or as it is told to; and angles as texts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from trailnotes.memory.retrieval import HashingEmbedder

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


class EmbeddingServer(ThreadingHTTPServer):
    """What was asked, and what is to be answered next."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.embedder = HashingEmbedder(64)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.faults: list[Answer] = []  # for the next requests, one each
        self.longest = 10**9  # characters of a text

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def texts(self) -> list[list[str]]:
        """Of each request."""
        return [asked["input"] for asked in self.asked]

    def answer(self, asked: dict[str, Any]) -> tuple[int, Any]:
        """Status and body."""
        self.asked.append(asked)
        if self.faults:
            return self.faults.pop(0)(asked)
        if (longest := max(map(len, asked["input"]))) > self.longest:
            message = f"This model's maximum context length is {self.longest}, and this has {longest}"
            return 400, {"error": {"message": message, "code": "context_length_exceeded"}}
        vectors = (3 * self.embedder.embed(asked["input"]).astype(float)).tolist()  # of a length other than 1
        rows = [{"index": n, "embedding": row} for n, row in enumerate(vectors)]
        return 200, {"object": "list", "data": rows[::-1], "model": asked["model"]}  # in whatever order


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: EmbeddingServer

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.append(self.headers.get("Authorization", ""))
        status, body = self.server.answer(asked) if self.path == "/v1/embeddings" else (404, {"error": "no such page"})
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def embedding_server() -> Iterator[EmbeddingServer]:
    """A server, until the end of the block."""
    with EmbeddingServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Compass:
    """Two dimensions: the text is an angle in degrees, so similarities are cosines that one can look up."""

    name, dim = "compass", 2

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        angles = np.radians([float(text) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
