"""Has the policy write tips about finished episodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trailnotes.config.schema import Config
from trailnotes.memory.tips import clean_tip
from trailnotes.policies.base import Policy
from trailnotes.rollout.conversation import (
    build_memory_keys,
    build_opening_messages,
    build_reflection_messages,
    drop_oldest_turn,
)
from trailnotes.rollout.episode import count_prompt_tokens
from trailnotes.rollout.groups import LiveEpisode, run_with_limit
from trailnotes.types import Completion, Message, Sampling, Step, Tip, Trajectory, TrajectoryGroup, derive_seed

EXTRACT: Final = "extract"  # as `algorithm.author`
_BRACKETS: Final = re.compile(r"\[\s*(.*?)\s*\]$")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A conversation that the policy answers once, apart from any episode."""

    messages: Sequence[Message]
    sampling: Sampling
    opening: int = 0  # messages at the beginning that stay when the others are too long


async def complete_requests(
    policy: Policy, requests: Sequence[CompletionRequest], *, limit: int,
    on_done: Callable[[int, Completion], None] | None = None,
) -> list[Completion]:  # fmt: skip
    """Answer all requests in order, at most `limit` open at a time; 0 = all.

    Where a conversation leaves no room for the answer, its oldest turns are dropped; if that does not help, the answer
    is empty and has finish_reason "length". `on_done` gets each answer, with its index, as it comes.
    """
    names = [f"note/{index}" for index in range(len(requests))]

    async def write(_: LiveEpisode, index: int) -> Completion:
        request, messages = requests[index], list(requests[index].messages)
        limit = request.sampling.max_tokens
        while (room := policy.context_length - count_prompt_tokens(policy, messages)) < limit:
            if len(shorter := drop_oldest_turn(messages, request.opening)) == len(messages):
                break
            messages = shorter
        if room < 1:
            return Completion((), (), (), "", "length")
        sampling = replace(request.sampling, max_tokens=min(room, limit))
        return await policy.generate(messages, sampling, names[index])

    return await run_with_limit(policy, names, write, limit=limit, on_done=on_done)


@dataclass(frozen=True, slots=True)
class WrittenTip:
    """A policy's text about an episode, and the memory entries made of it: none if unusable."""

    trajectory: Trajectory
    completion: Completion
    tips: tuple[Tip, ...]


async def write_tips(
    policy: Policy, groups: Sequence[TrajectoryGroup], config: Config, *, seed: int, step: int
) -> list[WrittenTip]:
    """Have the policy write one tip about each episode, without tips in the prompt, `env.max_envs` at a time.

    With `algorithm.author = "extract"` no model writes. Nothing is stored here. Episodes without a step are skipped;
    the others' tips come in task order.
    """
    trajectories = select_usable([t for group in groups for t in group.trajectories])
    if config.algorithm.author == EXTRACT:
        completions = extract_tips(policy, trajectories, config)
    else:
        requests = build_tip_requests(policy, trajectories, config, seed=seed)
        completions = await complete_requests(policy, requests, limit=config.env.max_envs)
    return parse_tips(policy, trajectories, completions, config, step=step)


def compute_tip_metrics(written: Sequence[WrittenTip]) -> dict[str, float]:
    """Compute the cost of writing tips: how many, unusable ones, tokens read and generated."""
    return {
        "written": float(len(written)), "unusable": float(sum(not each.tips for each in written)),
        "tokens_read": float(sum(each.completion.num_prompt_tokens for each in written)),
        "tokens": float(sum(each.completion.num_tokens for each in written)),
    }  # fmt: skip


def select_usable(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [t for t in trajectories if t.steps and t.outcome != "error"]


def build_tip_requests(
    policy: Policy, trajectories: Sequence[Trajectory], config: Config, *, seed: int
) -> list[CompletionRequest]:
    """Build a request for one tip about each episode, from its conversation without tips.

    A task played twice has other seeds, or equal failures would give equal words, which the memory counts as support.
    """
    memory, opening = config.memory, len(build_opening_messages(config.rollout))
    seen: Counter[tuple[str, int]] = Counter()

    requests = []
    for t in trajectories:
        place = t.task.id, t.member
        own_seed = derive_seed(seed, *place, "note", *([seen[place]] if seen[place] else []))
        seen[place] += 1
        messages = build_reflection_messages(t, config.rollout, memory, policy.count_tokens)
        sampling = Sampling(memory.write_temperature, max_tokens=memory.max_write_tokens, seed=own_seed)
        requests.append(CompletionRequest(messages, sampling, opening=opening))
    return requests


def extract_tips(policy: Policy, trajectories: Sequence[Trajectory], config: Config) -> list[Completion]:
    """Quote, as the tip about each episode, its actions up to the last that raised the score, as far as they fit."""
    return [Completion((), (), (), _quote(_cut_to_gain(policy, t, config).steps, config)) for t in trajectories]


def _quote(steps: Sequence[Step], config: Config) -> str:
    actions = [step.action for step in steps]
    if not actions or config.rollout.style == "terse":
        return " ; ".join(_BRACKETS.sub(r" \1", action) for action in actions)  # prompts show no square ones
    quoted = ", ".join(f"'{action}'" for action in actions)
    return f"What raised the score: {quoted}."


def _cut_to_gain(policy: Policy, trajectory: Trajectory, config: Config) -> Trajectory:
    """Cut an episode to what its extracted tip quotes, with the score that this earned."""
    last = max((number for number, step in enumerate(trajectory.steps, 1) if step.reward > 0), default=0)
    while policy.count_tokens(_quote(trajectory.steps[:last], config)) > config.memory.max_tip_tokens:
        last -= 1
    after = [*(step.observation for step in trajectory.steps), trajectory.final_observation][last]
    return replace(trajectory, steps=trajectory.steps[:last], final_observation=after, score=after.score)


def parse_tips(
    policy: Policy, trajectories: Sequence[Trajectory], completions: Sequence[Completion], config: Config, *, step: int
) -> list[WrittenTip]:
    """Parse the answers to `build_tip_requests` as memory entries, not yet cleaned: none without usable text.

    `memory.entries = "episode"` makes one, of the last action under the final state; "step" one for each step; "final"
    one for each step, all under the final state.
    """
    written = []
    by_step, is_extracted = config.memory.entries != "episode", config.algorithm.author == EXTRACT
    model = EXTRACT if is_extracted else policy.name
    for trajectory, completion in zip(trajectories, completions, strict=True):
        source = _cut_to_gain(policy, trajectory, config) if is_extracted else trajectory
        keys = build_memory_keys(source, config.rollout, config.memory, policy.count_tokens)
        if config.memory.entries == "final":
            keys = keys[-1:] * len(keys)
        text = completion.text
        if completion.finish_reason == "length" and config.rollout.style == "full":
            text = text.rstrip("\ufffd")  # the first bytes of a character that the limit has cut in two
        entries = zip(source.steps, keys, strict=False) if by_step else zip(source.steps[-1:], keys[-1:], strict=False)
        tips = []
        for played, key in entries if clean_tip(text) else ():
            if by_step and is_extracted:  # what was done in each state
                text = _quote([played], config) if clean_tip(played.action) else ""
            if text:
                tips.append(
                    Tip(
                        source.task.id, text, key, source.score, source.max_score, played.action, step=step,
                        model=model, version=policy.version, run=config.run.name,
                    )
                )  # fmt: skip
        written.append(WrittenTip(trajectory, completion, tuple(tips)))
    return written
