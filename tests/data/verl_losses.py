"""Prints `verl_losses.json`, the losses and gradients of verl's own functions on random rows.

python tests/data/verl_losses.py > tests/data/verl_losses.json        (where verl is installed)
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import torch
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.workers.config import ActorConfig

OBJECTIVES = {  # ours -> theirs, and how it averages
    "gspo": ("gspo", "seq-mean-token-mean"),
    "gmpo": ("geo_mean", ""),
    "cispo": ("cispo", "token-mean"),
    "dppo": ("dppo_tv", "token-mean"),
}
CORRECTIONS = {"token": "token_k1", "sequence": "seq_sum_k1"}  # unit -> the divergence that verl masks by
CAP = 1.5


def main() -> None:
    """Draw the rows; compute each objective's loss and its gradient by the log-probabilities, and token weights."""
    generator = torch.Generator().manual_seed(0)
    num, length = 6, 8
    mask = torch.arange(length) < torch.randint(2, length + 1, (num, 1), generator=generator)
    old = -2 * torch.rand(num, length, generator=generator, dtype=torch.float64) - 0.05
    now = (old + 0.5 * torch.randn(num, length, generator=generator, dtype=torch.float64)).clamp(max=-0.01)
    advantages = torch.randn(num, 1, generator=generator, dtype=torch.float64).expand(num, length).contiguous()
    found: dict[str, Any] = {}
    for ours, (theirs, mean) in OBJECTIVES.items():
        config = ActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=0.2, clip_ratio_low=0.2,
            clip_ratio_high=0.3, clip_ratio_c=10.0,
        )  # fmt: skip
        logprobs = now.clone().requires_grad_()
        given = {"loss_agg_mode": mean} if mean else {}
        loss, _ = get_policy_loss_fn(theirs)(old, logprobs, advantages, mask.double(), config=config, **given)
        loss.backward()
        found[ours] = {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
    weights: dict[str, Any] = {}
    for unit, divergence in CORRECTIONS.items():
        truncated, _ = compute_rollout_correction_weights(now - old, mask.double(), unit, CAP)
        kept, _ = compute_rollout_rejection_mask(
            now - old, mask.double(), divergence, f"{1 / CAP}_1e30"
        )  # of old / now
        weights[unit] = {"truncate": truncated.tolist(), "mask": (truncated * kept).tolist()}
    constant = agg_loss(now, mask.double(), "seq-mean-token-sum-norm", loss_scale_factor=20)
    rows = {"mask": mask.int(), "old": old, "now": now, "advantages": advantages}
    print(json.dumps({
        "verl": version("verl"), **{name: tensor.tolist() for name, tensor in rows.items()},
        "objectives": found, "constant": constant.item(),
        "cap": CAP, "weights": weights,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
