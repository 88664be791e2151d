"""The learner updates a model on rows of tokens; it knows no algorithm."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.errors import ConfigError
from trailnotes.learner import losses, states
from trailnotes.learner.logprobs import Batch, TokenScorer
from trailnotes.learner.samples import PackingMode, Ranks, dummy_sample, iter_minibatches, split_microbatches
from trailnotes.policies.hf.cache import trim_heap
from trailnotes.policies.hf.decoder import evaluation_mode
from trailnotes.types import Sample


class Learner:
    """A model, its optimizer and the loss.

    Args:
        model: a causal LM of transformers, or a peft model (then only the adapters are trained).
        optim: optimizer, and how a batch is cut.
        loss: the clipped surrogate and its additional terms.
        temperature: of the distribution that tokens are sampled from, at acting and learning alike.
        reference: the reference model of `loss.kl`; with adapters it may be left out, since the base and the adapters
            as they are now make the initial model.
        dump_dir: for batches whose loss or gradient is not finite.
        ranks: the processes that share the update. Each has a learner of the same weights, calls the same methods with
            the same arguments, and gets the same answers; this one keeps its part of the weights only.
    """

    activity: Any = None  # of `reporting.terminal`: counts the mini-batches of an update
    packing: PackingMode = "padded"  # how the rows of a micro-batch are laid out; see `logprobs`

    def __init__(
        self, model: nn.Module, optim: OptimConfig, loss: LossConfig, *, temperature: float = 1.0,
        reference: nn.Module | None = None, dump_dir: Path | None = None, ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self.model, self.optim, self.loss, self.dump_dir = model, optim, loss, dump_dir
        self.ranks: Ranks = ranks if ranks is not None else Ranks()
        self.steps = 0  # optimizer steps so far
        if loss.kl and reference is None and not hasattr(model, "disable_adapter"):
            raise ConfigError("loss.kl needs a reference model: give the learner one, or set loss.kl = 0")
        self._score = TokenScorer(model, temperature, optim.logprob_chunk)
        self._score_reference = self._score
        if reference is not None:
            self._score_reference = TokenScorer(reference.requires_grad_(False), temperature, optim.logprob_chunk)
        for score in dict.fromkeys((self._score, self._score_reference)):  # each has looked at its whole model by now
            score.within = self.ranks.shard(score.model)
        own = reference is None and hasattr(model, "disable_adapter")
        self._start = {p: p.detach().clone() for p in model.parameters() if p.requires_grad} if own else {}
        head = self._score.parts.head.parameters() if self._score.parts else ()
        self._adapts_head = any(parameter in self._start for parameter in head)
        self._optimizer = states.MasterAdamW(model, lr=optim.lr, weight_decay=optim.weight_decay)

    @property
    def models(self) -> list[nn.Module]:
        return list(dict.fromkeys((self.model, self._score_reference.model)))

    @property
    def device(self) -> torch.device:
        return self.ranks.device or next(self.model.parameters()).device

    def logprobs(self, samples: Sequence[Sample], *, initial: bool = False) -> list[tuple[float, ...]]:
        """Score the trained tokens by the model as it is, or as it was at the start, at the sampling temperature.

        Returns natural logarithms (L,) for each row; 0.0 where `loss_mask` is 0.
        """
        score = self._score_reference if initial else self._score
        with self.use_initial_adapters() if initial else nullcontext():
            rows = self._score_samples(samples, score)
        self.ranks.reshard(score.model)
        return [tuple(row.tolist()) for row in rows]

    def update(self, samples: Sequence[Sample], seed: int = 0, lr_scale: float = 1.0) -> dict[str, float]:
        """Update the model on one batch of rows.

        Rows of zero advantage are left out first, with `loss.drop_zero_advantage`; mini-batches then count the
        trajectories that are left. A mini-batch whose gradient is exactly zero takes no step.

        Args:
            samples: the rows; advantages are final.
            seed: of the order of the mini-batches.
            lr_scale: factor on `optim.lr`, from the caller's schedule.

        Returns metrics, explained in docs/metrics.md. Raises `NonFiniteError` where a loss or gradient is not finite;
        that mini-batch was not stepped, and lies in a dump.
        """
        started = time.perf_counter()
        rows = [sample for sample in samples if losses.is_trained(sample, self.loss)]
        metrics = losses.UpdateMetrics()
        self._optimizer.set_lr(self.optim.lr * lr_scale)
        if any(row.hold for row in rows) and self._score_reference is self._score and not self._start:
            raise ConfigError("rows are anchored to a reference model, and there is none: give the learner a reference")
        compared = [i for i, row in enumerate(rows) if row.role == "episode" and self.loss.kl]
        with self.use_initial_adapters():  # once for each update, not for each epoch
            scored = self._score_samples([rows[i] for i in compared], self._score_reference)
        reference = dict(zip(compared, scored, strict=True))
        seconds_reference = time.perf_counter() - started
        optim, rng = self.optim, np.random.default_rng(seed)
        batches = list(iter_minibatches(rows, optim.minibatch, rng, optim.epochs, optim.minibatch_unit))
        if self.activity is not None:
            self.activity.total = len(batches)
        with update_mode(self.model):
            for chosen in batches:
                self._step([rows[i] for i in chosen], [reference.get(i) for i in chosen], metrics)
                if self.activity is not None:
                    self.activity.end_unit()
        for model in self.models:
            self.ranks.reshard(model)
        figures = metrics.result(self.ranks)
        figures |= losses.compute_advantage_metrics([sample for sample in samples if sample.role == "episode"])
        figures |= {"lr": self.optim.lr * lr_scale, "seconds_reference": seconds_reference}
        return figures | {"seconds": time.perf_counter() - started}

    def weights(self) -> dict[str, Tensor]:
        return states.gather_trained_weights(self.model, self.ranks)

    def live_weights(self) -> dict[str, Tensor]:
        """Return `weights` of a whole model without a copy: the next update changes them."""
        return {name: each.detach() for name, each in self.model.named_parameters() if each.requires_grad}

    def export(self, path: Path, tokenizer: Any = None) -> None:
        states.export_model(self.model, path, tokenizer, self.ranks)

    def save(self, path: Path) -> None:
        states.save_state(path, self._optimizer.live_tensors(), {"steps": self.steps}, self.ranks)

    def load(self, path: Path) -> None:
        """Restore a saved state on any number of ranks; on as many as saved it training continues bit for bit."""
        tensors, rest = states.load_state(path, self._optimizer.make_blank_state, self.ranks)
        self._optimizer.load_state_dict(tensors)
        self.ranks.reshard(self.model)
        self.steps = int(rest["steps"])

    def close(self) -> None:
        pass

    def _step(
        self, samples: Sequence[Sample], reference: Sequence[Tensor | None], metrics: losses.UpdateMetrics
    ) -> None:
        """Take a step along the clipped gradient of one mini-batch: that of its episodes, and of its other rows."""
        self._optimizer.zero_grad()
        episodes = [i for i, sample in enumerate(samples) if sample.role == "episode"]
        sums = self._backward_episodes([samples[i] for i in episodes], [reference[i] for i in episodes], metrics)
        others = [sample for sample in samples if sample.role != "episode"]
        added = torch.zeros((), device=self.device)
        if others:
            self._optimizer.scale_grads(1 / max(1.0, float(sums[3])))  # a mean, as those of the others are
            added = self._backward_others(others, metrics)
        norm, policy, kept, kl, count, rest = torch.stack([self._optimizer.grad_norm(), *sums, added]).tolist()
        if not (math.isfinite(norm) and math.isfinite(policy + kl + rest)):
            self._optimizer.zero_grad()
            numbers = {"grad_norm_of_sum": norm, "policy_loss_sum": policy, "kl_sum": kl, "tokens": count}
            numbers["loss_of_other_rows"] = rest
            states.raise_non_finite(self.dump_dir, self.steps + 1, samples, numbers, write=self.ranks.rank == 0)
        divisor = 1.0 if others else count
        if divisor == 0 or norm == 0:
            return
        norm /= divisor
        clip = self.optim.grad_clip
        self._optimizer.step((min(1.0, clip / (norm + 1e-6)) if clip else 1.0) / divisor)
        self.steps += 1
        policy, kl = policy / max(1.0, kept), kl / max(1.0, count)
        metrics.add_step(policy + self.loss.kl * kl + rest, policy, kl, norm)

    def _backward_episodes(
        self, samples: Sequence[Sample], reference: Sequence[Tensor | None], metrics: losses.UpdateMetrics
    ) -> Tensor:
        """Add the gradient of the episodes' summed loss, and return (4,) as `_backward_batch`.

        The sum is later divided by the tokens that the KL is a mean over. Where the policy loss is one over fewer, its
        sum is weighted by the share of the two, so that either comes out as a mean over its own tokens.
        """
        weight = self._compute_policy_weight(samples) if self.loss.kl and not self.loss.mask_kl else 1.0
        sums = torch.zeros(4, device=self.device)
        for indices, batch in self._iter_microbatches(samples):
            if not indices:
                nothing = 0.0 * self._score(batch.token_ids, batch.mask, batch.layout)[0].sum()
                nothing.backward()  # type: ignore[no-untyped-call]
                continue
            scored = [row for i in indices if (row := reference[i]) is not None]
            padded = nn.utils.rnn.pad_sequence(scored, batch_first=True) if scored else None
            sums += self._backward_batch(batch, padded, weight, metrics)
            self._optimizer.accumulate_grads()
        return self.ranks.sum(sums)

    def _backward_batch(
        self, batch: Batch, reference: Tensor | None, weight: float, metrics: losses.UpdateMetrics
    ) -> Tensor:
        """Add the gradient of the batch's summed loss, of which `weight` multiplies the policy's part.

        Returns:
            (4,) the sum of the policy loss, without the weight, and its number of tokens or rows; the same of the KL.
        """
        logprobs, entropies = self._score(batch.token_ids, batch.mask, batch.layout)
        sums = losses.EpisodeLoss.compute(self.loss, logprobs, batch, reference)
        (weight * sums.policy + self.loss.kl * sums.kl).backward()  # type: ignore[no-untyped-call]
        metrics.add_batch(self.loss, batch, logprobs.detach(), entropies, sums)
        return torch.stack([each.detach().to(sums.policy.dtype) for each in sums[:4]])

    @torch.no_grad()
    def _compute_policy_weight(self, samples: Sequence[Sample]) -> float:
        """Trained tokens over kept ones, or rows over rows, as `loss.aggregation` counts; 1 where nothing is kept.

        Which tokens are kept must be known before the first gradient, so off-policy rows are scored once more.
        """
        off_policy = [sample for sample in samples if sample.off_policy]
        if self.loss.mask_logprob is None or not off_policy:
            return 1.0
        by_row = self.loss.aggregation != "token"
        trained = sum(1 if by_row else sum(sample.loss_mask) for sample in samples)
        kept = sum(1 if by_row else sum(sample.loss_mask) for sample in samples if not sample.off_policy)
        own = 0
        for indices, batch in self._iter_microbatches(off_policy):
            mask = losses.find_kept(self.loss, self._score(batch.token_ids, batch.mask, batch.layout)[0], batch)
            own += int(losses.masked_sum(torch.zeros(()), mask, self.loss.aggregation)[1]) if indices else 0
        kept += sum(self.ranks.gather(own))
        return trained / kept if kept else 1.0

    def _backward_others(self, samples: Sequence[Sample], metrics: losses.UpdateMetrics) -> Tensor:
        """Add the gradient of the rows that are no episodes, and return () their loss; see `compute_token_weights`."""
        weights = losses.compute_token_weights(samples, self.loss.aggregation)
        any_anchored = any(sample.hold for sample in samples)
        total = torch.zeros((), device=self.device)
        for indices, batch in self._iter_microbatches(samples):
            rows = [samples[i] for i in indices]
            # Where any rank asks the reference model in this mini-batch, all ask.
            anchored = torch.tensor([row.hold > 0 for row in rows] or [any_anchored], device=self.device)  # (B,)
            reference = torch.empty(0, device=self.device)
            if any_anchored:
                reference = self._compute_reference_states(batch, anchored)
            terms = self._score.within(partial(self._compute_terms, batch, anchored, reference))
            weight = torch.tensor([weights[i] for i in indices] or [[0.0] * 3], device=self.device)  # (B, 3)
            loss = (terms * weight[:, None] * batch.mask[..., None]).sum()
            loss.backward()
            self._optimizer.accumulate_grads()
            if rows:
                metrics.add_non_episodes(rows, batch, terms.detach())
                total += loss.detach()
        return self.ranks.sum(total)

    def _compute_terms(self, batch: Batch, anchored: Tensor, reference: Tensor) -> Tensor:  # (B, T, 3)
        """Compute surrogate, KL(reference || model) and negative log-likelihood of each token, 0 off the mask."""
        hidden = self._score.compute_states(batch.token_ids, batch.mask, batch.layout)
        logprobs, _ = self._score.score_states(hidden, batch.token_ids, batch.mask)
        surrogate = losses.compute_surrogate(self.loss, logprobs, batch).loss
        where = anchored[batch.mask.nonzero()[:, 0]]  # (K,)

        def compute_reference_logits(hidden: Tensor) -> Tensor:  # (K, H) -> (K, V); adapters may sit on the head
            with self.use_initial_adapters() if self._adapts_head else nullcontext():
                return self._score_reference.logits(hidden)

        divergence = self._score.compute_kl(hidden[where], compute_reference_logits, reference)
        kl = torch.zeros_like(logprobs)
        kl[batch.mask] = torch.zeros(len(hidden), device=self.device).masked_scatter(where, divergence)
        return torch.stack([surrogate, kl, -logprobs], dim=-1)

    @torch.no_grad()
    def _compute_reference_states(self, batch: Batch, anchored: Tensor) -> Tensor:  # (B,) of bool -> (K, H)
        """Compute the states of the reference model; rows that are no episodes are used once an update."""
        own = bool(anchored.any())
        if not own and self.ranks.world == 1:
            return torch.empty(0, device=self.device)
        rows = anchored if own else torch.ones_like(anchored)  # of the others' pass
        with self.use_initial_adapters(), evaluation_mode(self._score_reference.model):
            ids, mask = batch.token_ids[rows], batch.mask[rows]
            if batch.layout is not None:  # of all rows together
                ids, mask = batch.token_ids, batch.mask & rows[:, None]
            score = self._score_reference
            hidden: Tensor = score.within(partial(score.compute_states, ids, mask, batch.layout))
        return hidden if own else hidden[:0]

    def _iter_microbatches(self, samples: Sequence[Sample]) -> Iterator[tuple[list[int], Batch]]:
        for indices in split_microbatches(samples, self.optim.pass_tokens, self.ranks, self.packing):
            trim_heap(self.device)
            rows = [samples[i] for i in indices] or [dummy_sample(samples[0])]
            yield indices, Batch.from_samples(rows, self.device, self.packing)

    def use_initial_adapters(self) -> AbstractContextManager[None]:
        """Put the adapters back to where this learner began, for the duration of the block."""
        return self.ranks.swap_weights(self.model, self._start)

    @torch.no_grad()
    def _score_samples(self, samples: Sequence[Sample], score: TokenScorer) -> list[Tensor]:
        own: dict[int, Tensor] = {}
        with evaluation_mode(score.model):
            for indices, batch in self._iter_microbatches(samples):
                logprobs, _ = score(batch.token_ids, batch.mask, batch.layout)
                for i, row in zip(indices, logprobs, strict=False):
                    own[i] = row[: len(samples[i].token_ids)]
        if self.ranks.world > 1:
            parts = self.ranks.gather({i: row.cpu() for i, row in own.items()})
            own = {i: row.to(self.device) for part in parts for i, row in part.items()}
        return [own[i] for i in range(len(samples))]


@contextmanager
def update_mode(model: nn.Module) -> Iterator[None]:
    """Put layers with gradient checkpointing into training mode for the duration of the block, without any dropout.

    Dropout would keep the ratio from starting at 1. Modules inside a checkpointed layer stay in evaluation mode, and
    rates that the layer itself would apply (OPT, Falcon) are 0.
    """
    before = model.training
    model.eval()
    active = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
    holders = {id(holder): holder for module in active for holder in (module, getattr(module, "config", module))}
    rates = [
        (holder, name, rate)
        for holder in holders.values()
        for name, rate in vars(holder).items()
        if "drop" in name and isinstance(rate, float)
    ]
    try:
        for module in active:
            module.training = True
        for holder, name, _ in rates:
            setattr(holder, name, 0.0)
        yield
    finally:
        for holder, name, rate in rates:
            setattr(holder, name, rate)
        model.train(before)
