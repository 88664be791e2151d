"""Policies to evaluate or train: of a run, of any other model, of an endpoint, or random."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trailnotes.config.model_schema import OPENAI_PREFIX, LoraConfig, require_model_name
from trailnotes.config.schema import Config
from trailnotes.errors import PolicyError, RunError
from trailnotes.policies.base import OwnedPolicy, Policy, TrainedPolicy
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.conversation import parse_listed_actions
from trailnotes.runs.directory import load_run_config
from trailnotes.storage import checkpoint
from trailnotes.types import Message, Sampling, StrPath, derive_seed

RANDOM = "random"  # as `model.path`: draws from the actions that the turn lists


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """Model under evaluation, with the memory, the usage and the settings of its run."""

    model: str
    name: str
    memory: Path | None = None
    spent: Mapping[str, float] = field(default_factory=dict)  # the counters of its checkpoint
    trained: Config | None = None  # the settings of that run


@contextmanager
def open_evaluated_model(model_or_run: StrPath) -> Iterator[EvaluatedModel]:
    """Open a run directory (its last whole checkpoint), a checkpoint, or any `model.path`.

    The checkpoint stays inside the block, even if the run trains on and keeps fewer.
    """
    require_model_name(str(model_or_run))
    path = Path(model_or_run)
    if (path / "checkpoints").is_dir():
        with checkpoint.hold_latest(path / "checkpoints") as saved:
            if saved is None:
                raise RunError(f"{path} holds no finished checkpoint yet; train it first, or wait for the first save")
            yield _read_checkpoint(saved)
    elif checkpoint.is_checkpoint(path):
        with checkpoint.hold_checkpoint(path):
            if problems := checkpoint.verify(path):
                raise RunError(f"{path} is damaged ({problems[0]}); name another checkpoint, or the run directory")
            yield _read_checkpoint(path)
    else:
        name = os.fspath(model_or_run)
        with checkpoint.hold_checkpoint(path.parent):  # where it is of one
            yield EvaluatedModel(name, RANDOM if name == RANDOM else "start")


def _read_checkpoint(path: Path) -> EvaluatedModel:
    run_dir, memory = path.parent.parent, path / "memory.db"
    trained = load_run_config(run_dir) if (run_dir / "config.toml").is_file() else None
    return EvaluatedModel(
        str(path / "model"), trained.algorithm.name if trained else "trained model",
        memory if memory.is_file() else None, checkpoint.load_meta(path), trained,
    )  # fmt: skip


@contextmanager
def open_policy(config: Config, subject: EvaluatedModel, directory: Path | None = None) -> Iterator[Policy]:
    with closing(load_policy(config, subject, directory)) as policy:
        yield policy


def load_policy(config: Config, subject: EvaluatedModel, directory: Path | None = None) -> OwnedPolicy:
    """Load the policy of `subject` under `config`; an endpoint's answers are kept in `directory`."""
    if subject.model == RANDOM:
        return RandomPolicy(config)
    if subject.model.startswith(OPENAI_PREFIX):
        from trailnotes.policies.openai import OpenAIPolicy

        answers = directory / "answers.jsonl" if directory else None
        return OpenAIPolicy(config, subject.model.removeprefix(OPENAI_PREFIX), answers=answers)
    whole = {"path": subject.model, "lora": LoraConfig()}  # nothing is trained
    acting = config.model_copy(update={"model": config.model.model_copy(update=whole)})
    return build_model_policy(acting, directory=directory)


def load_endpoint_author(config: Config, directory: Path) -> OwnedPolicy | None:
    """Load the model of the endpoint that `algorithm.author` names, which keeps its answers in `directory`."""
    author = config.algorithm.author
    if not author.startswith(OPENAI_PREFIX):
        return None
    return load_policy(config, EvaluatedModel(author, "author"), directory / "author")


def build_model_policy(
    config: Config, model: Any = None, *, trains: bool = False, connects: Sequence[Any] = (),
    directory: Path | None = None,
) -> TrainedPolicy:  # fmt: skip
    """Build the policy of `model.path` with the engine of the config; a given `model` acts in this process.

    With `trains` a learner hands over its weights before the first sample. `connects` leads to engines on a cluster;
    `directory` keeps a server's completions.
    """
    if config.is_hosted and model is None:
        from trailnotes.policies.tinker import TinkerPolicy
        from trailnotes.web.tinker import TinkerServer

        server = TinkerServer(config.learner, directory / "tinker.jsonl" if directory else None)
        return TinkerPolicy(config, server, directory)
    if config.engine.name == "vllm" and model is None:
        from trailnotes.policies import vllm

        return vllm.make_vllm_policy(config, trains=trains, connects=connects, directory=directory)
    import torch

    from trailnotes.policies.hf.policy import HFPolicy, load_model, load_tokenizer
    from trailnotes.runs.estimate.footprint import has_room_to_fold

    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    loaded, tokenizer = load_model(config.model) if model is None else (model, load_tokenizer(config.model))
    engine = config.engine
    if engine.fold_adapters and not has_room_to_fold(config):
        engine = engine.model_copy(update={"fold_adapters": False})
    return HFPolicy(
        loaded, tokenizer, name=config.model.path, deterministic=config.run.deterministic,
        engine=engine, max_context_tokens=config.rollout.max_context_tokens,
        template_options=config.model.template_options,
    )  # fmt: skip


class RandomPolicy(ScriptedPolicy):
    """Draws uniformly from the listed actions, by `run.seed`, the seed of the draw and the conversation.

    Its tokens are bytes: the caps of `config.rollout` must leave room for the lists.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(str, name=RANDOM)
        self._config = config

    def answer(self, messages: Sequence[Message], sampling: Sampling) -> str:
        actions = parse_listed_actions(messages[-1].content, self._config.rollout.style)
        if not actions:
            raise PolicyError(
                'model.path = "random" draws from the actions that a turn lists, here none: set rollout.show_actions = '
                "true, and have the environment offer them (env.options.actions, or Observation.actions)"
            )
        conversation = "\n".join(message.content for message in messages)
        return random.Random(derive_seed(self._config.run.seed, sampling.seed, conversation)).choice(actions)
