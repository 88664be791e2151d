"""Token advantages from a teacher: the same policy with tips in its prompt. Numbers only; n tokens of a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trailnotes.config.methods_schema import OpsdConfig

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def log_ratio(teacher: ArrayLike, student: ArrayLike) -> Array:
    """Compute the teacher's preference for each token (n,): d = log pi(y | tips) - log pi(y).

    Its negative is the one-sample estimate of KL(student || teacher). NaN in `teacher` is a token without one: d is 0.

    Raises:
        ValueError: the two differ in length.
    """
    with_tips, without = np.asarray(teacher, dtype=np.float64), np.asarray(student, dtype=np.float64)
    if with_tips.shape != without.shape:
        raise ValueError(f"a teacher of {with_tips.size} tokens cannot score {without.size}")
    return np.where(np.isnan(with_tips), 0.0, with_tips - without)


def compute_gate(ratios: Array, advantages: Array, gate: str) -> Mask:
    """Compute which tokens (n,) the reward leaves to the teacher.

    "none" keeps none back; "agree" those where teacher and reward want opposite things; "positive" those of episodes
    that were no better than their group.
    """
    if gate == "agree":
        return ratios * advantages >= 0
    return advantages > 0 if gate == "positive" else np.ones(ratios.shape, dtype=bool)


def compute_teacher_signal(ratios: Array, options: OpsdConfig) -> Array:
    """Compute the teacher's addition to the advantage of each token (n,), from its log ratios (n,).

    With c = `options.weight`, and d the log ratio within +- `options.clip`: sdpo (arXiv 2601.20802, eq. 2), opcd (arXiv
    2602.12275, eq. 1) and additive (OPID, arXiv 2606.26790) add c d, sdar (arXiv 2605.15155) adds
    c (sigmoid(beta d) - 1/2). The 1/2 is a baseline: it changes no expectation, and a teacher who agrees with the
    student adds nothing.
    """
    d = np.clip(ratios, -options.clip, options.clip) if options.clip else ratios
    if options.form == "sdar":
        d = np.tanh(options.beta * d / 2) / 2  # sigmoid(beta d) - 1/2, which never overflows
    return options.weight * d


def add_teacher_signal(advantages: Array, ratios: Array, known: Mask, options: OpsdConfig) -> Array:
    """Add the teacher's signal to the group's advantage of each token (n,).

    sdpo and opcd: (1 - c) A + signal, so that c = 1 is the paper's and less is the hybrid with GRPO; sdar and additive:
    A + signal.
    A alone where there is no teacher (`known`), or `compute_gate` keeps it back.
    """
    share = 1.0 if options.is_additive else 1.0 - options.weight
    speaks = known & compute_gate(ratios, advantages, options.gate)
    return np.where(speaks, share * advantages + compute_teacher_signal(ratios, options), advantages)
