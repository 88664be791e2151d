"""Tokens and cost of a run at a server of the Tinker API, from episodes that are played without it.

Rough: a player that draws among the listed actions stands in for the model, and mostly plays to the last step. Each of
its answers counts as `rollout.max_action_tokens`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
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
from trailnotes.types import Message, TokenIds, Trajectory
from trailnotes.web.ledger import TokenCount

BYTES_PER_TOKEN: Final = 4  # of English
TOKENS_PER_MESSAGE: Final = 5  # that a chat template puts around each message
MAX_EPISODES: Final = 8  # that are played
UNLISTED_ACTION: Final = "look around"  # where a turn lists no actions


def report_hosted(config: Config) -> str:
    """Play a few episodes of the first iteration, and report the tokens and the cost of all, for people.

    Rehearsal, groups that `algorithm.dynamic_sampling` plays again and rows of `loss.observations` are not counted.

    Raises:
        ConfigError: no episode could be played.
    """
    played = run_to_end(_play(config, _StandIn(config)))
    if not played:
        raise ConfigError("no episode could be played; see the log for the reason")
    count, episodes = count_tokens(config, played), config.rollout.num_tasks * config.rollout.group_size
    steps = fmean(len(each.steps) for each in played)
    first = {"env_steps": steps * episodes, "episodes": episodes, "tokens_generated": count.sampled}
    times = estimate_iterations(config, first)
    lines = [f"estimate of {config.model.path} at a server, {times:,} iterations, long answers, four bytes for a token"]
    for name in ("prefilled", "sampled", "trained"):
        tokens = getattr(count, name)
        lines.append(f"{name:<10} {tokens:,} an iteration, {tokens * times:,} the run")
    cost = count.compute_cost(config.learner) * times
    lines.append(f"cost       {cost:,.2f}" if cost else "set learner.price_prefill, price_sample and price_train")
    return "\n".join(lines) + "\n"


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


def count_tokens(config: Config, played: Sequence[Trajectory]) -> TokenCount:
    """Count the tokens of an iteration whose episodes are as long as those that were played."""
    algorithm, rollout, loss = config.algorithm, config.rollout, config.loss
    empo2 = config.section(Empo2Config)
    method = resolve_method(algorithm.name)
    num_episodes = rollout.num_tasks * rollout.group_size
    if method.count_episodes:
        num_episodes = method.count_episodes(config, num_episodes)
    num_validated = len(load_validation_tasks(config)) / config.train.eval_every if config.train.eval_every else 0.0
    readers = empo2.p_memory if method.shows_tips else 0.0
    turns = fmean(len(each.steps) for each in played)
    sampled = turns * rollout.max_action_tokens
    read = fmean(sum(step.completion.num_prompt_tokens for step in each.steps) for each in played)
    read += turns * (readers * config.memory.top_k * config.memory.max_tip_tokens + sampled / 2)
    last_prompt = fmean(each.steps[-1].completion.num_prompt_tokens for each in played)
    length = last_prompt + rollout.max_action_tokens + sampled
    rows = length if config.optim.rows == "auto" else read + sampled
    passes = rows * config.optim.epochs
    scored_without_tips = readers * empo2.q_off_policy * (empo2.old_logprobs == "tip_free")
    forward = passes * (not loss.is_plain_ppo) + rows * (bool(loss.kl) + scored_without_tips)
    acted = num_episodes + num_validated
    prefilled, generated = read * acted + forward * num_episodes, sampled * acted
    if method.writes_tips and algorithm.author in ("policy", "start"):
        prefilled += length * num_episodes
        generated += config.memory.max_write_tokens * num_episodes
    return TokenCount(round(prefilled), round(generated), round(passes * num_episodes))
