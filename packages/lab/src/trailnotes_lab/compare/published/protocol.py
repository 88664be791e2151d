"""Published figures, as `figures.toml` has them, and how the protocol of a column differs from the published one."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from trailnotes.config.methods import get_label
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.presets import PRESETS
from trailnotes.config.toml import diff_configs
from trailnotes.envs import load_env_class
from trailnotes_lab.compare.evaluations import Evaluation, get_panel_row, get_variation


@dataclass(frozen=True, slots=True)
class PrintedFigure:
    """One printed cell: mean and standard deviation, in the unit of its table."""

    mean: float
    sd: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.sd:.1f}"


@dataclass(frozen=True, slots=True)
class PrintedColumn:
    method: str
    figures: tuple[PrintedFigure, ...]  # one a row of the table, in its order
    average: float  # as printed


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table of a paper: rows, columns, and the protocol of its numbers."""

    env: str
    source: str
    model: str
    protocol: str  # one line for the head of the columns
    facts: Mapping[str, object]  # the part that a config can be compared with; see protocol.py
    metric: str
    rows: Mapping[str, str]  # task as the simulator calls it -> as the paper prints it, in the paper's order
    columns: tuple[PrintedColumn, ...]
    notes: tuple[str, ...]


def _build_table(record: dict[str, Any]) -> PublishedTable:
    rows, columns = record.pop("rows"), zip(record.pop("methods"), record.pop("averages"), strict=True)
    figures = [tuple(PrintedFigure(*row[2 + i]) for row in rows) for i in range(len(rows[0]) - 2)]
    return PublishedTable(
        **record | {"notes": tuple(record["notes"])},
        rows={task: name for task, name, *_ in rows},
        columns=tuple(PrintedColumn(name, own, mean) for (name, mean), own in zip(columns, figures, strict=True)),
    )


_DATA: Final = tomllib.loads(Path(__file__).with_name("figures.toml").read_text(encoding="utf-8"))
PUBLISHED_PANELS: Final[Mapping[str, PublishedTable]] = {
    name: _build_table(record) for name, record in _DATA["panels"].items()
}


# Settings in which the runs of one column may differ without a word: they are its seeds and tasks, or change nothing.
_IGNORED_SETTINGS = ("run.", "env.options", "env.num_workers", "env.max_envs", "env.timeout",
                     "eval.", "model.path", "model.device", "train.save_every", "train.keep_last",
                     "train.keep_optimizer")  # fmt: skip


def make_column_label(evaluation: Evaluation) -> str:
    """Name the column of an evaluation, unless the user names it: its method, and whether it played with tips."""
    trained, player = evaluation.trained, evaluation.player
    if evaluation.label:
        return evaluation.label
    if trained is None:
        method = "start model" if player == "start" else get_label(player)
    elif trained.algorithm.name != "empo2":
        method = get_label(trained.algorithm.name)
    elif trained.section(Empo2Config).mode_unit == "trajectory":
        method = "EMPO² mixed"
    else:
        memories = [(preset["memory"]["duplicates"], tuple(preset["memory"]["order"])) for preset in PRESETS.values()]
        published = (trained.memory.duplicates, trained.memory.order) in memories
        method = "EMPO² as published" if published else "EMPO² iteration"
    return f"{method}, with tips" if evaluation.memory else method


def extract_facts(evaluation: Evaluation, task: str) -> dict[str, object]:
    """Read the protocol from settings and episodes, under the names that `PublishedTable.facts` has."""
    config, episodes = evaluation.settings, evaluation.get_episodes(task)
    parameters = inspect.signature(load_env_class(config.env.name)).parameters.values()
    options = {p.name: p.default for p in parameters if p.default is not p.empty} | config.env.options
    options |= dict(episodes[0].task.options if episodes else {})  # a task's own come first
    limits = {episode.task.options.get("max_steps", options["max_steps"]) for episode in episodes}
    return {
        "model": get_model(evaluation),
        "split": config.eval.split,
        "steps": min(config.rollout.max_steps, max(limits, default=options["max_steps"])),
        "tips": "with" if evaluation.memory else "without",
        "temperature": config.eval.temperature,
        **{name: options.get(name) for name in ("simplification", "score", "action_correction")},
        **{name: getattr(config.rollout, name) for name in ("max_action_tokens", "max_context_tokens")},
    }


def get_model(evaluation: Evaluation) -> str:
    """Get the model that was trained, or that played where nothing was."""
    return evaluation.trained.model.path if evaluation.trained else evaluation.model


def describe_differences(evaluations: Sequence[Evaluation], published: PublishedTable) -> str:
    """Describe where the settings of a column are not those of the paper; "" if they are."""
    phrases = []
    for evaluation in evaluations:
        for task in [task for task in evaluation.tasks if task in published.rows]:
            facts = extract_facts(evaluation, task)
            phrases += [
                f"{name.replace('_', ' ')} {'none' if facts[name] in (None, '') else facts[name]}, not {theirs}"
                for name, theirs in published.facts.items()
                if not _is_same(name, facts[name], theirs, task)
            ]
    return "; ".join(dict.fromkeys(phrases))


def _is_same(name: str, ours: object, theirs: object, task: str) -> bool:
    if name == "model":
        return PurePath(str(ours)).name == theirs
    if name == "simplification" and isinstance(ours, str | list | tuple):
        from trailnotes_worlds.scienceworld.tasks import resolve_simplifications

        return resolve_simplifications(task, ours) == resolve_simplifications(task, str(theirs))
    return ours == theirs


def describe_protocol(evaluations: Sequence[Evaluation], panel: Collection[str]) -> str:
    played = [(e, task) for e in evaluations for task in e.tasks if task in panel]
    facts = [extract_facts(e, task) for e, task in played]
    tested = {len({episode.task.id for episode in e.get_episodes(task)}) for e, task in played}
    trained = {
        len({get_variation(each.id) for each in e.list_training_tasks() if get_panel_row(each.id) == task})
        for e, task in played
        if e.trained
    }
    names = ("split", "temperature", "tips")
    seen = {name: "/".join(dict.fromkeys(str(fact[name]) for fact in facts)) for name in names}
    learned = f"{_format_range(trained)} train variations" if trained else "not trained"
    steps = _format_range({fact["steps"] for fact in facts})
    return (f"{learned}, {_format_range(tested)} {seen['split']} variations, {steps} steps, "
            f"temperature {seen['temperature']}, {seen['tips']} tips")  # fmt: skip


def list_differing_settings(evaluations: Sequence[Evaluation]) -> list[str]:
    """List the keys in which the runs of one column differ though they are pooled."""
    configs = [evaluation.trained for evaluation in evaluations if evaluation.trained]
    changed = [name for other in configs[1:] for name in diff_configs(configs[0], other)]
    names = dict.fromkeys(name for name in changed if not name.startswith(_IGNORED_SETTINGS))
    options = [{k: v for k, v in config.env.options.items() if k != "task"} for config in configs]
    return [*names, *(["env.options"] if any(o != options[0] for o in options) else [])]


def _format_range(numbers: Collection[Any]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
