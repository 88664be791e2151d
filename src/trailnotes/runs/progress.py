"""The progress bar of a training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from trailnotes.config.schema import Config
from trailnotes.reporting.terminal import ProgressBar
from trailnotes.types import MODES


class TrainingProgress(ProgressBar):
    """Progress bar that is fed with the lines of metrics.jsonl."""

    def __init__(self, config: Config, path: Path, *, stream: IO[str] | None = None) -> None:
        super().__init__(1.0, " ".join(dict.fromkeys((config.algorithm.name, path.name))), stream=stream)
        self._train, self._metric = config.train, config.eval.metric
        self._previous: tuple[float, Mapping[str, Any]] | None = None

    def update_metrics(self, line: Mapping[str, Any]) -> None:
        iterations, steps = self._train.iterations, self._train.max_env_steps
        done, taken = line["iteration"] + 1, line.get("env_steps", 0)
        share, count = self._train.compute_progress({**line, "iteration": done}), f"iteration {done}/{iterations}"
        if steps and taken / steps > done / iterations:  # the steps end the run first
            count = f"iteration {done}, {min(taken, steps):,}/{steps:,} steps"
        modes = [mode for mode in MODES if f"rollout/return/{mode}" in line]
        names = {"return": "rollout/return", "success": "rollout/success"}
        plain = f"rollout/{self._metric}/plain"
        if plain in line and modes != ["plain"]:  # the mean mixes those that read tips with those that do not
            names = {f"{self._metric} without tips": plain, self._metric: names[self._metric]} | names
        facts: dict[str, float | str] = {name: line[key] for name, key in names.items() if key in line}
        now = time.monotonic()
        if self._previous and now > self._previous[0]:
            before, old = self._previous
            for name, key in {"steps/s": "env_steps", "tokens/s": "tokens_generated"}.items():
                if key in line and key in old:
                    facts[name] = (line[key] - old[key]) / (now - before)
        self._previous = now, line
        if modes:
            facts["mode"] = "+".join(modes)
        self.update(min(share, 1.0), facts, count)
