"""The table of scaling.md that says which model fits which cards: `python docs/memory.py` prints it.

Settings are those of the preset paper-scienceworld with 32 conversations at a time, in bfloat16 with gradient
checkpointing. The shapes are those of the models' own config.json.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trailnotes.config.toml import load_config
from trailnotes.runs.estimate.footprint import DEFAULT_GPU_BYTES, GIB, estimate_footprint

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from shared import LARGEST_TIED, QWEN_SHAPES, save_shape

SETTINGS = [
    "--preset", "paper-scienceworld", "--env.max_envs", "32", "--model.dtype", "bfloat16",
    "--model.gradient_checkpointing", "true", "--model.device", "auto",
]  # fmt: skip
LORA, EIGHT = ["--model.lora.enabled", "true"], ["--learner.world_size", "8"]
ENGINES = ["--engine.name", "vllm", "--engine.replicas", "2", "--engine.device_memory", "0.35"]
SPREAD = ["--engine.devices", '["0,1,2,3", "4,5,6,7"]']
COLUMNS = {
    "all weights, one card": [],
    "adapters, one card": LORA,
    "all weights, 8 cards": EIGHT,
    "all weights, 8 cards, two engines spread over them": [*EIGHT, *ENGINES, *SPREAD],
    "adapters, the same": [*LORA, *EIGHT, *ENGINES, *SPREAD],
}


def cell(billions: float, words: Sequence[str]) -> str:
    """GiB of the fullest card; in brackets what does not fit."""
    with tempfile.TemporaryDirectory() as path:
        save_shape(QWEN_SHAPES[billions], Path(path), tied=billions <= LARGEST_TIED)
        found = estimate_footprint(load_config(None, [*SETTINGS, "--model.path", path, *words]))
    assert found is not None
    assert found.room == DEFAULT_GPU_BYTES, "this machine has a GPU, for which the table would be made"
    size = f"{found.peak / GIB:.0f}"
    return size if found.fits else f"({size})"


def table(sizes: Sequence[float] = tuple(QWEN_SHAPES)) -> str:
    """Lines of Markdown."""
    head = [f"| GiB of the fullest card | {' | '.join(COLUMNS)} |", f"|---{'|---:' * len(COLUMNS)}|"]
    rows = [f"| {size:g}B | {' | '.join(cell(size, words) for words in COLUMNS.values())} |" for size in sizes]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    print(table())
