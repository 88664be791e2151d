"""Sections of the settings that belong to methods: what they share, then what is one method's own."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from trailnotes.config.methods import resolve_method, validate_method_name
from trailnotes.config.model_schema import OPENAI_PREFIX, require_model_name
from trailnotes.config.section import PAPER, Section, key
from trailnotes.errors import ConfigError

GIGPO = "GiGPO, arXiv 2505.10978"
REMEMBERER = "REMEMBERER, arXiv 2306.07929"
LAMER = "LaMer, arXiv 2512.16848"
RETROSPEX = "Retrospex, arXiv 2505.11807"


class AlgorithmConfig(Section):
    """Which method, and its named options."""

    name: str = key("empo2", "the method")
    normalize_std: bool = key(True, "divide group-relative advantages by the group's standard deviation")
    normalize_mean: bool = key(
        False, "divide them by the group's mean return instead, which must not be negative: rare successes count more",
        "MaxRL, arXiv 2602.02710")  # fmt: skip
    p_memory: float = key(0.25, "p, share of rollouts that act with tips", PAPER, ge=0, le=1)
    q_off_policy: float = key(2 / 3, "q, share of these that train without their tips", PAPER, ge=0, le=1)
    mode_unit: Literal["iteration", "trajectory"] = key("trajectory", "unit of the mode: batch (paper), or each member")
    draw: Literal["stratified", "independent"] = key(
        "stratified", "mixed groups: round(p N) members act with tips, or each member draws for itself"
    )
    old_logprobs: Literal["acting", "tip_free"] = key(
        "tip_free", "off-policy denominator: under the tip-free context (4.2), or under the one acted on (Table 3, and "
        "the release)", PAPER)  # fmt: skip
    intrinsic: Literal["none", "tips", "states", "counts", "rnd"] = key(
        "none", "novelty reward: 1/n with n = 1 + tips shown (tips; release: retrieved), visits of similar states "
        "(states, paper) or visits of this very state (counts); or the error of Random Network Distillation (rnd)"
    )  # fmt: skip
    beta: float = key(1.0, "weight of the novelty reward in the return", ge=0)
    novelty_threshold: float = key(0.9, "states: cosine similarity from which two states are the same", ge=-1, le=1)
    dynamic_sampling: int = key(
        0, "rounds that replace groups of equal returns by freshly played ones; 0 = off", "DAPO, arXiv 2503.14476", ge=0
    )
    invalid_penalty: float = key(0.0, "penalty for each action that is unreadable or not admissible", ge=0)
    invalid: Literal["format", "inadmissible"] = key("format", "invalid: unreadable (GiGPO release), or inadmissible")
    anchor_tips: float = key(0.0, "share of an iteration's tips that are anchored to the start model", ge=0, le=1)
    anchor_reading: float = key(0.0, "share of off-policy episodes that are also anchored, with their tips", ge=0, le=1)
    author: str = key(
        "policy", "writer of the tips: policy, start (the initial weights), extract (no model: quotes the actions up "
        "to the last that raised the score), or openai:NAME, the model NAME of the [endpoint]")  # fmt: skip
    anchor_weight: float = key(0.4, "weight of KL(start model || model) on the anchored tips; 0 = none", ge=0)
    anchor_reading_weight: float = key(0.1, "weight of that KL on episodes with tips; 0.4 slowed learning", ge=0)
    penalty_stage: Literal["before", "after"] = key("before", "subtract penalties before normalising (GiGPO), or after")
    author_credit: float = key(0.0, "weight of the credit that a tip gets for its readers' gain; 0 = off", ge=0)
    author_age: int = key(
        3, "iterations after which a tip is too old to be credited to its author; take twice the training tasks over "
        "rollout.num_tasks, or most tasks come back too late", ge=1)  # fmt: skip
    author_share: Literal["used", "equal"] = key("used", "split a reader's gain over its tips by their use, or equally")

    show_tips: Literal["own", "other", "empty"] = key(
        "own", "tips shown: of the task, or a control, of other tasks or empty"
    )

    @field_validator("name")
    @classmethod
    def validate_method(cls, name: str) -> str:
        """Refuse a name that no method has."""
        validate_method_name(name)
        return name

    @field_validator("author")
    @classmethod
    def validate_author(cls, author: str) -> str:
        """Refuse an author that does not exist."""
        if author not in ("policy", "start", "extract") and not author.startswith(OPENAI_PREFIX):
            raise ValueError("choose policy, start, extract, or openai:NAME")
        require_model_name(author)
        return author

    @model_validator(mode="after")
    def validate_tip_credit(self) -> Self:
        """Refuse to credit authors who are not trained, or where no group has members with tips and without."""
        if self.author_credit and self.author != "policy":
            raise ValueError(
                f"algorithm.author_credit trains who writes, and {self.author} is not trained: "
                'set algorithm.author = "policy", or algorithm.author_credit = 0'
            )
        if self.author_credit and (self.mode_unit == "iteration" or self.p_memory in (0, 1)):
            raise ValueError(
                "algorithm.author_credit compares members with tips and without in one group: "
                'set algorithm.mode_unit = "trajectory", and algorithm.p_memory between 0 and 1'
            )
        if self.author_credit and self.show_tips != "own":
            raise ValueError(
                "algorithm.author_credit credits who wrote what was shown, and a control shows something else: "
                'set algorithm.show_tips = "own"'
            )
        return self

    def require_equal_temperature(self, written: float, trained: float) -> None:
        """Refuse to train tips sampled at another temperature than the learner scores at."""
        credited = self.name == "lamer" or (self.author_credit and resolve_method(self.name).shows_tips)
        if credited and written != trained:
            source = "lamer" if self.name == "lamer" else "algorithm.author_credit"
            raise ConfigError(
                f"{source} trains tips as they were sampled: "
                f"set memory.write_temperature = {trained:g}, as rollout.temperature is"
            )


class RehearsalConfig(Section):
    """Conversations of games outside all panels that each update of a method with tips holds on to."""

    split: str = key("", "games outside all panels that the start model plays and writes about first; '' = none")
    options: dict[str, Any] = key(dict, "env.options of these games, where they differ from those that are trained")
    num_tasks: int = key(0, "games of the split; 0 = all", ge=0)
    num_samples: int = key(1, "episodes of each game in each trial", ge=1)
    trials: int = key(1, "trials with tips, after one without; more games do more than more trials", ge=0)
    path: str = key("", "JSONL of conversations instead, of `trailnotes rehearsal record` or `script`; '' = none")
    rows: int = key(24, "conversations in each update", ge=1)
    hold: float = key(0.4, "weight of KL(start model || model) on them, as algorithm.anchor_weight; 0 = none", ge=0)
    imitate: float = key(
        0.0, "weight of the likelihood of conversations that helped (won, or followed by a better trial), or of all "
        "of a file that does not say; 0 = none", ge=0)  # fmt: skip

    @model_validator(mode="after")
    def validate_source(self) -> Self:
        """Refuse two sources at once, and rehearsal without any weight."""
        if self.path and self.split:
            raise ValueError("rehearsal.path is taken instead of what rehearsal.split would record: set one to ''")
        if (self.path or self.split) and not self.hold + self.imitate:
            raise ValueError("rehearsal is neither held nor imitated: raise rehearsal.hold or rehearsal.imitate")
        return self


class GigpoConfig(Section):
    """GiGPO and HGPO: step advantages among the visits of one state in a group, besides those of whole episodes."""

    omega: float = key(1.0, "weight of the step advantages; 0 is GRPO", GIGPO, ge=0)
    gamma: float = key(0.95, "discount of the return from each step on", GIGPO, gt=0, le=1)
    norm: Literal["mean", "mean_std"] = key("mean", "subtract the mean, or also divide by the deviation", GIGPO)
    statistics: Literal["trajectories", "steps"] = key("trajectories", "unit of episode statistics (steps: release)")
    ddof: Literal[0, 1] = key(1, "of the standard deviation: 1 in the release; HGPO's levels always have 0")
    std_floor: float = key(0.0, "no group is divided by less than this", ge=0)
    similarity: float = key(1.0, "difflib ratio from which observations share a state; 1 = equality", GIGPO, gt=0, le=1)
    dedup: bool = key(False, "count a state once for each episode, by its first visit, in the step statistics")
    hierarchical: bool = key(False, "HGPO: group by the last k observations, k = 1..history + 1")
    history: int = key(2, "HGPO: K, observations of context before the newest", ge=0)
    alpha: float = key(1.0, "HGPO: level k weighs (k + 1)^alpha", ge=0)
    base_group: bool = key(False, "HGPO: the episode advantage takes part as level 0")


class OpsdConfig(Section):
    """OPSD: the policy with its tips in the prompt scores what it sampled without them."""

    form: Literal["sdpo", "sdar", "opcd", "additive"] = key(
        "sdpo", "the log ratio as advantage (SDPO, 2601.20802); as a sigmoid beside the group's (SDAR, 2605.15155); "
        "from the start model (OPCD, 2602.12275); beside the group's as it is (OPID, 2606.26790)")  # fmt: skip
    coefficient: float | None = key(
        None, "c, weight of the teacher; none = as published: 1 for sdpo and opcd, where the group has 1 - c; 0.01 for "
        "sdar; 0.001 for additive; 0 is GRPO", ge=0)  # fmt: skip
    teacher: Literal["form", "policy", "start"] = key(
        "form", "weights of the teacher: the policy's (sdpo, sdar) or the start model's (opcd), or either for all forms"
    )
    gate: Literal["none", "agree", "positive"] = key(
        "agree", "tokens left to the teacher: all (as published), those where the group's advantage does not say the "
        "opposite, or those of episodes better than their group; of the others the group decides")  # fmt: skip
    beta: float = key(5.0, "sdar: steepness of the sigmoid", "SDAR release", ge=0)
    clip: float = key(5.0, "largest log ratio that counts, either way; 0 = no limit", ge=0)

    @property
    def weight(self) -> float:
        """Return `coefficient`, or the form's published one."""
        published = {"sdar": 0.01, "additive": 0.001}.get(self.form, 1.0)
        return published if self.coefficient is None else self.coefficient

    @property
    def is_additive(self) -> bool:
        """Tell whether the group's advantage stays whole beside the teacher's signal."""
        return self.form in ("sdar", "additive")

    @property
    def has_frozen_teacher(self) -> bool:
        """Tell whether the start model is the teacher."""
        return self.teacher == "start" or (self.teacher == "form" and self.form == "opcd")

    @model_validator(mode="after")
    def validate_weight(self) -> Self:
        """Refuse a weight that would reverse the group's advantage."""
        if not self.is_additive and self.weight > 1:
            raise ValueError(f"opsd.coefficient = {self.weight:g} leaves {self.form} less than nothing of the group's "
                             "advantage: set it to 1 or less")  # fmt: skip
        return self


class OpidConfig(Section):
    """OPID: the policy scores an episode with the tip that was written about it afterwards in its prompt."""

    coefficient: float = key(0.001, "c, weight of the log ratio beside the group's advantage; 0 is GRPO",
                             "OPID release 37a15a5, its ALFWorld script", ge=0)  # fmt: skip
    clip: float = key(0.0, "largest log ratio that counts, either way; 0 = no limit", ge=0)


class UcobConfig(Section):
    """UCOB: lessons between members with tips and without that met the same state; advantages as of [gigpo]."""

    coefficient: float = key(0.1, "weight of the lessons; 0 is GiGPO on mixed groups", "UCOB release d38292c", ge=0)
    margin: float = key(0.05, "least gap of returns, as a share of the highest score", "UCOB release d38292c", ge=0)
    tau: float = key(0.2, "a lesson weighs its gap over this...", "UCOB release d38292c", gt=0)
    weight_max: float = key(2.0, "...and at most this", "UCOB release d38292c", gt=0)
    max_pairs: int = key(2, "lessons at one state, the largest gaps first", "UCOB release d38292c", ge=1)
    beta: float = key(5.0, "steepness of the gate of a token; 0 weighs all alike", "UCOB release d38292c", ge=0)


class LamerConfig(Section):
    """LaMer: episodes of a task in a row, with the tips that each member writes in between for itself."""

    episodes: int = key(3, "K, episodes of a task that each member of a group plays in a row", LAMER, ge=1)
    gamma: float = key(0.6, "discount of an episode's return in that of the one before it", LAMER, ge=0, le=1)


class ReflexionConfig(Section):
    """Reflexion: plans written after failures, per task."""

    window: int = key(3, "reflections shown, the newest ones", "Reflexion, arXiv 2303.11366", ge=1)
    max_write_tokens: int = key(256, "decoding limit of a reflection", "Reflexion release 218cf0e", ge=1)
    temperature: float = key(0.0, "sampling temperature of the reflector", "Reflexion release 218cf0e", ge=0)
    max_shown_tokens: int = key(128, "a shown reflection is cut here", ge=4)
    replay_last: bool = key(False, "play solved tasks again in the last trial, so that it is one attempt at each")


class NotebookConfig(Section):
    """Written entries that an episode begins with: clin, reasoningbank, ace and training-free-grpo."""

    shown: int = key(20, "entries in the first prompt at most; clin: statements of a task", ge=1)
    retrieved: int = key(1, "reasoningbank: episodes whose insights are shown", "ReasoningBank, arXiv 2509.25140", ge=1)
    capacity: int = key(100, "ace, training-free-grpo: entries kept", ge=1)
    max_entry_tokens: int = key(96, "a shown entry is cut here", ge=4)
    max_write_tokens: int = key(512, "decoding limit of an answer", ge=1)
    temperature: float = key(1.0, "sampling temperature of answers", "ReasoningBank release ed80611", ge=0)


class RemembererConfig(Section):
    """REMEMBERER: a table of (task, observation, action) and its value, shown as examples with advice."""

    epochs: int = key(3, "passes over the training tasks that fill the table", "Rememberer release 552cb62", ge=0)
    num_tasks: int = key(0, "training tasks, evenly spaced in train.split; 0 = all (release: 10)", ge=0)
    group_size: int = key(1, "episodes of each training task in an epoch", ge=1)
    examples: int = key(2, "records shown", "Rememberer release 552cb62", ge=0)
    n_step: int = key(0, "rewards before the bootstrap; 0 = Monte Carlo, as the released launchers", REMEMBERER, ge=0)
    gamma: float = key(1.0, "discount", "Rememberer release 552cb62", gt=0, le=1)
    lr: float = key(0.0, "constant learning rate; 0 = 1/N, N the updates of the entry", REMEMBERER, ge=0, le=1)
    double_q: bool = key(False, "two tables, each bootstrapped from the other", "Rememberer release 552cb62")
    task_weight: float = key(0.5, "lambda, weight of the task in the similarity", REMEMBERER, ge=0, le=1)
    task_similarity: Literal["embedding", "words", "equal"] = key("embedding", "how two tasks are compared")
    observation_similarity: Literal["embedding", "words", "lines"] = key(
        "words", "how two observations are compared: embeddings, shared words, or the longest common subsequence of "
        "lines")  # fmt: skip
    record_capacity: int = key(500, "records (task, observation)", "Rememberer release 552cb62", ge=1)
    action_capacity: int = key(20, "actions of a record", "Rememberer release 552cb62", ge=1)
    good: float = key(0.0, "an action is encouraged if its value is above this", ge=-1e9)
    bad: float = key(0.0, "actions up to this value are discouraged, the worst first; not above good", ge=-1e9)
    random_advice: bool = key(True, "where no action is good, encourage an untried admissible one at random")
    history: int = key(5, "last actions shown", "Rememberer release 552cb62", ge=0)
    max_write_tokens: int = key(100, "decoding limit of an answer", "Rememberer release 552cb62", ge=1)
    temperature: float = key(0.1, "sampling temperature", "Rememberer release 552cb62", ge=0)

    @model_validator(mode="after")
    def validate_thresholds(self) -> Self:
        """Refuse thresholds by which the same action would be encouraged and discouraged."""
        if self.good < self.bad:
            raise ValueError("rememberer.good must not be below rememberer.bad: an action would be both")
        return self


class RetrospexConfig(Section):
    """Retrospex: an offline critic that rescores what the policy proposes."""

    data: tuple[str, ...] = key((), "run directories whose trajectories.jsonl train the critic")
    critic: str = key("", "a critic trained before, instead of data")
    reward: Literal["raw", "spread"] = key("raw", "rewards as given, or the return spread over the steps (WebShop)")
    failure: Literal["raw", "floor0", "last_positive"] = key("raw", "negative final score: as is, 0, or last positive")
    embed_size: int = key(64, "width of the token embedding", "Retrospex release 6d169a4", ge=1)
    hidden_size: int = key(128, "width of each field's encoder", "Retrospex release 6d169a4", ge=1)
    encoder: Literal["gru", "embedding"] = key("gru", "one GRU a field (release), or memory.embedder's vectors")
    expectile: float = key(0.7, "tau of the value loss", RETROSPEX, gt=0, lt=1)
    gamma: float = key(0.99, "discount", RETROSPEX, gt=0, le=1)
    target_rate: float = key(0.005, "share of the critic that enters its target after each step", ge=0, le=1)
    lr: float = key(1e-4, "learning rate of the critic's Adam", "Retrospex release 6d169a4", gt=0)
    batch_size: int = key(128, "transitions in a step", "Retrospex release 6d169a4", ge=1)
    epochs: int = key(20, "passes over the transitions", "Retrospex release 6d169a4", ge=1)
    held_out: float = key(0.2, "share of the tasks kept apart to measure the critic", ge=0, lt=1)
    candidates: int = key(4, "k, actions that the policy proposes", "Retrospex release 6d169a4", ge=1)
    temperature: float = key(0.9, "sampling temperature of the candidates", "Retrospex release 6d169a4", gt=0)
    top_p: float = key(0.95, "nucleus of the candidates", "Retrospex release 6d169a4", gt=0, le=1)
    decay: float = key(0.97, "d: the policy weighs max(floor, d^t) at step t", RETROSPEX, gt=0, le=1)
    first_step: Literal[0, 1] = key(0, "t of the first action; 1 in ALFWorld", "Retrospex release 6d169a4")
    floor: float = key(0.6, "b: the policy's least weight", RETROSPEX, ge=0, le=1)
    score_clip: float = key(0.0, "largest advantage Q - V that counts, either way; 0 = no limit", ge=0)
    heuristics: tuple[Literal["recent_actions", "focus_named"], ...] = key(
        (), "rules of the release, off by default: no action of the last three; focus on what the task names only"
    )


class ArchiveConfig(Section):
    """Go-Explore's first phase: promising states that episodes return to before they explore."""

    share: float = key(0.0, "share of the plain members that start from a kept state; 0 = off", ge=0, le=1)
    capacity: int = key(64, "states kept for each task", ge=1)
    max_depth: int = key(0, "actions that a kept state may be away from the start; 0 = any", ge=0)
