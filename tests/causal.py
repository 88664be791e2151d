"""In place of vLLM: a server with the run's own model, a Qwen2 in numpy.

It draws as the embedded engine does, from the same numbers, so that a run with it plays the episodes of a run without.
It knows nothing of Trailnotes, and starts in a twentieth of the time that torch and transformers take to load. A folder
that the variable FAKE_ENGINE names makes it fail, see `Core.step`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from engine_server import serve

Array = NDArray[np.float32]


class Core:
    """The model of `engine_server.serve`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.faults = Path(os.environ.get("FAKE_ENGINE", "/nowhere"))
        model = Path(settings["model"])
        self.config = json.loads((model / "config.json").read_text())
        self.weights = self.base = load_file(model / "model.safetensors")
        self.steps = self.loads = 0
        self.requests: dict[int, tuple[list[int], dict[str, Any], list[tuple[int, float]]]] = {}

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    def add(self, key: int, ids: list[int], sampling: dict[str, Any]) -> None:
        assert sampling["top_p"] == 1
        self.requests[key] = list(ids), sampling, []

    def abort(self, key: int) -> None:
        self.requests.pop(key, None)

    def step(self) -> list[tuple[int, list[int], list[float], str | None, int]]:
        """A token for each request. A file `die-N` in the folder of faults ends the process in step N, once.

        With `shift-N` it says of what it samples .2 nats too much, from the N-th load on.
        """
        self.steps += 1
        shift = 0.2 if (self.faults / f"shift-{self.loads}").exists() else 0.0
        if (fault := self.faults / f"die-{self.steps}").exists():
            fault.unlink()
            os.kill(os.getpid(), 9)
        news = []
        for key, (ids, sampling, done) in list(self.requests.items()):
            prompt = len(ids) - len(done)
            logprobs = self.logprobs(ids, sampling["temperature"])[-1]
            cumulative = np.exp(logprobs).cumsum(dtype=np.float64).astype(np.float32)  # as torch adds them up
            uniforms = np.random.Generator(np.random.Philox(key=sampling["seed"])).random(len(done) + 1, np.float32)
            token = int(np.searchsorted(cumulative, uniforms[-1] * cumulative[-1], side="right"))
            ids.append(token)
            done.append((token, float(logprobs[token]) + shift))
            full = len(done) == sampling["max_tokens"]
            reason = "length" if full else "stop" if token in sampling["stop_token_ids"] else None
            if reason:
                del self.requests[key]
            said = done[-1:] if sampling["stream"] else done if reason else []
            news.append((key, [token for token, _ in said], [logprob for _, logprob in said], reason, prompt // 2))
        return news

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

    def next_logprobs(self, ids: list[int], temperature: float) -> Array:  # (V)
        return self.logprobs(ids, temperature)[-1]

    def load(self, path: Path, adapters: dict[str, Any] | None) -> None:
        tensors = load_file(path)
        self.loads += 1
        if (self.faults / "ignore-load").exists():
            return
        changed = tensors
        if adapters:
            changed = {}
            for name, a in tensors.items():
                if ".lora_A." in name:
                    own = name.removeprefix("base_model.model.").replace(".lora_A", "")
                    change = tensors[name.replace(".lora_A.", ".lora_B.")] @ a
                    changed[own] = self.base[own] + np.float32(adapters["lora_alpha"] / adapters["r"]) * change
        else:
            assert self.base.keys() - tensors.keys() <= {"lm_head.weight"}, self.base.keys() - tensors.keys()  # tied
        assert not changed.keys() - self.base.keys() - {"lm_head.weight"}, changed.keys() - self.base.keys()
        self.weights = self.base | changed

    def sleep(self) -> None:
        """There is nothing on a device."""

    def wake(self) -> None:
        """It never slept."""


def log_softmax(logits: Array) -> Array:  # over the last axis
    shifted: Array = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


if __name__ == "__main__":
    serve(Core)
