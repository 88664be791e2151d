"""REMEMBERER: a frozen policy and a table of (goal, observation, action) -> Q, read as examples with advice.

Source: "Large Language Models Are Semi-Parametric Reinforcement Learning Agents" (arXiv 2306.07929, RLEM). See
docs/algorithms/rememberer.md for every metric, each settled choice, and departures from the paper and its release.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from trailnotes.config.methods import Method
from trailnotes.config.refusals import require_own_tips
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_tasks, panel
from trailnotes.errors import ConfigError
from trailnotes.memory import make_config_embedder
from trailnotes.rollout import advice as words
from trailnotes.rollout.advice import Example, Situation, ValuedAction
from trailnotes.rollout.conversation import Conversation, get_instruction, quoted
from trailnotes.rollout.episode import Decision, EpisodeContext, count_prompt_tokens
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.types import NO_OP, Message, Observation, Sampling, Task, Trajectory, TrajectoryGroup, derive_seed
from trailnotes_lab.methods.rememberer.table import Experience, ExperienceRecord, ExperienceTable, RemembererConfig

MAX_TRIED_EXAMPLES = 20  # records looked at in one step, at most, for some that fit the context


async def rememberer(run: AdaptationRun) -> None:
    """Fill the table on the training tasks, epoch by epoch, then play the panel with it and without updates."""
    config = run.config.section(RemembererConfig)
    tasks = load_training_tasks(run.config)
    with ExperienceTable(run.directory.path / "experience.db", make_config_embedder(run.config), config) as table:

        def advised(context: EpisodeContext) -> AdvisedActor:
            return AdvisedActor(context, table)

        for epoch in range(config.epochs):
            if not tasks:
                break
            phase = f"epoch-{epoch}"
            groups = await run.play(phase, tasks, make_actor=advised, num_samples=config.group_size)
            run.log(phase, groups, **table_metrics(table, groups))  # of the table as it was acted on
            with table.transaction():
                if table.mark_first_time(phase):
                    for trajectory in (t for group in groups for t in group.trajectories):
                        table.learn(extract_experiences(trajectory))
            if epoch == 0:
                solved = {group.task.id for group in groups if all(t.success for t in group.trajectories)}
                tasks = [task for task in tasks if task.id not in solved]

        groups = await run.play("panel", run.tasks, make_actor=advised, num_samples=run.config.eval.num_samples)
        run.log("panel", groups, **table_metrics(table, groups))
        run.report(f"after {config.epochs} epochs of experience", groups, memory=True)
        run.write_panel(groups, memory=True)


def load_training_tasks(config: Config) -> list[Task]:
    if not config.section(RemembererConfig).epochs:
        return []
    return panel(load_tasks(config, config.train.split), config.section(RemembererConfig).num_tasks)


def extract_experiences(trajectory: Trajectory) -> list[Experience]:
    """Extract the readable decisions of an episode.

    An unreadable answer makes no experience, and its reward counts for the decision before it.
    """
    task, earned = get_instruction(trajectory), 0.0
    experiences: list[Experience] = []
    for step in trajectory.steps:
        seen = step.observation
        if step.action != NO_OP:
            history = tuple(experience.action for experience in experiences)
            experiences.append(
                Experience(task, seen.text, step.action, step.reward, history, seen.actions or (), seen.reward, earned)
            )
        elif experiences:
            experiences[-1] = replace(experiences[-1], reward=experiences[-1].reward + step.reward)
        earned += step.reward
    return experiences


def choose_advice(
    record: ExperienceRecord, rng: random.Random
) -> tuple[tuple[ValuedAction, ...], tuple[ValuedAction, ...]]:
    """Choose the encouraged and discouraged actions of a record.

    Encouraged is the best action, if its value is above 0; else a random admissible one that was not tried, or is not
    discouraged, with a made-up value below 0.5. Discouraged are those of 0 or less, the worst first.
    """
    ranked = record.rank_values()
    encouraged = [ValuedAction(value.action, value.value) for value in ranked[:1] if value.value > 0]
    discouraged = [ValuedAction(value.action, value.value) for value in reversed(ranked) if value.value <= 0]
    if not encouraged:
        bad = {valued.action for valued in discouraged}
        left = [action for action in record.admissible if action not in bad]
        if choices := [action for action in left if action not in record.values] or left:
            encouraged = [ValuedAction(rng.choice(choices), rng.uniform(0, 0.5))]
    return tuple(encouraged), tuple(discouraged)


class AdvisedActor:
    """An actor with an independent prompt for every step: examples with advice, then the present situation.

    The answer is advice, too; the actor takes the action that the policy values most. An unreadable answer costs a
    step, as with every other method.
    """

    def __init__(self, context: EpisodeContext, table: ExperienceTable) -> None:
        self.context, self.table = context, table
        self.words = Conversation(context.config.rollout, context.config.memory, context.policy.count_tokens)
        self.task = ""
        self.facts: tuple[str, ...] = ()
        self.history: list[str] = []
        self.num_turns, self.earned = 0, 0.0

    def start(self, observation: Observation) -> None:
        self.task = observation.instruction or ""
        self.facts = tuple(line for line in self.words.format_briefing(observation.briefing or {}) if line)

    async def act(self, observation: Observation) -> Decision | None:
        """Retrieve examples, ask the policy, parse its advice; None where the prompt does not fit."""
        context, policy, config = self.context, self.context.policy, self.context.config.section(RemembererConfig)
        self.earned += observation.reward
        await self.table.prefetch_embeddings(self.task, observation.text)
        messages, spelled = self._build_prompt(observation)
        if count_prompt_tokens(policy, messages) > self._max_prompt_tokens():
            return None
        sampling = Sampling(
            config.temperature, max_tokens=config.max_write_tokens,
            stop=(words.WORDS[context.config.rollout.style]["not"],),  # what would follow the encouraged actions
            seed=derive_seed(context.seed, context.task.id, context.member, self.num_turns),
        )  # fmt: skip
        self.num_turns += 1
        completion = await policy.generate(messages, sampling, context.episode)
        advice = words.parse_advice(completion.text)
        action = max(advice, key=lambda valued: valued.value).action if advice else NO_OP
        action = spelled.get(action, action)
        if action != NO_OP:
            self.history.append(action)
        return Decision(action, completion, completion.prompt_ids)

    def _build_prompt(self, observation: Observation) -> tuple[list[Message], dict[str, str]]:
        """The messages, with as many examples as fit; and the true spelling of actions that examples quote."""
        context, style = self.context, self.context.config.rollout.style
        config = context.config.section(RemembererConfig)
        rng = random.Random(derive_seed(context.seed, context.task.id, context.member, f"advice {self.num_turns}"))
        rollout, capped, examples = context.config.rollout, self.words.cap_text, list[Example]()
        offered = words.WORDS[style]["separator"].join(observation.actions or ()) if rollout.show_actions else ""
        present = Situation(
            capped(self.task), capped(observation.text), self._select_recent(self.history), capped(offered),
            observation.reward, self.earned, self.facts,
        )  # fmt: skip
        messages, actions = words.build_advice_messages(present, examples, style), list(observation.actions or ())
        for record in islice(self.table.iter_nearest(self.task, observation.text), MAX_TRIED_EXAMPLES):
            situation = Situation(
                capped(record.task), capped(record.observation), self._select_recent(record.history),
                last_reward=record.last_reward, total_reward=record.total_reward,
            )  # fmt: skip
            longer = [Example(situation, *choose_advice(record, rng)), *examples]
            candidate = words.build_advice_messages(present, longer, style)
            if count_prompt_tokens(context.policy, candidate) <= self._max_prompt_tokens():
                examples, messages = longer, candidate
                actions += [*record.values, *record.admissible]
            if len(examples) == config.examples:
                break
        return messages, {quoted(action): action for action in actions} | {action: action for action in actions}

    def _select_recent(self, history: Sequence[str]) -> tuple[str, ...]:
        return tuple(history[max(0, len(history) - self.context.config.section(RemembererConfig).history) :])

    def _max_prompt_tokens(self) -> int:
        config = self.context.config
        longest = min(config.rollout.max_context_tokens, self.context.policy.context_length)
        return longest - config.section(RemembererConfig).max_write_tokens  # a whole answer still fits behind it


def table_metrics(table: ExperienceTable, groups: Sequence[TrajectoryGroup]) -> dict[str, float | dict[str, float]]:
    """Measure the share of steps whose exact situation has a record, and the contents of the table."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    situations = [(get_instruction(t), step.observation.text) for t in trajectories for step in t.steps]
    known = sum(table.find(*situation) is not None for situation in situations)
    return {"known": known / max(1, len(situations)), "table": table.stats()}


def validate_actor(config: Config) -> None:
    """Refuse control tips, and agents behind the gateway, which bring their own prompts; raises `ConfigError`."""
    require_own_tips(config)
    if config.env.name == "gateway":
        raise ConfigError("rememberer asks by a prompt of its own, and an agent's requests have theirs: use another")


METHOD = Method(
    "rememberer", "REMEMBERER", rememberer, trains=False, colour="#e69f00", learned_from=load_training_tasks,
    sections={"rememberer": RemembererConfig}, validate=validate_actor,
    metrics=(  # of the table as it was read
        ("known", "share", "steps whose exact situation has a record",
         "rises in training; low on a panel of new situations"),
        ("table/records", "situations", "kept", "levels off, or at capacity"),
        ("table/actions", "entries", "actions of all situations", "a few for each situation"),
        ("table/updates", "updates", "of the entries that are left",
         "far above `table/actions`; else each value is a single return"),
        ("table/q_max", "reward", "highest Q", "inside the range of returns"),
        ("table/q_min", "reward", "lowest Q", "inside the range of returns"),
    ),
)  # fmt: skip
