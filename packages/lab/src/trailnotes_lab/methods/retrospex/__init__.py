"""Retrospex: the frozen policy proposes, and a critic trained on finished runs gains weight in the choice step by step.

Source: "Retrospex: Language Agent Meets Offline Reinforcement Learning Critic" (arXiv 2505.11807). Built from its
description; its authors' code has no licence and was not used. See docs/algorithms/retrospex.md for every metric, each
settled choice, and where this departs from the paper and its release.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trailnotes.config.methods import Method
from trailnotes.config.refusals import require_own_tips
from trailnotes.errors import ConfigError
from trailnotes.memory.retrieval import Embedder, make_config_embedder
from trailnotes.rollout.conversation import Conversation, parse_action
from trailnotes.rollout.episode import Decision, EpisodeContext, TipsActor, compute_prompt_limit, observe_within_limit
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.runs.directory import has_begun
from trailnotes.storage.files import append_jsonl, read_jsonl, split_after
from trailnotes.types import NO_OP, Completion, Observation, TrajectoryGroup, derive_seed
from trailnotes_lab.methods.retrospex.transitions import RetrospexConfig, load_critic_games

if TYPE_CHECKING:
    from trailnotes_lab.methods.retrospex.critic import Critic

TEMPERATURE, TOP_P = 0.9, 0.95  # sampling of the candidates (Retrospex release 6d169a4)
FREE_TEXT = re.compile(r"(search\[)\s*\S.*\]|(INPUT\(\d+, )\s*\S.*\)")  # take any text, on WebShop and WikiHow


async def retrospex(run: AdaptationRun) -> None:
    """Train or load the critic, then play the panel with the policy alone, and again with its proposals rescored."""
    config, settings = run.config, run.config.section(RetrospexConfig)
    if not hasattr(run.policy, "score"):
        raise ConfigError(
            f"retrospex weighs actions by their log-probabilities, and {run.policy.name} gives none (no "
            "OpenAI-compatible server does): set model.path to a model directory or hub name"
        )
    from trailnotes_lab.methods.retrospex.critic import load_critic, train_critic

    own, embedder = run.directory.path / "critic", make_config_embedder(config)
    if settings.critic or (has_begun(run.directory.path) and (own / "critic.json").is_file()):
        critic = load_critic(Path(settings.critic) if settings.critic else own)
    elif settings.data:
        critic = train_critic(config, settings.data, own)
    else:
        raise ConfigError("retrospex has no critic: set retrospex.data to runs that train one, or retrospex.critic")
    decisions = run.directory.path / "decisions.jsonl"
    split_after(decisions)

    def plain(context: EpisodeContext) -> TipsActor:
        return TipsActor(override_sampling(context), None)

    def rescored(context: EpisodeContext) -> RescoringActor:
        return RescoringActor(
            override_sampling(context), critic, embedder, lambda each: append_jsonl(decisions, [each])
        )

    num = config.eval.num_samples
    alone = await run.play("plain", run.tasks, make_actor=plain, mode="plain", num_samples=num)
    run.log("plain", alone)
    run.report("plain", alone, memory=False)
    run.write_panel(alone, memory=False, name="eval-plain")

    groups = await run.play("rescored", run.tasks, make_actor=rescored, mode="plain", num_samples=num)
    run.log("rescored", groups, **decision_metrics(list(read_jsonl(decisions)), groups))
    run.report(f"rescored, decay {settings.decay:g}, floor {settings.floor:g}", groups, memory=False)
    run.write_panel(groups, memory=False)


def override_sampling(context: EpisodeContext) -> EpisodeContext:
    config = context.config
    rollout = config.rollout.model_copy(update={"temperature": TEMPERATURE, "top_p": TOP_P})
    return replace(context, config=config.model_copy(update={"rollout": rollout}))


class RescoringActor:
    """An actor that samples candidates, maps them to admissible actions, and takes the best by policy and critic."""

    def __init__(
        self, context: EpisodeContext, critic: Critic, embedder: Embedder, journal: Callable[[dict[str, Any]], None]
    ) -> None:
        self.context, self.critic, self.embedder, self.journal = context, critic, embedder, journal
        config = context.config
        self.conversation = Conversation(config.rollout, config.memory, context.policy.count_tokens)
        self.instruction = ""
        self.num_steps = 0

    def start(self, observation: Observation) -> None:
        self.instruction = observation.instruction or ""
        self.conversation.start(self.instruction)

    async def act(self, observation: Observation) -> Decision | None:
        """Propose candidates, rescore them, choose one; None where the prompt no longer fits."""
        context, policy, config = self.context, self.context.policy, self.context.config
        limit, step = compute_prompt_limit(policy, config), self.num_steps
        if observe_within_limit(limit, policy, self.conversation, observation, ()) is None:
            return None
        completions: list[Completion] = []
        for number in range(config.section(RetrospexConfig).candidates):
            seed = derive_seed(context.seed, context.task.id, context.member, f"{step}.{number}")
            sampling = replace(context.build_sampling(step), seed=seed)
            completions.append(await policy.generate(tuple(self.conversation.acting), sampling, context.episode))
        read = [parse_action(c.text, config.rollout.action_format, config.rollout.style) for c in completions]
        readable = [action for action in read if action != NO_OP]
        if observation.actions:
            num = config.section(RetrospexConfig).candidates
            actions = map_to_admissible(readable, observation.actions, num, self.embedder)
        else:
            actions = list(dict.fromkeys(readable)) or [NO_OP]
        speakers = [
            next((c for c, each in zip(completions, read, strict=True) if each == action), None) for action in actions
        ]
        chosen = await self._choose(actions, speakers, observation)

        completion = speakers[chosen] or Completion(completions[0].prompt_ids, (), (), actions[chosen])
        others = sum(each.num_tokens for each in completions) - completion.num_tokens
        self.conversation.act(completion.text, completion.token_ids)
        self.num_steps += 1
        return Decision(actions[chosen], completion, completion.prompt_ids, other_tokens=others)

    async def _choose(
        self, actions: Sequence[str], speakers: Sequence[Completion | None], observation: Observation
    ) -> int:
        context, settings, step = self.context, self.context.config.section(RetrospexConfig), self.num_steps
        weight = max(settings.floor, settings.decay ** (settings.first_step + step))
        likelihoods, advantages = [1.0], [0.0]
        if len(actions) > 1:
            # A completion that is the bare action is scored by the sampled ids, any other action by its text.
            bare = [c.token_ids if c and c.text.strip() == a else a for a, c in zip(actions, speakers, strict=True)]
            logprobs = await context.policy.score(self.conversation.acting, bare)  # type: ignore[attr-defined]
            likelihoods = [math.exp(logprob) for logprob in logprobs]
            advantages = self.critic.compute_advantages(self.instruction, observation.text, actions)
        chosen = select_candidate(likelihoods, advantages, weight)
        self.journal({
            "task": context.task.id, "member": context.member, "step": step, "weight": weight, "actions": list(actions),
            "sampled": [c is not None for c in speakers], "likelihoods": likelihoods, "advantages": advantages,
            "chosen": chosen, "favourite": likelihoods.index(max(likelihoods)),
        })  # fmt: skip
        return chosen


def decision_metrics(records: Sequence[dict[str, Any]], groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Measure rescoring in the episodes that count; a decision repeated after a restart counts once.

    ``changed``: share of decisions that went another way than the policy's favourite among the candidates;
    ``candidates``: mean number of different ones; ``not_sampled``: share of actions that the policy had not proposed.
    """
    lengths = {(group.task.id, t.member): len(t.steps) for group in groups for t in group.trajectories}
    latest = {(record["task"], record["member"], record["step"]): record for record in records}
    made = [r for (task, member, step), r in latest.items() if step < lengths.get((task, member), 0)]
    if not made:
        return {}
    return {
        "changed": sum(r["chosen"] != r["favourite"] for r in made) / len(made),
        "candidates": sum(len(r["actions"]) for r in made) / len(made),
        "not_sampled": sum(not r["sampled"][r["chosen"]] for r in made) / len(made),
    }


def min_max_normalize(values: Sequence[float]) -> list[float]:
    """Scale values to [0, 1]; all are 0.5 where they are equal, so that a single one does no harm."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.5 for value in values]


def select_candidate(likelihoods: Sequence[float], advantages: Sequence[float], weight: float) -> int:
    """Return the index of the largest lambda p^ + (1 - lambda) q^, the first of equals; `weight` is lambda.

    `likelihoods` are exp of the mean log-probability of each action's tokens, `advantages` Q(s, a) - V(s).
    """
    pairs = zip(min_max_normalize(likelihoods), min_max_normalize(advantages), strict=True)
    mixed = [weight * p + (1 - weight) * q for p, q in pairs]
    return mixed.index(max(mixed))


def map_to_admissible(predicted: Sequence[str], admissible: Sequence[str], num: int, embedder: Embedder) -> list[str]:
    """Return up to `num` admissible actions: those that were predicted, then those most like all predictions together.

    Likeness is the sum of the cosine similarities to all of `predicted`, in which repeats count. Where one action that
    takes any text is offered, such as a search, so is each with another text.
    """
    offered = list(dict.fromkeys(admissible))
    fields = {*map(_find_text_field, offered)} - {""}
    exact = [act for act in dict.fromkeys(predicted) if act in offered or _find_text_field(act) in fields]
    others = [action for action in offered if action not in exact]
    if others and predicted and len(exact) < num:
        likeness = (embedder.embed(others) @ embedder.embed(list(predicted)).T).sum(axis=1)
        others = [others[index] for index in np.argsort(-np.round(likeness, 6), kind="stable")]
    return (exact + others)[:num]


def _find_text_field(action: str) -> str:
    """Return the beginning of an action that takes any text, which names where the text goes; "" of any other."""
    match = FREE_TEXT.fullmatch(action)
    return match[1] or match[2] if match else ""


METHOD = Method(
    "retrospex", "Retrospex", retrospex, trains=False, data="retrospex.data",
    colour="#a08a00", learned_from=load_critic_games,
    sections={"retrospex": RetrospexConfig}, validate=require_own_tips,
    metrics=(
        ("changed", "share", "decisions other than the policy's favourite among the candidates",
         "above 0; else the critic changes nothing"),
        ("candidates", "actions", "mean number of different ones of a decision", "above 1"),
        ("not_sampled", "share", "chosen actions that the policy had not proposed", ""),
    ),
)  # fmt: skip
