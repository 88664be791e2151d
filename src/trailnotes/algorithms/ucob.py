"""UCOB: where members with tips and without meet the same state, the one that earned more teaches the other context.

Source: "UCOB: Learning to Utilize and Evolve Agentic Skills via Credit-Aware On-Policy Bidirectional Self-Distillation"
(arXiv 2606.29502) and its release (TU2021/UCOB, d38292c). The update is that of GiGPO on mixed groups, plus lessons.
See docs/algorithms/ucob.md for the formula, every metric, and where this departs from the release.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trailnotes.algorithms.empo2 import draw_modes
from trailnotes.algorithms.gigpo import GigpoConfig, compute_two_level_advantages, term_metrics
from trailnotes.algorithms.opsd import Array, log_ratio, rebuild_with_tips
from trailnotes.config.methods import Method
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.section import Section, key
from trailnotes.learner.credit.steps import Visits, collect_visits
from trailnotes.learner.samples import anchor_sample
from trailnotes.types import NO_OP, Completion, Sample, TokenIds, TrajectoryGroup

if TYPE_CHECKING:
    from trailnotes.runs.iteration import Iteration

# Of the release's ALFWorld script (d38292c)
MARGIN = 0.05  # least gap of returns, as a share of the highest score
TAU = 0.2  # a lesson weighs its gap over this, ...
WEIGHT_MAX = 2.0  # ... and at most this
MAX_PAIRS = 2  # lessons at one state, the largest gaps first
BETA = 5.0  # steepness of the gate of a token


class UcobConfig(Section):
    """UCOB: lessons between members with tips and without that met the same state; advantages as of [gigpo]."""

    coefficient: float = key(0.1, "weight of the lessons; 0 is GiGPO on mixed groups", "UCOB release d38292c", ge=0)


async def ucob(iteration: Iteration) -> None:
    config, options, memory = iteration.config, iteration.config.section(UcobConfig), iteration.prompt_memory
    gigpo = config.section(GigpoConfig)
    assert memory is not None
    tasks = iteration.tasks()
    # Members with tips train with them: here lessons carry over what they know, not the removal of tips.
    settings = config.section(Empo2Config).model_copy(update={"q_off_policy": 0.0})
    modes = draw_modes(settings, len(tasks), config.rollout.group_size, iteration.rng("modes"))
    groups = await iteration.rollout(tasks, modes)
    # Before this iteration adds tips; what members with tips read needs no second search.
    with_tips = await rebuild_with_tips(
        iteration.policy, groups, config, lambda t: memory if t.mode == "plain" else None
    )
    written = await iteration.write_tips(groups)

    async with iteration.learning():
        groups = iteration.add_novelty(groups)
        terms, advantages, lessons = [], [], list[Lesson]()
        for group, rebuilt, scores in zip(groups, with_tips, iteration.scores(groups), strict=True):
            visits = collect_visits(scores, gigpo.gamma)
            terms.append(compute_two_level_advantages(visits, scores.returns, gigpo))
            advantages.append(terms[-1].sum_by_episode(scores))
            turns = collect_turns(group, rebuilt)
            lessons += find_lessons(visits, turns, group.trajectories[0].max_score)
        iteration.add_metrics("gigpo", term_metrics(terms))

        answers = [replace(lesson.answer, prompt_ids=lesson.prompt) for lesson in lessons]
        rows = [anchor_sample(answer, "lesson", hold=0.0, advantage=1.0) for answer in answers]
        taught, gates = weigh_rows(lessons, rows, iteration.learner.logprobs(rows), options.coefficient)
        iteration.add_metrics("ucob", lesson_metrics(lessons, gates))
        samples = [*iteration.samples(groups, advantages), *taught]
        samples += [*iteration.anchor_samples(written, groups), *iteration.author_samples(written, groups)]
        await iteration.end(groups, await iteration.update(samples))


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision under both contexts."""

    answer: Completion  # under the context that was acted on
    has_tips: bool  # whether that context had tips
    other_prompt: TokenIds  # the same history in the other context; () where no tip would have been in it
    valid: bool = True  # its action could be read, and is trained


@dataclass(frozen=True, slots=True)
class Lesson:
    """A better answer from the same state, to be likely in the other context as well."""

    answer: Completion  # of the teacher, under its own context
    from_tips: bool  # whether the teacher acted with tips
    prompt: TokenIds  # of the pupil, in the context that the teacher did not have
    gap: float  # what the teacher earned more from there on, as a share of the game's highest score
    weight: float  # min(gap / TAU, WEIGHT_MAX)


def collect_turns(group: TrajectoryGroup, with_tips: TrajectoryGroup) -> list[Turn]:
    """Collect all decisions of a group, in the order of `Visits`; `with_tips` has tips in its prompts."""
    turns = []
    for trajectory, rebuilt in zip(group.trajectories, with_tips.trajectories, strict=True):
        for i, step in enumerate(trajectory.steps):
            plain, acted = step.plain_prompt_ids, step.completion.prompt_ids
            other = plain
            if acted == plain and i < len(rebuilt.steps):
                other = rebuilt.steps[i].completion.prompt_ids
            valid = step.trained and step.action != NO_OP
            turns.append(Turn(step.completion, acted != plain, other if other != acted else (), valid))
    return turns


def find_lessons(visits: Visits, turns: Sequence[Turn], max_score: float) -> list[Lesson]:
    """Find who teaches whom: at each state the valid step with the highest return, and those that earned less.

    `turns` are the M steps of `visits` as decisions; `max_score` is the unit of `MARGIN` and `TAU`, which is 1 where it
    is not above 0. Returns at most `MAX_PAIRS` lessons of each state, the largest gaps first. The teacher is the
    earliest of equals. A pupil counts whatever its own context was: what is taught is the context that the teacher did
    not have.
    """
    unit = max_score if max_score > 0 else 1.0
    by_state: dict[object, list[int]] = defaultdict(list)
    for index, state in enumerate(visits.states):
        if turns[index].valid:
            by_state[state].append(index)
    lessons = []
    for members in by_state.values():
        best = max(members, key=lambda i: visits.step_scores[i])
        gaps = [(float(visits.step_scores[best] - visits.step_scores[i]) / unit, i) for i in members if i != best]
        # The pupil's prompt is in the context that the teacher did not have.
        prompts = {
            i: turns[i].other_prompt if turns[i].has_tips == turns[best].has_tips else turns[i].answer.prompt_ids
            for i in members
        }
        taught = [
            (gap, prompt)
            for gap, i in sorted(gaps, key=lambda pair: -pair[0])
            if gap > MARGIN and (prompt := prompts[i])
        ]
        for gap, prompt in taught[:MAX_PAIRS]:
            weight = min(gap / TAU, WEIGHT_MAX)
            lessons.append(Lesson(turns[best].answer, turns[best].has_tips, prompt, gap, weight))
    return lessons


def weigh_rows(
    lessons: Sequence[Lesson], rows: Sequence[Sample], scored: Sequence[Sequence[float]], coefficient: float
) -> tuple[list[Sample], list[Array]]:
    """Weigh each token of a lesson by coefficient * weight * gate.

    The gate is sigmoid(BETA (log pi_teacher - log pi_pupil)), each under its own context; `scored` has the latter for
    each row now. Returns the rows with these advantages, and the gates of their n tokens. At the first step the
    gradient of the clipped surrogate is that of the release's sampled loss, gate * (log pi_teacher - log pi_pupil).
    """
    taught, gates = [], []
    for lesson, row, logprobs in zip(lessons, rows, scored, strict=True):
        positions = np.flatnonzero(row.loss_mask)
        ratios = log_ratio(lesson.answer.logprobs, np.array(logprobs)[positions])
        gates.append((1 + np.tanh(BETA * ratios / 2)) / 2)  # the sigmoid, which never overflows
        advantages = np.zeros(len(row.token_ids))
        advantages[positions] = coefficient * lesson.weight * gates[-1]
        taught.append(replace(row, advantages=tuple(advantages.tolist()), behavior_logprobs=tuple(logprobs)))
    return taught, gates


def lesson_metrics(lessons: Sequence[Lesson], gates: Sequence[Array]) -> dict[str, float]:
    """Measure the lessons of an iteration; means are 0 of none."""
    if not lessons:
        return {"lessons": 0.0, "from_tips": 0.0, "gap": 0.0, "gate": 0.0}
    from_tips, gaps = [lesson.from_tips for lesson in lessons], [lesson.gap for lesson in lessons]
    means = float(np.mean(from_tips)), float(np.mean(gaps)), float(np.mean(np.concatenate(gates)))
    return {"lessons": float(len(lessons)), **dict(zip(("from_tips", "gap", "gate"), means, strict=True))}


METHOD = Method(
    "ucob", "UCOB", ucob, trains=True, memory=True, colour="#7a5195",
    sections={"ucob": UcobConfig, "gigpo": GigpoConfig, "empo2": Empo2Config},
    metrics=(  # 0 without lessons
        ("ucob/lessons", "pairs", "a teacher and a pupil that met the same state",
         "0 in the first iteration, then a few of each game"),
        ("ucob/from_tips", "share", "lessons whose teacher acted with tips", "above 1/2: tips help"),
        ("ucob/gap", "share of the highest score", "mean of what the teacher earned more", ""),
        ("ucob/gate", "", "mean gate of the taught tokens", "1/2: both contexts agree; above: the pupil lacks it"),
    ),
)  # fmt: skip
