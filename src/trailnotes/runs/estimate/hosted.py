"""Tokens and cost of a run at a server of the Tinker API, from episodes that are played without it.

Rough: a player that draws among the listed actions stands in for the model, and mostly plays to the last step. The low
figure takes the tokens of these actions as sampled, the high one `rollout.max_action_tokens`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from trailnotes.config.methods import resolve_method
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_training_tasks, load_validation_tasks, select_batch
from trailnotes.errors import ConfigError
from trailnotes.gateway.pool import open_pool
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.conversation import parse_listed_actions
from trailnotes.rollout.groups import run_groups
from trailnotes.runs.estimate.forecast import estimate_iterations
from trailnotes.runs.loop import run_to_end
from trailnotes.types import Message, Step, TokenIds, Trajectory
from trailnotes.web.ledger import TokenCount

BYTES_PER_TOKEN: Final = 4  # of English
TOKENS_PER_MESSAGE: Final = 5  # that a chat template puts around each message
MAX_EPISODES: Final = 8  # that are played
UNLISTED_ACTION: Final = "look around"  # where a turn lists no actions


@dataclass(frozen=True, slots=True)
class HostedEstimate:
    """Tokens of an iteration, and the iterations of the run; `high` has the longest completions."""

    low: TokenCount
    high: TokenCount
    iterations: int

    def report(self, config: Config) -> str:
        """Format the estimate as a table for people."""
        lines = [f"estimate of {config.model.path} at a server, {self.iterations:,} iterations, four bytes for a token"]
        for name in ("prefilled", "sampled", "trained"):
            one, whole = ([getattr(count, name) * times for count in (self.low, self.high)]
                          for times in (1, self.iterations))  # fmt: skip
            lines.append(f"{name:<10} {_format_range(*one)} an iteration, {_format_range(*whole)} the run")
        low, high = (count.compute_cost(config.learner) * self.iterations for count in (self.low, self.high))
        cost = f"{low:,.2f} to {high:,.2f}" if high else "set learner.price_prefill, price_sample and price_train"
        return "\n".join([*lines, f"cost       {cost}"]) + "\n"


def estimate_hosted(config: Config) -> HostedEstimate:
    """Play a few episodes of the first iteration, and estimate the tokens of all.

    Rehearsal, groups that `algorithm.dynamic_sampling` plays again and rows of `loss.observations` are not counted.

    Raises:
        ConfigError: no episode could be played.
    """
    played = run_to_end(_play(config, _StandIn(config)))
    if not played:
        raise ConfigError("no episode could be played; see the log for the reason")
    low, high = (count_tokens(config, played, longest=longest) for longest in (False, True))
    num_episodes = config.rollout.num_tasks * config.rollout.group_size
    steps = fmean(len(each.steps) for each in played)
    first = {"env_steps": steps * num_episodes, "episodes": num_episodes, "tokens_generated": low.sampled}
    return HostedEstimate(low, high, estimate_iterations(config, first))


class _StandIn(ScriptedPolicy):
    """Player in place of the model, which draws among the listed actions."""

    def __init__(self, config: Config) -> None:
        super().__init__(self._answer, context_length=config.rollout.max_context_tokens)
        self._style, self._rng = config.rollout.style, random.Random(config.run.seed)

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        return (0,) * sum(self.count_tokens(message.content) + TOKENS_PER_MESSAGE for message in messages)

    def count_tokens(self, text: str) -> int:
        return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)

    def _answer(self, messages: Sequence[Message]) -> str:
        return self._rng.choice(parse_listed_actions(messages[-1].content, self._style) or [UNLISTED_ACTION])


async def _play(config: Config, policy: _StandIn) -> list[Trajectory]:
    tasks = select_batch(load_training_tasks(config), config.rollout.num_tasks, config.run.seed, 0)[:MAX_EPISODES]
    with open_pool(config.env) as pool:
        groups = await run_groups(policy, pool, tasks, [["plain"]] * len(tasks), None, config, seed=config.run.seed)
    return [trajectory for group in groups for trajectory in group.trajectories]


def count_tokens(config: Config, played: Sequence[Trajectory], *, longest: bool) -> TokenCount:
    """Count the tokens of an iteration whose episodes are like those that were played."""
    algorithm, rollout, loss = config.algorithm, config.rollout, config.loss
    empo2 = config.section(Empo2Config)
    method = resolve_method(algorithm.name)
    num_episodes = rollout.num_tasks * rollout.group_size
    if method.count_episodes:
        num_episodes = method.count_episodes(config, num_episodes)
    num_validated = len(load_validation_tasks(config)) / config.train.eval_every if config.train.eval_every else 0.0
    readers = empo2.p_memory if method.shows_tips else 0.0
    turns = fmean(len(each.steps) for each in played)
    read = fmean(sum(step.completion.num_prompt_tokens for step in each.steps) for each in played)
    last_prompt = fmean(each.steps[-1].completion.num_prompt_tokens for each in played)
    if longest:
        sampled = turns * rollout.max_action_tokens
        read += turns * (readers * config.memory.top_k * config.memory.max_tip_tokens + sampled / 2)
        length = last_prompt + rollout.max_action_tokens + sampled
    else:
        sampled = fmean(sum(map(_count_action, each.steps)) for each in played)
        length = last_prompt + fmean(_count_action(each.steps[-1]) for each in played)
    rows = length if config.optim.rows == "auto" else read + sampled
    passes = rows * config.optim.epochs
    scored_without_tips = readers * empo2.q_off_policy * (empo2.old_logprobs == "tip_free")
    forward = passes * (not loss.is_plain_ppo) + rows * (bool(loss.kl) + scored_without_tips)
    acted = num_episodes + num_validated
    prefilled, generated = read * acted + forward * num_episodes, sampled * acted
    if method.writes_tips and algorithm.author in ("policy", "start"):
        written = config.memory.max_write_tokens if longest else config.memory.max_write_tokens / 2
        prefilled, generated = prefilled + length * num_episodes, generated + written * num_episodes
    return TokenCount(round(prefilled), round(generated), round(passes * num_episodes))


def _count_action(step: Step) -> int:
    return max(1, step.completion.num_tokens // BYTES_PER_TOKEN)  # the stand-in samples bytes


def _format_range(low: float, high: float) -> str:
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
