"""AdamW on float32 weights, whatever type the model computes in.

A step of 1e-6 is lost when it is added to a bfloat16 weight (8 bits of mantissa). So parameters of a lower precision
get a float32 master copy: gradients are summed and clipped there, the moments live there, and the model's weights are
the rounded masters. Float32 parameters are their own masters and cost nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trailnotes.config.schema import OptimConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


class MasterAdamW:
    """AdamW over the trainable parameters of a model.

    Args:
        model: its parameters with `requires_grad` are trained; the others are left alone.
        config: learning rate, moments, weight decay.

    Raises:
        ValueError: nothing is trainable.
    """

    def __init__(self, model: nn.Module, config: OptimConfig) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("the model has no trainable parameter: unfreeze it, or turn model.lora.enabled on")
        self.masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float().clone())
            for name, p in self.parameters.items()
        }
        self._adamw = torch.optim.AdamW(
            self.masters.values(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for name, parameter in self.parameters.items():
            parameter.grad = self.masters[name].grad = None

    def accumulate_grads(self) -> None:
        """Add the gradients of low-precision parameters to their masters'. Call after each backward pass."""
        for name, parameter in self.parameters.items():
            master = self.masters[name]
            if master is not parameter and parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def grad_norm(self) -> Tensor:  # ()
        """2-norm of all gradients together, of all ranks."""
        norm = nn.utils.get_total_norm([p.grad for p in self.masters.values() if p.grad is not None])
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def scale_grads(self, factor: float) -> None:
        """Multiply the gradients so far."""
        for master in self.masters.values():
            if master.grad is not None:
                master.grad.mul_(factor)

    def set_lr(self, lr: float) -> None:
        """Change the learning rate of the steps to come."""
        for group in self._adamw.param_groups:
            group["lr"] = lr

    def step(self, scale: float) -> None:
        """Multiply the gradients by `scale` and take one step."""
        self.scale_grads(scale)
        self._adamw.step()
        self._round_weights()

    @torch.no_grad()
    def _round_weights(self) -> None:
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])

    def live_tensors(self) -> dict[str, Tensor]:
        """Masters, moments and step counts themselves; of a sharded model this rank's parts of them."""
        tensors: dict[str, Tensor] = {f"weights.{name}": master.detach() for name, master in self.masters.items()}
        for name, master in self.masters.items():
            for key, value in self._adamw.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors

    def make_blank_state(self, names: Collection[str]) -> dict[str, Tensor]:
        """For each of `names` of a saved state a tensor of the right shape, to be filled and loaded.

        Raises:
            ValueError: it is the state of another model.
        """
        self._validate_names(names)
        blanks = {f"weights.{name}": torch.zeros_like(master.detach()) for name, master in self.masters.items()}
        for name, master in self.masters.items():
            if f"step.{name}" in names:
                blanks[f"step.{name}"] = torch.zeros(())
                blanks |= {f"{moment}.{name}": torch.zeros_like(master.detach()) for moment in MOMENTS}
        return blanks

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of `live` on the CPU, ready for safetensors."""
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in self.live_tensors().items()}

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave, weights included.

        Raises:
            ValueError: the tensors belong to another model.
        """
        self._validate_names(tensors)
        for name, master in self.masters.items():
            master.copy_(tensors[f"weights.{name}"])
        state = {
            index: {key: tensors[f"{key}.{name}"].clone() for key in ("step", *MOMENTS)}
            for index, name in enumerate(self.masters)
            if f"step.{name}" in tensors
        }
        self._adamw.load_state_dict({"state": state, "param_groups": self._adamw.state_dict()["param_groups"]})
        self._round_weights()

    def _validate_names(self, names: Collection[str]) -> None:
        expected = {f"weights.{name}" for name in self.masters}
        found = {name for name in names if name.startswith("weights.")}
        if expected != found:
            raise ValueError(f"the saved weights are another model's, e.g. {min(expected ^ found)}")
