"""In place of vLLM: the run's own model, by transformers, in the worker program as it is.

It draws as the embedded engine does, from the same numbers, so that a run with it plays the episodes of a run without.
It knows nothing of Trailnotes. A folder that the variable FAKE_ENGINE names makes it fail, see `Core.step`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)


class Core:
    """See `trailnotes.policies.vllm.worker.core.Core`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.faults = Path(os.environ.get("FAKE_ENGINE", "/nowhere"))
        self.model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32).eval()
        self.base = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.steps = self.loads = 0
        self.requests: dict[int, tuple[list[int], dict[str, Any], list[tuple[int, float]]]] = {}
        self.about = {name: settings[name] for name in ("fingerprint", "lora_rank", "context", "vocabulary")}

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
            cumulative = logprobs.exp().cumsum(-1)
            uniforms = np.random.Generator(np.random.Philox(key=sampling["seed"])).random(len(done) + 1, np.float32)
            token = int(torch.searchsorted(cumulative, float(uniforms[-1]) * cumulative[-1], right=True))
            ids.append(token)
            done.append((token, float(logprobs[token]) + shift))
            full = len(done) == sampling["max_tokens"]
            reason = "length" if full else "stop" if token in sampling["stop_token_ids"] else None
            if reason:
                del self.requests[key]
            said = done[-1:] if sampling["stream"] else done if reason else []
            news.append((key, [token for token, _ in said], [logprob for _, logprob in said], reason, prompt // 2))
        return news

    @torch.no_grad()
    def logprobs(self, ids: list[int], temperature: float) -> torch.Tensor:  # (L, V)
        return torch.log_softmax(self.model(torch.tensor([ids])).logits[0] / temperature, dim=-1)

    def score(self, rows: list[list[Any]], temperature: float) -> list[list[float]]:
        found = [(ids, start, self.logprobs(ids, temperature)) for ids, start in rows]
        return [[float(row[i - 1, ids[i]]) for i in range(start, len(ids))] for ids, start, row in found]

    def load(self, path: Path, what: dict[str, Any]) -> dict[str, Any]:
        tensors = load_file(path)
        self.loads += 1
        if (self.faults / "ignore-load").exists():
            return {}
        if config := what["adapters"]:
            weights = dict(self.base)
            for name, a in tensors.items():
                if ".lora_A." in name:
                    own = name.removeprefix("base_model.model.").replace(".lora_A", "")
                    change = tensors[name.replace(".lora_A.", ".lora_B.")] @ a
                    weights[own] = self.base[own] + config["lora_alpha"] / config["r"] * change
            self.model.load_state_dict(weights)
        else:
            missing, strange = self.model.load_state_dict(tensors, strict=False)
            assert set(missing) <= {"lm_head.weight"}, missing  # tied
            assert not strange, strange
        return {"version": what["version"]}

    def sleep(self) -> None:
        """There is nothing on a device."""

    def wake(self) -> None:
        """It never slept."""

    def close(self) -> None:
        """There is nothing to close."""
