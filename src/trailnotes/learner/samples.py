"""From episodes to training rows, from rows to batches, and the share of each rank; without torch or a model.

Advantages come in as numbers for whole trajectories or for their steps, computed before anything here happens: neither
the number of rows, nor dropping, nor the cut into batches changes them. Every rank runs the same lines of the learner
on the same rows. They part where rows become tensors (`split_microbatches`), and meet again where sums are taken
(`Ranks.sum`, `Ranks.gather`); one process alone does neither.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trailnotes.policies.prefixes import iter_trees
from trailnotes.types import Completion, RowRole, Sample, Step, TokenIds, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

    from trailnotes.config.methods_schema import AlgorithmConfig

T = TypeVar("T")
PackingMode = Literal["padded", "joined", "shared"]  # how the rows of a batch are laid out, see `logprobs`
GatheredCall = Callable[[Callable[[], Any]], Any]
"""Calls a function while the outer weights of a model (embedding, last norm, head) are whole.

The function takes no arguments: FSDP would round those that are float32 to the model's dtype.
"""


@dataclass(slots=True)
class _RowBuilder:
    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    behavior_logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    shows_tips: bool = False
    excepted: list[int] = field(default_factory=list)

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[float] | None = None, advantage: float = 0.0) -> None:
        """Append context (no `logprobs`), or sampled tokens with theirs and the advantage of their step."""
        self.token_ids += token_ids
        self.advantages += [advantage] * len(token_ids)
        self.loss_mask += [0 if logprobs is None else 1] * len(token_ids)
        self.behavior_logprobs += [0.0] * len(token_ids) if logprobs is None else logprobs

    def build(self, **facts: Any) -> Sample:
        ids, mask = tuple(self.token_ids), tuple(self.loss_mask)
        behavior, advantages = tuple(self.behavior_logprobs), tuple(self.advantages)
        return Sample(ids, mask, behavior, advantages, excepted=tuple(self.excepted), **facts)


def build_samples(
    groups: Sequence[TrajectoryGroup],
    advantages: Sequence[Sequence[ArrayLike] | NDArray[np.float64]],
    rows: Literal["auto", "step"] = "auto",
    context: Literal["tip_free", "release"] = "tip_free",
) -> list[Sample]:
    """Build the training rows of all trajectories, in order.

    Args:
        groups: the groups of an iteration.
        advantages: for each trajectory of each group one number, which all its sampled tokens get, or (T,) one for
            each of its T steps.
        rows: "auto" makes one row of an episode as long as each prompt starts with the last prompt and the ids
            sampled for it, and forks a new row where not; "step" makes one row for each step.
        context: of off-policy rows, `empo2.distilled_context`.

    Returns rows; `Sample.trajectory` is the running index over all groups. Rows without a sampled token are left out.
    """
    if [len(group.trajectories) for group in groups] != [len(row) for row in advantages]:
        raise ValueError("advantages must hold one number for each trajectory of each group, or one for each step")
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    given = [advantage for row in advantages for advantage in row]
    samples: list[Sample] = []
    for index, (trajectory, advantage) in enumerate(zip(trajectories, given, strict=True)):
        if not np.isfinite(advantage).all():
            raise ValueError(f"an advantage of {trajectory.task.id} is not finite: {advantage}")
        # Whether the context differs is asked of the whole trajectory, so that every choice of rows agrees on it; off
        # policy on an empty memory is on policy.
        off_policy = trajectory.mode == "off_policy" and any(
            step.plain_prompt_ids != step.completion.prompt_ids for step in trajectory.steps
        )
        samples += [
            row.build(off_policy=off_policy, shows_tips=row.shows_tips, trajectory=index)
            for row in _build_rows(trajectory, advantage, merge=rows == "auto", context=context)
            if any(row.loss_mask)
        ]
    return samples


def build_observation_samples(samples: Sequence[Sample], weight: float) -> list[Sample]:
    """Build rows that learn what the environment answered: its tokens between the sampled ones, by their likelihood.

    Those before the first decision are the task's words, and those of a context with tips could be tips: neither is
    learned. What the chat template puts between turns is among them. `weight` is of the mean negative log-likelihood.

    Source: ECHO, as in prime-rl; any row of an episode teaches, whatever its advantage.
    """
    rows = []
    for sample in samples:
        sampled = [place for place, trained in enumerate(sample.loss_mask) if trained]
        if sample.role != "episode" or sample.shows_tips or not sampled:
            continue
        first, length = sampled[0], sampled[-1] + 1
        own = {*sampled, *sample.excepted}
        mask = tuple(int(place > first and place not in own) for place in range(length))
        if any(mask):
            nothing = (0.0,) * length
            rows.append(Sample(sample.token_ids[:length], mask, nothing, nothing, role="observation", imitate=weight))
    return rows


ANCHOR_WEIGHT = 0.4  # of KL(start model || model) on anchored tips
ANCHOR_READING_WEIGHT = 0.1  # of that KL on episodes with tips; 0.4 slowed learning


def build_anchor_samples(
    tips: Sequence[Completion], groups: Sequence[TrajectoryGroup], algorithm: AlgorithmConfig,
    rows: Literal["auto", "step"], seed: int,
) -> list[Sample]:  # fmt: skip
    """Build rows that hold the model to its initial behaviour where it writes tips and where it acts on them.

    `algorithm.anchor_tips` and `anchor_reading` are shares of the tips and of the off-policy episodes that read
    any, each drawn by itself and rounded to whole rows; `ANCHOR_WEIGHT` and `ANCHOR_READING_WEIGHT` hold them.
    """
    written = [tip for tip in tips if tip.token_ids]
    drawn = _draw_share(written, algorithm.anchor_tips, seed)
    anchors = [anchor_sample(tip, "tip", ANCHOR_WEIGHT) for tip in drawn]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    read = [t for t in trajectories if t.mode == "off_policy" and any(step.tips for step in t.steps)]
    for trajectory in _draw_share(read, algorithm.anchor_reading, seed):
        acted = replace(trajectory, mode="on_policy_tips")  # the context that it acted in
        built = _build_rows(acted, [0.0] * len(acted.steps), merge=rows == "auto")
        anchors += [row.build(role="reading", hold=ANCHOR_READING_WEIGHT) for row in built if any(row.loss_mask)]
    return anchors


def _draw_share(of: Sequence[T], share: float, seed: int) -> list[T]:
    chosen = set(random.Random(seed).sample(range(len(of)), round(share * len(of))))
    return [each for i, each in enumerate(of) if i in chosen]


def anchor_sample(completion: Completion, role: RowRole, hold: float, advantage: float = 0.0) -> Sample:
    """Make a row of a tip, or of another completion apart from episodes, anchored by `hold`."""
    row = _RowBuilder()
    row.extend(completion.prompt_ids)
    row.extend(completion.token_ids, completion.logprobs, advantage)
    return row.build(role=role, hold=hold)


def _list_training_prompts(trajectory: Trajectory, context: str) -> list[TokenIds]:
    """List the prompt that each step is trained in: the one acted on, or off policy that of `context`."""
    steps = trajectory.steps
    if trajectory.mode != "off_policy":
        return [step.completion.prompt_ids for step in steps]
    prompts = [step.plain_prompt_ids for step in steps]
    return keep_newest_tips(steps) if context == "release" and all(prompts) else prompts


def keep_newest_tips(steps: Sequence[Step]) -> list[TokenIds]:
    """Build the prompt of each step with the tips of its newest turn alone: the tip-free history, the turn as acted on.

    Source: EMPO2's release (0b40cb72), which searches the end of a tip by token ids and misses that of the newest turn.
    It leaves a blank line for each older tip; here nothing is left of them.

    Raises:
        ValueError: a prompt does not extend the last one and its answer, so that no turn can be cut off.
    """
    prompts = [step.completion.prompt_ids for step in steps[:1]]
    for before, step in itertools.pairwise(steps):
        answer = before.completion.token_ids
        history, acted = before.plain_prompt_ids + answer, before.completion.prompt_ids + answer
        plain, prompt = step.plain_prompt_ids, step.completion.prompt_ids
        if plain[: len(history)] != history or prompt[: len(acted)] != acted:
            raise ValueError('empo2.distilled_context = "release" needs prompts that extend each other: use "tip_free"')
        prompts.append(history + prompt[len(acted) :])
    return prompts


def _build_rows(
    trajectory: Trajectory, advantage: ArrayLike, merge: bool, context: str = "tip_free"
) -> list[_RowBuilder]:
    name, steps = f"trajectory {trajectory.member} of {trajectory.task.id}", trajectory.steps
    if trajectory.outcome == "error":
        raise ValueError(f"{name} ended in an error ({trajectory.error}): drop or replace it before build_samples")
    if (shape := np.shape(advantage)) not in {(), (len(steps),)}:
        raise ValueError(f"{name} has {len(steps)} steps but advantages of shape {shape}: give one number for each "
                         "trajectory, or one for each step")  # fmt: skip
    rows: list[_RowBuilder] = []
    by_step = np.broadcast_to(np.asarray(advantage, dtype=np.float64), len(steps)).tolist()
    for step, prompt, value in zip(steps, _list_training_prompts(trajectory, context), by_step, strict=True):
        if not prompt:
            raise ValueError(f"{name} has no prompt token ids: train with a policy that returns them (hf, vllm); "
                             "OpenAI-compatible endpoints serve evaluation and adaptation only")  # fmt: skip
        if not (merge and rows and prompt[: len(rows[-1].token_ids)] == tuple(rows[-1].token_ids)):
            rows.append(_RowBuilder())
        rows[-1].shows_tips |= prompt != step.plain_prompt_ids
        rows[-1].extend(prompt[len(rows[-1].token_ids) :])
        if step.trained:
            rows[-1].extend(step.completion.token_ids, step.completion.logprobs, value)
        else:
            start = len(rows[-1].token_ids)
            rows[-1].extend(step.completion.token_ids)
            rows[-1].excepted += range(start, len(rows[-1].token_ids))
    return rows


def replace_behavior_logprobs(samples: Sequence[Sample], logprobs: Sequence[Sequence[float]]) -> list[Sample]:
    """Replace the denominators of rows, e.g. by those of the tip-free context (`old_logprobs = "tip_free"`)."""
    return [replace(s, behavior_logprobs=tuple(row)) for s, row in zip(samples, logprobs, strict=True)]


def dummy_sample(sample: Sample) -> Sample:
    ids = (sample.token_ids * 2)[:2]
    blank = (0.0, 0.0)
    return replace(sample, token_ids=ids, loss_mask=(0, 1), behavior_logprobs=blank, advantages=blank)


def iter_minibatches(
    samples: Sequence[Sample], number: int, rng: np.random.Generator, epochs: int = 1,
    unit: Literal["trajectory", "row"] = "trajectory",
) -> Iterator[list[int]]:  # fmt: skip
    """Yield random mini-batches of `number` trajectories (0: all), each with all its rows, in so many passes.

    With the unit "row" they are of so many rows, whatever their trajectory. Mini-batches are ascending indices into
    `samples`; the last one of a pass may be smaller. Rows that are no episodes are used once, and do not change the
    order of the episodes: those of each role are spread evenly over all mini-batches.
    """
    units = [i if unit == "row" else sample.trajectory for i, sample in enumerate(samples)]
    trajectories = sorted({units[i] for i, sample in enumerate(samples) if sample.role == "episode"})
    size = max(1, number or len(trajectories))
    orders = [[trajectories[i] for i in rng.permutation(len(trajectories))] for _ in range(epochs)]
    steps = [set(order[start : start + size]) for order in orders for start in range(0, len(order), size)]
    roles = sorted({sample.role for sample in samples} - {"episode"})
    steps = steps or [set() for _ in roles[:1]]
    dealt: list[set[int]] = [set() for _ in steps]
    for role in roles:
        own = rng.permutation([i for i, sample in enumerate(samples) if sample.role == role]).tolist()
        offset = rng.random()
        for place, i in enumerate(own):
            dealt[int((place + offset) * len(steps) / len(own)) % len(steps)].add(i)
    for chosen, others in zip(steps, dealt, strict=True):
        yield [i for i, s in enumerate(samples) if (units[i] in chosen if s.role == "episode" else i in others)]


def make_microbatches(
    rows: Sequence[Sequence[int]], max_tokens: int, packing: PackingMode = "padded"
) -> list[list[int]]:
    """Cut rows, given by their token ids, into batches of similar length that fit a budget.

    `max_tokens` is the largest number of rows times longest row, or of the tokens computed where they are not padded; a
    row longer than that goes alone. The packing "shared" cuts rows in the order of their tokens, and counts those that
    rows begin with alike once. Returns indices into `rows`, each once; shortest rows first, where none are shared.
    """
    if packing == "shared":
        return [indices for indices, _ in iter_trees(rows, [0] * len(rows), max_tokens)]
    batches: list[list[int]] = []
    filled = 0  # tokens of the last batch
    for index in sorted(range(len(rows)), key=lambda i: len(rows[i])):
        length = len(rows[index])
        size = (len(batches[-1]) + 1 if batches else 1) * length if packing == "padded" else filled + length
        if batches and size <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            size = length
        filled = size
    return batches


class Ranks:
    """One process among `world` that share an update; this class is the only process, which changes nothing."""

    rank, world = 0, 1
    device: torch.device | None = None  # where this one computes; None: where its model is
    object_group: ProcessGroup | None = None  # of all ranks, for objects that are no tensors
    dtype: torch.dtype | None = None  # trained weights are rounded to it when they are handed out; None: not at all

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, value: T) -> list[T]:
        """Gather the value of each rank, in their order; anything that can be pickled."""
        return [value]

    def shard(self, _model: nn.Module) -> GatheredCall:
        """Leave to this rank its part of the model's weights; all reading of them goes through the result."""
        return call_directly

    def reshard(self, _model: nn.Module) -> None:
        """Free all gathered weights of the model."""

    @contextmanager
    def swap_weights(self, _model: nn.Module, weights: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
        """Put other tensors in the place of parameters for the duration of the block; nothing is copied."""
        now = {parameter: parameter.data for parameter in weights}
        try:
            for parameter, data in weights.items():
                parameter.data = data
            yield
        finally:
            for parameter, data in now.items():
                parameter.data = data


def call_directly(function: Callable[[], T]) -> T:
    return function()


def split_microbatches(
    samples: Sequence[Sample], max_tokens: int, ranks: Ranks, packing: PackingMode = "padded"
) -> list[list[int]]:
    """Cut rows, the same on every rank, into the micro-batches of this rank, as many as of any other.

    Each rank has as many rows, and as long ones: they are dealt out from the longest to the shortest, forth and back. A
    pass through a sharded model is one of all ranks, so ranks with fewer micro-batches get empty ones, and must then
    pass a dummy batch through the model. Over all ranks each index is in one micro-batch.
    """
    rows = [sample.token_ids for sample in samples]
    if ranks.world == 1:
        return make_microbatches(rows, max_tokens, packing)
    shares: list[list[int]] = [[] for _ in range(ranks.world)]
    for place, i in enumerate(sorted(range(len(rows)), key=lambda i: -len(rows[i]))):
        turn, offset = divmod(place, ranks.world)
        shares[ranks.world - 1 - offset if turn % 2 else offset].append(i)
    cuts = []
    for share in map(sorted, shares):
        batches = make_microbatches([rows[i] for i in share], max_tokens, packing)
        cuts.append([[share[i] for i in batch] for batch in batches])
    own = cuts[ranks.rank]
    return own + [[] for _ in range(max(map(len, cuts)) - len(own))]
