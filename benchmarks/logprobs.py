"""Peak memory of log-probabilities with their gradient, at a vocabulary of 152k: all logits at once, or in chunks.

Naive is what one writes first: the model's logits of every token, log_softmax, gather. Ours takes the hidden states of
the trained positions and turns them into logits a chunk at a time, forwards and again backwards. Each side runs in a
process of its own; peak is the growth of its resident memory over what it held before the first forward pass.

    python benchmarks/logprobs.py --json logprobs.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from shared import console, finish, in_a_process, make_model, make_parser, peak_mb, print_table
from torch import Tensor

from trailnotes.config.schema import OptimConfig
from trailnotes.learner.logprobs import TokenScorer

FLOOR = 4.0
VOCABULARY = 151_936
TOLERANCE = 1e-5
DEFAULT_CHUNK = OptimConfig().logprob_chunk


def make_batch(tokens: int, trained: float) -> tuple[Tensor, Tensor]:
    """(B, 256) random ids and a mask of which a share `trained` is on, in runs of 8."""
    generator = torch.Generator().manual_seed(1)
    shape = (tokens // 256, 256)
    runs = torch.rand((shape[0], 32), generator=generator) < trained
    mask = runs.repeat_interleave(8, 1)
    mask[:, 0] = False
    return torch.randint(VOCABULARY, shape, generator=generator), mask


def naive(model: Any, token_ids: Tensor, mask: Tensor) -> Tensor:
    """All logits, log_softmax, gather."""
    logits = model(input_ids=token_ids[:, :-1], use_cache=False).logits
    logprobs = logits.float().log_softmax(-1).gather(-1, token_ids[:, 1:, None]).squeeze(-1)
    return logprobs[mask[:, 1:]]


def run_side(chunk: int, tokens: int, trained: float) -> dict[str, Any]:
    """One side in this process; `chunk` 0 is the naive one."""
    torch.set_num_threads(1)
    model = make_model(VOCABULARY, 64, 1, intermediate_size=128)  # nearly all of its memory is the vocabulary's
    token_ids, mask = make_batch(tokens, trained)
    score = TokenScorer(model, chunk=chunk) if chunk else None
    before = peak_mb()
    start = time.perf_counter()
    logprobs = score(token_ids, mask)[0][mask] if score else naive(model, token_ids, mask)
    logprobs.mean().backward()
    seconds = time.perf_counter() - start
    peak = peak_mb() - before
    gradient = model.get_output_embeddings().weight.grad
    return {
        "chunk": chunk,
        "seconds": seconds,
        "peak_mb": peak,
        "trained": int(mask.sum()),
        "logprobs": logprobs.tolist(),
        "gradient_norm": float(gradient.norm()),
    }


def measure(tokens: int, trained: float) -> dict[str, Any]:
    """Every side in a process of its own, and whether they agree."""
    sides = []
    for chunk in (0, 1024, DEFAULT_CHUNK, 64):
        if any(side["chunk"] == chunk for side in sides):
            continue
        command = ("--side", str(chunk), "--tokens", str(tokens), "--trained", str(trained))
        sides.append(in_a_process(__file__, *command))
    reference = sides[0]["logprobs"]
    for side in sides:
        pairs = zip(side.pop("logprobs"), reference, strict=True)
        side["largest_difference"] = max(abs(mine - theirs) for mine, theirs in pairs)
        side["ratio"] = sides[0]["peak_mb"] / side["peak_mb"]
    (default,) = (side for side in sides if side["chunk"] == DEFAULT_CHUNK)
    return {
        "ratio": default["ratio"],
        "floor": FLOOR,
        "equal": max(side["largest_difference"] for side in sides) <= TOLERANCE,
        "rows": sides,
        "tokens": tokens,
        "vocabulary": VOCABULARY,
    }


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    trained = result["rows"][0]["trained"]
    rows = []
    for row in result["rows"]:
        default = " (default)" if row["chunk"] == DEFAULT_CHUNK else ""
        name = f"chunks of {row['chunk']}{default}" if row["chunk"] else "naive"
        numbers = (f"{row['peak_mb']:.0f}", f"{row['ratio']:.1f}", f"{row['seconds']:.1f}")
        rows.append((name, *numbers, f"{row['largest_difference']:.1e}"))
    print_table(
        f"{result['tokens']} tokens, {trained} of them trained, a vocabulary of {result['vocabulary']}, float32",
        ("log-probabilities", "peak MB", "times less", "seconds", "largest difference"),
        rows,
    )
    console.print(f"ratio {result['ratio']:.2f} (floor {result['floor']:g}), equal to {TOLERANCE:g}: {result['equal']}")


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="half the tokens")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of the batch, a multiple of 256")
    parser.add_argument("--trained", type=float, default=1 / 3, help="share of the tokens that is trained")
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        sys.stdout.write(json.dumps(run_side(arguments.side, arguments.tokens, arguments.trained)) + "\n")
        return
    result = measure(1024 if arguments.quick else arguments.tokens, arguments.trained)
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()
