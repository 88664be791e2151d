"""Who a column is, under which protocol it was played, and where that differs from the published one."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from trailnotes.config.methods import get_label
from trailnotes.config.schema import Config
from trailnotes.config.toml import diff_configs
from trailnotes.envs import load_env_class
from trailnotes.types import Task
from trailnotes_lab.compare.evaluations import Evaluation, get_panel_row, get_variation
from trailnotes_lab.compare.published.figures import PublishedTable

# What a difference reads like. The order is that of the footnotes.
_DIFFERENCE_PHRASES = {
    "model": "model {ours}, not {theirs}",
    "split": "split {ours}, not {theirs}",
    "steps": "{ours} steps an episode, not {theirs}",
    "tips": "acted {ours} tips",
    "temperature": "temperature {ours}, not {theirs}",
    "simplification": "simplification {ours}, not {theirs}",
    "score": "score {ours}, not {theirs}",
    "action_correction": "actions taken as {ours}, not {theirs} as in the release",
    "max_action_tokens": "{ours} tokens a response at most, not {theirs}",
    "max_context_tokens": "{ours} tokens an episode at most, not {theirs}",
}
# Settings in which the runs of one column may differ without a word: they are its seeds and tasks, or change nothing.
_IGNORED_SETTINGS = ("run.", "env.options", "env.num_workers", "env.max_envs", "env.timeout", "env.max_replacements", "eval.",
         "model.path", "model.device", "train.save_every", "train.keep_last", "train.keep_optimizer")  # fmt: skip


def make_column_label(evaluation: Evaluation) -> str:
    """The column that an evaluation belongs to, unless the user names it: its method, and whether tips were shown."""
    method = evaluation.label or _name_method(evaluation.player, evaluation.trained)
    return method if evaluation.label or not evaluation.memory else f"{method}, with tips"


def _name_method(player: str, trained: Config | None) -> str:
    if trained is None:
        return "start model" if player == "start" else get_label(player)
    if trained.algorithm.name != "empo2":
        return get_label(trained.algorithm.name)
    if trained.algorithm.mode_unit == "trajectory":
        return "EMPO² mixed"
    published = trained.memory.duplicates == "reject" and trained.memory.order == ("score",)
    return "EMPO² as published" if published else "EMPO² iteration"


def extract_facts(evaluation: Evaluation, task: str) -> dict[str, object]:
    """What of the protocol can be read from settings and episodes, under the names that `PublishedTable.facts` has."""
    config, episodes = evaluation.settings, evaluation.get_episodes(task)
    options = _resolve_env_options(config) | dict(
        episodes[0].task.options if episodes else {}
    )  # a task's own come first
    limits = {episode.task.options.get("max_steps", options["max_steps"]) for episode in episodes}
    return {
        "model": get_model(evaluation),
        "split": config.eval.split,
        "steps": min(config.rollout.max_steps, max(limits, default=options["max_steps"])),
        "tips": "with" if evaluation.memory else "without",
        "temperature": config.eval.temperature,
        "simplification": options.get("simplification"),
        "score": options.get("score"),
        "action_correction": options.get("action_correction"),
        "max_action_tokens": config.rollout.max_action_tokens,
        "max_context_tokens": config.rollout.max_context_tokens,
    }


def get_model(evaluation: Evaluation) -> str:
    """The model that was trained, or that played where nothing was."""
    return evaluation.trained.model.path if evaluation.trained else evaluation.model


def describe_differences(evaluation: Evaluation, task: str, published: PublishedTable) -> list[str]:
    """Where one evaluation of one row is not what the paper did, one phrase each."""
    phrases = []
    facts = extract_facts(evaluation, task)
    for name, theirs in published.facts.items():
        ours = facts[name]
        if not _is_same(name, ours, theirs, task):
            shown = ours if ours not in (None, "") else "none"
            phrases.append(_DIFFERENCE_PHRASES[name].format(ours=shown, theirs=theirs))
    return [*phrases, *_describe_training(evaluation, task), *_describe_testing(evaluation, task)]


def _is_same(name: str, ours: object, theirs: object, task: str) -> bool:
    if name == "model":
        return PurePath(str(ours)).name == theirs
    if name == "simplification" and isinstance(ours, str | list | tuple):
        from trailnotes_worlds.scienceworld.tasks import resolve_simplifications

        return resolve_simplifications(task, ours) == resolve_simplifications(task, str(theirs))
    return ours == theirs


def _describe_training(evaluation: Evaluation, task: str) -> list[str]:
    """How what was trained on differs from the first variations of the row's own task."""
    if evaluation.trained is None:
        return []
    if evaluation.trained.env.name != evaluation.settings.env.name:
        return [f"trained in {evaluation.trained.env.name}"]
    trained = evaluation.list_training_tasks()
    rows = list(dict.fromkeys(get_panel_row(t.id) for t in trained))
    if task not in rows:
        return [f"not trained on this task, but on {', '.join(rows) if len(rows) <= 3 else f'{len(rows)} others'}"]
    phrases = [f"one model for {len(rows)} tasks"] if len(rows) > 1 else []
    mine, theirs = _collect_variations(trained, task), _get_paper_variations(task, "train")
    if mine != theirs:
        phrases.append(f"trained on {len(mine)} variations, not the first {len(theirs)}")
    if seen := mine & _collect_variations([episode.task for episode in evaluation.get_episodes(task)], task):
        phrases.append(f"{len(seen)} of the variations played were trained on")
    return phrases


def _describe_testing(evaluation: Evaluation, task: str) -> list[str]:
    """Which of the paper's test variations were played, and whether any episode was lost."""
    played = _collect_variations([episode.task for episode in evaluation.get_episodes(task)], task)
    theirs = _get_paper_variations(task, "test")
    phrases = []
    if played - theirs:
        phrases.append(f"{len(played)} variations played, {len(played & theirs)} of them of the paper's {len(theirs)}")
    elif played != theirs:
        phrases.append(f"{len(played)} of the paper's {len(theirs)} test variations")
    planned = sum(get_panel_row(name) == task for name in evaluation.planned) * evaluation.settings.eval.num_samples
    if lost := planned - len(evaluation.get_episodes(task)):
        phrases.append(f"{lost} of {planned} episodes failed in the environment and are left out")
    return phrases


def _collect_variations(tasks: Iterable[Task], row: str) -> set[str]:
    return {get_variation(task.id) for task in tasks if get_panel_row(task.id) == row}


def _get_paper_variations(task: str, split: str) -> set[str]:
    from trailnotes_worlds.scienceworld.tasks import get_paper_split

    return {str(variation) for variation in get_paper_split(task)[split]}


def _resolve_env_options(config: Config) -> dict[str, Any]:
    """The environment's options, its defaults filled in."""
    parameters = inspect.signature(load_env_class(config.env.name)).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty} | config.env.options


def describe_protocol(evaluations: Sequence[Evaluation], panel: Collection[str]) -> str:
    """One line for the head of a column."""
    played = [(e, task) for e in evaluations for task in e.tasks if task in panel]
    facts = [extract_facts(e, task) for e, task in played]
    tested = {len({episode.task.id for episode in e.get_episodes(task)}) for e, task in played}
    trained = {len(_collect_variations(e.list_training_tasks(), task)) for e, task in played if e.trained}
    return ", ".join(
        (
            f"{_format_range(trained)} train variations" if trained else "not trained",
            f"{_format_range(tested)} {_join_values(facts, 'split')} variations",
            f"{_format_range({fact['steps'] for fact in facts})} steps",
            f"temperature {_join_values(facts, 'temperature')}",
            f"{_join_values(facts, 'tips')} tips",
        )
    )


def describe_models(evaluations: Iterable[Evaluation]) -> str:
    """The models of a column; many are only counted."""
    names = sorted({get_model(evaluation) for evaluation in evaluations})
    return ", ".join(names) if len(names) <= 2 else f"{len(names)} models"


def list_differing_settings(evaluations: Sequence[Evaluation]) -> list[str]:
    """Keys in which the runs of one column differ though they are pooled."""
    configs = [evaluation.trained for evaluation in evaluations if evaluation.trained]
    names = {
        name: None
        for other in configs[1:]
        for name in diff_configs(configs[0], other)
        if not name.startswith(_IGNORED_SETTINGS)
    }
    options = [{k: v for k, v in config.env.options.items() if k != "task"} for config in configs]
    return [*names, *(["env.options"] if any(o != options[0] for o in options) else [])]


def _format_range(numbers: Collection[Any]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _join_values(facts: Sequence[Mapping[str, object]], name: str) -> str:
    return "/".join(dict.fromkeys(str(fact[name]) for fact in facts))
