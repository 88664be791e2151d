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


Trial = list[TrajectoryGroup]  # a task's groups by episode, 0 to K - 1, each of the same members
WrittenTips = dict[int, "WrittenTip"]  # by `id` of the trajectory that it is about


async def lamer(iteration: Iteration) -> None:
    config, options = iteration.config, iteration.config.section(LamerConfig)
    normalize_std = config.algorithm.normalize_std
    rounds = [await iteration.rollout(iteration.tasks())]
    trials: list[Trial] = [[group] for group in rounds[0]]
    written: WrittenTips = {}
    for episode in range(1, options.episodes):
        if not trials:
            break
        tips = await iteration.write_tips([trial[-1] for trial in trials], f"tips-{episode}")
        written |= {id(tip.trajectory): tip for tip in tips}
        rounds.append(await sample_next_episode(iteration, trials, written, f"rollout-again-{episode}"))
        trials = extend_trials(trials, rounds[-1])

    async with iteration.learning():
        rated = [iteration.add_novelty(groups) for groups in rounds]  # each before the next is counted
        played = list(chain(*rated))
        trials, written = replace_trajectories(list(chain(*rounds)), played, trials, written)
        iteration.add_metrics("tips", compute_tip_metrics(list(written.values())))
        iteration.add_metrics("lamer", success_by_episode(trials))
        scores = iter(iteration.scores(list(chain(*trials))))
        worth = [discount_across_episodes([next(scores) for _ in trial], options.gamma) for trial in trials]
        advantages = [group_advantages(episode, config.algorithm) for trial in worth for episode in trial]
        samples = iteration.samples(list(chain(*trials)), advantages)
        for trial, episodes in zip(trials, worth, strict=True):
            credit = [group_relative(episode.returns, normalize_std).tolist() for episode in episodes[1:]]
            samples += build_tip_samples(trial, credit, written, config.loss.kl)
        metrics = await iteration.update([*samples, *iteration.anchor_samples(list(written.values()), played)])
        await iteration.end(played, metrics)


async def sample_next_episode(
    iteration: Iteration, trials: Sequence[Trial], written: WrittenTips, purpose: str
) -> list[TrajectoryGroup]:
    """Sample the next episode of each trial, in which each member reads its own earlier tips alone."""
    modes: list[list[Mode]] = [["on_policy_tips"] * iteration.config.rollout.group_size for _ in trials]
    embedder = iteration.embedder()
    with ExitStack() as opened:

        def memory_of(row: int, member: int) -> TipMemory:
            own = [t for group in trials[row] for t in group.trajectories if t.member == member]
            memory = opened.enter_context(open_memory(None, iteration.config.memory, embedder=embedder))
            memory.add([tip for t in own if id(t) in written for tip in written[id(t)].tips])
            return memory

        tasks = [trial[0].task for trial in trials]
        return await iteration.rollout(tasks, modes, memory_of=memory_of, purpose=purpose)


def extend_trials(trials: Sequence[Trial], groups: Sequence[TrajectoryGroup]) -> list[Trial]:
    """Extend the trials by their next episodes, with the members that finished all episodes.

    A task of which a group failed is left out; a task that is twice in the batch loses both, which nothing tells apart.
    """
    before, after = (Counter(group.task.id for group in some) for some in ([trial[0] for trial in trials], groups))
    whole = {task_id for task_id in before if before[task_id] == after[task_id]}
    following, extended = (group for group in groups if group.task.id in whole), []
    for trial in ([*trial, next(following)] for trial in trials if trial[0].task.id in whole):
        members = set.intersection(*({t.member for t in group.trajectories} for group in trial))
        extended.append(
            [TrajectoryGroup(g.task, tuple(t for t in g.trajectories if t.member in members)) for g in trial]
        )
    return extended


def replace_trajectories(
    groups: Sequence[TrajectoryGroup], rated: Sequence[TrajectoryGroup], trials: Sequence[Trial], written: WrittenTips
) -> tuple[list[Trial], WrittenTips]:
    """Replace the trajectories of `groups` by those of `rated` in the trials and their tips."""
    pairs = zip(groups, rated, strict=True)
    new = {id(old): t for a, b in pairs for old, t in zip(a.trajectories, b.trajectories, strict=True)}
    trials = [[TrajectoryGroup(g.task, tuple(new[id(t)] for t in g.trajectories)) for g in trial] for trial in trials]
    return trials, {id(new[author]): tip for author, tip in written.items()}


def build_tip_samples(
    trial: Trial, credit: Sequence[Sequence[float]], written: WrittenTips, hold: float
) -> list[Sample]:
    """Build a training row for each tip of a trial of K groups of N members.

    `credit` (K - 1, N) holds the advantages of the episodes after each tip, `hold` the coefficient of its KL. With
    `rollout.max_async_iterations` the ratio is to the weights that wrote the tip.
    """
    return [
        anchor_sample(written[id(author)].completion, "tip", hold, advantage)
        for group, row in zip(trial, credit, strict=False)  # nothing is written after the last episode
        for author, advantage in zip(group.trajectories, row, strict=True)
        if id(author) in written and written[id(author)].completion.token_ids
    ]


def success_by_episode(trials: Sequence[Trial]) -> dict[str, float]:
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
    count_episodes=lambda config, planned: planned * config.section(LamerConfig).episodes,
    metrics=(("lamer/success/EPISODE", "share", "members that reached the goal in the episode of that index",
              "rises from episode to episode"),),
)  # fmt: skip
