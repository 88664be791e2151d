"""A critic on disk: trained by implicit Q-learning, evaluated on held-out tasks, and loaded to judge actions.

::

    critic.safetensors   the networks
    vocabulary.json      the words that its encoders know
    critic.json          settings, data and held-out figures; written last, so its presence says that the rest is whole
    checkpoints/         only while it trains

The networks are those of DRRN (arXiv 1511.04636), as Retrospex (arXiv 2505.11807, release 6d169a4) uses them: a GRU for
each field of text over an embedding that all share, their states concatenated, then two layers.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.learner.states import MasterAdamW
from trailnotes.reporting.intervals import Interval, compute_percentile_interval
from trailnotes.reporting.terminal import ProgressBar
from trailnotes.storage import checkpoint
from trailnotes.storage.files import parse_json, task_to_json
from trailnotes.types import derive_seed
from trailnotes_lab.methods.retrospex import transitions
from trailnotes_lab.methods.retrospex.transitions import RetrospexConfig, Transition

EXPECTILE = 0.7  # tau of the value loss (Retrospex, arXiv 2505.11807)
GAMMA = 0.99  # discount (Retrospex, arXiv 2505.11807)
TARGET_RATE = 0.005  # share of the critic that enters its target after each step
LEARNING_RATE = 1e-4  # of Adam (Retrospex release 6d169a4)
BATCH_SIZE = 128  # transitions in a step (Retrospex release 6d169a4)
HELD_OUT_SHARE = 0.2  # of the tasks, to measure the critic
JUDGE_BATCH_SIZE = 512
Floats = NDArray[np.float32]
EMBED_SIZE = 64  # width of the word embedding
HIDDEN_SIZE = 128  # width of the encoder of a field
CACHE_SIZE = 65536  # encoded texts remembered

Column = Sequence[str]  # one field of B rows


class GruEncoder(nn.Module):
    """A word embedding for all fields, and for each field a GRU whose last state represents the text."""

    def __init__(self, vocabulary: Vocabulary, num_fields: int) -> None:
        super().__init__()
        self._encode = lru_cache(CACHE_SIZE)(vocabulary.encode)
        self.embedding = nn.Embedding(vocabulary.size, EMBED_SIZE)
        self.grus = nn.ModuleList(nn.GRU(EMBED_SIZE, HIDDEN_SIZE, batch_first=True) for _ in range(num_fields))

    def forward(self, texts: Column, field: int) -> Tensor:
        """Encode n texts as (n, HIDDEN_SIZE)."""
        ids = [torch.tensor(self._encode(text)) for text in texts]
        lengths = torch.tensor([len(row) for row in ids])
        padded = self.embedding(nn.utils.rnn.pad_sequence(ids, batch_first=True))
        packed = nn.utils.rnn.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        state: Tensor = self.grus[field](packed)[1][0]
        return state


class FieldNetwork(nn.Module):
    """A network from texts to numbers: an encoder of each field, and `num_heads` times Linear, ReLU, Linear."""

    def __init__(self, vocabulary: Vocabulary, num_fields: int, num_heads: int) -> None:
        super().__init__()
        self.reader = GruEncoder(vocabulary, num_fields)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(num_fields * HIDDEN_SIZE, HIDDEN_SIZE), nn.ReLU(), nn.Linear(HIDDEN_SIZE, 1))
            for _ in range(num_heads)
        )

    def forward(self, *columns: Column) -> Tensor:
        """Compute (B, num_heads) for B rows. A text that is in several rows is encoded once."""
        states = []
        for field, column in enumerate(columns):
            place = {text: index for index, text in enumerate(dict.fromkeys(column))}
            states.append(self.reader(list(place), field)[[place[text] for text in column]])
        joined = torch.cat(states, dim=-1)
        return torch.cat([head(joined) for head in self.heads], dim=-1)


class CriticNetworks(nn.Module):
    """Twin Q(task, observation, action), V(task, observation), and the slow copy of Q that both learn from."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.q = FieldNetwork(vocabulary, num_fields=3, num_heads=2)
        self.v = FieldNetwork(vocabulary, num_fields=2, num_heads=1)
        self.target = FieldNetwork(vocabulary, num_fields=3, num_heads=2)
        self.target.load_state_dict(self.q.state_dict())
        self.target.requires_grad_(requires_grad=False)

    def target_q(self, tasks: Column, observations: Column, actions: Column) -> Tensor:
        """Compute (B,) the lesser of both heads of the target."""
        least: Tensor = self.target(tasks, observations, actions).min(dim=-1).values
        return least

    def value(self, tasks: Column, observations: Column) -> Tensor:
        value: Tensor = self.v(tasks, observations)[:, 0]
        return value


WORD = re.compile(r"\w+|[^\w\s]")
MAX_KNOWN_WORDS = 8192  # words with an id of their own; as many entries as the release's SentencePiece vocabulary
NUM_HASHED = 256  # ids that all other words share
MAX_TEXT_WORDS = 256  # of a text; what follows is not read
EMPTY_ID = 0  # of a text without words


class Vocabulary:
    """Words to ids: 0 for an empty text, then the known words, then a few that unknown words are hashed to."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known = tuple(known)
        self._ids = {word: 1 + index for index, word in enumerate(self.known)}

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Vocabulary:
        """Make a vocabulary of the most frequent words of `texts`, ties in the order of the alphabet."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(WORD.findall(text.lower()))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked[:MAX_KNOWN_WORDS])

    @property
    def size(self) -> int:
        return 1 + len(self.known) + NUM_HASHED

    def encode(self, text: str) -> list[int]:
        first = 1 + len(self.known)
        words = WORD.findall(text.lower())[:MAX_TEXT_WORDS]
        ids = [
            self._ids.get(word) or first + zlib.crc32(word.encode("utf-8", "replace")) % NUM_HASHED for word in words
        ]
        return ids or [EMPTY_ID]


@dataclass(frozen=True)
class Critic:
    """A trained critic, which reads the instruction, the newest observation, and actions."""

    networks: CriticNetworks
    about: Mapping[str, Any]  # settings, data, as in critic.json
    figures: Mapping[str, Any]  # losses and held-out figures, as in critic.json

    @torch.no_grad()
    def predict_values(
        self, tasks: Sequence[str], observations: Sequence[str], actions: Sequence[str]
    ) -> tuple[Floats, Floats]:
        """Predict target Q(s, a) and V(s) of n rows: (n,), (n,), in the unit of the rewards."""
        q, v = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
        for start in range(0, len(actions), JUDGE_BATCH_SIZE):
            part = slice(start, start + JUDGE_BATCH_SIZE)
            q.append(self.networks.target_q(tasks[part], observations[part], actions[part]).numpy())
            v.append(self.networks.value(tasks[part], observations[part]).numpy())
        return np.concatenate(q), np.concatenate(v)

    def compute_advantages(self, task: str, observation: str, actions: Sequence[str]) -> list[float]:
        q, v = self.predict_values([task] * len(actions), [observation] * len(actions), actions)
        return [float(each) for each in q - v]


def train_critic(config: Config, places: Sequence[str | Path], out: Path) -> Critic:
    """Train a critic from the episodes in `places` into `out`, or resume it, or load it if it is finished.

    `places` are run directories, or JSONL files of episodes. Raises `ConfigError` where they hold no usable episodes,
    or `out` a critic of other settings or data.
    """
    settings = config.section(RetrospexConfig)
    data = transitions.read_transitions(places)
    kept = transitions.select_held_out_tasks((step.task_id for step in data), HELD_OUT_SHARE, config.run.seed)
    episodes, digest = {step.episode: step.success for step in data}, hashlib.sha256()
    for step in data:
        digest.update(repr(step).encode("utf-8", "backslashreplace"))
    about: dict[str, Any] = {  # all that makes one critic another
        "settings": {"epochs": settings.epochs}, "seed": config.run.seed,
        "transitions": len(data), "episodes": len(episodes), "episodes_won": sum(episodes.values()),
        "held_out_tasks": sorted(kept), "fingerprint": digest.hexdigest()[:16],
    }  # fmt: skip
    if (out / "critic.json").is_file():
        critic = load_critic(out)
        _require_same_critic(critic.about, about, out)
        return critic
    seen = [step for step in data if step.task_id not in kept]
    texts = (text for step in seen for text in (step.task, step.observation, step.action))
    vocabulary = Vocabulary.from_texts(texts)
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    networks = _build_networks(about, vocabulary)
    figures = _train_epochs(IQL(networks, config.run.seed), settings.epochs, seen, about, out / "checkpoints")
    held_out = [step for step in data if step.task_id in kept]
    figures |= evaluate_held_out(networks, held_out, seed=config.run.seed)
    out.mkdir(parents=True, exist_ok=True)
    save_file(networks.state_dict(), out / "critic.safetensors")
    checkpoint.write_json(out / "vocabulary.json", list(vocabulary.known))
    games = [task_to_json(game) for game in transitions.read_games(places)]
    record = {"about": about, "data": [str(place) for place in places], "games": games, "figures": figures}
    checkpoint.write_json(out / "critic.json", record)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return Critic(networks, about, figures)


def load_critic(path: Path) -> Critic:
    try:
        record = parse_json((path / "critic.json").read_text(encoding="utf-8"))
        vocabulary = Vocabulary(parse_json((path / "vocabulary.json").read_text(encoding="utf-8")))
        networks = _build_networks(record["about"], vocabulary)
        networks.load_state_dict(load_file(path / "critic.safetensors"))
    except (FileNotFoundError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{path} holds no whole critic ({error}): train one with `trailnotes critic`") from error
    return Critic(networks, record["about"], record["figures"])


def evaluate_held_out(networks: CriticNetworks, steps: Sequence[Transition], *, seed: int) -> dict[str, Any]:
    """Evaluate how the critic ranks held-out steps, by whether their episodes were won.

    ``auc_q`` ranks by Q(s, a), ``auc_advantage`` by Q(s, a) - V(s), which is what rescoring uses; with ``_same_task``
    only steps of one task are compared, so that telling easy tasks from hard ones earns nothing. Each is
    ``{"mean", "low", "high"}``, or None where won or lost steps are missing.
    """
    won, episodes = [step.success for step in steps], [step.episode for step in steps]
    counts = {"steps": len(steps), "episodes": len(set(episodes)), "steps_won": sum(won)}
    figures: dict[str, Any] = {f"held_out_{name}": count for name, count in counts.items()}
    columns = ([s.task for s in steps], [s.observation for s in steps], [s.action for s in steps])
    q, v = Critic(networks, {}, {}).predict_values(*columns)
    for name, scores in {"auc_q": q, "auc_advantage": q - v}.items():
        for suffix, groups in {"": None, "_same_task": [step.task_id for step in steps]}.items():
            interval = estimate_auc(scores.tolist(), won, episodes, groups, seed=seed)
            figures[name + suffix] = asdict(interval) if interval else None
    return figures


def _require_same_critic(existing: Mapping[str, Any], wanted: Mapping[str, Any], out: Path) -> None:
    changed = [name for name in wanted if existing.get(name) != wanted[name]]
    if changed:
        raise ConfigError(f"{out} holds a critic with other {', '.join(changed)}: choose another directory")


def _build_networks(about: Mapping[str, Any], vocabulary: Vocabulary) -> CriticNetworks:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(about["seed"], "critic"))
        return CriticNetworks(vocabulary)


def _train_epochs(
    iql: IQL, epochs: int, data: Sequence[Transition], about: Mapping[str, Any], root: Path
) -> dict[str, Any]:
    """Run the epochs that are left, each saved; returns the losses of the last."""
    done, losses = 0, dict[str, float]()
    if saved := checkpoint.find_latest(root, skip_damaged=True):
        meta = checkpoint.load_meta(saved)
        _require_same_critic(meta["about"], about, root.parent)
        iql.load_state_dict(load_file(saved / "iql.safetensors"))
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


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Compute the mean of |tau - 1(u < 0)| u^2 over u = Q - V, (B,) -> (). IQL, equation 5."""
    weight = torch.where(difference < 0, 1 - expectile, expectile)
    return (weight * difference.square()).mean()


def td_target(rewards: Tensor, terminated: Tensor, next_values: Tensor, gamma: float) -> Tensor:
    """Compute the target of Q: r + gamma V(s'), and r alone where the game ended; all (B,). IQL, equation 6."""
    return rewards + gamma * torch.where(terminated, torch.zeros_like(next_values), next_values)


class IQL:
    """Implicit Q-learning: twin Q, expectile V, a slow target. An epoch visits all transitions once, in seeded order.

    Source: IQL (arXiv 2110.06169) as Retrospex uses it (arXiv 2505.11807), except that both heads of Q are trained.
    """

    def __init__(self, networks: CriticNetworks, seed: int) -> None:
        self.networks, self.seed = networks, seed
        self._v_adam, self._q_adam = (MasterAdamW(each, lr=LEARNING_RATE) for each in (networks.v, networks.q))

    def run_epoch(
        self, data: Sequence[Transition], epoch: int, progress: Callable[[float, dict[str, float]], None]
    ) -> dict[str, float]:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "critic", epoch))
        order = torch.randperm(len(data), generator=generator).tolist()
        sums, seen, losses = [0.0, 0.0], 0, {}
        for start in range(0, len(order), BATCH_SIZE):
            batch = [data[index] for index in order[start : start + BATCH_SIZE]]
            for place, loss in enumerate(self._step(batch)):
                sums[place] += loss * len(batch)
            seen += len(batch)
            losses = {"value_loss": sums[0] / seen, "q_loss": sums[1] / seen}
            progress(epoch + seen / len(order), losses)
        return losses

    def _step(self, batch: Sequence[Transition]) -> tuple[float, float]:
        """V, then Q, then the target: the order of the release."""
        networks = self.networks
        tasks, observations = [step.task for step in batch], [step.observation for step in batch]
        actions, following = [step.action for step in batch], [step.next_observation for step in batch]
        with torch.no_grad():
            wanted = networks.target_q(tasks, observations, actions)
        v_loss = expectile_loss(wanted - networks.value(tasks, observations), EXPECTILE)
        _optimizer_step(self._v_adam, v_loss)
        rewards = torch.tensor([step.reward for step in batch], dtype=torch.float32)
        terminated = torch.tensor([step.terminated for step in batch])
        with torch.no_grad():
            target = td_target(rewards, terminated, networks.value(tasks, following), GAMMA)
        both = networks.q(tasks, observations, actions)
        q_loss = (both - target[:, None]).square().mean()  # of each head: through `min` one of them would learn nothing
        _optimizer_step(self._q_adam, q_loss)
        with torch.no_grad():
            for slow, fast in zip(networks.target.parameters(), networks.q.parameters(), strict=True):
                slow.lerp_(fast, TARGET_RATE)
        return float(v_loss.detach()), float(q_loss.detach())

    def state_dict(self) -> dict[str, Tensor]:
        target = self.networks.target.state_dict()
        parts = {"v": self._v_adam.state_dict(), "q": self._q_adam.state_dict(), "target": target}
        return {f"{part}.{name}": tensor.clone() for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

        self._v_adam.load_state_dict(part("v."))
        self._q_adam.load_state_dict(part("q."))
        self.networks.target.load_state_dict(part("target."))


def _optimizer_step(adam: MasterAdamW, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    adam.step(1.0)


Doubles = NDArray[np.float64]
NUM_RESAMPLES = 1000
BOOTSTRAP_CHUNK = 50  # resamples whose weights exist at the same time


def estimate_auc(
    scores: Sequence[float], labels: Sequence[bool], episodes: Sequence[int], groups: Sequence[str] | None = None,
    *, seed: int = 0,
) -> Interval | None:  # fmt: skip
    """Estimate the share of pairs (won step, lost step) in which the won one scores higher; a tie counts half.

    This area under the ROC curve has a percentile interval of resampled `episodes`, since the steps of an episode
    depend on each other. Only pairs within one of `groups` count; None compares all with all. None without a pair.
    """
    values, won = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    if won.all() or not won.any():
        return None
    member, group = (np.unique(labels, return_inverse=True)[1] for labels in (episodes, groups or [""] * len(values)))
    parts = [np.flatnonzero(group == number) for number in range(group.max() + 1)]

    def area(weights: Doubles) -> Doubles:
        counts = [_count_pairs(values[part], won[part], weights[:, part]) for part in parts]
        above, pairs = (np.sum(column, axis=0) for column in zip(*counts, strict=True))
        return np.asarray(above[pairs > 0] / pairs[pairs > 0], dtype=np.float64)

    whole = area(np.ones((1, len(values))))
    if not whole.size:
        return None
    rng, count = np.random.default_rng(seed), int(member.max()) + 1
    areas = []
    for _ in range(NUM_RESAMPLES // BOOTSTRAP_CHUNK):
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=BOOTSTRAP_CHUNK)
        areas.append(area(drawn[:, member].astype(np.float64)))
    resampled = np.concatenate(areas)
    return compute_percentile_interval(float(whole[0]), resampled if resampled.size else np.array([0.0, 1.0]))


def _count_pairs(scores: Doubles, won: NDArray[np.bool_], weights: Doubles) -> tuple[Doubles, Doubles]:
    """Pairs in which the won step is above (ties count half), and all pairs; weights (R, n) -> (R,), (R,)."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    up = np.add.reduceat(weights[:, order] * won[order], starts, axis=1)  # (R, distinct scores)
    down = np.add.reduceat(weights[:, order] * ~won[order], starts, axis=1)
    below = np.cumsum(down, axis=1) - down
    return (up * (below + down / 2)).sum(axis=1), up.sum(axis=1) * down.sum(axis=1)
