"""Rehearsal of a training run: in every update it anchors conversations of games outside all panels.

The initial model records them before training, or a file has them, such as an environment's scripted episodes.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

from trailnotes.config.methods import TIPS_ONLY_METHOD, resolve_method
from trailnotes.config.methods_schema import AlgorithmConfig
from trailnotes.config.model_schema import LearnerConfig, LoraConfig
from trailnotes.config.schema import Config, EvalConfig, TrainConfig
from trailnotes.config.toml import RUNTIME_KEYS, diff_configs, is_within
from trailnotes.envs.tasks import load_panel, load_tasks, validate_rehearsal_tasks
from trailnotes.errors import ConfigError
from trailnotes.gateway.pool import open_pool
from trailnotes.policies.chat import ChatFormat
from trailnotes.reporting.terminal import ProgressBar
from trailnotes.rollout.conversation import CountTokens, build_reflection_messages, replay_conversation
from trailnotes.rollout.tips import select_usable
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.runs.directory import RunDir, has_begun, load_run_config
from trailnotes.runs.load_policy import open_evaluated_model, open_policy
from trailnotes.runs.loop import run_to_end
from trailnotes.runs.signals import explain_interrupt
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes.storage.demonstrations import (
    Demonstration,
    list_assistant_turns,
    read_demonstrations,
    write_demonstrations,
)
from trailnotes.storage.files import completion_from_json, read_jsonl, trajectory_from_json
from trailnotes.types import Message, Sample, Trajectory

REHEARSAL_DIR, REHEARSAL_FILE = "rehearsal", "rehearsal.jsonl"
CHANGEABLE_KEYS = (*RUNTIME_KEYS, "run.name", "run.trackers")


class Rehearsal:
    """Conversations of a rehearsal as rows of the learner; `ConfigError` if none fits the context."""

    def __init__(self, config: Config, path: Path, chat: ChatFormat) -> None:
        settings = config.rehearsal
        self._num_rows = settings.rows
        self._kinds: dict[str, list[Sample]] = {}
        for each in read_rehearsal(config, path):
            ids, mask = chat.encode_with_mask(each.messages, each.taught)
            imitate = settings.imitate if each.helped else 0.0
            if any(mask) and len(ids) <= config.rollout.max_context_tokens and (settings.hold or imitate):
                nothing = (0.0,) * len(ids)
                row = Sample(
                    tuple(ids), tuple(mask), nothing, nothing, role="rehearsal", hold=settings.hold, imitate=imitate
                )
                self._kinds.setdefault(each.kind, []).append(row)
        if not self._kinds:
            which = "none" if settings.hold else "none that helped (rehearsal.hold = 0)"
            raise ConfigError(f"{path}: {which} fits rollout.max_context_tokens = {config.rollout.max_context_tokens}")

    def sample_rows(self, rng: random.Random) -> list[Sample]:
        """Sample `rehearsal.rows` rows for one update, evenly over the kinds while they last."""
        kinds = rng.sample([*self._kinds.values()], len(self._kinds))
        rounds = zip_longest(*(rng.sample(kind, len(kind)) for kind in kinds))
        return [row for each in rounds for row in each if row is not None][: self._num_rows]


def find_rehearsal(config: Config, run_dir: Path) -> Path | None:
    """Find the conversations of a run: its file, or the recording of its initial model; None: no rehearsal."""
    rehearsal = config.rehearsal
    if not resolve_method(config.algorithm.name).writes_tips:
        return None
    if rehearsal.path:
        return Path(rehearsal.path)
    return run_dir / REHEARSAL_DIR / REHEARSAL_FILE if rehearsal.split else None


def read_rehearsal(config: Config, path: Path) -> list[Demonstration]:
    """Read the conversations of a file, and refuse games that are trained on or evaluated."""
    rehearsed = read_demonstrations(path, "rehearsal.path" if config.rehearsal.path else "rehearsal")
    games = {demonstration.task.id: demonstration.task for demonstration in rehearsed if demonstration.task}
    validate_rehearsal_tasks([*games.values()], f"rehearsal.path = {str(path)!r}", config)
    return rehearsed


def validate_rehearsal(config: Config) -> None:
    path = find_rehearsal(config, Path())
    if path is not None and config.rehearsal.path:
        read_rehearsal(config, path)
    elif path is not None:
        build_recording_config(config)


# -- recorded by the initial model


def build_recording_config(config: Config) -> Config:
    """Build the settings with which the initial model plays the games to rehearse.

    Settings without influence are at their default, so that a recording stays valid when they change.
    """
    rehearsal = config.rehearsal
    if not rehearsal.split:
        raise ConfigError("rehearsal.split is empty: name the games to record, as in --rehearsal.split spare")
    env = config.env.model_copy(update={"options": {**config.env.options, **rehearsal.options}})
    played = Config().model_copy(
        update={
            "run": config.run.model_copy(update={"trackers": ()}),
            "model": config.model.model_copy(update={"lora": LoraConfig()}),
            "engine": config.engine,
            "learner": LearnerConfig(  # where the model plays, which may cost as much as the training
                **{name: getattr(config.learner, name) for name in ("name", "url", "max_tokens_total")}
            ),
            "endpoint": config.endpoint,
            "env": env,
            "rollout": config.rollout,
            "memory": config.memory,
            "algorithm": AlgorithmConfig(name=TIPS_ONLY_METHOD),
            "eval": EvalConfig(
                split=rehearsal.split, num_tasks=rehearsal.num_tasks, num_samples=1, trials=1,
                temperature=config.rollout.temperature,
            ),
        }
    )  # fmt: skip
    validate_rehearsal_tasks(load_tasks(played, rehearsal.split), f"rehearsal.split = {rehearsal.split!r}", config)
    return played


def prepare_rehearsal(config: Config, run_dir: Path) -> None:
    """Record the rehearsal of a run if it needs one; a run that has begun keeps its own."""
    path = find_rehearsal(config, run_dir)
    if path is not None and not config.rehearsal.path and not (path.is_file() and has_begun(run_dir)):
        with ProgressBar(1.0, "rehearsal") as bar:
            record_rehearsal(config, path.parent, bar)


def record_rehearsal(config: Config, out: Path, progress: ProgressBar | None = None) -> Path:
    """Let the initial model play `rehearsal.split`, trial after trial with its own tips, and record that."""
    path, played = out / REHEARSAL_FILE, build_recording_config(config)
    if (out / "config.toml").is_file():
        changed = diff_configs(load_run_config(out), played)
        if names := [name for name in changed if not is_within(name, CHANGEABLE_KEYS)]:
            raise ConfigError(f"{out} holds a recording with another {', '.join(names)}: set it back, or remove that "
                              "directory, and the same command records anew")  # fmt: skip
    if not path.is_file():
        with explain_interrupt(f"stopped while recording; {out} keeps all finished work: the same command continues"):
            _play_recording(played, out, path, progress)
        gc.collect()  # the model is in reference cycles, and a training that follows needs its memory at once
    return path


def _play_recording(config: Config, out: Path, path: Path, progress: ProgressBar | None) -> None:
    with (
        open_evaluated_model(config.model.path) as subject,
        RunDir.open(out, config, allow_change=CHANGEABLE_KEYS) as directory,
        open_policy(config, subject, out) as policy,
    ):

        async def play() -> None:
            with open_pool(config.env) as pool:
                run = AdaptationRun(config, directory, policy, policy, pool, subject, progress)
                await resolve_method(TIPS_ONLY_METHOD).load()(run)

        run_to_end(play())
        write_demonstrations(iter_recorded_demonstrations(config, out, policy.count_tokens), path)


def iter_recorded_demonstrations(config: Config, run_dir: Path, count_tokens: CountTokens) -> Iterator[Demonstration]:
    """Iterate over an adaptation's episodes, as they were acted, and its tips, as they were asked for.

    An episode helped if it was won, or if the next trial at its game earned more; a tip, if the next trial was won or
    earned more, or, where there is none, if its episode was won.
    """
    phases = run_dir / "phases"
    order = {task.id: index for index, task in enumerate(load_panel(config))}  # in which tips were asked for
    trials: list[list[Trajectory]] = []
    for trial in range(config.eval.trials + 1):
        records = read_jsonl(phases / f"trial-{trial}.episodes.jsonl")
        ended = [t for t in map(trajectory_from_json, records) if t.outcome != "error"]
        trials.append(sorted(ended, key=lambda t: order[t.task.id]))
    for trial, (episodes, later) in enumerate(zip(trials, [*trials[1:], []], strict=True)):
        tips = {record["index"]: record for record in read_jsonl(phases / f"trial-{trial}.notes.jsonl")}
        for index, episode in enumerate(select_usable(episodes)):
            (*_, conversation) = replay_conversation(episode, config.rollout, config.memory, count_tokens)
            following = [each for each in later if each.task.id == episode.task.id]
            better = any(each.episode_return > episode.episode_return for each in following)
            acted = tuple(conversation.acting)
            yield Demonstration(
                acted, list_assistant_turns(acted), episode.task, f"trial-{trial}", episode.success or better
            )
            tip = completion_from_json(tips[index])
            if tip.token_ids:  # else there was no room for any
                request = build_reflection_messages(episode, config.rollout, config.memory, count_tokens)
                answer = Message("assistant", tip.text, tip.token_ids)
                used = better or any(each.success for each in following) if following else episode.success
                yield Demonstration((*request, answer), frozenset({len(request)}), episode.task, "tip", used)


def read_recording_usage(out: Path) -> dict[str, float]:
    lines = [*read_jsonl(out / "metrics.jsonl")]
    return {name: lines[-1][name] for name in TABLE_FIELDS} if lines else {}


def require_remaining_budget(train: TrainConfig, spent: Mapping[str, float]) -> None:
    if train.compute_progress(spent) >= 1.0:
        raise ConfigError(
            f"recording the rehearsal takes {spent['env_steps']:,.0f} environment steps and "
            f"{spent['tokens_generated']:,.0f} tokens, and leaves nothing to train: raise train.max_env_steps and "
            "train.max_tokens, or lower rehearsal.num_tasks"
        )
