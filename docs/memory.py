"""The table of scaling.md that says which model fits which cards: `python docs/memory.py` prints it.

Settings are those of the preset paper-scienceworld with 32 conversations at a time, in bfloat16 with gradient
checkpointing. The shapes are those of the models' own config.json.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

from transformers import Qwen2Config

from trailnotes.config.toml import load_config
from trailnotes.runs.estimate.footprint import DEFAULT_GPU_BYTES, GIB, estimate_footprint

SHAPES = {  # billions: layers, width, of the feed-forward layers, heads, of keys and values, vocabulary
    0.5: (24, 896, 4864, 14, 2, 151936),
    1.5: (28, 1536, 8960, 12, 2, 151936),
    3: (36, 2048, 11008, 16, 2, 151936),
    7: (28, 3584, 18944, 28, 4, 152064),
    14: (48, 5120, 13824, 40, 8, 152064),
    32: (64, 5120, 27648, 40, 8, 152064),
}
LARGEST_TIED = 3  # whose embedding is also its head
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
    layers, hidden, intermediate, heads, kv_heads, vocabulary = SHAPES[billions]
    shape = Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=billions <= LARGEST_TIED,
        max_position_embeddings=1 << 15,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as path:
        shape.save_pretrained(path)
        found = estimate_footprint(load_config(None, [*SETTINGS, "--model.path", path, *words]))
    assert found is not None
    assert found.room == DEFAULT_GPU_BYTES, "this machine has a GPU, for which the table would be made"
    size = f"{found.peak / GIB:.0f}"
    return size if found.fits else f"({size})"


def table(sizes: Sequence[float] = tuple(SHAPES)) -> str:
    """Lines of Markdown."""
    head = [f"| GiB of the fullest card | {' | '.join(COLUMNS)} |", f"|---{'|---:' * len(COLUMNS)}|"]
    rows = [f"| {size:g}B | {' | '.join(cell(size, words) for words in COLUMNS.values())} |" for size in sizes]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    print(table())
