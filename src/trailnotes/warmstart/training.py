"""`trailnotes warmstart`: a start model from scripted episodes without any download, or plain SFT of a given model."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trailnotes.config.schema import Config
from trailnotes.config.toml import RUNTIME_KEYS
from trailnotes.envs.tasks import validate_learning_tasks
from trailnotes.errors import ConfigError, Interrupted, NonFiniteError, RunError
from trailnotes.learner.logprobs import TokenScorer
from trailnotes.learner.samples import make_microbatches
from trailnotes.learner.states import MasterAdamW, export_model
from trailnotes.policies.chat import ChatFormat
from trailnotes.policies.hf.cache import trim_heap
from trailnotes.policies.hf.policy import (
    choose_dtype,
    load_model,
    require_context_length,
    require_trainable,
    resolve_device,
)
from trailnotes.runs.directory import RunDir, has_begun
from trailnotes.runs.signals import request_stop_on_signals
from trailnotes.storage import checkpoint
from trailnotes.storage.files import write_text_atomic
from trailnotes.types import StrPath, derive_seed
from trailnotes.warmstart.demonstrations import Demonstration, read_demonstrations, require_demonstrator
from trailnotes.warmstart.small_model import build_model, train_tokenizer

PATIENCE = 1000  # how many demonstrations in a row may be too long before the search for one that fits ends
GRAD_CLIP = 1.0
LOSS_WINDOW = 50  # steps whose mean is the final loss
SETTING = "warmstart.demonstrations"
UNFINISHED = "unfinished"  # in `out`, as long as the model is not


class EncodedDemonstration(NamedTuple):
    token_ids: list[int]
    loss_mask: list[int]  # 1 where it is imitated


def warmstart(
    config: Config, out: StrPath, *, allow_change: Sequence[str] = (),
    progress: Callable[[dict[str, float]], None] | None = None, note: Callable[[str], None] = lambda _text: None,
) -> Path:  # fmt: skip
    """Train an initial model on demonstrations and save it to `out` as a Hugging Face directory.

    With `model.path` empty it trains a tokenizer on the environment's text and a small Qwen2; otherwise it tunes the
    model named there, or adapters on it with `model.lora.enabled`. Demonstrations are the environment's scripted
    episodes, or those of the JSONL file `warmstart.demonstrations`.

    Until it is finished, `out` holds the folder `unfinished` with a checkpoint, from which the same call resumes
    exactly. A signal has it finish its step and save.

    `allow_change` are keys that may differ from those that it began with; `progress` receives step, loss and rate of
    each step, `note` lines to show.

    Raises:
        ConfigError: `out` is taken, or there are no demonstrations that fit the model and the panel.
        RunError: `out` is in use, or holds an unfinished model of other settings; or it cannot be written.
        NonFiniteError: a loss or gradient is not finite.
        Interrupted: asked to stop before the end.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - {UNFINISHED}):
        raise ConfigError(f"{out} already exists; choose another --out, or remove it")
    if config.rollout.example_turns:
        raise ConfigError("warmstart would teach the answers of rollout.example_turns: set it to []")
    if config.model.lora.enabled and not config.model.path:
        raise ConfigError("model.lora.enabled trains adapters of a model that exists: set model.path, or set it false")
    next(_iter_demonstrations(config, _count_words, config.run.seed))  # what is wrong with them shows before any work
    given: list[Demonstration] = []
    if named := config.warmstart.demonstrations:  # scripted ones are of no panel, whatever it is
        given = read_demonstrations(Path(named), SETTING)
        games = [each.task for each in given if each.task]
        validate_learning_tasks(games, f"warmstart.demonstrations = {named!r}", config)
    with _open_unfinished(config, out, allow_change) as directory:
        torch.manual_seed(config.run.seed)
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        model, tokenizer = _load_initial_model(config)
        chat, limit = ChatFormat(tokenizer, config.model.template_options), config.rollout.max_context_tokens
        if too_long := sum(len(chat.encode(each.messages)) > limit for each in given):
            note(f"left out: {too_long} of {len(given)} conversations exceed rollout.max_context_tokens = {limit}")
        rows = _iter_rows(config, chat, config.run.seed)
        imitation = SupervisedTrainer(model, config)
        if saved := checkpoint.find_latest(directory.checkpoints):
            imitation.load(saved)
            note(f"resuming after step {imitation.step}; the demonstrations until there are drawn again")
        directory.write_config()
        _run_steps(imitation, rows, directory.checkpoints, progress, note)
        if not has_begun(directory.path):  # else an export that fails would leave nothing of the training
            with contextlib.suppress(RunError):  # the model is smaller, and may fit where its checkpoint does not
                imitation.save(directory.checkpoints)
        try:
            export_model(model, out, tokenizer)  # takes the place of all that is there
        except OSError as error:
            then = "resumes" if has_begun(directory.path) else "begins again"
            raise RunError(f"cannot write {out} ({error}): free space, and the same command {then}") from error
    record = {"steps": imitation.step, "final_loss": imitation.recent_loss, "seed": config.run.seed}
    write_text_atomic(out / "warmstart.json", json.dumps(record, indent=1) + "\n")
    return out


@contextlib.contextmanager
def _open_unfinished(config: Config, out: Path, allow_change: Sequence[str]) -> Iterator[RunDir]:
    """Open the locked directory of checkpoints, and delete it if none was saved."""
    with RunDir.open(out / UNFINISHED, config, allow_change=[*RUNTIME_KEYS, *allow_change]) as directory:
        try:
            yield directory
        except BaseException:
            if not has_begun(directory.path):
                shutil.rmtree(directory.path)
                out.rmdir()
            raise


def _load_initial_model(config: Config) -> tuple[Any, Any]:
    if config.model.path:
        require_trainable(config.model)
        require_context_length(config.model, config.rollout.max_context_tokens)
        return load_model(config.model)
    tokenizer = train_tokenizer(_iter_texts(config), config.warmstart.vocab_size, exact=config.warmstart.lossless_vocab)
    model = build_model(tokenizer, config.warmstart, config.rollout.max_context_tokens)
    return model.to(resolve_device(config.model.device), choose_dtype(config.model)), tokenizer


def _iter_demonstrations(config: Config, count_tokens: Callable[[str], int], seed: int) -> Iterator[Demonstration]:
    """Iterate endlessly over fresh scripted episodes, or shuffled passes over a file."""
    if config.warmstart.demonstrations:
        given = read_demonstrations(Path(config.warmstart.demonstrations), SETTING)
        rng = random.Random(seed)
        while True:
            yield from rng.sample(given, len(given))
    demonstrator = require_demonstrator(config, "name a JSONL file in warmstart.demonstrations")
    yield from demonstrator(config, count_tokens, seed)


def _count_words(text: str) -> int:
    return len(text.split())


def _iter_texts(config: Config, num: int = 4000) -> Iterator[str]:
    for demonstration in itertools.islice(_iter_demonstrations(config, _count_words, config.run.seed + 1), num):
        yield from (message.content for message in demonstration.messages)


def _iter_rows(config: Config, chat: ChatFormat, seed: int) -> Iterator[EncodedDemonstration]:
    limit, too_long = config.rollout.max_context_tokens, 0
    drawing = random.Random(derive_seed(seed, "whole"))
    for demonstration in _iter_demonstrations(config, chat.count_tokens, seed):
        row = EncodedDemonstration(*chat.encode_with_mask(demonstration.messages, demonstration.taught))
        if drawing.random() < config.warmstart.p_full_loss:
            row = EncodedDemonstration(row.token_ids, [0, *[1] * (len(row.token_ids) - 1)])  # all but the first
        too_long = too_long + 1 if len(row.token_ids) > limit else 0
        if too_long == PATIENCE:
            raise ConfigError(f"no demonstration fits rollout.max_context_tokens = {limit}: raise it, or shorten them")
        if not too_long:
            yield row


def iter_batches(
    rows: Iterator[EncodedDemonstration], size: int, rng: random.Random
) -> Iterator[list[EncodedDemonstration]]:
    """Iterate over batches of similar length in random order: 16 batches at a time are sorted, cut and shuffled."""
    while True:
        drawn = sorted(itertools.islice(rows, 16 * size), key=lambda row: len(row.token_ids))
        cut = [drawn[i : i + size] for i in range(0, len(drawn), size)]
        rng.shuffle(cut)
        yield from cut


def collate(rows: Sequence[EncodedDemonstration], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Collate (B, T) token ids, padded on the right, and the (B, T) mask of imitated tokens."""
    ids = [torch.tensor(ids) for ids, _ in rows]
    masks = [torch.tensor(mask, dtype=torch.bool) for _, mask in rows]
    padded = [torch.nn.utils.rnn.pad_sequence(part, batch_first=True).to(device) for part in (ids, masks)]
    return padded[0], padded[1]


def compute_learning_rate(step: int, total: int, peak: float) -> float:
    """Compute a linear warm-up over 2 % of the steps, then a cosine to a tenth of the peak."""
    warmup = max(1, total // 50)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup))))


class SupervisedTrainer:
    """Supervised fine-tuning of a model, with its optimizer and progress.

    Gradients of micro-batches are summed and divided once, so the cut does not matter; weights of a lower precision are
    trained through float32 copies, as in the learner.
    """

    def __init__(self, model: Any, config: Config) -> None:
        self.model, self.config = model, config
        self.step = 0
        self._recent: deque[float] = deque(maxlen=LOSS_WINDOW)
        self._optimizer = MasterAdamW(model, lr=config.warmstart.lr, betas=(0.9, 0.95), weight_decay=0.01)
        self._score = TokenScorer(model, chunk=config.optim.logprob_chunk)

    @property
    def recent_loss(self) -> float:
        return sum(self._recent) / len(self._recent)

    def train_step(self, batch: Sequence[EncodedDemonstration]) -> dict[str, float]:
        """Take one step of the optimizer; after a `NonFiniteError` the weights are as they were."""
        warm = self.config.warmstart
        torch.manual_seed(derive_seed(self.config.run.seed, "warmstart", self.step))  # of dropout
        self.model.train()
        self._optimizer.zero_grad()
        device, total = next(self.model.parameters()).device, 0.0
        for indices in make_microbatches([row.token_ids for row in batch], self.config.optim.pass_tokens):
            trim_heap(device)
            ids, mask = collate([batch[i] for i in indices], device)
            loss = -self._score(ids, mask)[0].sum()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.accumulate_grads()
            total += float(loss.detach())
        count = sum(sum(row.loss_mask) for row in batch)
        norm = float(self._optimizer.grad_norm()) / count
        if not math.isfinite(norm + total):
            raise NonFiniteError(f"loss or gradient is not finite at step {self.step + 1}: lower warmstart.lr")
        lr = compute_learning_rate(self.step, warm.steps, warm.lr)
        self._optimizer.set_lr(lr)
        self._optimizer.step(min(1.0, GRAD_CLIP / (norm + 1e-6)) / count)
        self.step += 1
        self._recent.append(total / count)
        return {"step": self.step, "steps": warm.steps, "loss": total / count, "lr": lr}

    def save(self, root: Path) -> None:
        """Write a checkpoint, whole or not at all, in place of the last one."""

        def write(path: Path) -> None:
            save_file(self._optimizer.state_dict(), path / "learner.safetensors")

        try:
            checkpoint.save(root, self.step, write, meta={"step": self.step, "recent": list(self._recent)})
            checkpoint.prune(root, keep_last=1)
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot save step {self.step} in {root} ({error}): free space, and resume") from error

    def load(self, path: Path) -> None:
        meta = checkpoint.load_meta(path)
        self._optimizer.load_state_dict(load_file(path / "learner.safetensors"))
        self.step = int(meta["step"])
        self._recent.extend(meta["recent"])


def _run_steps(
    imitation: SupervisedTrainer, rows: Iterator[EncodedDemonstration], checkpoints: Path,
    progress: Callable[[dict[str, float]], None] | None, note: Callable[[str], None],
) -> None:  # fmt: skip
    warm, done = imitation.config.warmstart, imitation.step
    source = iter_batches(rows, warm.batch_size, random.Random(imitation.config.run.seed))
    with request_stop_on_signals(lambda: note("stopping after this step; once more to stop at once")) as received:
        for batch in itertools.islice(source, done, warm.steps):
            state = imitation.train_step(batch)
            if progress is not None:
                progress(state)
            left = warm.steps - imitation.step
            if left and (received or (warm.save_every and imitation.step % warm.save_every == 0)):
                imitation.save(checkpoints)
            if left and received:
                raise Interrupted(received[0], f"stopped after step {imitation.step}; the same command resumes there")
    imitation.model.eval()
