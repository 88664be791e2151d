"""`trailnotes warmstart`: a start model from scripted episodes without any download, or plain SFT of a given model."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trailnotes.envs.tasks import refuse_learning
from trailnotes.errors import ConfigError
from trailnotes.learner.learner import export_model
from trailnotes.learner.logprobs import TokenScorer
from trailnotes.policies.chat import ChatFormat
from trailnotes.policies.hf.policy import device_of, load_model
from trailnotes.storage.files import write_text_atomic
from trailnotes.warmstart.demonstrations import DEMONSTRATORS, Demonstration, demonstrator_of, from_jsonl
from trailnotes.warmstart.small_model import build_model, train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trailnotes.config.schema import Config

Row = tuple[list[int], list[int]]  # token ids, loss mask
PATIENCE = 1000  # how many demonstrations in a row may be too long before the search for one that fits ends


def warmstart(config: Config, out: Path, *, progress: Callable[[dict[str, float]], None] | None = None) -> Path:
    """Train a start model on demonstrations and save it to `out` as a Hugging Face directory.

    With `model.path` empty a tokenizer is trained on the environment's text and a small Qwen2 is built; otherwise the
    model named there is tuned. Demonstrations are the environment's scripted episodes, or the JSONL file that
    `warmstart.demonstrations` names.

    Raises:
        ConfigError: `out` is taken, the environment has no scripted episodes, the file holds none or one of a game of
            the panel, or none fits `rollout.max_context_tokens`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already exists; choose another --out, or remove it")
    next(_demonstrations(config, _count_words, config.run.seed))  # what is wrong with them shows before any work
    if named := config.warmstart.demonstrations:  # scripted ones are of no panel, whatever it is
        games = [demonstration.task for demonstration in from_jsonl(Path(named)) if demonstration.task]
        refuse_learning(games, f"warmstart.demonstrations = {named!r}", config)
    torch.manual_seed(config.run.seed)
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    if config.model.path:
        model, tokenizer = load_model(config.model)
    else:
        tokenizer = train_tokenizer(_texts(config), config.warmstart.vocab_size)
        model = build_model(tokenizer, config.warmstart, config.rollout.max_context_tokens)
        model.to(device_of(config.model.device))
    chat = ChatFormat(tokenizer)
    rows = _rows(config, chat, config.run.seed)
    losses = _fit(model, rows, config, progress)
    export_model(model, out, tokenizer)
    record = {"steps": len(losses), "final_loss": sum(losses[-50:]) / len(losses[-50:]), "seed": config.run.seed}
    write_text_atomic(out / "warmstart.json", json.dumps(record, indent=1) + "\n")
    return out


def _demonstrations(config: Config, count_tokens: Callable[[str], int], seed: int) -> Iterator[Demonstration]:
    """Endless: fresh ones from a script, or shuffled passes over a file."""
    if config.warmstart.demonstrations:
        given = from_jsonl(Path(config.warmstart.demonstrations))
        rng = random.Random(seed)
        while True:
            yield from rng.sample(given, len(given))
    demonstrator = demonstrator_of(config.env.name)
    if demonstrator is None:
        known = ", ".join(sorted(DEMONSTRATORS))
        raise ConfigError(
            f"env.name = {config.env.name!r} has no scripted episodes (those that have: {known}); "
            "name a JSONL file in warmstart.demonstrations"
        )
    yield from demonstrator(config, count_tokens, seed)


def _count_words(text: str) -> int:
    """Stands in for the tokenizer that does not exist yet."""
    return len(text.split())


def _texts(config: Config, num: int = 4000) -> Iterator[str]:
    """What a tokenizer is trained on: every turn of `num` demonstrations."""
    for demonstration in itertools.islice(_demonstrations(config, _count_words, config.run.seed + 1), num):
        yield from (message.content for message in demonstration.messages)


def encode(demonstration: Demonstration, chat: ChatFormat) -> Row:
    """Token ids of the conversation and the mask of what is imitated: the taught turns with their end token."""
    speakers = iter([i for i, message in enumerate(demonstration.messages) if message.role == "assistant"])
    ids: list[int] = []
    mask: list[int] = []
    for segment in chat.segments(demonstration.messages):
        taught = segment.spoken and next(speakers) in demonstration.taught
        ids += segment.token_ids
        mask += [int(taught)] * len(segment.token_ids)
    return ids, mask


def _rows(config: Config, chat: ChatFormat, seed: int) -> Iterator[Row]:
    """The demonstrations that fit the context, as rows."""
    limit, too_long = config.rollout.max_context_tokens, 0
    for demonstration in _demonstrations(config, chat.count_tokens, seed):
        ids, mask = encode(demonstration, chat)
        too_long = too_long + 1 if len(ids) > limit else 0
        if too_long == PATIENCE:
            raise ConfigError(f"no demonstration fits rollout.max_context_tokens = {limit}: raise it, or shorten them")
        if not too_long:
            yield ids, mask


def batches(rows: Iterator[Row], size: int, rng: random.Random, window: int = 16) -> Iterator[list[Row]]:
    """Batches of rows of similar length, in random order: `window` batches are sorted by length, cut and shuffled."""
    while True:
        drawn = sorted(itertools.islice(rows, size * window), key=lambda row: len(row[0]))
        cut = [drawn[i : i + size] for i in range(0, len(drawn), size)]
        rng.shuffle(cut)
        yield from cut


def collate(rows: Sequence[Row], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T) token ids, padded on the right, and the (B, T) mask of what is imitated."""
    ids = [torch.tensor(ids) for ids, _ in rows]
    masks = [torch.tensor(mask, dtype=torch.bool) for _, mask in rows]
    padded = [torch.nn.utils.rnn.pad_sequence(part, batch_first=True).to(device) for part in (ids, masks)]
    return padded[0], padded[1]


def learning_rate(step: int, total: int, peak: float) -> float:
    """Linear warm-up over 2 % of the steps, then a cosine to a tenth of the peak."""
    warmup = max(1, total // 50)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup))))


def _fit(
    model: Any, rows: Iterator[Row], config: Config, progress: Callable[[dict[str, float]], None] | None
) -> list[float]:
    """Supervised steps; returns the loss of each."""
    warm = config.warmstart
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=warm.lr, weight_decay=0.01, betas=(0.9, 0.95))
    losses = []
    score = TokenScorer(model)
    model.train()
    source = batches(rows, warm.batch_size, random.Random(config.run.seed))
    for step, batch in zip(range(warm.steps), source, strict=False):
        ids, mask = collate(batch, device)
        loss = -score(ids, mask)[0].sum() / mask.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, warm.steps, warm.lr)
        optimizer.step()
        losses.append(float(loss.detach()))
        if progress is not None:
            progress({"step": step + 1, "steps": warm.steps, "loss": losses[-1], "lr": optimizer.param_groups[0]["lr"]})
    model.eval()
    return losses
