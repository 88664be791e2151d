"""The table of scaling.md that says which model fits which cards: `python docs/memory.py` prints it.

Settings are those of the preset paper-scienceworld with 32 conversations at a time, in bfloat16 with gradient
checkpointing.
"""

from __future__ import annotations

from collections.abc import Sequence

from trailnotes.config.toml import load_config
from trailnotes.runs.estimate.footprint import DEFAULT_GPU_BYTES, GIB, estimate_footprint

SIZES = (0.5, 1.5, 3, 7, 14, 32)
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
    path = ["--model.path", f"Qwen/Qwen2.5-{billions:g}B-Instruct"]
    found = estimate_footprint(load_config(None, [*SETTINGS, *path, *words]))
    assert found is not None
    assert found.room == DEFAULT_GPU_BYTES, "this machine has a GPU, for which the table would be made"
    size = f"{found.peak / GIB:.0f}"
    return size if found.fits else f"({size})"


def table(sizes: Sequence[float] = SIZES) -> str:
    """Lines of Markdown."""
    head = [f"| GiB of the fullest card | {' | '.join(COLUMNS)} |", f"|---{'|---:' * len(COLUMNS)}|"]
    rows = [f"| {size:g}B | {' | '.join(cell(size, words) for words in COLUMNS.values())} |" for size in sizes]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    print(table())
