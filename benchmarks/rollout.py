"""Tokens per second of a rollout: the KV cache kept for the whole episode, against `model.generate` afresh each turn.

Both sides play the same 20-turn episodes in a batch of 16, with the same random model, observations, number of
sampled tokens and encoding of the conversation. The opponent is a fair one: it decodes the whole batch together,
left-padded, with its own KV cache inside each turn.

    python benchmarks/rollout.py --json rollout.json
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from shared import SPECIAL, console, finish, make_model, make_parser, make_tokenizer, print_table

from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.types import Message, Sampling

FLOOR = 2.0


@dataclass(frozen=True)
class Workload:
    """What both sides do."""

    hidden_size: int = 320
    num_layers: int = 6
    vocab_size: int = 4096
    batch: int = 16
    turns: int = 20
    observation_tokens: int = 20
    action_tokens: int = 8
    repeats: int = 3


QUICK = Workload(hidden_size=128, num_layers=3, repeats=1)


def model_of(load: Workload) -> Any:
    """A model that never stops early, on either side."""
    return make_model(
        load.vocab_size, load.hidden_size, load.num_layers, heads=load.hidden_size // 64,
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip


def observations(load: Workload, words: Sequence[str] = ()) -> list[list[str]]:
    """Texts by turn and episode, of `words` or those of `make_tokenizer`; lengths vary by a third around the mean."""
    rng, num = random.Random(0), len(words) or load.vocab_size - len(SPECIAL)
    third = load.observation_tokens // 3

    def word() -> str:
        index = rng.randrange(num)
        return words[index] if words else f"w{index}"

    return [
        [
            " ".join(word() for _ in range(load.observation_tokens + rng.randint(-third, third)))
            for _ in range(load.batch)
        ]
        for _ in range(load.turns)
    ]


def play_ours(policy: HFPolicy, texts: list[list[str]], load: Workload) -> list[Message]:
    """All episodes with the cache kept; returns the first conversation."""

    async def episode(index: int) -> list[Message]:
        name = f"episode-{index:02d}"
        policy.open_episode(name)
        messages: list[Message] = []
        for turn, row in enumerate(texts):
            messages.append(Message("user", row[index]))
            sampling = Sampling(max_tokens=load.action_tokens, seed=1000 * index + turn)
            completion = await policy.generate(messages, sampling, name)
            assert len(completion.token_ids) == load.action_tokens
            messages.append(Message("assistant", completion.text, completion.token_ids))
        policy.close_episode(name)
        return messages

    async def run() -> list[list[Message]]:
        return await asyncio.gather(*(episode(index) for index in range(load.batch)))

    return asyncio.run(run())[0]


def play_generate(policy: HFPolicy, texts: list[list[str]], load: Workload) -> list[Message]:
    """All episodes by `model.generate` on the whole conversations, turn by turn."""
    talks: list[list[Message]] = [[] for _ in range(load.batch)]
    for row in texts:
        for talk, text in zip(talks, row, strict=True):
            talk.append(Message("user", text))
        prompts = [policy.encode(talk) for talk in talks]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        output = policy.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=load.action_tokens,
        )
        sampled = output[:, width:].tolist()
        for talk, tokens in zip(talks, sampled, strict=True):
            assert len(tokens) == load.action_tokens
            text = policy.tokenizer.decode(tokens, skip_special_tokens=True)
            talk.append(Message("assistant", text, tuple(tokens)))
    return talks[0]


def measure(load: Workload) -> dict[str, Any]:
    """Interleaved repeats of both sides, and their medians."""
    policy = HFPolicy(model_of(load), make_tokenizer(load.vocab_size))
    policy.engine.endings.end_ids = frozenset()
    texts = observations(load)
    sides = {"model.generate each turn": play_generate, "trailnotes": play_ours}
    for play in sides.values():  # warm-up
        play(policy, texts[:2], load)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(load.repeats):
        for name, play in sides.items():
            start = time.perf_counter()
            play(policy, texts, load)
            seconds[name].append(time.perf_counter() - start)
    tokens = load.batch * load.turns * load.action_tokens
    rows = [
        {
            "side": name,
            "seconds": statistics.median(times),
            "tokens_per_second": tokens / statistics.median(times),
            "episodes_per_second": load.batch / statistics.median(times),
        }
        for name, times in seconds.items()
    ]
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    return {
        "ratio": rows[1]["tokens_per_second"] / rows[0]["tokens_per_second"],
        "floor": FLOOR,
        "rows": rows,
        "seconds": seconds,
        "parameters": parameters,
        "threads": torch.get_num_threads(),
        "workload": vars(load),
    }


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    load = result["workload"]
    print_table(
        f"{load['batch']} episodes of {load['turns']} turns, {load['action_tokens']} sampled tokens a turn, "
        f"{result['parameters'] / 1e6:.1f}M parameters, {result['threads']} threads",
        ("rollout", "seconds", "tokens/s", "episodes/s"),
        (
            (
                row["side"],
                f"{row['seconds']:.2f}",
                f"{row['tokens_per_second']:.1f}",
                f"{row['episodes_per_second']:.2f}",
            )
            for row in result["rows"]
        ),
    )
    console.print(f"ratio {result['ratio']:.2f} (floor {result['floor']:g})")


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="a smaller model, once: seconds instead of minutes")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = measure(QUICK if arguments.quick else Workload())
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()
