"""The memory that `train --dry-run` tells for the learner, against what an update really takes on a CPU.

Each case runs in a process of its own, on one thread: two updates from random rows, in micro-batches of the longest
row, so that the second one meets gradients and moments. Measured is the most resident memory of rank 0 during the
second update (VmHWM, set back before it), less what the process held before it had any model and after a first, tiny
update had loaded what torch loads once. The allocator gives every array of 64 KiB and more back at once
(MALLOC_MMAP_THRESHOLD_), so that what is resident is what is held. Estimated is the sum of the parts, without the share
for kernels and fragments.

    python benchmarks/footprint.py --json footprint.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from shared import console, finish, make_model, make_parser, make_tokenizer, print_table, resident_mb

from trailnotes.config.schema import Config
from trailnotes.learner.sharded import make_learner
from trailnotes.policies.hf.policy import load_model
from trailnotes.runs.estimate.footprint import estimate_footprint, estimate_weight_copies
from trailnotes.runs.estimate.model_shape import infer_model_shape
from trailnotes.types import Sample

FLOOR = 0.15  # of the measured figure, by which the estimate may be off
MODELS = {
    "wide": {"hidden_size": 512, "num_layers": 8, "vocab_size": 8192, "heads": 8},
    "many words": {"hidden_size": 384, "num_layers": 6, "vocab_size": 65536, "heads": 6},
    "tiny": {"hidden_size": 64, "num_layers": 2, "vocab_size": 512, "heads": 2},
}
TOKENS = {"wide": 512, "many words": 512, "tiny": 48}
LORA, AGAIN = {"lora": {"enabled": True}}, {"gradient_checkpointing": True}
# A chunk that takes all trained tokens of a row is the worst there is: what is computed again is forgotten in between.
HELD = {"rehearsal": {"split": "spare"}, "optim": {"logprob_chunk": 256}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "all weights": ("wide", {}),
    "all weights, checkpointing": ("wide", {"model": AGAIN}),
    "adapters": ("wide", {"model": LORA}),
    "adapters, checkpointing": ("wide", {"model": LORA | AGAIN}),
    "all weights, KL": ("wide", {"loss": {"kl": 0.1}}),
    "all weights, joined rows": ("wide", {"learner": {"packed": "always"}}),
    "all weights, 2 ranks": ("wide", {"learner": {"world_size": 2}}),
    "adapters, 2 ranks": ("wide", {"model": LORA, "learner": {"world_size": 2}}),
    "many words": ("many words", {}),
    "many words, checkpointing": ("many words", {"model": AGAIN}),
    "many words, held rows": ("many words", HELD | {"model": AGAIN}),
    "many words, adapters, held rows": ("many words", HELD | {"model": AGAIN | LORA}),
    "many words, 2 ranks": ("many words", {"model": AGAIN, "learner": {"world_size": 2}}),
}
QUICK = ("all weights, checkpointing", "many words, adapters, held rows")


def config_of(path: Path, tokens: int, sections: dict[str, Any]) -> Config:
    """The settings of a case. The model that acts would be in the way: it is said to be elsewhere."""
    given = {name: dict(values) for name, values in sections.items()}
    model = {"path": str(path), "device": "cpu"} | given.pop("model", {})
    optim = {"microbatch_tokens": tokens, "minibatch": 0, "logprob_chunk": 128} | given.pop("optim", {})
    return Config(
        model=model,
        optim=optim,
        rollout={"max_context_tokens": tokens},
        engine={"name": "vllm", "urls": ["http://elsewhere:1"]},
        run={"threads": 1},
        **given,
    )


def rows(config: Config, vocabulary: int) -> list[Sample]:
    """Random rows of the longest length, of which half is trained; and rows that are held, where the case has any."""
    rng, length = random.Random(0), config.rollout.max_context_tokens
    found = []
    for row in range(4 * config.learner.world_size):
        ids = tuple(rng.randrange(vocabulary) for _ in range(length))
        mask = tuple(i // 8 % 2 for i in range(length))
        behavior, advantages = (tuple(m * value for m in mask) for value in (-7.0, (-1.0) ** row))
        found.append(Sample(ids, mask, behavior, advantages, trajectory=row))
        if config.has_anchor_rows:
            found.append(Sample(ids, mask, behavior, (0.0,) * length, role="rehearsal", hold=1.0))
    return found


def save_model(name: str, folder: Path) -> Path:
    """A random model and its words."""
    options = dict(MODELS[name])
    make_model(**options, max_position_embeddings=4096).save_pretrained(folder)
    make_tokenizer(options["vocab_size"]).save_pretrained(folder)
    return folder


def updated(config: Config, vocabulary: int) -> tuple[float, float]:
    """MiB before there is a model, and the most during the second update."""
    before = resident_mb("VmRSS")
    own = config.learner.world_size == 1
    model = load_model(config.model)[0] if own else None
    reference = (
        load_model(config.model)[0] if own and config.has_reference_model and not config.model.lora.enabled else None
    )
    learner = make_learner(config, model, reference, None)
    samples = rows(config, vocabulary)
    learner.update(samples)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak counts from here
    learner.update(samples)
    peak = resident_mb("VmHWM")
    learner.close()
    return before, peak


def run_case(case: str, folder: Path) -> dict[str, Any]:
    """One case in this process, and those that it starts."""
    torch.set_num_threads(1)
    name, sections = CASES[case]
    tiny, path = (config_of(save_model(n, folder / n), TOKENS[n], sections) for n in ("tiny", name))
    updated(tiny, MODELS["tiny"]["vocab_size"])
    before, peak = updated(path, MODELS[name]["vocab_size"])
    shape = infer_model_shape(path.model)
    assert shape is not None
    device = estimate_footprint(path).devices[0]
    told = sum(device.static.values()) + sum(device.phases["learning"].values())
    told -= sum(estimate_weight_copies(path, shape).values())  # nobody acts here
    return {
        "case": case,
        "parameters": shape.whole,
        "measured_mb": peak - before,
        "estimated_mb": told / 2**20,
        "parts_mb": {part: size / 2**20 for part, size in device.rows().items()},
    }


def measure(cases: list[str]) -> dict[str, Any]:
    """All cases, one after the other."""
    found = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, __file__, "--case", case, "--folder", folder],
                env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    off = max(abs(row["estimated_mb"] / row["measured_mb"] - 1) for row in found)
    return {"largest_error": off, "floor": FLOOR, "rows": found}


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    print_table(
        "An update in float32, MB of rank 0",
        ("case", "parameters", "measured", "estimated", "ratio"),
        (
            (
                row["case"],
                f"{row['parameters'] / 1e6:.0f}M",
                f"{row['measured_mb']:,.0f}",
                f"{row['estimated_mb']:,.0f}",
                f"{row['estimated_mb'] / row['measured_mb']:.2f}",
            )
            for row in result["rows"]
        ),
    )
    console.print(f"furthest off by {result['largest_error']:.0%} (at most {result['floor']:.0%})")


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="two cases")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        sys.stdout.write(json.dumps(run_case(arguments.case, arguments.folder)) + "\n")
        return
    finish(measure(list(QUICK if arguments.quick else CASES)), report, arguments.json)


if __name__ == "__main__":
    main()
