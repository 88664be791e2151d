"""Retrospex: a frozen policy, and a critic learned offline from the episodes of finished runs."""

from __future__ import annotations

from typing import ClassVar, Literal

from trailnotes.config.methods import Method
from trailnotes.config.section import Section, key

RETROSPEX = "Retrospex, arXiv 2505.11807"


class RetrospexConfig(Section):
    """Retrospex: an offline critic that rescores what the policy proposes."""

    candidates: ClassVar[int] = 4  # k, actions that the policy proposes (release 6d169a4)

    data: tuple[str, ...] = key((), "run directories whose trajectories.jsonl train the critic")
    critic: str = key("", "a critic trained before, instead of data")
    reward: Literal["raw", "spread"] = key("raw", "rewards as given, or the return spread over the steps (WebShop)")
    failure: Literal["raw", "floor0", "last_positive"] = key("raw", "negative final score: as is, 0, or last positive")
    epochs: int = key(20, "passes over the transitions", "Retrospex release 6d169a4", ge=1)
    decay: float = key(0.97, "d: the policy weighs max(floor, d^t) at step t", RETROSPEX, gt=0, le=1)
    first_step: Literal[0, 1] = key(0, "t of the first action; 1 in ALFWorld", "Retrospex release 6d169a4")
    floor: float = key(0.6, "b: the policy's least weight", RETROSPEX, ge=0, le=1)


METHOD = Method(
    "retrospex", "Retrospex", "trailnotes.algorithms.retrospex.method:retrospex", trains=False, data="retrospex.data",
    colour="#a08a00", learned_from="trailnotes.algorithms.retrospex.transitions:load_critic_games",
    sections={"retrospex": RetrospexConfig},
)  # fmt: skip
