"""What a training takes, before it starts: `trailnotes train --dry-run`.

Usage is extrapolated from one iteration of a shrunk copy, or for a server from episodes that are played without it.
Both are rough: first iterations also fill caches, and episodes change in length as the policy does.
"""

from __future__ import annotations

import random
import resource
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from trailnotes.config.model_schema import OPENAI_PREFIX
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_recorded_tasks, load_training_tasks, select_batch
from trailnotes.errors import ConfigError
from trailnotes.gateway.pool import open_pool
from trailnotes.memory.tipfile import read_tips
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.reporting.terminal import format_duration, format_megabytes
from trailnotes.rollout.conversation import parse_listed_actions
from trailnotes.rollout.groups import GroupRunner
from trailnotes.runs.loop import run_to_end
from trailnotes.runs.preflight import run_preflight
from trailnotes.runs.rehearsal import REHEARSAL_DIR, read_recording_usage, require_remaining_budget
from trailnotes.runs.train import train
from trailnotes.runs.usage import USAGE_FIELDS
from trailnotes.storage.checkpoint import read_json
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Message, StrPath, TokenIds, Trajectory, TrajectoryGroup
from trailnotes.web.ledger import TokenCount

NUM_TRIAL_GAMES = 4  # games of a rehearsal that the shrunk copy plays
NO_USAGE: Mapping[str, float] = {}
BYTES_PER_TOKEN = 4  # of English
TOKENS_PER_MESSAGE = 5  # that a chat template puts around each message
MAX_EPISODES = 8  # that are played in place of a server's


def dry_run(
    config: Config, *, memory: StrPath | None = None, show: Callable[[str], object] = lambda _table: None
) -> str:
    """Estimate the memory of the device, then train one iteration in a temporary directory, and extrapolate."""
    run_preflight(config, None if memory is None else read_tips(memory), machine=False)
    if config.is_hosted:
        return report_hosted(config)
    from trailnotes.learner.ranks import release_torchrun
    from trailnotes.policies.hf.policy import is_downloaded, require_context_length, require_trainable
    from trailnotes.runs.estimate.footprint import estimate_footprint

    is_here = is_downloaded(config.model)
    if is_here:
        require_trainable(config.model)
        require_context_length(config.model, config.rollout.max_context_tokens)
    if footprint := estimate_footprint(config):
        show(footprint.report())
        footprint.require_fit()
    if not is_here:
        release_torchrun(config)
        missing = "time and disk" if footprint else "memory, time and disk"
        return (f"{config.model.path} is not on this machine, and a dry run downloads nothing: {missing} are "
                "unknown; `trailnotes train` downloads it, and `hf download NAME config.json` what the memory "
                "is estimated from\n")  # fmt: skip
    paid = ", and its tips cost what the endpoint charges" if config.algorithm.author.startswith(OPENAI_PREFIX) else ""
    show(f"training one iteration of the run to measure time and disk{paid}; press Ctrl-C twice to stop it\n")
    with tempfile.TemporaryDirectory(prefix="trailnotes-") as name:
        return _extrapolate(config, Path(name), memory)


def _extrapolate(config: Config, path: Path, memory: StrPath | None) -> str:
    copy = shrink_config(config)
    train(copy, path, memory=memory)
    recorded = read_recording_usage(path / REHEARSAL_DIR)
    line, before = split_usage(config, copy, next(read_jsonl(path / "metrics.jsonl")), recorded)
    require_remaining_budget(config.train, before)
    repeats = estimate_iterations(config, line, before)
    (most, kept), free = estimate_disk(config, path, repeats), shutil.disk_usage(Path.cwd()).free
    seconds = float(line["seconds"]) * repeats + before.get("seconds", 0.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in kilobytes
    later = "" if config.train.keep_optimizer else f", {format_megabytes(kept)} MB once it has ended"
    unmeasured = ", without validation" if config.train.eval_every > 1 else ""
    lines = [
        f"everything could be built; one iteration took {line['seconds']:.1f} s and {line['env_steps']:,} env steps",
        f"iterations   about {repeats:,}",
        f"time         about {format_duration(seconds)}{unmeasured}",
        f"memory       {format_megabytes(peak)} MB at the peak of this process",
        f"disk         about {format_megabytes(most)} MB{later} ({format_megabytes(free)} MB are free on this disk)",
    ]
    if before:
        num, spent = count_rehearsal_episodes(config), format_duration(before["seconds"])
        lines.insert(2, f"before them  {num:,} episodes in {spent}")
    if most > free:
        lines.append("the disk is too small: lower train.keep_last, or choose a --run-dir on another disk")
    return "\n".join(lines) + "\n"


# -- usage, from a shrunk copy


def shrink_config(config: Config) -> Config:
    """Shrink a training to one iteration, with few recorded games."""
    changes: dict[str, dict[str, Any]] = {
        "train": {"iterations": 1, "keep_optimizer": True},  # its size is to be measured
        "run": {"name": "dry run", "trackers": ()},
    }
    if count_rehearsal_episodes(config):
        changes["rehearsal"] = {"num_tasks": min(NUM_TRIAL_GAMES, config.rehearsal.num_tasks) or NUM_TRIAL_GAMES}
    sections = {name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    return config.model_copy(update=sections)


def estimate_iterations(config: Config, first: Mapping[str, Any], before: Mapping[str, float] = NO_USAGE) -> int:
    """Estimate the number of iterations from the usage of the `first` one, and of the run `before` it."""

    def is_done(number: int) -> bool:
        spent = {name: before.get(name, 0) + number * value for name, value in first.items() if name in USAGE_FIELDS}
        return config.train.compute_progress({**spent, "iteration": number}) > 1 - 1e-9

    return 1 + bisect_left(range(1, config.train.iterations), True, key=is_done)


def split_usage(
    config: Config, copy: Config, line: Mapping[str, Any], recorded: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Split the copy's usage into its first iteration's and the run's recording.

    `line` is the first of the copy's metrics.jsonl, `recorded` the copy's usage for recording a rehearsal, if any.
    """
    first = {**line, **{name: line[name] - spent for name, spent in recorded.items()}}
    times = count_rehearsal_episodes(config) / count_rehearsal_episodes(copy) if recorded else 0.0
    return first, {name: spent * times for name, spent in recorded.items()}


def estimate_disk(config: Config, copy: Path, repeats: float) -> tuple[float, float]:
    """Estimate the bytes of a training's checkpoints and episodes: the most, during a write, and once it has ended.

    `copy` is the directory of the shrunk run, with one checkpoint; `repeats` is the number of its logs in the run.
    """
    from trailnotes.learner.states import REST, STATE

    (saved,) = (copy / "checkpoints").glob("step-*")
    state = sum(_count_bytes(saved / name) for name in STATE)
    model = _count_bytes(saved) - state
    if not read_json(saved / REST)["steps"]:
        state *= 3  # before the first step it holds the weights, and neither of their two moments
    num = config.train.keep_last + bool(config.train.eval_every)
    episodes = (copy / "trajectories.jsonl").stat().st_size * repeats
    kept = model + state if config.train.keep_optimizer else model
    return (model + state) * (num + 1) + episodes, kept * num + episodes


def _count_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def count_rehearsal_episodes(config: Config) -> int:
    """Count the episodes that a training's initial model records: a trial without tips, and one with them."""
    return 2 * len(load_recorded_tasks(config))


# -- tokens and cost at a server of the Tinker API


class _RandomPlayer(ScriptedPolicy):
    """Draws among the listed actions, and mostly plays to the last step."""

    def __init__(self, config: Config) -> None:
        rng, style = random.Random(config.run.seed), config.rollout.style
        super().__init__(
            lambda messages: rng.choice(parse_listed_actions(messages[-1].content, style) or ["look around"]),
            context_length=config.rollout.max_context_tokens,
        )

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        return (0,) * sum(self.count_tokens(message.content) + TOKENS_PER_MESSAGE for message in messages)

    def count_tokens(self, text: str) -> int:
        return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def report_hosted(config: Config) -> str:
    """Play episodes of the first iteration by random actions, and report the tokens and the cost of the run.

    The estimate is a lower bound: each member plays one episode and is trained on. Tips, validation, forward passes
    over rows, and further episodes of a method are not counted.

    Raises:
        ConfigError: no episode could be played, or `learner.max_tokens_total` allows no iteration.
    """
    seed = config.run.seed
    tasks = select_batch(load_training_tasks(config), config.rollout.num_tasks, seed, 0)[:MAX_EPISODES]

    async def play() -> list[TrajectoryGroup]:
        with open_pool(config.env) as pool:
            runner = GroupRunner(policy=_RandomPlayer(config), pool=pool, memory=None, config=config, seed=seed)
            return await runner.play(tasks, [["plain"]] * len(tasks))

    played = [each for group in run_to_end(play()) for each in group.trajectories if each.steps]
    if not played:
        raise ConfigError("no episode has a step: its environment failed, or raise rollout.max_context_tokens")
    count, episodes = count_tokens(config, played), config.rollout.num_tasks * config.rollout.group_size
    steps = fmean(len(each.steps) for each in played) * episodes
    times = estimate_iterations(config, {"env_steps": steps, "episodes": episodes, "tokens_generated": count.sampled})
    if (most := config.learner.max_tokens_total) and (times := min(times, most // count.total)) == 0:
        raise ConfigError(f"learner.max_tokens_total = {most:,} ends before an iteration, of {count.total:,}: raise it")
    lines = [f"estimate of {config.model.path} at a server, {times:,} iterations, long answers, four bytes for a token"]
    for name, tokens in asdict(count).items():
        lines.append(f"{name:<10} {tokens:,} an iteration, {tokens * times:,} the run")
    lines.append("tips, validation, and forward passes and further episodes of a method are not counted")
    cost = count.compute_cost(config.learner) * times
    lines.append(f"cost       {cost:,.2f}" if cost else "set learner.price_prefill, price_sample and price_train")
    return "\n".join(lines) + "\n"


def count_tokens(config: Config, played: Sequence[Trajectory]) -> TokenCount:
    """Count the tokens of an iteration with episodes as long as `played` and answers of `rollout.max_action_tokens`."""
    turns = fmean(len(each.steps) for each in played)
    sampled = turns * config.rollout.max_action_tokens
    read = fmean(sum(step.completion.num_prompt_tokens for step in each.steps) for each in played)
    read += turns * sampled / 2  # a prompt repeats the answers before it, half of them on average
    length = fmean(each.steps[-1].completion.num_prompt_tokens for each in played) + sampled
    rows = length if config.optim.rows == "auto" else read + sampled
    episodes = config.rollout.num_tasks * config.rollout.group_size
    return TokenCount(round(read * episodes), round(sampled * episodes), round(rows * config.optim.epochs * episodes))
