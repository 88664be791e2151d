"""What a training run rehearses: conversations of games outside all panels, held to the start model in every update.

The start model plays them itself before training begins (`record`), or they are a file: what somebody wrote, or an
environment's scripted episodes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.config.methods import method_of
from trailnotes.config.schema import LoraConfig
from trailnotes.envs.tasks import refuse_learning, shared, tasks_of
from trailnotes.errors import ConfigError
from trailnotes.prompts import reflection_messages, replay
from trailnotes.rollout import written_about
from trailnotes.storage.demonstrations import Demonstration, from_jsonl, spoken, to_jsonl
from trailnotes.storage.files import read_jsonl
from trailnotes.storage.records import completion_from_json, trajectory_from_json
from trailnotes.types import Message, Sample, Task

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.policies.chat import ChatFormat
    from trailnotes.prompts import CountTokens
    from trailnotes.runs.console import Bar

PLACE, FILE = "rehearsal", "rehearsal.jsonl"


class Rehearsal:
    """Conversations as rows of the learner.

    Args:
        config: `rehearsal`, and the panels, whose games must not be among them.
        path: the conversations.
        chat: makes tokens of them.

    Raises:
        ConfigError: the file cannot be read, has a game of the panel or of the training, or nothing fits the context.
    """

    def __init__(self, config: Config, path: Path, chat: ChatFormat) -> None:
        self.config = config.rehearsal
        found = read_rehearsal(config, path)
        rows = [chat.taught(demonstration.messages, demonstration.taught) for demonstration in found]
        self._rows = [row for row in rows if len(row[0]) <= config.rollout.max_context_tokens]
        if not self._rows:
            raise ConfigError(f"{path}: none fits rollout.max_context_tokens = {config.rollout.max_context_tokens}")

    def draw(self, rng: random.Random) -> list[Sample]:
        """The rows of one update: `rehearsal.rows` of them, or all if there are fewer."""
        chosen = rng.sample(self._rows, min(self.config.rows, len(self._rows)))
        weight = self.config.weight
        hold, imitate = (weight, 0.0) if self.config.by == "kl" else (0.0, weight)
        return [_row(ids, mask, hold, imitate) for ids, mask in chosen]


def _row(ids: Sequence[int], mask: Sequence[int], hold: float, imitate: float) -> Sample:
    nothing = (0.0,) * len(ids)
    return Sample(tuple(ids), tuple(mask), nothing, nothing, role="rehearsal", hold=hold, imitate=imitate)


def rehearsal_path(config: Config, run_dir: Path) -> Path | None:
    """The conversations of a run: its file, or what its start model recorded; None rehearses nothing."""
    rehearsal = config.rehearsal
    if rehearsal.path:
        return Path(rehearsal.path)
    return run_dir / PLACE / FILE if rehearsal.split else None


def read_rehearsal(config: Config, path: Path) -> list[Demonstration]:
    """The conversations of a file, of whose games none is trained on or examined.

    Raises:
        ConfigError: as `Rehearsal`.
    """
    found = from_jsonl(path, "rehearsal.path")
    games = {demonstration.task.id: demonstration.task for demonstration in found if demonstration.task}
    refuse_learning(games.values(), f"rehearsal.path = {str(path)!r}", config)
    _refuse_trained(list(games.values()), f"rehearsal.path = {str(path)!r}", config)
    return found


def refuse_rehearsal(config: Config) -> None:
    """Refuse, before anything is built, games to rehearse that are trained on or examined, and files that are none."""
    if config.rehearsal.path:
        read_rehearsal(config, Path(config.rehearsal.path))
    elif config.rehearsal.split:
        recording_config(config)


def _refuse_trained(games: Sequence[Task], source: str, config: Config) -> None:
    """What is trained must not be held where it began."""
    if both := shared(games, tasks_of(config, config.train.split)):
        raise ConfigError(
            f"{source}: {both[0].id} is a game of train.split = {config.train.split!r}, and what is held to the start "
            "model cannot be learned: rehearse other games"
        )


# -- recorded by the start model


def recording_config(config: Config) -> Config:
    """The settings with which the start model plays the games to rehearse, as `trailnotes adapt` would.

    Raises:
        ConfigError: the split has a game that is trained on or examined.
    """
    rehearsal = config.rehearsal
    env = config.env.model_copy(update={"options": {**config.env.options, **rehearsal.options}})
    chosen = {"split": rehearsal.split, "num_tasks": rehearsal.num_tasks, "num_samples": rehearsal.num_samples}
    panel = config.eval.model_copy(
        update={**chosen, "trials": rehearsal.trials, "temperature": config.rollout.temperature}
    )
    played = config.model_copy(
        update={
            "env": env,
            "eval": panel,
            "algorithm": config.algorithm.model_copy(update={"name": "empo2-tips"}),
            "model": config.model.model_copy(update={"lora": LoraConfig()}),
        }
    )
    games, source = tasks_of(played, rehearsal.split), f"rehearsal.split = {rehearsal.split!r}"
    refuse_learning(games, source, config)
    _refuse_trained(games, source, config)
    return played


def record(config: Config, out: Path, progress: Bar | None = None) -> Path:
    """Let the start model play `rehearsal.split`, trial after trial with its own tips, and keep what it did and wrote.

    `out` becomes the run directory of an adaptation, with the conversations in `rehearsal.jsonl`. The same call
    continues where it stopped.

    Returns:
        The file.

    Raises:
        ConfigError: the split has a game that is trained on or examined, or nothing could be played.
        RunError: `out` is in use, or holds something else.
    """
    from trailnotes.envs.workers.pool import EnvPool
    from trailnotes.runs.adaptation import AdaptationRun
    from trailnotes.runs.directory import RunDir
    from trailnotes.runs.loop import run_to_end
    from trailnotes.runs.players import examined, load_policy

    path = out / FILE
    if path.is_file():
        return path
    played = recording_config(config)
    with examined(played.model.path) as subject, RunDir.open(out, played) as directory:
        policy = load_policy(played, subject, out)

        async def play() -> None:
            with EnvPool(played.env) as pool:
                await method_of(played.algorithm.name).load()(
                    AdaptationRun(played, directory, policy, pool, subject, progress)
                )

        run_to_end(play())
        to_jsonl(conversations(played, out, policy.count_tokens), path)
    return path


def conversations(config: Config, run_dir: Path, count_tokens: CountTokens) -> Iterator[Demonstration]:
    """What was done and written in an adaptation: each episode as it was acted, each tip as it was asked for."""
    order = {task.id: index for index, task in enumerate(tasks_of(config, config.eval.split))}
    for journal in sorted((run_dir / "phases").glob("*.episodes.jsonl")):
        records = [record for record in read_jsonl(journal) if record["outcome"] != "error"]
        records.sort(key=lambda record: (order[record["task"]["id"]], record["member"]))
        tips = {record["index"]: record for record in read_jsonl(_notes(journal))}
        for index, episode in enumerate(written_about(list(map(trajectory_from_json, records)))):
            (*_, conversation) = replay(episode, config.rollout, config.memory, count_tokens)
            yield Demonstration(tuple(conversation.acting), spoken(conversation.acting), episode.task)
            asked = reflection_messages(episode, config.rollout, config.memory, count_tokens)
            text = completion_from_json(tips[index]).text
            yield Demonstration((*asked, Message("assistant", text)), frozenset({len(asked)}), episode.task)


def _notes(journal: Path) -> Path:
    return journal.with_name(journal.name.replace(".episodes.", ".notes."))
