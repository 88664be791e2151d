"""Implicit Q-learning on transitions: twin Q, expectile V, a slow target.

Source: IQL (arXiv 2110.06169) as Retrospex uses it (arXiv 2505.11807), but that both heads of Q are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trailnotes.algorithms.retrospex.network import CriticNetworks
from trailnotes.algorithms.retrospex.transitions import Transition
from trailnotes.config.methods_schema import RetrospexConfig
from trailnotes.config.schema import OptimConfig
from trailnotes.learner.states import MasterAdamW
from trailnotes.seeds import derive_seed

ProgressCallback = Callable[[float, dict[str, float]], None]


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Mean of |tau - 1(u < 0)| u^2 over u = Q - V, (B,) -> (). IQL, equation 5."""
    weight = torch.where(difference < 0, 1 - expectile, expectile)
    return (weight * difference.square()).mean()


def td_target(rewards: Tensor, terminated: Tensor, next_values: Tensor, gamma: float) -> Tensor:
    """What Q is drawn to: r + gamma V(s'), and r alone where the game ended; all (B,). IQL, equation 6."""
    return rewards + gamma * torch.where(terminated, torch.zeros_like(next_values), next_values)


@torch.no_grad()
def soft_update(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move the target a share `rate` of the way to its source."""
    for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
        slow.lerp_(fast, rate)


class IQL:
    """The networks with their optimisers. One epoch is a pass over all transitions, drawn anew from (seed, epoch)."""

    def __init__(self, networks: CriticNetworks, settings: RetrospexConfig, seed: int) -> None:
        self.networks, self.settings, self.seed = networks, settings, seed
        plain_adam = OptimConfig(lr=settings.lr, weight_decay=0.0)
        self._v_adam, self._q_adam = MasterAdamW(networks.v, plain_adam), MasterAdamW(networks.q, plain_adam)

    def run_epoch(self, data: Sequence[Transition], epoch: int, progress: ProgressCallback) -> dict[str, float]:
        """One pass; its mean losses. `progress` hears of epochs done and losses so far, after each step."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "critic", epoch))
        order = torch.randperm(len(data), generator=generator).tolist()
        size = self.settings.batch_size
        sums, seen, losses = [0.0, 0.0], 0, {}
        for start in range(0, len(order), size):
            batch = [data[index] for index in order[start : start + size]]
            for place, loss in enumerate(self._step(batch)):
                sums[place] += loss * len(batch)
            seen += len(batch)
            losses = {"value_loss": sums[0] / seen, "q_loss": sums[1] / seen}
            progress(epoch + seen / len(order), losses)
        return losses

    def _step(self, batch: Sequence[Transition]) -> tuple[float, float]:
        """V, then Q, then the target: the order of the release."""
        networks, settings, rows = self.networks, self.settings, _TransitionBatch.from_transitions(batch)
        with torch.no_grad():
            wanted = networks.target_q(rows.tasks, rows.observations, rows.actions)
        v_loss = expectile_loss(wanted - networks.value(rows.tasks, rows.observations), settings.expectile)
        _optimizer_step(self._v_adam, v_loss)
        with torch.no_grad():
            after = networks.value(rows.tasks, rows.next_observations)
            target = td_target(rows.rewards, rows.terminated, after, settings.gamma)
        both = networks.q(rows.tasks, rows.observations, rows.actions)
        q_loss = (both - target[:, None]).square().mean()  # of each head: through `min` one of them would learn nothing
        _optimizer_step(self._q_adam, q_loss)
        soft_update(networks.target, networks.q, settings.target_rate)
        return float(v_loss.detach()), float(q_loss.detach())

    def state_dict(self) -> dict[str, Tensor]:
        """All that the next epoch depends on, as flat tensors."""
        parts = {
            "v": self._v_adam.state_dict(),
            "q": self._q_adam.state_dict(),
            "target": self.networks.target.state_dict(),
        }
        return {f"{part}.{name}": tensor.clone() for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave; training continues bit for bit. Raises ValueError for another critic's."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

        self._v_adam.load_state_dict(part("v."))
        self._q_adam.load_state_dict(part("q."))
        self.networks.target.load_state_dict(part("target."))


def _optimizer_step(adam: MasterAdamW, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    adam.step(1.0)


@dataclass(frozen=True, slots=True)
class _TransitionBatch:
    """B transitions by column."""

    tasks: list[str]
    observations: list[str]
    actions: list[str]
    next_observations: list[str]
    rewards: Tensor  # (B,) float32
    terminated: Tensor  # (B,) bool

    @classmethod
    def from_transitions(cls, steps: Sequence[Transition]) -> _TransitionBatch:
        return cls(
            [step.task for step in steps],
            [step.observation for step in steps],
            [step.action for step in steps],
            [step.next_observation for step in steps],
            torch.tensor([step.reward for step in steps], dtype=torch.float32),
            torch.tensor([step.terminated for step in steps]),
        )
