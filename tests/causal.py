"""In place of vLLM: the routes of its server that a run uses, and a model of Qwen2's kind, computed by numpy.

It takes the arguments of `vllm serve`, and draws as the embedded engine does. A folder that the variable FAKE_ENGINE
names makes it fail: each file in it is a fault by its name; those that end with "once", and `die-N`, are used up.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socketserver
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float32]
FAULTS = Path(os.environ.get("FAKE_ENGINE", "/nowhere"))
SILENT = {"/v1/unload_lora_adapter", "/pause", "/resume"}
SHARED_HEADER = 64  # bytes of a shared storage that come before its data


def has(fault: str) -> bool:
    path = FAULTS / fault
    if not path.exists():
        return False
    if fault.endswith("once") or fault.removeprefix("die-").isdigit():
        path.unlink()
    return True


class Engine:
    def __init__(self, model: Path) -> None:
        if has("die-at-start"):
            raise SystemExit("no memory left")
        if has("slow-start"):
            time.sleep(60)
        self.config = json.loads((model / "config.json").read_text())
        self.weights = self.base = load_file(model / "model.safetensors")
        self.steps = self.loads = 0
        self.guard, self.awake = threading.Lock(), threading.Event()
        self.awake.set()

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a completion; while it sleeps, a request waits."""
        self.awake.wait()
        ids, prompt = list(body["prompt"]), len(body["prompt"])
        news: list[tuple[int, float]] = []
        reason = None
        while reason is None:
            with self.guard:
                token, logprob = self.step(ids, body, len(ids) - prompt)
            ids.append(token)
            news.append((token, logprob))
            full = len(ids) - prompt == body["max_tokens"]
            reason = "length" if full else "stop" if token in body["stop_token_ids"] else None
            if reason or len(news) == body["stream_interval"]:
                tokens, logprobs = zip(*news, strict=True)
                choice = {"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}
                yield {"choices": [choice | {"finish_reason": reason}]}
                news = []
        yield {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": prompt // 2}}}

    def step(self, ids: list[int], sampling: dict[str, Any], place: int) -> tuple[int, float]:
        """Draw a token; with `shift-N` it says .2 nats too much of it, from the N-th load on."""
        assert sampling["top_p"] == 1
        self.steps += 1
        if has("die-once") or has("die-always") or has(f"die-{self.steps}"):
            os.write(2, b"Traceback:\n  somewhere\nRuntimeError: out of memory\n")
            os.kill(os.getpid(), signal.SIGKILL)
        if has("hang-once"):
            time.sleep(3600)
        if has("stop-once"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if has("slow"):
            time.sleep(0.05)
        logprobs = self.logprobs(ids, sampling["temperature"])[-1]
        cumulative = np.exp(logprobs).cumsum(dtype=np.float64).astype(np.float32)  # as torch adds them up
        uniforms = np.random.Generator(np.random.Philox(key=sampling["seed"])).random(place + 1, np.float32)
        token = int(np.searchsorted(cumulative, uniforms[-1] * cumulative[-1], side="right"))
        return token, float(logprobs[token]) + 0.2 * (FAULTS / f"shift-{self.loads}").exists()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer of another route; None: there is no such route."""
        path, _, query = path.partition("?")
        if path == "/v1/completions":
            self.awake.wait()
        with self.guard:
            if path == "/v1/completions":
                return {"choices": [self.score(prompt, body) for prompt in body["prompt"]]}
            if path == "/collective_rpc":
                folder, exported = body["args"]
                files = sorted(Path(folder).glob("*.safetensors"))
                self.load(read(exported) or {name: each for file in files for name, each in load_file(file).items()})
            elif path == "/v1/load_lora_adapter":
                folder = Path(body["lora_path"])
                adapters = json.loads((folder / "adapter_config.json").read_text())
                tensors, scale = load_file(folder / "adapter_model.safetensors"), adapters["lora_alpha"] / adapters["r"]
                changed = {}
                for name in tensors:
                    if ".lora_A." in name:
                        own = name.removeprefix("base_model.model.").replace(".lora_A", "")
                        change = tensors[name.replace(".lora_A.", ".lora_B.")] @ tensors[name]
                        changed[own] = self.base[own] + np.float32(scale) * change
                self.load(changed)
            elif path in {"/sleep", "/wake_up"}:
                self.rest(query) if path == "/sleep" else self.awake.set()
            elif path not in SILENT:
                return None
        return {}

    def rest(self, query: str) -> None:
        """Sleep; at level 2 the weights are gone."""
        self.awake.clear()
        if query == "level=2":
            self.weights = {name: np.zeros_like(each) for name, each in self.weights.items()}
        if has("die-in-sleep-once"):
            os.kill(os.getpid(), signal.SIGKILL)

    def score(self, prompt: list[int], body: dict[str, Any]) -> dict[str, Any]:
        logprobs = self.logprobs(prompt, body["temperature"])[-1]
        found = {f"token_id:{token}": float(logprobs[token]) for token in body["logprob_token_ids"]}
        return {"logprobs": {"top_logprobs": [found]}}

    def load(self, changed: dict[str, Array]) -> None:
        self.loads += 1
        if unknown := changed.keys() - self.base.keys() - {"lm_head.weight"}:
            raise ValueError(f"there is no tensor named {min(unknown)}")
        if not has("ignore-load"):
            self.weights = self.base | changed

    def logprobs(self, ids: list[int], temperature: float) -> Array:  # (L, V)
        states = self.weights["model.embed_tokens.weight"][ids]
        for number in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{number}"
            states = states + self.attention(f"{layer}.self_attn", self.norm(f"{layer}.input_layernorm", states))
            normed = self.norm(f"{layer}.post_attention_layernorm", states)
            gate = self.linear(f"{layer}.mlp.gate_proj", normed)
            gated = gate / (1 + np.exp(-gate)) * self.linear(f"{layer}.mlp.up_proj", normed)
            states = states + self.linear(f"{layer}.mlp.down_proj", gated)
        head = "lm_head" if "lm_head.weight" in self.weights else "model.embed_tokens"
        return log_softmax(self.linear(head, self.norm("model.norm", states)) / np.float32(temperature))

    def norm(self, name: str, states: Array) -> Array:
        squares = np.mean(states**2, axis=-1, keepdims=True)
        return states / np.sqrt(squares + np.float32(self.config["rms_norm_eps"])) * self.weights[f"{name}.weight"]

    def linear(self, name: str, states: Array) -> Array:
        return states @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", np.float32(0))

    def attention(self, name: str, states: Array) -> Array:  # (L, hidden)
        length, heads = len(states), self.config["num_attention_heads"]
        size = self.config["hidden_size"] // heads
        queries, keys, values = (
            self.linear(f"{name}.{kind}_proj", states).reshape(length, -1, size).swapaxes(0, 1) for kind in "qkv"
        )
        shared = heads // len(keys)  # queries to a key
        keys, values = np.repeat(self.turned(keys), shared, axis=0), np.repeat(values, shared, axis=0)
        scores = self.turned(queries) @ keys.swapaxes(1, 2) / np.float32(size**0.5)
        future = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        mixed = np.exp(log_softmax(scores + future)) @ values
        return self.linear(f"{name}.o_proj", mixed.swapaxes(0, 1).reshape(length, -1))

    def turned(self, heads: Array) -> Array:
        """Rotary positions (https://arxiv.org/abs/2104.09864), for the halves of each head, (H, L, size)."""
        _, length, size = heads.shape
        speeds = self.config["rope_parameters"]["rope_theta"] ** -(np.arange(0, size, 2) / size)
        angles = np.tile(np.outer(np.arange(length), speeds), 2)
        first, second = np.split(heads, 2, axis=-1)
        cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return heads * cosines + np.concatenate([-second, first], axis=-1) * sines


def read(exported: list[list[Any]]) -> dict[str, Array]:
    """Copy tensors from the learner's memory, without torch, which would take seconds to load."""
    weights: dict[str, Array] = {}
    for name, dtype, (_, place, _), offset, shape, _ in exported:
        data = Path("/dev/shm" + bytes.fromhex(place).decode()).read_bytes()
        begin, size = SHARED_HEADER + offset * np.dtype(dtype).itemsize, math.prod(shape)
        weights[name] = np.frombuffer(data, dtype, size, begin).reshape(shape)
    return weights


def log_softmax(logits: Array) -> Array:  # over the last axis
    shifted: Array = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class Handler(BaseHTTPRequestHandler):
    engine: Engine

    def do_GET(self) -> None:
        self.reply(200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        if FAULTS.is_dir():
            with (FAULTS / "calls").open("a") as calls:
                calls.write(f"{body.get('method', self.path)}\n")
        try:
            if body.get("stream"):
                events = self.engine.stream(body)
                first = next(events)  # or why it is refused
                self.send_response(200)
                self.end_headers()
                for event in chain([first], events):
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.write(b"data: [DONE]\n\n")
            else:
                answer = self.engine.answer(self.path, body)
                self.reply(404 if answer is None else 200, answer or {})
        except ValueError as error:
            self.reply(500 if self.path == "/collective_rpc" else 400, {"error": {"message": str(error)}})
        except (BrokenPipeError, ConnectionResetError):
            pass

    def reply(self, status: int, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """A socket has no address to log."""


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model", type=Path)
    for name in ("uds", "host"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--port", type=int)
    arguments, _ = parser.parse_known_args()
    Handler.engine = Engine(arguments.model)
    kind: Any = socketserver.ThreadingUnixStreamServer if arguments.uds else socketserver.ThreadingTCPServer
    kind.daemon_threads, kind.allow_reuse_address, kind.request_queue_size = True, True, 128
    kind(arguments.uds or (arguments.host, arguments.port), Handler).serve_forever()
