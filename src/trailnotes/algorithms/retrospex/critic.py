"""A critic on disk: trained there epoch by epoch, measured on tasks that it has not seen, loaded to judge actions.

::

    critic.safetensors   the networks
    vocabulary.json      the words that its readers know ([] with an embedder)
    critic.json          how it was made and its held-out figures; written last: where it is, the rest is whole
    checkpoints/         only while it trains
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trailnotes.algorithms.retrospex.measure import ranking
from trailnotes.algorithms.retrospex.network import CriticNetworks, GruReader, VectorReader
from trailnotes.algorithms.retrospex.training import IQL
from trailnotes.algorithms.retrospex.transitions import (
    Transition,
    fingerprint,
    held_out_tasks,
    read_games,
    read_transitions,
)
from trailnotes.algorithms.retrospex.vocabulary import Vocabulary
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, RunError
from trailnotes.memory.remote import identity_of
from trailnotes.memory.retrieval import embedder_for
from trailnotes.runs.console import Bar
from trailnotes.seeds import derive_seed
from trailnotes.storage import checkpoint
from trailnotes.storage.parsing import parse_json
from trailnotes.storage.records import task_to_json

LEARNED = (
    "reward", "failure", "embed_size", "hidden_size", "encoder", "expectile", "gamma", "target_rate", "lr",
    "batch_size", "epochs", "held_out",
)  # fmt: skip
"""The keys of `retrospex` that a critic depends on; the others say how it is used."""

JUDGED_AT_ONCE = 512
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Critic:
    """A trained critic. Reads the instruction, the newest observation, and actions."""

    networks: CriticNetworks
    about: Mapping[str, Any]  # settings, data, as in critic.json
    figures: Mapping[str, Any]  # losses and held-out figures, as in critic.json

    @torch.no_grad()
    def judge(self, tasks: Sequence[str], observations: Sequence[str], actions: Sequence[str]) -> tuple[Floats, Floats]:
        """Target Q(s, a) and V(s) of n rows: (n,), (n,), in the unit of the rewards."""
        return _judge(self.networks, tasks, observations, actions)

    def advantages(self, task: str, observation: str, actions: Sequence[str], clip: float = 0.0) -> list[float]:
        """Q(s, a) - V(s) of each action, cut to [-clip, clip] unless `clip` is 0."""
        q, v = self.judge([task] * len(actions), [observation] * len(actions), actions)
        difference = q - v
        return [float(each) for each in (np.clip(difference, -clip, clip) if clip else difference)]


def train_critic(config: Config, places: Sequence[str | Path], out: Path) -> Critic:
    """Train a critic from the episodes in `places` into `out`, or resume it, or load it if it is finished.

    Args:
        config: `retrospex`, `run.seed`, `run.threads`; `memory.embedder` with `retrospex.encoder = "embedding"`.
        places: run directories, or JSONL files of episodes.
        out: its directory.

    Raises:
        ConfigError: no usable episodes, or `out` holds a critic of other settings or data.
        RunError: a damaged line in an episode file.
    """
    settings = config.retrospex
    data = read_transitions(places, settings.reward, settings.failure)
    kept = held_out_tasks((step.task_id for step in data), settings.held_out, config.run.seed)
    about = _about(config, data, kept)
    if (out / "critic.json").is_file():
        critic = load_critic(out, config.memory.embedder)
        _refuse_another(critic.about, about, out)
        return critic
    seen = [step for step in data if step.task_id not in kept]
    vocabulary = _vocabulary(seen) if settings.encoder == "gru" else Vocabulary(())
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    networks = _build(about, vocabulary, config.memory.embedder)
    figures = _train(IQL(networks, settings, config.run.seed), seen, about, out / "checkpoints")
    held_out = [step for step in data if step.task_id in kept]
    figures |= held_out_figures(networks, held_out, confidence=config.eval.confidence, seed=config.run.seed)
    out.mkdir(parents=True, exist_ok=True)
    save_file(networks.state_dict(), out / "critic.safetensors")
    checkpoint.write_json(out / "vocabulary.json", list(vocabulary.known))
    sources = {"data": [str(place) for place in places], "games": [task_to_json(game) for game in read_games(places)]}
    checkpoint.write_json(out / "critic.json", {"about": about, **sources, "figures": figures})
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return Critic(networks, about, figures)


def load_critic(path: Path, embedder: str = "") -> Critic:
    """Load the critic in a directory, which may be a stranger's: `embedder` is as `named` of `embedder_for`.

    Raises:
        ConfigError: there is none, or it is damaged, or as `embedder_for`.
    """
    try:
        record = parse_json((path / "critic.json").read_text(encoding="utf-8"))
        vocabulary = Vocabulary(parse_json((path / "vocabulary.json").read_text(encoding="utf-8")))
        networks = _build(record["about"], vocabulary, embedder)
        networks.load_state_dict(load_file(path / "critic.safetensors"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} holds no critic ({error.filename} is missing): train one with "
                          "`trailnotes critic`") from error  # fmt: skip
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"the critic in {path} is damaged ({error}): delete it and train it again") from error
    return Critic(networks, record["about"], record["figures"])


def held_out_figures(
    networks: CriticNetworks, steps: Sequence[Transition], *, confidence: float, seed: int
) -> dict[str, Any]:
    """How the critic ranks steps that it has not learned from, by whether their episodes were won.

    ``auc_q`` ranks by Q(s, a), ``auc_advantage`` by Q(s, a) - V(s), which is what rescoring uses; with ``_same_task``
    only steps of one task are compared, so that telling easy tasks from hard ones earns nothing. Each is
    ``{"mean", "low", "high"}``, or None where won or lost steps are missing.
    """
    won, episodes = [step.success for step in steps], [step.episode for step in steps]
    figures: dict[str, Any] = {
        "held_out_steps": len(steps),
        "held_out_episodes": len(set(episodes)),
        "held_out_steps_won": sum(won),
    }
    columns = ([s.task for s in steps], [s.observation for s in steps], [s.action for s in steps])
    q, v = _judge(networks, *columns)
    for name, scores in {"auc_q": q, "auc_advantage": q - v}.items():
        for suffix, groups in {"": None, "_same_task": [step.task_id for step in steps]}.items():
            found = ranking(scores.tolist(), won, episodes, groups, confidence=confidence, seed=seed)
            figures[name + suffix] = asdict(found) if found else None
    return figures


def _about(config: Config, data: Sequence[Transition], kept: frozenset[str]) -> dict[str, Any]:
    """All that makes one critic another, JSON-able."""
    episodes = {step.episode: step.success for step in data}
    return {
        "settings": {name: getattr(config.retrospex, name) for name in LEARNED},
        "seed": config.run.seed,
        "embedder": identity_of(config.memory.embedder) if config.retrospex.encoder == "embedding" else "",
        "transitions": len(data),
        "episodes": len(episodes),
        "episodes_won": sum(episodes.values()),
        "held_out_tasks": sorted(kept),
        "fingerprint": fingerprint(data),
    }


def _refuse_another(found: Mapping[str, Any], wanted: Mapping[str, Any], out: Path) -> None:
    changed = [name for name in wanted if found.get(name) != wanted[name]]
    if changed:
        raise ConfigError(f"{out} holds a critic with other {', '.join(changed)}: choose another directory")


def _vocabulary(steps: Sequence[Transition]) -> Vocabulary:
    return Vocabulary.of(text for step in steps for text in (step.task, step.observation, step.action))


def _build(about: Mapping[str, Any], vocabulary: Vocabulary, named: str) -> CriticNetworks:
    """Networks at their start, the same for the same seed."""
    settings = about["settings"]
    hidden, embed = settings["hidden_size"], settings["embed_size"]
    make_reader: Callable[[int], torch.nn.Module]
    if settings["encoder"] == "embedding":
        embedder = embedder_for(about["embedder"], named)
        make_reader = lambda num: VectorReader(embedder, num, hidden)  # noqa: E731
    else:
        make_reader = lambda num: GruReader(vocabulary, num, embed, hidden)  # noqa: E731
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(about["seed"], "critic"))
        return CriticNetworks(make_reader, hidden)


def _train(iql: IQL, data: Sequence[Transition], about: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """All epochs that are still to come, each saved; the losses of the last."""
    epochs, done, losses = iql.settings.epochs, 0, dict[str, float]()
    if saved := checkpoint.latest(root, skip_damaged=True):
        meta = checkpoint.load_meta(saved)
        _refuse_another(meta["about"], about, root.parent)
        try:
            iql.load_state_dict(load_file(saved / "iql.safetensors"))
        except (ValueError, RuntimeError) as error:
            raise RunError(f"{saved} does not fit this critic ({error}): delete {root}") from error
        done, losses = int(meta["epoch"]), meta["losses"]

    def show(passed: float, facts: Mapping[str, float]) -> None:
        bar.update(passed, facts, f"epoch {math.ceil(passed)}/{epochs}")

    with Bar(epochs, "critic") as bar:
        for epoch in range(done, epochs):
            losses = iql.run_epoch(data, epoch, show)
            meta = {"epoch": epoch + 1, "losses": losses, "about": dict(about)}
            checkpoint.save(root, epoch + 1, lambda path: save_file(iql.state_dict(), path / "iql.safetensors"), meta)
            checkpoint.prune(root, keep_last=1)
    return dict(losses)


@torch.no_grad()
def _judge(
    networks: CriticNetworks, tasks: Sequence[str], observations: Sequence[str], actions: Sequence[str]
) -> tuple[Floats, Floats]:
    q, v = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for start in range(0, len(actions), JUDGED_AT_ONCE):
        part = slice(start, start + JUDGED_AT_ONCE)
        q.append(networks.target_q(tasks[part], observations[part], actions[part]).numpy())
        v.append(networks.value(tasks[part], observations[part]).numpy())
    return np.concatenate(q), np.concatenate(v)
