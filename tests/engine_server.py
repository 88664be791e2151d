"""In place of vLLM: the routes of its server that a run uses, in front of a made-up model. Standard library only.

A program with a class `Core` calls `serve(Core)`, and takes the arguments of `vllm serve`.
"""

from __future__ import annotations

import json
import math
import queue
import socketserver
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Generator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from itertools import chain
from pathlib import Path
from typing import Any

ROUTES = {
    "/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/pause", "/resume", "/collective_rpc",
    "/sleep", "/wake_up",
}  # fmt: skip
News = tuple[list[int], list[float], str | None, int]


class Engine:
    """The core, a step at a time for all requests, and its answers by route."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.guard = threading.Condition()
        self.news: dict[int, queue.SimpleQueue[News]] = {}
        self.number = 0

    def run(self) -> None:
        while True:
            with self.guard:
                self.guard.wait_for(lambda: self.core.busy)
                for key, *news in self.core.step():
                    self.news[key].put(tuple(news))
            time.sleep(0.0005)  # or no other thread would get the lock

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """The events of a completion."""
        sampling = {name: body[name] for name in ("temperature", "top_p", "top_k", "max_tokens", "seed")}
        sampling |= {"stop_token_ids": body["stop_token_ids"], "stream": body["stream_interval"] == 1}
        with self.guard:
            self.number += 1
            key, news = self.number, queue.SimpleQueue[News]()
            self.core.add(key, body["prompt"], sampling)
            self.news[key] = news
            self.guard.notify_all()
        try:
            reason = None
            while reason is None:
                ids, logprobs, reason, cached = news.get()
                found = [None if math.isnan(logprob) else logprob for logprob in logprobs]
                choice = {"token_ids": ids, "logprobs": {"token_logprobs": found}, "finish_reason": reason}
                if ids:
                    yield {"choices": [choice]}
            yield {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": cached}}}
        finally:
            with self.guard:
                self.core.abort(key)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self.guard:
            if path == "/v1/completions":
                return {"choices": [self.score(prompt, body) for prompt in body["prompt"]]}
            if path == "/collective_rpc":
                assert body["method"] == "load_folder"
                self.core.load(Path(body["args"][0]) / "model.safetensors", None)
            if path == "/v1/load_lora_adapter":
                folder = Path(body["lora_path"])
                adapters = json.loads((folder / "adapter_config.json").read_text())
                self.core.load(folder / "adapter_model.safetensors", adapters)
            if path in {"/sleep", "/wake_up"}:
                (self.core.sleep if path == "/sleep" else self.core.wake)()
        return {}

    def score(self, prompt: list[int], body: dict[str, Any]) -> dict[str, Any]:
        logprobs = self.core.next_logprobs(prompt, body["temperature"])
        found = {f"token_id:{token}": float(logprobs[token]) for token in body["logprob_token_ids"]}
        return {"logprobs": {"top_logprobs": [found]}}


class Handler(BaseHTTPRequestHandler):
    engine: Engine

    def do_GET(self) -> None:
        self.reply(200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        try:
            if body.get("stream"):
                self.send_events(self.engine.stream(body))
            elif self.path in ROUTES:
                self.reply(200, self.engine.answer(self.path, body))
            else:
                self.reply(404, {"detail": "Not Found"})
        except ValueError as error:
            self.reply(500 if self.path == "/collective_rpc" else 400, {"error": {"message": str(error)}})
        except (BrokenPipeError, ConnectionResetError):
            pass

    def send_events(self, events: Generator[dict[str, Any]]) -> None:
        first = next(events)  # or why it is refused
        self.send_response(200)
        self.end_headers()
        with closing(events):
            for event in chain([first], events):
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def reply(self, status: int, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """A socket has no address to log."""


def serve(core_of: Callable[[dict[str, Any]], Any]) -> None:
    parser = ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model", type=Path)
    for name in ("uds", "host"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-lora-rank", type=int, default=0)
    arguments, _ = parser.parse_known_args()
    vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
    engine = Engine(core_of({"model": str(arguments.model), "vocabulary": vocabulary}))
    kind = socketserver.ThreadingUnixStreamServer if arguments.uds else socketserver.ThreadingTCPServer
    Handler.engine = engine
    kind.daemon_threads, kind.allow_reuse_address, kind.request_queue_size = True, True, 128
    address: Any = arguments.uds or (arguments.host, arguments.port)
    server = kind(address, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.flush()
    engine.run()
