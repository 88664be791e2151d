"""Tokens and cost of a run at a server of the Tinker API, from episodes that are played without it.

Rough: a player that draws among the listed actions stands in for the model, and mostly plays to the last step. What is
sampled has its length as the low figure, and `rollout.max_action_tokens` as the high one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trailnotes.config.methods import resolve_method
from trailnotes.config.schema import Config
from trailnotes.endpoint.ledger import TokenCount
from trailnotes.envs.tasks import load_training_tasks, load_validation_tasks, select_batch
from trailnotes.errors import ConfigError
from trailnotes.estimate.forecast import estimate_iterations
from trailnotes.gateway.pool import open_pool
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.prompts import parse_listed_actions
from trailnotes.rollout import run_groups
from trailnotes.runs.loop import run_to_end

if TYPE_CHECKING:
    from trailnotes.policies.chat import ChatFormat
    from trailnotes.types import Message, TokenIds, Trajectory

BYTES_PER_TOKEN: Final = 4  # of English, where there is no tokenizer on this machine
TOKENS_PER_MESSAGE: Final = 5  # that a chat template puts around each message
MOST_EPISODES: Final = 8  # that are played
UNLISTED_ACTION: Final = "look around"  # where a turn lists no actions


@dataclass(frozen=True, slots=True)
class HostedEstimate:
    """What an iteration takes, and the iterations of the run; `high` has the longest completions."""

    low: TokenCount
    high: TokenCount
    iterations: int
    has_tokenizer: bool

    def report(self, config: Config) -> str:
        """Format the estimate as a table for people."""
        prices = config.learner
        rows = [("", "an iteration", "the run", "price of a million")]
        for name, price in (("prefilled", prices.price_prefill), ("sampled", prices.price_sample),
                            ("trained", prices.price_train)):  # fmt: skip
            low, high = (getattr(each, name) for each in (self.low, self.high))
            rows.append((name, _format_range(low, high), _format_range(low * self.iterations, high * self.iterations),
                         f"{price:g}" if price else "-"))  # fmt: skip
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        low, high = (each.compute_cost(prices) * self.iterations for each in (self.low, self.high))
        cost = f"{low:,.2f} to {high:,.2f}" if high else "set learner.price_prefill, price_sample and price_train"
        how = "" if self.has_tokenizer else f"; tokens are guessed, {BYTES_PER_TOKEN} bytes each, without its tokenizer"
        head = f"estimate of {config.model.path} at a server, {self.iterations:,} iterations{how}"
        lines += [f"cost  {cost}", *self._report_budget(prices.max_tokens_total)]
        if config.rehearsal.split or config.algorithm.dynamic_sampling:
            lines.append("not counted: what is recorded for rehearsal, and groups that are played in place of others")
        return "\n".join([head, *lines]) + "\n"

    def _report_budget(self, most: int) -> list[str]:
        if not most:
            return []
        rounds = [most / each.total for each in (self.high, self.low)]
        if min(rounds) >= self.iterations:
            return [f"budget  {most:,} tokens: enough"]
        return [f"budget  {most:,} tokens: the run ends after {rounds[0]:.0f} to {rounds[1]:.0f} iterations"]


def estimate_hosted(config: Config) -> HostedEstimate:
    """Play a few episodes of the first iteration, and estimate the tokens of all.

    Raises:
        ConfigError: no episode could be played.
    """
    chat = _load_chat_format(config)
    played = run_to_end(_play(config, _StandIn(config, chat)))
    if not played:
        raise ConfigError("no episode could be played; see the log for the reason")
    low, high = (_count(config, played, longest=longest) for longest in (False, True))
    num_episodes = config.rollout.num_tasks * config.rollout.group_size
    steps = sum(len(each.steps) for each in played) / len(played)
    first = {"env_steps": steps * num_episodes, "episodes": num_episodes, "tokens_generated": low.sampled}
    return HostedEstimate(low, high, estimate_iterations(config, first), chat is not None)


class _StandIn(ScriptedPolicy):
    """Player in place of the model, with its tokenizer where that is on this machine."""

    def __init__(self, config: Config, chat: ChatFormat | None) -> None:
        super().__init__(self._answer, context_length=config.rollout.max_context_tokens)
        self._chat, self._style, self._rng = chat, config.rollout.style, random.Random(config.run.seed)

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        if self._chat is not None:
            return self._chat.encode([message.__class__(message.role, message.content) for message in messages])
        return (0,) * sum(self.count_tokens(message.content) + TOKENS_PER_MESSAGE for message in messages)

    def count_tokens(self, text: str) -> int:
        if self._chat is not None:
            return self._chat.count_tokens(text)
        return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)

    def _answer(self, messages: Sequence[Message]) -> str:
        return self._rng.choice(parse_listed_actions(messages[-1].content, self._style) or [UNLISTED_ACTION])


async def _play(config: Config, policy: _StandIn) -> list[Trajectory]:
    tasks = select_batch(load_training_tasks(config), config.rollout.num_tasks, config.run.seed, 0)[:MOST_EPISODES]
    room = policy.context_length  # the answers of a script are bytes, and need more of it
    longest = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_context_tokens": room})})
    with open_pool(config.env) as pool:
        groups = await run_groups(policy, pool, tasks, [["plain"]] * len(tasks), None, longest, seed=config.run.seed)
    return [trajectory for group in groups for trajectory in group.trajectories]


def _count(config: Config, played: Sequence[Trajectory], *, longest: bool) -> TokenCount:
    """Count the tokens of an iteration whose episodes are like those that were played."""
    method, algorithm, rollout = resolve_method(config.algorithm.name), config.algorithm, config.rollout
    num_episodes = rollout.num_tasks * rollout.group_size
    if method.count_episodes:
        num_episodes = method.count_episodes(config, num_episodes)
    num_validated = len(load_validation_tasks(config)) / config.train.eval_every if config.train.eval_every else 0.0
    readers = algorithm.p_memory if method.shows_tips else 0.0
    tips = readers * config.memory.top_k * config.memory.max_tip_tokens if longest else 0.0
    prompts = [[step.completion.num_prompt_tokens for step in each.steps] for each in played]
    sampled = [
        [rollout.max_action_tokens if longest else max(1, step.completion.num_tokens // BYTES_PER_TOKEN)
         for step in each.steps]
        for each in played
    ]  # fmt: skip
    read = sum(sum(row) + tips * len(row) for row in prompts) / len(played)
    said = sum(map(sum, sampled)) / len(played)
    growth = said / 2 if longest else 0.0  # of a history with longer answers, on average over its turns
    read += growth * sum(map(len, prompts)) / len(played)
    length = sum(row[-1] + own[-1] for row, own in zip(prompts, sampled, strict=True)) / len(played) + 2 * growth
    rows = length if config.optim.rows == "auto" else read + said
    shown = readers * (1 - algorithm.q_off_policy)  # members that are trained with the tips that they read
    observed = (1 - shown) * bool(config.loss.observations)  # rows of their own, without tips
    passes = rows * (1 + observed) * config.optim.epochs
    forward = 0.0 if _is_plain(config) else passes
    forward += rows * bool(config.loss.kl) + rows * readers * algorithm.q_off_policy * (
        algorithm.old_logprobs == "tip_free"
    )
    acted = num_episodes + num_validated  # episodes
    prefilled, generated = read * acted + forward * num_episodes, said * acted
    written = config.memory.max_write_tokens if longest else config.memory.max_write_tokens / 2
    if method.writes_tips and algorithm.author in ("policy", "start"):
        prefilled, generated = prefilled + length * num_episodes, generated + written * num_episodes
    return TokenCount(round(prefilled), round(generated), round(passes * num_episodes))


def _is_plain(config: Config) -> bool:
    """Tell whether the server's own loss can do, so that no forward pass comes before it."""
    loss = config.loss
    off_policy = resolve_method(config.algorithm.name).shows_tips and loss.mask_logprob is not None
    others = loss.observations or config.has_anchor_rows or config.algorithm.author_credit  # rows of other losses
    return loss.is_plain_ppo and not (off_policy or others)


def _load_chat_format(config: Config) -> ChatFormat | None:
    from trailnotes.policies.chat import ChatFormat
    from trailnotes.policies.hf.policy import has_tokenizer, load_tokenizer

    if not has_tokenizer(config.model):
        return None
    return ChatFormat(load_tokenizer(config.model), config.model.template_options)


def _format_range(low: float, high: float) -> str:
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
