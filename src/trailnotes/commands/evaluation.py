"""Examining a policy: who it is, how it does on a fixed panel, and a few episodes to read."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.config.schema import OPENAI, LoraConfig
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import ConfigError, RunError
from trailnotes.memory import open_memory
from trailnotes.runs.directory import run_config
from trailnotes.runs.panels import (
    PanelResult,
    Subject,
    panel_of,
    panel_result,
    play_panel,
    write_episodes,
    write_evaluation,
)
from trailnotes.runs.players import RANDOM, random_player
from trailnotes.storage import checkpoint

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.memory.tips import TipMemory
    from trailnotes.policies.base import Policy
    from trailnotes.types import Trajectory


def resolve(model_or_run: Path | str) -> Subject:
    """A run directory (its last whole checkpoint), a checkpoint of one, or whatever `model.path` may be.

    Raises:
        RunError: the run has no checkpoint yet, or a damaged one.
    """
    path = Path(model_or_run)
    root = path / "checkpoints"
    if root.is_dir():
        found = checkpoint.latest(root)
        if found is None:
            raise RunError(f"{path} holds no finished checkpoint yet; train it first, or wait for the first save")
        return _checkpointed(found)
    if (path / "model").is_dir() and (path / checkpoint.META).is_file():
        if problems := checkpoint.verify(path):
            raise RunError(f"{path} is damaged ({problems[0]}); name another checkpoint, or the run directory")
        return _checkpointed(path)
    name = str(model_or_run)
    return Subject(name, RANDOM if name == RANDOM else "start")


def _checkpointed(path: Path) -> Subject:
    run_dir, memory = path.parent.parent, path / "memory.db"
    has_memory = memory.is_file()
    trained = run_config(run_dir) if (run_dir / "config.toml").is_file() else None
    name = trained.algorithm.name if trained else "empo2" if has_memory else "grpo"
    return Subject(str(path / "model"), name, memory if has_memory else None, checkpoint.load_meta(path), trained)


def load_policy(config: Config, subject: Subject, directory: Path | None = None) -> Policy:
    """The policy of `subject` under this config's device and limits; an endpoint's answers are kept in `directory`."""
    if subject.model == RANDOM:
        return random_player(config)
    if subject.model.startswith(OPENAI):
        from trailnotes.policies.openai.policy import OpenAIPolicy

        answers = directory / "answers.jsonl" if directory else None
        return OpenAIPolicy(config, subject.model.removeprefix(OPENAI), answers=answers)
    import torch

    from trailnotes.policies.hf.policy import HFPolicy, load_model

    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    whole = {"path": subject.model, "lora": LoraConfig()}  # adapters are merged into what a checkpoint exports
    model, tokenizer = load_model(config.model.model_copy(update=whole))
    return HFPolicy(
        model,
        tokenizer,
        name=subject.model,
        deterministic=config.run.deterministic,
        max_context_tokens=config.rollout.max_context_tokens,
    )


def evaluate(
    config: Config, model_or_run: Path | str, *, memory: bool | None = None, out: Path | None = None
) -> PanelResult:
    """Play the fixed panel of `config.eval`, with or without the run's memory, and report mean and interval.

    Args:
        config: panel, sampling and environment.
        model_or_run: run directory, checkpoint, model directory or hub name.
        memory: act with the run's memory; None takes `config.eval.memory`.
        out: directory for what `write_evaluation` writes; None writes nothing.

    Raises:
        ConfigError: memory is asked for where there is none, or nothing could be played.
    """
    use_memory = config.eval.memory if memory is None else memory
    subject, episodes = play_subject(config, model_or_run, use_memory=use_memory, directory=out)
    result = panel_result(episodes, config, subject, memory=use_memory)
    if out is not None:
        write_evaluation(out, config, subject, episodes, result)
    return result


def play_subject(
    config: Config, model_or_run: Path | str, *, use_memory: bool = False, directory: Path | None = None
) -> tuple[Subject, list[Trajectory]]:
    """Who was examined, and the episodes of the panel in the order of its tasks; `directory` as in `load_policy`."""
    subject = resolve(model_or_run)
    if use_memory and subject.memory is None:
        raise ConfigError(f"{model_or_run} has no memory to act with: give a run directory of empo2, or drop --memory")
    policy = load_policy(config, subject, directory)

    async def play(memory: TipMemory | None) -> list[Trajectory]:
        with EnvPool(config.env) as pool:
            return await play_panel(policy, pool, panel_of(config), config, memory=memory, seed=config.run.seed)

    if not use_memory or subject.memory is None:
        return subject, asyncio.run(play(None))
    with closing(open_memory(None, config.memory)) as memory:
        memory.restore(subject.memory)
        return subject, asyncio.run(play(memory))


# -- a few episodes to read


def rollout(config: Config, model_or_run: Path | str | None = None, *, out: Path | None = None) -> list[Trajectory]:
    """Play `rollout.num_tasks` tasks of the training split once each, to be read; optionally written as JSONL."""
    config = replace_eval(config, split=config.train.split, num_tasks=config.rollout.num_tasks)
    _, episodes = play_subject(config, model_or_run or config.model.path)
    if out is not None:
        write_episodes(episodes, out)
    return episodes


def replace_eval(config: Config, **changes: Any) -> Config:
    """The config with other settings of the panel."""
    return config.model_copy(update={"eval": config.eval.model_copy(update=changes)})
