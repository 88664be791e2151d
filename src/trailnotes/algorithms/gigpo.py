"""GiGPO: GRPO whose steps are also compared with each other where they met the same state; HGPO as an option.

Sources: "Group-in-Group Policy Optimization" (arXiv 2505.10978), "Hierarchy-of-Groups Policy Optimization" (ICLR 2026),
and verl-agent, the code of both (2716b30). See docs/algorithms/gigpo.md for every option and deviation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from trailnotes.config.methods import Method
from trailnotes.config.section import Section, key
from trailnotes.learner.credit.episodes import Scores, group_relative
from trailnotes.learner.credit.steps import Visits, build_histories, collect_visits, step_relative, weigh_levels

if TYPE_CHECKING:
    from trailnotes.runs.iteration import Iteration

GIGPO = "GiGPO, arXiv 2505.10978"


class GigpoConfig(Section):
    """GiGPO and HGPO: step advantages among the visits of one state in a group, besides those of whole episodes."""

    omega: float = key(
        1.0, "weight of the step advantages; 0 is GRPO. HGPO has none", GIGPO, ge=0, needs="gigpo.hierarchical = false"
    )
    gamma: float = key(0.95, "discount of the return from each step on", GIGPO, gt=0, le=1)
    norm: Literal["mean", "mean_std"] = key("mean", "subtract the mean, or also divide by the deviation", GIGPO)
    hierarchical: bool = key(False, "HGPO: group by the last k observations, k = 1..history + 1")
    history: int = key(2, "HGPO: K, observations of context before the newest", needs="gigpo.hierarchical", ge=0)


@dataclass(frozen=True, slots=True)
class TwoLevelAdvantages:
    """The two terms of an advantage for each of the M steps of a group; training uses their sum."""

    visits: Visits
    episode: NDArray[np.float64]  # (M,) A^E
    step: NDArray[np.float64]  # (M,) omega A^S

    def sum_by_episode(self, scores: Scores) -> list[NDArray[np.float64]]:
        """Return the sum of both terms by episode, N times (T_i,)."""
        ends = np.cumsum([len(row) for row in scores.rewards])
        return np.split(self.episode + self.step, ends[:-1])


def compute_two_level_advantages(
    visits: Visits, returns: NDArray[np.float64], gigpo: GigpoConfig
) -> TwoLevelAdvantages:
    """Compute A = A^E + omega A^S of visits (M,) and returns (N,), or HGPO's sum over the levels of history."""
    with_std = gigpo.norm == "mean_std"
    episode = group_relative(visits.episode_scores, with_std, group=returns)  # eq. 3
    if not gigpo.hierarchical:
        step = step_relative(visits, visits.states, with_std)
        return TwoLevelAdvantages(visits, episode, gigpo.omega * step)

    levels = {
        k: step_relative(visits, build_histories(visits, k), with_std, ddof=0) for k in range(1, gigpo.history + 2)
    }
    return TwoLevelAdvantages(visits, np.zeros_like(episode), weigh_levels(levels))


async def gigpo(iteration: Iteration) -> None:
    settings = iteration.config.section(GigpoConfig)
    groups = await iteration.rollout(iteration.tasks())
    async with iteration.learning():
        groups = iteration.add_novelty(groups)
        terms, advantages = [], []
        for scores in iteration.scores(groups):
            visits = collect_visits(scores, settings.gamma)
            terms.append(compute_two_level_advantages(visits, scores.returns, settings))
            advantages.append(terms[-1].sum_by_episode(scores))
        iteration.add_metrics("gigpo", term_metrics(terms))
        metrics = await iteration.update(iteration.samples(groups, advantages))
        await iteration.end(groups, metrics)


def term_metrics(terms: Sequence[TwoLevelAdvantages]) -> dict[str, float]:
    """Measure how many steps share their state within a group, and the weight of the step term; {} of no steps."""
    sizes = [size for term in terms for size in Counter(term.visits.states).values()]
    if not sizes:
        return {}
    episode = sum(float(np.abs(term.episode).sum()) for term in terms)
    step = sum(float(np.abs(term.step).sum()) for term in terms)
    return {
        "singletons": sizes.count(1) / sum(sizes), "group_mean": sum(sizes) / len(sizes),
        "group_max": float(max(sizes)), "step_share": step / (episode + step) if episode + step else 0.0,
    }  # fmt: skip


METHOD = Method(
    "gigpo", "GiGPO", gigpo, trains=True, colour="#0072b2", sections={"gigpo": GigpoConfig},
    metrics=(
        ("gigpo/singletons", "share", "steps that are the only visit of their state",
         "far below 1 (the paper: 0.2 to 0.35); at 1 this is GRPO"),
        ("gigpo/group_mean", "visits", "mean number of visits of a state", "above 1"),
        ("gigpo/group_max", "visits", "largest number of visits of a state",
         "at least `rollout.group_size`; far above: members walk in circles"),
        ("gigpo/step_share", "share", "step terms' sizes over both terms' sizes", "about a half"),
    ),
)  # fmt: skip
