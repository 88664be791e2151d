"""What rows that are no episodes add to the loss: tips, episodes read with tips, and what is rehearsed.

A row has up to three terms: the clipped surrogate, where it has an advantage; KL(start model || model), by
`Sample.hold`; the negative log-likelihood, by `Sample.imitate`. Each term is a mean over the rows of one role that have
it with one weight, so that rows of another role or weight, or of an episode, thin out nothing. What is held or imitated
counts by rows, each with the mean over its own tokens: a decision to look around, in an episode that ends with it,
weighs as much as a long one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from trailnotes.types import RowRole, Sample

TERMS = ("policy", "hold", "imitate")


def get_term_weights(sample: Sample) -> dict[str, float]:
    """The terms of a row that is no episode's, with their weights; a term that it does not have is missing."""
    weights = {"policy": float(any(sample.advantages)), "hold": sample.hold, "imitate": sample.imitate}
    return {name: weight for name, weight in weights.items() if weight}


def compute_token_weights(samples: Sequence[Sample], aggregation: Literal["token", "sequence"]) -> list[list[float]]:
    """What each of `TERMS` of a trained token is multiplied by, so that the sum over all rows is the loss.

    Args:
        samples: the rows of one mini-batch that are no episodes; all have a trained token.
        aggregation: of the surrogate. "token": the mean runs over the tokens of the role that have an advantage.
            "sequence": over the rows' own means.

    Returns:
        For each row (3,) in the order of `TERMS`; 0 for a term that it does not have.
    """
    by_row = {term: term != "policy" or aggregation == "sequence" for term in TERMS}
    sizes: Counter[tuple[RowRole, str, float]] = Counter()
    for sample in samples:
        for term, weight in get_term_weights(sample).items():
            sizes[sample.role, term, weight] += 1 if by_row[term] else sum(sample.loss_mask)
    rows = []
    for sample in samples:
        own, tokens = get_term_weights(sample), sum(sample.loss_mask)
        shares = {term: sizes[sample.role, term, own[term]] * (tokens if by_row[term] else 1) for term in own}
        rows.append([own[term] / shares[term] if term in own else 0.0 for term in TERMS])
    return rows
