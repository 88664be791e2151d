"""Adapters that a server of the Tinker API trains, with the losses of this package.

The server computes log-probabilities and gradients; which loss they are of is decided here. Its own "ppo" takes rows
whose loss is just that. Every other loss of the log-probabilities is sent by its gradient: one forward pass gives the
log-probabilities q, `losses` gives dL/dq, and "importance_sampling" with denominators q and advantages -dL/dq has that
very gradient, since its ratio is 1 there. (The SDK's `forward_backward_custom` does the same by "cross_entropy" with
weights, which a server that divides by the sum of the weights turns into something else.)
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import tarfile
import tempfile
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import tinker
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor, nn

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, RunError, ServerError
from trailnotes.learner import losses
from trailnotes.learner.logprobs import Batch
from trailnotes.learner.losses import UpdateMetrics, compute_advantage_metrics, compute_token_weights, is_trained
from trailnotes.learner.samples import iter_minibatches
from trailnotes.learner.states import BETAS, REST, atomic_model_directory, raise_non_finite
from trailnotes.storage.checkpoint import read_json, write_json
from trailnotes.types import Sample, derive_seed
from trailnotes.web.tinker import WEIGHTS_TTL, TinkerServer

logger = logging.getLogger(__name__)
ADAM_EPSILON: Final = 1e-8  # torch's, so that a run takes the steps that it takes here
SERVER_ALPHA: Final = 32.0  # of all adapters of the API
PPO_CLIP: Final = 0.2  # of its "ppo" without thresholds
MOST_ADAPTER_BYTES: Final = 16 << 30
_NAME = re.compile(r"tinker://([\w:.-]+)/(?:weights/|sampler_weights/)?([\w.-]+)")
_ADAPTER_NAME = re.compile(r"[\w.]+\.lora_[AB]\.weight")
_ADAPTER_FILE: Final = "adapter_model.safetensors"


class _Step(NamedTuple):
    rows: Sequence[Sample]
    reference: Tensor | None  # (B, T), of the start model
    logprobs: Tensor | None  # (B, T); None: the answer of the pass tells them
    passes: Any  # futures
    step: Any


class TinkerLearner:
    """A `ModelLearner` whose model is adapters on a server that has the base model `model.path`.

    `end_ids` end a turn, where the start model is sampled; `dump_dir` is for batches whose loss is not finite.
    """

    def __init__(
        self, config: Config, server: TinkerServer, end_ids: Collection[int] = (), dump_dir: Path | None = None
    ) -> None:
        self.config, self.server, self.dump_dir = config, server, dump_dir
        self.optim, self.loss = config.optim, config.loss
        self.steps = 0
        if config.optim.grad_clip and not server.dialect.clips_gradients:
            raise ConfigError(f"{server.url} clips no gradient: set optim.grad_clip = 0")
        self._end_ids = list(end_ids)
        seed = derive_seed(config.run.seed, "weights") % 2**31
        self._client = server.call(
            lambda: server.service.create_lora_training_client(
                base_model=config.model.path, rank=config.model.lora.rank, seed=seed, train_unembed=False
            ),
            "making adapters",
        )
        self._start = server.call(
            lambda: server.service.create_sampling_client(base_model=config.model.path), "opening the start model"
        )
        self._twins: list[Any] = []  # other adapters with weights of before, to sample from; the newest last
        self._names = (f"t{number:06d}" for number in itertools.count())
        self._named = (-1, "")  # steps, and the name of the weights then

    def logprobs(self, samples: Sequence[Sample], *, initial: bool = False) -> list[tuple[float, ...]]:
        """Score the trained tokens by the model as it is, or by the base model, in float32 at temperature 1."""
        scored = self._score_by_start(samples) if initial else self._score(samples)
        return [
            tuple(value if trained else 0.0 for value, trained in zip(row, sample.loss_mask, strict=True))
            for row, sample in zip(scored, samples, strict=True)
        ]

    def update(self, samples: Sequence[Sample], seed: int = 0, lr_scale: float = 1.0) -> dict[str, float]:
        """Update the adapters on one batch of rows, as `Learner.update`.

        All passes and steps are submitted before any is waited for, except that a loss sent by its gradient waits for
        its forward pass. So a mini-batch whose tokens the server's "ppo" clips all still takes its step, without a
        gradient. Where the server does not answer, part of the steps may have been taken. The API tells neither
        `entropy` nor `grad_norm`.
        """
        started = time.perf_counter()
        rows = self._replace_anchors([row for row in samples if is_trained(row, self.loss)], seed)
        reference = []
        if self.loss.kl:
            indices = [i for i, row in enumerate(rows) if row.role == "episode"]
            scored = dict(zip(indices, self._score_by_start([rows[i] for i in indices]), strict=True))
            reference = [torch.tensor(scored.get(i, [0.0] * len(row.token_ids))) for i, row in enumerate(rows)]
        seconds_reference = time.perf_counter() - started
        rng = np.random.default_rng(seed)
        metrics, under_way, waited = UpdateMetrics(), [], 0.0
        for chosen in iter_minibatches(rows, self.optim.minibatch, rng, self.optim.epochs, self.optim.minibatch_unit):
            began = time.perf_counter()
            compared = [reference[i] for i in chosen] if reference else None
            if step := self._submit_step([rows[i] for i in chosen], compared, self.optim.lr * lr_scale):
                under_way.append(step)
            waited += time.perf_counter() - began
        for step in under_way:
            self._finish_step(step, metrics)
        figures = {name: value for name, value in metrics.result().items() if name not in {"entropy", "grad_norm"}}
        figures |= compute_advantage_metrics([sample for sample in samples if sample.role == "episode"])
        figures |= {"lr": self.optim.lr * lr_scale, "seconds_reference": seconds_reference, "seconds_forward": waited}
        return figures | {"seconds": time.perf_counter() - started}

    def weights(self) -> str:
        """Have the server keep the weights for sampling, and return the name that it gives them."""
        if self._named[0] != self.steps:
            client = self._client
            if self.server.dialect.samples_from_training and self.config.rollout.max_async_iterations:
                client = self._make_twin()
            kept = client.save_weights_for_sampler(next(self._names), ttl_seconds=WEIGHTS_TTL)
            self._named = self.steps, self.server.wait(kept, "saving the weights for sampling").path
        return self._named[1]

    def export(self, path: Path, tokenizer: Any = None) -> None:
        """Download the adapters, and write them as a directory of peft, whole or not at all.

        A server that does not give them costs the file of weights alone, and a warning: the run goes on.
        """
        from peft import LoraConfig

        try:
            tensors = self._download_adapters()
        except ServerError as error:
            logger.warning("%s: %s has no weights, and the server alone can play it", error, path)
            tensors = {}
        targets = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in tensors})
        settings = LoraConfig(
            r=self.config.model.lora.rank, lora_alpha=SERVER_ALPHA, target_modules=targets or "all-linear",
            base_model_name_or_path=self.config.model.path, task_type="CAUSAL_LM", inference_mode=True,
        )  # fmt: skip
        with atomic_model_directory(path) as staging:
            if tensors:
                save_file(tensors, staging / _ADAPTER_FILE)
            settings.save_pretrained(str(staging))
            if tokenizer is not None:
                tokenizer.save_pretrained(staging)

    def save(self, path: Path) -> None:
        saved = self.server.wait(self._client.save_state(next(self._names)), "saving the state")
        kept = {"steps": self.steps, "base": self.config.model.path, "state": saved.path}
        write_json(path / REST, kept)

    def load(self, path: Path) -> None:
        """Restore a saved state. Raises `ValueError` for another model's, `RunError` for one that the server lost."""
        kept = read_json(path / REST)
        if kept.get("base") != self.config.model.path or not _NAME.fullmatch(str(kept.get("state"))):
            raise ValueError(f"it was not saved by a server of the Tinker API with {self.config.model.path}")
        make = self.server.service.create_training_client_from_state_with_optimizer
        try:
            client = self.server.call(lambda: make(kept["state"]), f"restoring {kept['state']}")
        except ServerError as error:
            if not error.lost:
                raise
            raise RunError(
                f"{self.server.url} no longer has the state of {path} ({kept['state']}): delete {path.name} to resume "
                "at the checkpoint before it, or begin another run"
            ) from error
        if self.config.has_frozen_author and self.server.dialect.samples_from_training and not self._twins:
            self._twins.append(self._client)  # the author's weights, which `WeightSync` saved, are sampled in its place
        else:
            self.server.release(self._client.model_id)
        self._client = client  # servers load a state into new adapters alone
        self.steps, self._named = int(kept["steps"]), (-1, "")

    def close(self) -> None:
        for client in (self._client, *self._twins):
            self.server.release(client.model_id)

    def _make_twin(self) -> Any:
        """Make other adapters with the present weights; those before the last may still be sampled from."""
        saved = self.server.wait(self._client.save_state(next(self._names)), "saving the weights")
        make = self.server.service.create_training_client_from_state
        self._twins.append(self.server.call(lambda: make(saved.path), "copying the weights"))
        kept = 1 if self.config.has_frozen_author else 0  # which samples from the first ones
        if len(self._twins) > 2 + kept:
            self.server.release(self._twins.pop(kept).model_id)
        return self._twins[-1]

    def _submit(self, kind: str, rows: Sequence[Sample], *given: Any) -> Any:
        """Submit a pass over rows, `given` being the arguments of the SDK's method, and count its tokens."""
        tokens = sum(len(row.token_ids) - 1 for row in rows)
        self.server.ledger.spend(**{"prefilled" if kind == "forward" else "trained": tokens})
        return getattr(self._client, kind)(*given)

    def _score(self, rows: Sequence[Sample]) -> list[list[float]]:
        if not rows:
            return []
        data = [_make_datum(row) for row in rows]
        answer = self.server.wait(self._submit("forward", rows, data, "cross_entropy"), "scoring rows")
        return [[0.0, *each["logprobs"].data] for each in answer.loss_fn_outputs]

    def _score_by_start(self, rows: Sequence[Sample]) -> list[list[float]]:
        tokens = sum(len(row.token_ids) for row in rows)
        self.server.ledger.spend(prefilled=tokens, sampled=len(rows))  # the SDK has a token sampled after each row
        requests = [self._start.compute_logprobs(tinker.ModelInput.from_ints(list(row.token_ids))) for row in rows]
        scored = [self.server.wait(each, "scoring by the start model") or () for each in requests]
        if any(len(scored[i]) < len(row.token_ids) - 1 for i, row in enumerate(rows)):
            raise ServerError(f"{self.server.url} gives no log-probabilities of prompts: set loss.kl = 0")
        # A server may leave out the first token, which has no context.
        return [[0.0, *scored[i][1 - len(row.token_ids) :]] for i, row in enumerate(rows)]

    def _submit_step(self, rows: Sequence[Sample], reference: Sequence[Tensor] | None, lr: float) -> _Step | None:
        padded = nn.utils.rnn.pad_sequence(list(reference), batch_first=True) if reference else None
        dialect, logprobs = self.server.dialect, None
        if self._is_plain_ppo(rows):
            batch = Batch.from_samples(rows, torch.device("cpu"))
            if not batch.advantages.any():
                return None
            shares = batch.mask / batch.mask.sum()  # of each token in the mean over a mini-batch
            if self.loss.aggregation != "token":
                shares = batch.mask / batch.mask.sum(-1, keepdim=True) / len(batch.mask)
            thresholds = {"clip_low_threshold": 1 - self.loss.clip_low, "clip_high_threshold": 1 + self.loss.clip_high}
            settings = thresholds if dialect.clips_ratios else None
            data = [*self._iter_data(rows, batch.behavior_logprobs, batch.advantages * shares)]
            passes = self._submit("forward_backward", rows, data, "ppo", settings)
        else:
            scored = [torch.tensor(row) for row in self._score(rows)]
            logprobs = nn.utils.rnn.pad_sequence(scored, batch_first=True).requires_grad_()
            loss, policy, kl = self._compute_loss(rows, logprobs, padded)
            if not math.isfinite(loss.item()):
                numbers = {"loss": loss.item(), "policy_loss": policy, "kl": kl}
                raise_non_finite(self.dump_dir, self.steps + 1, rows, numbers)
            (gradient,) = torch.autograd.grad(loss, logprobs)
            if not gradient.any():
                return None
            logprobs = logprobs.detach()
            data = [*self._iter_data(rows, logprobs, -gradient)]
            passes = self._submit("forward_backward", rows, data, "importance_sampling")
        if not dialect.keeps_order:
            answer = self.server.wait(passes, "computing gradients")
            if answer.metrics and dialect.averages_rows:
                raise ConfigError(f"{self.server.url} is SkyRL with another backend than JAX, which sums losses: serve "
                                  "the model by JAX")  # fmt: skip
        step = self._client.optim_step(tinker.AdamParams(
            learning_rate=lr, beta1=BETAS[0], beta2=BETAS[1], eps=ADAM_EPSILON, weight_decay=self.optim.weight_decay,
            grad_clip_norm=self.optim.grad_clip,
        ))  # fmt: skip
        if not dialect.keeps_order:
            self.server.wait(step, "taking a step")
        self.steps += 1
        return _Step(rows, padded, logprobs, passes, step)

    def _finish_step(self, step: _Step, metrics: UpdateMetrics) -> None:
        answer = self.server.wait(step.passes, "computing gradients")
        self.server.wait(step.step, "taking a step")
        logprobs = step.logprobs
        if logprobs is None:
            rows = [torch.tensor([0.0, *each["logprobs"].data]) for each in answer.loss_fn_outputs]
            logprobs = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        loss, policy, kl = self._compute_loss(step.rows, logprobs, step.reference, metrics)
        metrics.add_step(loss.item(), policy, kl, 0.0)

    def _is_plain_ppo(self, rows: Sequence[Sample]) -> bool:
        """Tell whether the server's own "ppo" is the loss of these rows."""
        loss, special = self.loss, self.loss.shaping != "none" or self.loss.mask_logprob is not None
        clips = self.server.dialect.clips_ratios or loss.clip_low == loss.clip_high == PPO_CLIP
        is_plain = all(row.role == "episode" and not (row.off_policy and special) for row in rows)
        return clips and loss.is_plain_ppo and is_plain

    def _iter_data(self, rows: Sequence[Sample], denominators: Tensor, advantages: Tensor) -> Iterator[tinker.Datum]:
        """Yield rows with sums as their loss, whatever the server divides by. Both tensors are (B, T)."""
        for i, row in enumerate(rows):
            length = len(row.token_ids)
            scale = (length - 1) * len(rows) if self.server.dialect.averages_rows else 1
            scaled = (advantages[i, 1:length] * scale).tolist()
            yield _make_datum(row, logprobs=denominators[i, 1:length].tolist(), advantages=scaled)

    def _compute_loss(
        self, rows: Sequence[Sample], logprobs: Tensor, reference: Tensor | None, metrics: UpdateMetrics | None = None
    ) -> tuple[Tensor, float, float]:
        """Compute the loss of a mini-batch as `Learner` does, with its policy part and its KL; add the figures.

        `logprobs` and `reference` are (B, T).
        """
        zero = logprobs.sum() * 0.0
        policy, kl, rest = zero, zero, zero
        episodes = [i for i, row in enumerate(rows) if row.role == "episode"]
        if episodes:
            batch = Batch.from_samples([rows[i] for i in episodes], logprobs.device)
            width = batch.mask.shape[1]
            own, compared = logprobs[episodes, :width], None if reference is None else reference[episodes, :width]
            sums = losses.EpisodeLoss.compute(self.loss, own, batch, compared)
            policy, kl = sums.policy / sums.num_kept.clamp(min=1), sums.kl / sums.num_compared.clamp(min=1)
            if metrics is not None:
                metrics.add_batch(self.loss, batch, own.detach(), torch.zeros_like(own), sums)
        if others := [i for i, row in enumerate(rows) if row.role != "episode"]:
            chosen = [rows[i] for i in others]
            batch = Batch.from_samples(chosen, logprobs.device)
            own = logprobs[others, : batch.mask.shape[1]]
            surrogate = losses.compute_surrogate(self.loss, own, batch).loss
            terms = torch.stack([surrogate, -own, -own], dim=-1)  # held rows are samples of the start model
            weights = torch.tensor(compute_token_weights(chosen, self.loss.aggregation))[:, None]  # (B, 1, 3)
            rest = (terms * weights * batch.mask[..., None]).sum()
            if metrics is not None:
                imitated = [replace(row, hold=0.0, imitate=row.hold or row.imitate) for row in chosen]
                metrics.add_non_episodes(imitated, batch, terms)
        return policy + self.loss.kl * kl + rest, float(policy.detach()), float(kl.detach())

    def _replace_anchors(self, rows: Sequence[Sample], seed: int) -> list[Sample]:
        """Replace rows that are anchored to the start model by its own samples there (`learner.anchor_by`).

        The likelihood of its samples has, on average, the gradient of KL(start || model) on the way that they take.
        Each answer of a row becomes a row, which has that likelihood in the place of the KL, by the weight `hold`.
        """
        kept = [replace(row, hold=0.0) for row in rows if not row.hold or is_trained(replace(row, hold=0.0), self.loss)]
        asked: list[tuple[Sample, int, Any]] = []
        self.server.ledger.require(sum(end for row in rows for _, end in _find_spans(row)))
        for row in rows:
            for start, end in _find_spans(row):
                params = tinker.SamplingParams(
                    max_tokens=end - start, temperature=1.0, stop=self._end_ids,
                    seed=derive_seed(seed, "anchor", len(asked)) % 2**31,
                )  # fmt: skip
                prompt = tinker.ModelInput.from_ints(list(row.token_ids[:start]))
                asked.append((row, start, self._start.sample(prompt, 1, params)))
        for row, start, future in asked:
            token_ids = self.server.wait(future, "sampling from the start model").sequences[0].tokens
            self.server.ledger.add(prefilled=start, sampled=len(token_ids))
            if not token_ids:
                continue
            size = start + len(token_ids)
            blank = (0.0,) * size
            kept.append(replace(
                row, token_ids=(*row.token_ids[:start], *token_ids), loss_mask=(0,) * start + (1,) * len(token_ids),
                behavior_logprobs=blank, advantages=blank, imitate=0.0,
            ))  # fmt: skip
        return kept

    def _download_adapters(self) -> dict[str, Tensor]:
        """Download the weights of `weights`. Raises `ServerError` where they are no adapters."""
        name = _NAME.fullmatch(self.weights())
        if name is None:
            raise ServerError(f"{self.server.url} names its weights in a form of its own")
        with tempfile.TemporaryFile() as file:
            self.server.download_archive(name[1], name[2], file, MOST_ADAPTER_BYTES)
            file.seek(0)
            try:
                with tarfile.open(fileobj=file) as archive:
                    member = next(each for each in archive if each.isfile() and Path(each.name).name == _ADAPTER_FILE)
                    opened = archive.extractfile(member)
                    assert opened is not None, "it is a file"
                    tensors: dict[str, Tensor] = load_tensors(opened.read(MOST_ADAPTER_BYTES))
            except (tarfile.TarError, zlib.error, SafetensorError, StopIteration, EOFError, OSError) as error:
                raise ServerError(f"{self.server.url} gives no adapters of peft ({error or 'other files'})") from error
        if strange := [name for name in tensors if not _ADAPTER_NAME.fullmatch(name) or tensors[name].ndim != 2]:
            raise ServerError(f"{self.server.url} gives other adapters than were asked for: {strange[0][:100]}")
        return tensors


def _make_datum(row: Sample, **inputs: list[float]) -> Any:
    """Make a row of the API, whose targets are the next tokens: all its lists have one number fewer than the row."""
    ids = list(row.token_ids)
    given = {"target_tokens": ids[1:], **(inputs or {"weights": [0.0] * len(ids[1:])})}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=given)


def _find_spans(row: Sample) -> list[tuple[int, int]]:
    """Find the unbroken runs of trained tokens of an anchored row: first, and one past the last."""
    mask = row.loss_mask if row.hold else (0,)
    edges = [i for i in range(1, len(mask) + 1) if (i < len(mask) and mask[i]) != bool(mask[i - 1])]
    return [*zip(edges[::2], edges[1::2], strict=True)]
