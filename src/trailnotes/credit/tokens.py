"""Advantages of single tokens from a teacher that knew more: what the same policy says of them with tips in its prompt.

n sampled tokens of one row. Everything is a number by now: no model, no text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trailnotes.config.methods_schema import OpsdConfig

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]


def log_ratio(teacher: ArrayLike, student: ArrayLike) -> Array:
    """By how much the teacher likes each token better: d = log pi(y | tips) - log pi(y).

    Its negative is the one-sample estimate of KL(student || teacher) at the token.

    Args:
        teacher: (n,) log-probabilities with tips; NaN for a token that has no teacher.
        student: (n,) those that the tokens were sampled with.

    Returns:
        (n,) natural logarithms, 0 where there is no teacher.

    Raises:
        ValueError: the two differ in length.
    """
    with_tips, without = np.asarray(teacher, dtype=np.float64), np.asarray(student, dtype=np.float64)
    if with_tips.shape != without.shape:
        raise ValueError(f"a teacher of {with_tips.size} tokens cannot score {without.size}")
    return np.where(np.isnan(with_tips), 0.0, with_tips - without)


def compute_gate(ratios: Array, advantages: Array, gate: str) -> Mask:
    """Which tokens the reward leaves to the teacher.

    Args:
        ratios: (n,) `log_ratio`.
        advantages: (n,) of the episode in its group.
        gate: "none" keeps none back; "agree" those where teacher and reward want opposite things; "positive" those of
            episodes that were no better than their group.

    Returns:
        (n,) whether the teacher may speak.
    """
    if gate == "agree":
        return ratios * advantages >= 0
    return advantages > 0 if gate == "positive" else np.ones(ratios.shape, dtype=bool)


def compute_teacher_signal(ratios: Array, options: OpsdConfig) -> Array:
    """What the teacher adds to the advantage of each token.

    With c = `options.weight`, and d the log ratio, held within +- `options.clip`:

    ==========  ==========================  ======================================================================
    sdpo        c d                         arXiv 2601.20802, eq. 2: the advantage of its KL to the teacher
    opcd        c d                         arXiv 2602.12275, eq. 1: the gradient of its reverse KL, by one sample
    sdar        c (sigmoid(beta d) - 1/2)   arXiv 2605.15155: its gated loss moves log pi(y) by sigmoid(beta d)
    ==========  ==========================  ======================================================================

    The 1/2 is a baseline: it changes no expectation, and a teacher who says what the student says adds nothing.

    Args:
        ratios: (n,) `log_ratio`.
        options: form, weight, clip and beta.

    Returns:
        (n,) the signal; 0 where the log ratio is 0.
    """
    d = np.clip(ratios, -options.clip, options.clip) if options.clip else ratios
    if options.form == "sdar":
        d = np.tanh(options.beta * d / 2) / 2  # sigmoid(beta d) - 1/2, which never overflows
    return options.weight * d


def add_teacher_signal(advantages: Array, ratios: Array, known: Mask, options: OpsdConfig) -> Array:
    """The advantage of each token: what the group says of its episode, and what the teacher says of the token.

    sdpo and opcd: (1 - c) A + signal, so that c = 1 is the paper's and less is the hybrid with GRPO; sdar: A + signal.
    A alone where there is no teacher, or the reward keeps it from speaking (`compute_gate`).

    Args:
        advantages: (n,) of the episode in its group, A.
        ratios: (n,) `log_ratio`.
        known: (n,) whether the token has a teacher.
        options: see `compute_teacher_signal`; and the gate.

    Returns:
        (n,) advantages.
    """
    share = 1.0 if options.form == "sdar" else 1.0 - options.weight
    speaks = known & compute_gate(ratios, advantages, options.gate)
    return np.where(speaks, share * advantages + compute_teacher_signal(ratios, options), advantages)
