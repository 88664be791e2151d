"""Reflexion: after each failure the policy writes a plan, and the next trial at the same task begins with the plans.

Source: "Reflexion: Language Agents with Verbal Reinforcement Learning" (arXiv 2303.11366), algorithm 1. See
docs/algorithms/reflexion.md for every metric, each settled choice, and departures from the paper and its release.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trailnotes.config.methods import Method
from trailnotes.config.schema import Config, MemoryConfig, RolloutConfig
from trailnotes.config.section import Section, key
from trailnotes.errors import ConfigError
from trailnotes.memory import clean_tip
from trailnotes.memory.controls import TipSource, blank_tips, pick_other_namespace
from trailnotes.memory.retrieval import HashingEmbedder
from trailnotes.memory.schema import EmbedderIdentity
from trailnotes.memory.store import StoreBackedMemory, TipStore
from trailnotes.memory.tips import normalize_tip, utc_now
from trailnotes.rollout.conversation import (
    Conversation,
    CountTokens,
    build_opening_messages,
    quoted,
    replay_conversation,
    truncate,
)
from trailnotes.rollout.episode import EpisodeContext, TipsActor
from trailnotes.rollout.tips import CompletionRequest, WrittenTip, compute_tip_metrics, select_usable
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.types import (
    Message,
    Observation,
    Sampling,
    Tip,
    Trajectory,
    TrajectoryGroup,
    derive_seed,
    replace_surrogates,
)

WINDOW: Final = 3  # plans in a prompt, the newest ones (arXiv 2303.11366)


class ReflexionConfig(Section):
    """Reflexion: plans written after failures, per task."""

    max_write_tokens: int = key(256, "decoding limit of a reflection", "Reflexion release 218cf0e", ge=1)
    temperature: float = key(0.0, "sampling temperature of the reflector", "Reflexion release 218cf0e", ge=0)
    max_shown_tokens: int = key(128, "a shown reflection is cut here", ge=4)
    replay_last: bool = key(False, "play solved tasks again in the last trial, so that it is one attempt at each")


async def reflexion(run: AdaptationRun) -> None:
    """Play trial 0, then `eval.trials` trials with plans; a solved task is not played again."""
    config, options = run.config, run.config.section(ReflexionConfig)
    latest: dict[str, TrajectoryGroup] = {}  # of each task; a solved one stays
    solved: set[str] = set()
    with ReflectionMemory(run.directory.memory_path, WINDOW) as memory:
        for trial in range(config.eval.trials + 1):
            phase, again = f"trial-{trial}", options.replay_last and trial == config.eval.trials
            tasks = [task for task in run.tasks if again or task.id not in solved]
            act = (lambda context: PlansActor(context, memory)) if trial else None
            groups = await run.play(phase, tasks, make_actor=act)

            latest |= {group.task.id: group for group in groups if group.task.id not in solved}
            solved |= {group.task.id for group in groups if group.trajectories[0].success}
            written = await write_plans(run, trial, memory, [g for g in groups if g.task.id not in solved])
            memory.add([plan for each in written for plan in each.tips], once=phase)

            counts = {"attempted": len(tasks), "solved": len(solved), "solved_share": len(solved) / len(run.tasks)}
            run.log(phase, groups, **counts, tips=compute_tip_metrics(written), memory=memory.stats())
            so_far = [latest[task.id] for task in run.tasks if task.id in latest]
            run.report(f"solved by trial {trial}" if trial else "trial 0", so_far, memory=trial > 0, trial=trial)
        run.report("final trial only", groups, memory=config.eval.trials > 0)
        run.write_panel(groups if options.replay_last else so_far, memory=config.eval.trials > 0)


async def write_plans(
    run: AdaptationRun, trial: int, memory: ReflectionMemory, failed: Sequence[TrajectoryGroup]
) -> list[WrittenTip]:
    """Write one plan for each failed episode, with the earlier plans of its task in the prompt."""
    config, policy, options = run.config, run.policy, run.config.section(ReflexionConfig)
    episodes = select_usable([group.trajectories[0] for group in failed])
    requests = [
        CompletionRequest(
            build_plan_messages(
                t, memory.search(t.task.id, "", WINDOW), config.rollout, config.memory, policy.count_tokens,
                options.max_shown_tokens,
            ),
            Sampling(
                options.temperature, max_tokens=options.max_write_tokens,
                seed=derive_seed(run.seed("plans", trial), t.task.id, t.member, "plan"),
            ),
            opening=len(build_opening_messages(config.rollout)),
        )
        for t in episodes
    ]  # fmt: skip
    written = []
    for t, completion in zip(episodes, await run.write(f"trial-{trial}", requests), strict=True):
        author: dict[str, Any] = {"model": policy.name, "version": policy.version, "run": config.run.name}
        usable = [completion.text] if clean_tip(completion.text, MAX_PLAN_WORDS) else []
        plans = (Tip(t.task.id, text, "", t.score, t.max_score, step=trial, **author) for text in usable)
        written.append(WrittenTip(t, completion, tuple(plans)))
    return written


_REQUEST: Final = (
    "The episode has ended without success, with a score of {score:g} of {max_score:g}. Do not act any more, and do "
    "not describe the environment. Think about what went wrong, and write a new plan for the next attempt at the same "
    "task: which actions should have been taken instead, in which order. One line, under 100 words."
)
_EXAMPLES: Final = {  # (task, what happened, plan)
    "full": (
        (
            "put a clean mug on the desk",
            "take mug; go to desk; put mug on desk; the episode ended, the mug was dirty",
            "I carried a dirty mug. Next time: take mug, go to sink, clean mug with sink, go to desk, put mug on desk.",
        ),
        (
            "find the measuring tape in the workshop",
            "open drawer 1; open drawer 2; open drawer 1; open drawer 2; out of steps",
            "I opened the same drawers again. Next time: open each once; if empty, go to shelf and take tape.",
        ),
    ),
    "terse": (
        ("find the way through the dusk maze", "north > a dead end .", "dusk : east south east north"),
        ("unlock the boxes of the kelp vault", "west > nothing found", "nothing found"),
    ),
}
_WORDS: Final = {
    "full": {
        "header": "Two examples of a failed attempt and the plan made after it, quoted from other tasks:",
        "example": '- Task: "{}" What happened: "{}" New plan: "{}"',
        "shown": "Your plans for this task, each made after a failed trial, oldest first (quoted; they may be wrong):",
        "previous": "Your plans so far for this task, oldest first (quoted; they failed or were not followed):",
        "plan": '- Trial {}: "{}"',
        "end": "New plan:",
    },
    "terse": {
        "header": "example :", "example": '- " {} " > " {} " > " {} "', "previous": "notes :", "plan": '- " {1} "',
    },
}  # fmt: skip


class PlansActor(TipsActor):
    """An actor that sees the newest plans for its task in the first turn, and none in later ones.

    `eval.show_tips` may replace them.
    """

    def __init__(self, context: EpisodeContext, memory: ReflectionMemory) -> None:
        config, count_tokens = context.config, context.policy.count_tokens
        cap = config.section(ReflexionConfig).max_shown_tokens
        # Two failures may have been followed by the same words; each trial reads its own.
        memory_config = config.memory.model_copy(update={"max_tip_tokens": cap, "repeat_shown": True})

        def introduce(plans: Sequence[Tip]) -> list[str]:
            return [_WORDS["full"]["shown"], *format_plans(plans, config.rollout, count_tokens, cap), ""]

        is_terse = config.rollout.style == "terse"  # in which plans look like other tips
        conversation = Conversation(config.rollout, memory_config, count_tokens, None if is_terse else introduce)
        super().__init__(context, memory, conversation)
        self.plans = memory

    def select_affordable(self, limit: int, observation: Observation, found: Sequence[Tip]) -> Sequence[Tip]:  # noqa: ARG002
        """Return all of them: a window of plans is given as a whole or not at all."""
        return found

    async def find(self, observation: Observation) -> list[Tip]:  # noqa: ARG002 (a task has one window)
        context = self.context
        if context.mode == "plain" or self.num_turns:
            return []
        return self.plans.get_prompt_plans(context.task.id, context.config.eval.show_tips)


def build_plan_messages(
    trajectory: Trajectory, plans: Sequence[Tip], rollout: RolloutConfig, memory: MemoryConfig,
    count_tokens: CountTokens, max_plan_tokens: int,
) -> list[Message]:  # fmt: skip
    """Build the tip-free conversation of a failed episode, its end, two examples, the plans so far, and the request."""
    (*_, conversation) = replay_conversation(trajectory, rollout, memory, count_tokens)
    words, style = _WORDS[rollout.style], rollout.style
    score, most = trajectory.score, trajectory.max_score
    lines = [conversation.format_turn(trajectory.final_observation)]
    if style == "full":
        lines += ["", _REQUEST.format(score=score, max_score=most), ""]
    lines += [words["header"], *(words["example"].format(*example) for example in _EXAMPLES[style])]
    if plans:
        lines += [words["previous"], *format_plans(plans, rollout, count_tokens, max_plan_tokens)]
    lines.append(f"score {score:g} / {most:g} . plan ?" if style == "terse" else words["end"])
    return [*conversation.plain, Message("user", "\n".join(lines))]


def format_plans(
    plans: Sequence[Tip], rollout: RolloutConfig, count_tokens: CountTokens, max_plan_tokens: int
) -> list[str]:
    """Format each plan as quoted data, with the trial that it was written after, counted from 1."""
    line = _WORDS[rollout.style]["plan"]
    return [line.format(plan.step + 1, truncate(quoted(plan.text), max_plan_tokens, count_tokens)) for plan in plans]


MAX_PLAN_WORDS: Final = 300  # of a plan: the released run's longest has 231


class ReflectionMemory(StoreBackedMemory):
    """Plans by task, in a memory file like any other, without eviction; prompts show the newest `window` plans."""

    def __init__(self, path: Path | None, window: int) -> None:
        self.embedder = HashingEmbedder()  # `trailnotes memory search` finds plans by their words
        self.store = TipStore(path, EmbedderIdentity(self.embedder.name, self.embedder.dim))
        self.window = window

    def get_prompt_plans(self, namespace: str, show: TipSource = "own") -> list[Tip]:
        """Return the plans that the task's next attempt begins with: its window, or a control of as many instead."""
        own = self.search(namespace, "", self.window)
        if show == "empty":
            return blank_tips(own)
        if show == "own" or not own:
            return own
        other = pick_other_namespace(self.store, replace_surrogates(namespace))
        return [] if other is None else self.search(other, "", len(own))

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:  # noqa: ARG002 (a task has one window)
        """Return the newest `window` enabled plans of the task, `top_k` at most, the oldest of them first."""
        plans = [plan for plan in self.store.load_tips(replace_surrogates(namespace)) if plan.enabled]
        return plans[max(0, len(plans) - min(self.window, top_k)) :]

    def add(self, tips: Sequence[Tip], *, once: str = "") -> int:
        """Store plans in the order given, cleaned; a repeated text is stored as another plan. `TipMemory.add`."""
        usable = [plan for tip in tips if (plan := normalize_tip(tip, utc_now, MAX_PLAN_WORDS))]
        vectors = self.embedder.embed([tip.text for tip in usable])
        with self.store.transaction():
            if once and not self.store.mark_first_time(once):
                return 0
            for tip, vector in zip(usable, vectors, strict=True):
                self.store.insert(tip, vector)
        return len(usable)


def validate_reflexion(config: Config) -> None:
    if config.eval.num_samples != 1:
        raise ConfigError("reflexion plays a task once in each trial: set eval.num_samples = 1")


METHOD = Method(
    "reflexion", "Reflexion", reflexion, trains=False, colour="#56b4e9",
    sections={"reflexion": ReflexionConfig}, validate=validate_reflexion,
    metrics=(
        ("attempted", "tasks", "played in this trial", "falls as tasks are solved"),
        ("solved", "tasks", "solved so far", "rises"),
        ("solved_share", "share", "`solved` over the tasks of the panel: the cumulative figure", "rises"),
    ),
)  # fmt: skip
