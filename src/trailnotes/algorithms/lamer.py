"""LaMer: members of a group play a task several times in a row, and write tips in between, each for itself alone.

Source: "Meta-RL Induces Exploration in Language Agents" (arXiv 2512.16848). An episode is worth its own return and the
discounted ones of the episodes after it, so exploring and writing pay if a later episode does. See
docs/algorithms/lamer.md for every metric, what the source settles, and where this departs from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

from trailnotes.config.methods import Method
from trailnotes.config.schema import Config
from trailnotes.config.section import Section, key
from trailnotes.errors import ConfigError
from trailnotes.learner.credit.episodes import discount_across_episodes, group_advantages, group_relative
from trailnotes.learner.samples import anchor_sample
from trailnotes.memory import TipMemory, open_memory
from trailnotes.rollout.tips import WrittenTip, compute_tip_metrics
from trailnotes.types import Mode, Sample, TrajectoryGroup

if TYPE_CHECKING:
    from trailnotes.runs.iteration import Iteration

LAMER = "LaMer, arXiv 2512.16848"


class LamerConfig(Section):
    """LaMer: episodes of a task in a row, with the tips that each member writes in between for itself."""

    episodes: int = key(3, "K, episodes of a task that each member of a group plays in a row", LAMER, ge=1)
    gamma: float = key(0.6, "discount of an episode's return in that of the one before it", LAMER, ge=0, le=1)


Trials = dict[int, list[TrajectoryGroup]]  # by place in the batch: the groups of a task, by episode, 0 to K - 1
WrittenTips = dict[tuple[int, int, int], WrittenTip]  # by place in the batch, member, and episode


async def lamer(iteration: Iteration) -> None:
    config, options = iteration.config, iteration.config.section(LamerConfig)
    normalize_std = config.algorithm.normalize_std
    rounds = [await iteration.rollout(iteration.tasks())]
    written: WrittenTips = {}
    for episode in range(1, options.episodes):
        if not (trials := build_trials(rounds)):
            break
        tips = await iteration.write_tips([trial[-1] for trial in trials.values()], f"tips-{episode}")
        keys = {
            id(t): (place, t.member, episode - 1) for place, trial in trials.items() for t in trial[-1].trajectories
        }
        written |= {keys[id(tip.trajectory)]: tip for tip in tips}
        rounds.append(await sample_next_episode(iteration, trials, written, f"rollout-again-{episode}"))

    async with iteration.learning():
        rounds = [iteration.add_novelty(groups) for groups in rounds]  # each before the next is counted
        played, trials = list(chain(*rounds)), build_trials(rounds)
        iteration.add_metrics("tips", compute_tip_metrics(list(written.values())))
        iteration.add_metrics("lamer", success_by_episode(list(trials.values())))
        scores = iter(iteration.scores(list(chain(*trials.values()))))
        worth = [discount_across_episodes([next(scores) for _ in trial], options.gamma) for trial in trials.values()]
        credit_config = config.algorithm.model_copy(update={"normalize_mean": False})
        advantages = [group_advantages(episode, credit_config) for trial in worth for episode in trial]
        samples = iteration.samples(list(chain(*trials.values())), advantages)
        for (place, trial), episodes in zip(trials.items(), worth, strict=True):
            credit = [group_relative(episode.returns, normalize_std).tolist() for episode in episodes[1:]]
            for number, (group, row) in enumerate(zip(trial, credit, strict=False)):  # none is written after the last
                own = [written.get((place, t.member, number)) for t in group.trajectories]
                samples += build_tip_samples(own, row, config.loss.kl)
        metrics = await iteration.update([*samples, *iteration.anchor_samples(list(written.values()), played)])
        await iteration.end(played, metrics)


async def sample_next_episode(
    iteration: Iteration, trials: Trials, written: WrittenTips, purpose: str
) -> list[TrajectoryGroup]:
    """Sample the next episode of each trial, in which each member reads its own earlier tips alone."""
    modes: list[list[Mode]] = [["on_policy_tips"] * iteration.config.rollout.group_size for _ in trials]
    embedder, places = iteration.embedder(), list(trials)
    # A tip's key is the end of its episode, and must match the beginning of the next one. The memory has no other
    # member's tips.
    settings = iteration.config.memory.model_copy(update={"threshold": -1.0})
    with ExitStack() as opened:

        def memory_of(row: int, member: int) -> TipMemory:
            keys = [(places[row], member, episode) for episode in range(len(trials[places[row]]))]
            memory = opened.enter_context(open_memory(None, settings, embedder=embedder))
            memory.add([tip for key in keys if key in written for tip in written[key].tips])
            return memory

        tasks = [trial[0].task for trial in trials.values()]
        return await iteration.rollout(tasks, modes, memory_of=memory_of, purpose=purpose)


def build_trials(rounds: Sequence[Sequence[TrajectoryGroup]]) -> Trials:
    """Match the groups of all rounds, with the members that finished all episodes.

    A task of which a group failed is left out. If a repeated task loses a group, both are dropped, since groups carry
    no index.
    """
    trials: Trials = {place: [group] for place, group in enumerate(rounds[0])}
    for groups in rounds[1:]:
        before = Counter(trial[0].task.id for trial in trials.values())
        after = Counter(group.task.id for group in groups)
        whole = {task_id for task_id in before if before[task_id] == after[task_id]}
        following = (group for group in groups if group.task.id in whole)
        trials = {
            place: keep_common_members([*trial, next(following)])
            for place, trial in trials.items() if trial[0].task.id in whole
        }  # fmt: skip
    return trials


def keep_common_members(trial: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    members = set.intersection(*({t.member for t in group.trajectories} for group in trial))
    return [TrajectoryGroup(g.task, tuple(t for t in g.trajectories if t.member in members)) for g in trial]


def build_tip_samples(tips: Sequence[WrittenTip | None], advantages: Sequence[float], hold: float) -> list[Sample]:
    """Build a training row for each tip of a group's members, by the advantages of the episodes after it.

    `hold` is the coefficient of its KL. With `rollout.max_async_iterations` the ratio is to the weights that wrote it.
    """
    return [
        anchor_sample(tip.completion, "tip", hold, advantage)
        for tip, advantage in zip(tips, advantages, strict=True) if tip and tip.completion.token_ids
    ]  # fmt: skip


def success_by_episode(trials: Sequence[Sequence[TrajectoryGroup]]) -> dict[str, float]:
    """Measure the share of successful members, as ``success/0`` to ``success/K-1``; {} without any trial."""
    won = [[[t.success for t in group.trajectories] for group in trial] for trial in trials]
    rounds = [list(chain(*episode)) for episode in zip(*won, strict=True)]
    return {f"success/{number}": sum(each) / max(1, len(each)) for number, each in enumerate(rounds)}


def validate_lamer(config: Config) -> None:
    if config.algorithm.dynamic_sampling:
        raise ConfigError("lamer plays tasks from the start: set algorithm.dynamic_sampling = 0")
    if config.algorithm.author != "policy":
        raise ConfigError('lamer trains the author of tips: set algorithm.author = "policy"')


METHOD = Method(
    "lamer", "LaMer", lamer, trains=True, writes=True, colour="#332288", sections={"lamer": LamerConfig},
    validate=validate_lamer, anchors_rows=lambda config: bool(config.loss.kl),  # of the tips that it credits
    metrics=(("lamer/success/EPISODE", "share", "members that reached the goal in the episode of that index",
              "rises from episode to episode"),),
)  # fmt: skip
