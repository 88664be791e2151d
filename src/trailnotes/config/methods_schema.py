"""Sections of the settings that belong to methods: what they share, then what is one method's own."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import field_validator, model_validator

from trailnotes.config.methods import validate_method_name
from trailnotes.config.model_schema import OPENAI_PREFIX, require_model_name
from trailnotes.config.section import PAPER, RELEASE, Section, Table, key

CREDIT = "empo2.author_credit"  # what keys need to have an effect
OFF_POLICY = "algorithm.name = empo2"
REHEARSED = "rehearsal.split or rehearsal.path"


class AlgorithmConfig(Section):
    """Which method, and its named options."""

    name: str = key("empo2", "the method")
    normalize_std: bool = key(
        True, "divide group-relative advantages by the group's standard deviation",
        needs="algorithm.name = empo2|grpo|lamer|opid|opsd|ucob")  # fmt: skip
    normalize_mean: bool = key(
        False, "divide them by the group's mean return instead, which must not be negative: rare successes count more",
        "MaxRL, arXiv 2602.02710", needs="algorithm.name = empo2|grpo|opid|opsd")  # fmt: skip
    intrinsic: Literal["none", "tips", "states", "counts", "rnd"] = key(
        "none",
        "novelty reward: 1/n with n = 1 + tips shown (tips; release: retrieved), visits of similar states "
        "(states, paper) or visits of this very state (counts); or the error of Random Network Distillation (rnd)",
    )
    beta: float = key(
        1.0, "weight of the novelty reward in the return", ge=0, needs="algorithm.intrinsic = tips|states|counts|rnd"
    )
    novelty_threshold: float = key(
        0.9, "states: cosine similarity from which two states are the same",
        ge=-1, le=1, needs="algorithm.intrinsic = states")  # fmt: skip
    discount: float = key(
        1.0, "gamma of the episode return that advantages compare, counted from the first step (paper: .95 on WebShop)",
        PAPER, gt=0, le=1)  # fmt: skip
    dynamic_sampling: int = key(
        0, "rounds that replace groups of equal returns by freshly played ones; 0 = off", "DAPO, arXiv 2503.14476", ge=0
    )
    invalid_penalty: float = key(0.0, "penalty for each unreadable action", ge=0)
    anchor_tips: float = key(
        0.0, "share of an iteration's tips that are anchored to the reference model",
        ge=0, le=1, needs="algorithm.author = policy|start")  # fmt: skip
    anchor_reading: float = key(
        0.0, "share of off-policy episodes that are also anchored, with their tips",
        ge=0, le=1, needs=f"{OFF_POLICY} and empo2.p_memory and empo2.q_off_policy")  # fmt: skip
    author: str = key(
        "policy", "writer of the tips: policy, start (the initial weights), extract (no model: quotes the actions up "
        "to the last that raised the score), or openai:NAME, the model NAME of the [endpoint]")  # fmt: skip
    show_tips: Literal["own", "other", "empty"] = key(
        "own", "tips shown: of the task, or a control, of other tasks or empty"
    )

    @field_validator("name")
    @classmethod
    def validate_method(cls, name: str) -> str:
        validate_method_name(name)
        return name

    @field_validator("author")
    @classmethod
    def validate_author(cls, author: str) -> str:
        if author not in ("policy", "start", "extract") and not author.startswith(OPENAI_PREFIX):
            raise ValueError("choose policy, start, extract, or openai:NAME")
        require_model_name(author)
        return author


class Empo2Config(Section):
    """EMPO² and UCOB: which members of a group act with tips, how they train, and credit for the authors of tips."""

    p_memory: float = key(0.25, "p, share of rollouts that act with tips", PAPER, ge=0, le=1)
    q_off_policy: float = key(
        2 / 3, "q, share of these that train without their tips", PAPER, ge=0, le=1, needs=OFF_POLICY
    )
    mode_unit: Literal["iteration", "trajectory"] = key("trajectory", "unit of the mode: batch (paper), or each member")
    old_logprobs: Literal["acting", "tip_free"] = key(
        "tip_free", "off-policy denominator: under the tip-free context (4.2), or under the one acted on (Table 3, and "
        "the release)", PAPER, needs=OFF_POLICY)  # fmt: skip
    distilled_context: Literal["tip_free", "release"] = key(
        "tip_free", "what off-policy rows are trained in: no tips, or those of the newest turn (release, whose removal "
        "of tips does not find them); release needs optim.rows = step", RELEASE, needs=OFF_POLICY)  # fmt: skip
    author_credit: float = key(0.0, "weight of the credit that a tip gets for its readers' gain; 0 = off", ge=0)
    author_age: int = key(
        3, "iterations after which a tip is too old to be credited to its author; take twice the training tasks over "
        "rollout.num_tasks, or most tasks come back too late", ge=1, needs=CREDIT)  # fmt: skip
    author_share: Literal["used", "equal"] = key(
        "used", "split a reader's gain over its tips by their use, or equally", needs=CREDIT
    )

    @model_validator(mode="after")
    def validate_author_credit(self) -> Self:
        if self.author_credit and (self.mode_unit == "iteration" or self.p_memory in (0, 1)):
            raise ValueError(
                "empo2.author_credit compares members with tips and without in one group: "
                'set empo2.mode_unit = "trajectory", and empo2.p_memory between 0 and 1'
            )
        return self


class RehearsalConfig(Section):
    """Conversations of games outside all panels that each update of a method with tips holds on to."""

    split: str = key("", "games outside all panels that the initial model plays and writes about first; '' = none")
    options: Table = key(
        dict, "env.options of these games, where they differ from those that are trained", needs="rehearsal.split"
    )
    num_tasks: int = key(0, "games of the split; 0 = all", ge=0, needs="rehearsal.split")
    path: str = key("", "JSONL of conversations instead, of `trailnotes rehearsal record` or `script`; '' = none")
    rows: int = key(24, "conversations in each update", ge=1, needs=REHEARSED)
    hold: float = key(
        0.4, "weight of KL(reference model || model) on them, as on anchored tips; 0 = none", ge=0, needs=REHEARSED
    )
    imitate: float = key(
        0.0, "weight of the likelihood of conversations that helped (won, or followed by a better trial), or of all "
        "of a file that does not say; 0 = none", ge=0, needs=REHEARSED)  # fmt: skip
