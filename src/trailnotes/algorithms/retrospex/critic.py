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

from trailnotes.algorithms.retrospex.measure import estimate_auc
from trailnotes.algorithms.retrospex.network import CriticNetworks, EmbeddingEncoder, GruEncoder
from trailnotes.algorithms.retrospex.training import IQL
from trailnotes.algorithms.retrospex.transitions import (
    Transition,
    compute_fingerprint,
    read_games,
    read_transitions,
    select_held_out_tasks,
)
from trailnotes.algorithms.retrospex.vocabulary import Vocabulary
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, RunError
from trailnotes.memory.remote import normalize_embedder_name
from trailnotes.memory.retrieval import load_file_embedder
from trailnotes.runs.console import ProgressBar
from trailnotes.seeds import derive_seed
from trailnotes.storage import checkpoint
from trailnotes.storage.parsing import parse_json
from trailnotes.storage.records import task_to_json

LEARNING_SETTINGS = (
    "reward", "failure", "embed_size", "hidden_size", "encoder", "expectile", "gamma", "target_rate", "lr",
    "batch_size", "epochs", "held_out",
)  # fmt: skip
"""The keys of `retrospex` that a critic depends on; the others say how it is used."""

JUDGE_BATCH_SIZE = 512
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Critic:
    """A trained critic. Reads the instruction, the newest observation, and actions."""

    networks: CriticNetworks
    about: Mapping[str, Any]  # settings, data, as in critic.json
    figures: Mapping[str, Any]  # losses and held-out figures, as in critic.json

    @torch.no_grad()
    def predict_values(
        self, tasks: Sequence[str], observations: Sequence[str], actions: Sequence[str]
    ) -> tuple[Floats, Floats]:
        """Target Q(s, a) and V(s) of n rows: (n,), (n,), in the unit of the rewards."""
        return _predict_values(self.networks, tasks, observations, actions)

    def compute_advantages(self, task: str, observation: str, actions: Sequence[str], clip: float = 0.0) -> list[float]:
        """Q(s, a) - V(s) of each action, cut to [-clip, clip] unless `clip` is 0."""
        q, v = self.predict_values([task] * len(actions), [observation] * len(actions), actions)
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
    kept = select_held_out_tasks((step.task_id for step in data), settings.held_out, config.run.seed)
    about = _describe_critic(config, data, kept)
    if (out / "critic.json").is_file():
        critic = load_critic(out, config.memory.embedder)
        _require_same_critic(critic.about, about, out)
        return critic
    seen = [step for step in data if step.task_id not in kept]
    vocabulary = _build_vocabulary(seen) if settings.encoder == "gru" else Vocabulary(())
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    networks = _build_networks(about, vocabulary, config.memory.embedder)
    figures = _train_epochs(IQL(networks, settings, config.run.seed), seen, about, out / "checkpoints")
    held_out = [step for step in data if step.task_id in kept]
    figures |= evaluate_held_out(networks, held_out, confidence=config.eval.confidence, seed=config.run.seed)
    out.mkdir(parents=True, exist_ok=True)
    save_file(networks.state_dict(), out / "critic.safetensors")
    checkpoint.write_json(out / "vocabulary.json", list(vocabulary.known))
    sources = {"data": [str(place) for place in places], "games": [task_to_json(game) for game in read_games(places)]}
    checkpoint.write_json(out / "critic.json", {"about": about, **sources, "figures": figures})
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return Critic(networks, about, figures)


def load_critic(path: Path, embedder: str = "") -> Critic:
    """Load the critic in a directory, which may be a stranger's: `embedder` is as `named` of `load_file_embedder`.

    Raises:
        ConfigError: there is none, or it is damaged, or as `load_file_embedder`.
    """
    try:
        record = parse_json((path / "critic.json").read_text(encoding="utf-8"))
        vocabulary = Vocabulary(parse_json((path / "vocabulary.json").read_text(encoding="utf-8")))
        networks = _build_networks(record["about"], vocabulary, embedder)
        networks.load_state_dict(load_file(path / "critic.safetensors"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} holds no critic ({error.filename} is missing): train one with "
                          "`trailnotes critic`") from error  # fmt: skip
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"the critic in {path} is damaged ({error}): delete it and train it again") from error
    return Critic(networks, record["about"], record["figures"])


def evaluate_held_out(
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
    q, v = _predict_values(networks, *columns)
    for name, scores in {"auc_q": q, "auc_advantage": q - v}.items():
        for suffix, groups in {"": None, "_same_task": [step.task_id for step in steps]}.items():
            found = estimate_auc(scores.tolist(), won, episodes, groups, confidence=confidence, seed=seed)
            figures[name + suffix] = asdict(found) if found else None
    return figures


def _describe_critic(config: Config, data: Sequence[Transition], kept: frozenset[str]) -> dict[str, Any]:
    """All that makes one critic another, JSON-able."""
    episodes = {step.episode: step.success for step in data}
    return {
        "settings": {name: getattr(config.retrospex, name) for name in LEARNING_SETTINGS},
        "seed": config.run.seed,
        "embedder": normalize_embedder_name(config.memory.embedder) if config.retrospex.encoder == "embedding" else "",
        "transitions": len(data),
        "episodes": len(episodes),
        "episodes_won": sum(episodes.values()),
        "held_out_tasks": sorted(kept),
        "fingerprint": compute_fingerprint(data),
    }


def _require_same_critic(found: Mapping[str, Any], wanted: Mapping[str, Any], out: Path) -> None:
    changed = [name for name in wanted if found.get(name) != wanted[name]]
    if changed:
        raise ConfigError(f"{out} holds a critic with other {', '.join(changed)}: choose another directory")


def _build_vocabulary(steps: Sequence[Transition]) -> Vocabulary:
    return Vocabulary.from_texts(text for step in steps for text in (step.task, step.observation, step.action))


def _build_networks(about: Mapping[str, Any], vocabulary: Vocabulary, named: str) -> CriticNetworks:
    """Networks at their start, the same for the same seed."""
    settings = about["settings"]
    hidden, embed = settings["hidden_size"], settings["embed_size"]
    make_reader: Callable[[int], torch.nn.Module]
    if settings["encoder"] == "embedding":
        embedder = load_file_embedder(about["embedder"], named)
        make_reader = lambda num: EmbeddingEncoder(embedder, num, hidden)  # noqa: E731
    else:
        make_reader = lambda num: GruEncoder(vocabulary, num, embed, hidden)  # noqa: E731
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(about["seed"], "critic"))
        return CriticNetworks(make_reader, hidden)


def _train_epochs(iql: IQL, data: Sequence[Transition], about: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """All epochs that are still to come, each saved; the losses of the last."""
    epochs, done, losses = iql.settings.epochs, 0, dict[str, float]()
    if saved := checkpoint.find_latest(root, skip_damaged=True):
        meta = checkpoint.load_meta(saved)
        _require_same_critic(meta["about"], about, root.parent)
        try:
            iql.load_state_dict(load_file(saved / "iql.safetensors"))
        except (ValueError, RuntimeError) as error:
            raise RunError(f"{saved} does not fit this critic ({error}): delete {root}") from error
        done, losses = int(meta["epoch"]), meta["losses"]

    def show(passed: float, facts: Mapping[str, float]) -> None:
        bar.update(passed, facts, f"epoch {math.ceil(passed)}/{epochs}")

    with ProgressBar(epochs, "critic") as bar:
        for epoch in range(done, epochs):
            losses = iql.run_epoch(data, epoch, show)
            meta = {"epoch": epoch + 1, "losses": losses, "about": dict(about)}
            checkpoint.save(root, epoch + 1, lambda path: save_file(iql.state_dict(), path / "iql.safetensors"), meta)
            checkpoint.prune(root, keep_last=1)
    return dict(losses)


@torch.no_grad()
def _predict_values(
    networks: CriticNetworks, tasks: Sequence[str], observations: Sequence[str], actions: Sequence[str]
) -> tuple[Floats, Floats]:
    q, v = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for start in range(0, len(actions), JUDGE_BATCH_SIZE):
        part = slice(start, start + JUDGE_BATCH_SIZE)
        q.append(networks.target_q(tasks[part], observations[part], actions[part]).numpy())
        v.append(networks.value(tasks[part], observations[part]).numpy())
    return np.concatenate(q), np.concatenate(v)
