"""In place of vLLM: a server with a model that a test computes by hand. Standard library only.

The next token depends on the last one alone: its logits are a row of a table, (V, V), which is all the weights there
are; adapters add alpha / r * B A to it. A folder that the variable FAKE_ENGINE names makes it fail: each file in it is
a fault by its name; those that end with "once" are used up.
"""

from __future__ import annotations

import array
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

from engine_server import serve


class Core:
    """The model of `engine_server.serve`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.faults = Path(os.environ.get("FAKE_ENGINE", "/nowhere"))
        self.size = settings["vocabulary"]
        if self.has("refuse"):
            raise ValueError("this model has heads of\n24 channels")
        if self.has("die-at-start"):
            raise SystemExit("no memory left")
        if self.has("slow-start"):
            time.sleep(60)
        self.base = [[0.0] * self.size for _ in range(self.size)]
        self.table = self.base
        self.requests: dict[int, tuple[list[int], dict[str, Any], list[tuple[int, float]]]] = {}
        self.cached: dict[int, int] = {}  # by request
        self.seen: list[list[int]] = []  # what the cache holds

    def has(self, fault: str) -> bool:
        path = self.faults / fault
        if not path.exists():
            return False
        if fault.endswith("once"):
            path.unlink()
        return True

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    def add(self, key: int, ids: list[int], sampling: dict[str, Any]) -> None:
        if max(ids) >= self.size:
            raise ValueError(f"token {max(ids)} is out of vocabulary")
        self.requests[key] = list(ids), sampling, []
        self.cached[key] = max((len(seen) for seen in self.seen if ids[: len(seen)] == seen), default=0)
        self.seen.append(list(ids))

    def sleep(self) -> None:
        self.seen = []
        (self.faults / "asleep").touch()

    def wake(self) -> None:
        (self.faults / "asleep").unlink(missing_ok=True)

    def abort(self, key: int) -> None:
        self.requests.pop(key, None)

    def step(self) -> list[tuple[int, list[int], list[float], str | None, int]]:
        if self.has("die-once") or self.has("die-always"):
            os.write(2, b"Traceback:\n  somewhere\nRuntimeError: out of memory\n")
            os.kill(os.getpid(), 9)
        while self.has("hang-once") or self.has("hang-always"):
            time.sleep(3600)
        if self.has("stop-once"):
            os.kill(os.getpid(), 19)
        if self.has("slow"):
            time.sleep(0.05)
        news = []
        for key, (ids, sampling, done) in list(self.requests.items()):
            token, logprob = self.draw(ids, sampling, len(done))
            ids.append(token)
            done.append((token, logprob))
            full = len(done) == sampling["max_tokens"]
            reason = "length" if full else "stop" if token in sampling["stop_token_ids"] else None
            if reason:
                del self.requests[key]
            said = done[-1:] if sampling["stream"] else done if reason else []
            tokens, logprobs = [token for token, _ in said], [logprob for _, logprob in said]
            news.append((key, tokens, logprobs, reason, self.cached[key]))
        return news

    def draw(self, ids: list[int], sampling: dict[str, Any], place: int) -> tuple[int, float]:
        logprobs = self.logprobs(ids[-1], sampling["temperature"])
        if self.has("nan"):
            return 0, math.nan
        point = random.Random(f"{sampling['seed']} {place}").random()
        for token, logprob in enumerate(logprobs):
            point -= math.exp(logprob)
            if point < 0:
                return token, logprob
        return self.size - 1, logprobs[-1]

    def logprobs(self, last: int, temperature: float) -> list[float]:
        row = [value / temperature for value in self.table[last]]
        normaliser = math.log(math.fsum(map(math.exp, row)))
        return [value - normaliser for value in row]

    def load(self, path: Path, adapters: dict[str, Any] | None) -> None:
        tensors = read(path)
        self.seen = []
        if self.has("slow-load"):
            time.sleep(0.5)
        if self.has("die-in-load-once"):
            os.kill(os.getpid(), 9)
        if self.has("ignore-load"):
            return
        if adapters is None:
            if "table" not in tensors:
                raise ValueError(f"there is no tensor named {next(iter(tensors))}")
            self.table = tensors["table"]
        else:
            a, b = (tensors[f"base_model.model.table.lora_{side}.weight"] for side in "AB")
            scale = adapters["lora_alpha"] / adapters["r"]
            self.table = [
                [value + scale * math.fsum(x * y for x, y in zip(left, right, strict=True))
                 for value, right in zip(row, zip(*a, strict=True), strict=True)]
                for row, left in zip(self.base, b, strict=True)
            ]  # fmt: skip

    def next_logprobs(self, ids: list[int], temperature: float) -> list[float]:
        return self.logprobs(ids[-1], temperature)


def read(path: Path) -> dict[str, list[list[float]]]:
    """The matrices of a safetensors file in float32."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + size + place for place in entry["data_offsets"])
            rows, columns = entry["shape"]
            numbers = array.array("f", data[start:end]).tolist()
            found[name] = [numbers[row * columns : (row + 1) * columns] for row in range(rows)]
    return found


if __name__ == "__main__":
    serve(Core)
