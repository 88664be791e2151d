"""The data that flows: one chain of small frozen dataclasses, free of torch.

``Task -> Observation -> (Message, Tip) -> Completion -> Step -> Trajectory -> TrajectoryGroup -> Sample``

Everything is checked where it is built, so that its receiver may trust it. Below, the two hashes that every process
computes alike: of states, and of the purpose of a random draw.
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, SupportsFloat

Role = Literal["system", "user", "assistant"]
Mode = Literal["plain", "on_policy_tips", "off_policy"]
Outcome = Literal["terminated", "truncated", "error"]
FinishReason = Literal["stop", "length"]
RowRole = Literal["episode", "tip", "reading", "rehearsal", "lesson", "observation"]  # what a training row is of
TokenIds = tuple[int, ...]
StrPath = str | os.PathLike[str]  # what a user may hand in as a path

MODES: tuple[Mode, ...] = ("plain", "on_policy_tips", "off_policy")
NO_OP: Final = ""  # what an environment gets in place of an action that cannot be read
MAX_MAGNITUDE: Final = 1e30  # of rewards and scores: sums over an episode and squares over a group stay finite
THINK: Final = ("<think>", "</think>")  # what models that think put around it


def to_finite_float(name: str, value: SupportsFloat) -> float:
    """Convert a user's number, of numpy or torch too, to a float.

    Raises:
        TypeError, ValueError: `value` is no number, or beyond `MAX_MAGNITUDE`; the message begins with `name`.
    """
    try:
        number = float(value.__float__())  # a text has none, and an array of one refuses
    except (AttributeError, TypeError):
        raise TypeError(f"{name} must be a number, is {type(value).__name__}") from None
    if not abs(number) <= MAX_MAGNITUDE:
        raise ValueError(f"{name} must be finite, and at most {MAX_MAGNITUDE:g} in size, is {number}")
    return number


def require_score_within(score: float, max_score: float) -> None:
    """Require a score of at most `max_score`, but for rounding: ten times 0.1 is 1. Raises `ValueError`."""
    if round(score - max_score, 9) > 0:
        raise ValueError(f"the score {score:g} is above the highest, {max_score:g}: give that as max_score")


def _convert(record: Any, convert: Callable[[str, Any], Any], *names: str) -> None:
    """Set fields of a frozen `record` to what `convert` makes of their names and values."""
    for name in names:
        object.__setattr__(record, name, convert(name, getattr(record, name)))


@dataclass(frozen=True, slots=True)
class Task:
    """One game to play: everything an environment needs to start it, the same in every process."""

    id: str  # unique over all splits; also the memory namespace
    env: str  # name in `trailnotes.envs.ENVS`, an entry point, or "module:Class"
    seed: int = 0
    split: str = "train"
    options: Mapping[str, Any] = field(default_factory=dict)  # JSON-able; meaning is the environment's
    family: str = ""  # games that have a secret in common, by a name that no other environment uses; "" = unknown

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise TypeError(f"the id of a task must be a str, is {type(self.id).__name__}")
        if not self.id or not self.env:
            raise ValueError("a task needs an id and an env")


BRIEFING: Final = {
    "action_formats": "a list of str: what an action may look like, e.g. 'open OBJ'",
    "inventory": "a str: what is carried at the start",
    "focus": "a str: what the task says must be focused on, in its own words",
    "examples": "a list of worked episodes of other tasks, {'instruction': str, 'turns': [[observation, action], ...]}",
}
"""The facts that a briefing may hold, each of them optional. How they are worded is no business of an environment."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An environment's answer to `reset` or `step`."""

    text: str
    reward: float = 0.0  # for the action just taken, in the environment's own unit; 0 at reset
    terminated: bool = False  # the game is over by its own rules
    truncated: bool = False  # cut off from outside, e.g. by a step limit
    actions: tuple[str, ...] | None = None  # admissible actions, when the environment offers them
    instruction: str | None = None  # the goal in words; set at reset only
    success: bool = False  # the goal has been reached
    score: float = 0.0  # so far, in [.., max_score]; of a success that leaves it at 0, max_score
    max_score: float = 1.0
    info: Mapping[str, Any] = field(default_factory=dict)  # JSON-able extras, logged, never part of a prompt
    briefing: Mapping[str, Any] | None = None  # facts worded in the first prompt, see `BRIEFING`; set at reset only
    # Of a foreign agent, instead of a turn that we word: {"kept": number of messages that stay, "messages": [[role,
    # content], ...] that follow}; the last one is the user's turn, of which `text` is the newest message. It may hold
    # "sampling", fields of `Sampling` that the agent sets, and "trained", False for an answer that is no training row.
    request: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"text must be a str, is {type(self.text).__name__}")
        _convert(self, to_finite_float, "reward", "score", "max_score")
        _convert(self, lambda _, value: bool(value), "terminated", "truncated", "success")
        if self.success and not self.score:  # tips and tables go by the score, which a plain environment may not set
            object.__setattr__(self, "score", self.max_score)
        if self.briefing is not None:
            _validate_briefing(self.briefing)

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


def hash_state(text: str) -> int:
    """Hash a state's text to 64 bits, ignoring case and white space; the same in every process."""
    normalised = " ".join(text.split()).casefold()
    return int.from_bytes(hashlib.blake2b(normalised.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def derive_seed(*parts: object) -> int:
    """Derive a 63-bit seed from printable parts: the same on every platform, unlike `hash`.

    Parts are kept apart: ("a", "bc") gives another seed than ("ab", "c").
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _validate_briefing(briefing: Mapping[str, Any]) -> None:
    if not isinstance(briefing, Mapping):
        raise TypeError(f"a briefing must be a mapping, not {type(briefing).__name__}")
    for name, value in briefing.items():
        if name not in BRIEFING:
            raise ValueError(f"a briefing holds {', '.join(BRIEFING)}, not {name!r}")
        if name == "action_formats":
            fine = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
        elif name == "examples":
            fine = isinstance(value, list | tuple) and all(_is_example(example) for example in value)
        else:
            fine = isinstance(value, str)
        if not fine:
            raise ValueError(f"{name} of a briefing must be {BRIEFING[name]}")


def _is_example(value: Any) -> bool:
    try:
        texts = [value["instruction"], *(text for seen, done in value["turns"] for text in (seen, done))]
    except (KeyError, TypeError, ValueError):
        return False
    return len(value) == 2 and all(isinstance(text, str) for text in texts)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; a sampled one keeps its `token_ids`, so that it is never tokenised again."""

    role: Role
    content: str
    token_ids: TokenIds | None = None  # sampled ids, end token included if it was sampled


@dataclass(frozen=True, slots=True)
class Tip:
    """One tip in memory, written by a policy after an episode, with its author and score."""

    namespace: str  # id of the task (variation) it belongs to
    text: str  # what the model wrote, cleaned; identity for duplicates
    key: str  # the text whose embedding finds it again
    score: float  # final score of the episode that it was written after (highest, when repeated)
    max_score: float = 1.0
    action: str = ""  # the action taken at that step (the episode's last, with entries = "episode")
    id: int | None = None  # row in the store; None before it is added
    support: int = 1  # how often the same text was written (duplicates = "count")
    step: int = 0  # training iteration (or adaptation trial) that wrote it
    model: str = ""  # author: model name or path
    version: int = 0  # author: policy version
    run: str = ""  # author: run name
    created: str = ""  # ISO 8601, UTC; empty in deterministic runs until stored
    imported: bool = False  # imported from a file
    enabled: bool = True  # only enabled tips are ever retrieved

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("a tip needs text")
        _convert(self, to_finite_float, "score", "max_score")
        _convert(self, lambda _, value: operator.index(value), "support", "step", "version")


def replace_surrogates(text: str) -> str:
    """Replace each half of a surrogate pair by "?": neither UTF-8 nor a tokenizer can hold it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def find_answer_start(text: str) -> int:
    """Find where the answer begins: behind the model's thinking and the blanks after it, if there is any."""
    opened, closed = map(text.rfind, THINK)
    if opened > closed:
        return len(text)
    return 0 if closed < 0 else len(text) - len(text[closed + len(THINK[1]) :].lstrip())


def strip_thinking(text: str) -> str:
    return text[find_answer_start(text) :]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of one draw. The `logprobs` of the result belong to exactly this distribution."""

    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0  # refused in training
    top_k: int = 0  # 0 = off; refused in training
    max_tokens: int = 32
    stop: tuple[str, ...] = ()  # text that ends the answer (kept in the ids, cut from the text); thinking may hold it
    seed: int = 0  # of this completion; the same seed and logits give the same tokens

    def __post_init__(self) -> None:
        held = 0 <= self.temperature <= MAX_MAGNITUDE and 1 / MAX_MAGNITUDE <= self.top_p <= 1  # by 32 bits; no NaN
        if not held or self.top_k < 0 or self.max_tokens < 1:
            raise ValueError(f"impossible sampling settings: {self}")

    def cut_at_stop(self, text: str) -> tuple[str, bool]:
        """Cut `text` at the first stop of its answer; returns it, and whether there was one."""
        start = find_answer_start(text)
        ends = [end for stop in self.stop if (end := text.find(stop, start)) >= 0]
        return (text[: min(ends)], True) if ends else (text, False)


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer to a prompt. `token_ids` and `logprobs` have the same length."""

    prompt_ids: TokenIds  # the context that was acted on, tips included; () from a server that returns no ids
    token_ids: TokenIds  # sampled ids, the end token included if it was sampled
    logprobs: tuple[float, ...]  # log pi(token | prompt, earlier tokens), temperature included; natural log
    text: str  # decoded, without end token or stop string; thinking stays in it
    finish_reason: FinishReason = "stop"
    usage: tuple[int, int] | None = None  # tokens of prompt and completion as a server counts them; None: count the ids

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} tokens but {len(self.logprobs)} log-probabilities")

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids) if self.usage is None else self.usage[0]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) if self.usage is None else self.usage[1]


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: observation, tips, action and reward."""

    observation: Observation  # o_t, before the action
    tips: tuple[Tip, ...]  # of this turn, in their order; () in plain mode
    completion: Completion  # a_t as tokens, under the context with the tips
    plain_prompt_ids: TokenIds  # the same history without any tip; equals completion.prompt_ids in plain mode
    action: str  # a_t as the environment received it
    reward: float  # r_t, extrinsic
    reward_intrinsic: float = 0.0  # before the coefficient beta
    policy_version: int = 0
    other_tokens: int = 0  # sampled for this decision besides `completion`: candidates that were not taken
    num_plain_tokens: int | None = None  # length of the tip-free context where its ids are not known any more

    @property
    def trained(self) -> bool:
        """Tell whether the action is trained: an agent may except some of its calls."""
        return bool((self.observation.request or {}).get("trained", True))

    @property
    def num_tokens(self) -> int:
        """All tokens that were sampled for this decision."""
        return self.completion.num_tokens + self.other_tokens


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. A failed one is data too: `outcome = "error"` keeps it out of training."""

    task: Task
    steps: tuple[Step, ...]
    final_observation: Observation  # after the last action: what is read there must reach the tip
    outcome: Outcome
    success: bool
    score: float
    max_score: float = 1.0
    mode: Mode = "plain"
    member: int = 0  # index in its group, 0..N-1
    error: str = ""  # one line, only with outcome = "error"
    context_full: bool = False  # ended because the next turn did not fit the context

    def __post_init__(self) -> None:
        if (self.outcome == "error") != bool(self.error):
            raise ValueError("an error trajectory needs its error text, and only such a one has it")
        if self.mode == "plain" and any(step.tips for step in self.steps):
            raise ValueError("a plain trajectory must not hold tips")

    @property
    def episode_return(self) -> float:
        return math.fsum(step.reward for step in self.steps)

    @property
    def num_tokens(self) -> int:
        return sum(step.num_tokens for step in self.steps)


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """N trajectories of one task from identical starts; the unit over which advantages are relative."""

    task: Task
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        if any(t.task.id != self.task.id for t in self.trajectories):
            raise ValueError(f"a group of task {self.task.id} holds a trajectory of another task")


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row. All four sequences have the same length L, the number of tokens.

    `behavior_logprobs` always belong to the prompt that was ACTED on, `token_ids` to the prompt that is TRAINED on.
    The two differ in an off-policy row, here of one step. Acted on (9 tokens):

    ====================  ====  =====  ====  =====  ====  =====  =====  =====  =====
    position                 0      1     2      3     4      5      6      7      8
    token                   go   home  tip:   take  left   fork   then  *left*  *eos*
    ====================  ====  =====  ====  =====  ====  =====  =====  =====  =====

    with log-probabilities -0.1 for *left* and -0.2 for *eos*. The row drops the tip (tokens 2 to 4), keeps the
    sampled ids, and keeps the log-probabilities of the sampler WITH the tip:

    ====================  ====  =====  =====  =====  ======  =====
    position                 0      1      2      3       4      5
    token_ids               go   home   fork   then  *left*  *eos*
    loss_mask                0      0      0      0       1      1
    behavior_logprobs      0.0    0.0    0.0    0.0    -0.1   -0.2
    advantages             0.0    0.0    0.0    0.0     1.5    1.5
    ====================  ====  =====  =====  =====  ======  =====

    The learner computes log pi(left | go home fork then) and divides by exp(-0.1): the distribution with the tip
    is the teacher, the advantage is its weight (EMPO2, section 4.2).
    """

    token_ids: TokenIds
    loss_mask: tuple[int, ...]  # 1 on sampled tokens, 0 on everything that env, tips or template supplied
    behavior_logprobs: tuple[float, ...]  # 0.0 where loss_mask is 0
    advantages: tuple[float, ...]  # 0.0 where loss_mask is 0
    off_policy: bool = False  # trained without the tips that it acted on; the low-probability mask applies here only
    shows_tips: bool = False  # whether the context that it is trained in holds tips
    trajectory: int = 0  # index of the trajectory in its batch: mini-batches count trajectories, not rows
    role: RowRole = "episode"  # the loss of each role is a mean over its own rows, so that none thins out another
    hold: float = 0.0  # weight of the KL to the start model, of a row that is no episode's (theirs is `loss.kl`)
    imitate: float = 0.0  # weight of the negative log-likelihood, the same
    excepted: tuple[int, ...] = ()  # places of sampled tokens that an agent excepts from training

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.behavior_logprobs), len(self.advantages)}
        if len(lengths) != 1:
            raise ValueError(f"the sequences of a sample differ in length: {sorted(lengths)}")
        if self.loss_mask and self.loss_mask[0]:
            raise ValueError("the first token of a row has no context and cannot be trained")
        if not all(0 <= weight < math.inf for weight in (self.hold, self.imitate)):
            raise ValueError(f"the weights of a row must be finite and not negative: {self.hold} and {self.imitate}")
        if self.role == "episode" and (self.hold or self.imitate):
            raise ValueError("loss.kl anchors the row of an episode: hold and imitate are for rows of other roles")


def count_common_prefix(one: Sequence[int], other: Sequence[int], most: int) -> int:
    most = min(len(one), len(other), most)
    if tuple(one[:most]) == tuple(other[:most]):
        return most
    return next(index for index in range(most) if one[index] != other[index])
