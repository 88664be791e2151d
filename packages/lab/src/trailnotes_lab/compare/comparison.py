"""Run a comparison from its TOML file to its table: `trailnotes compare run`; docs/comparing.md lists its files."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from trailnotes.config.builtin import find_config
from trailnotes.config.methods import find_method
from trailnotes.config.model_schema import require_model_directory
from trailnotes.errors import MissingExtraError, RunError
from trailnotes.runs.directory import RunLock
from trailnotes.runs.preflight import require_dependencies
from trailnotes.runs.signals import interrupt_on_signals
from trailnotes.storage.files import read_jsonl, write_text_atomic
from trailnotes.types import StrPath
from trailnotes_lab.compare import running
from trailnotes_lab.compare.cost import EVAL_STAGE
from trailnotes_lab.compare.evaluations import EVAL_DIR, is_evaluation
from trailnotes_lab.compare.expand import expand_runs, flatten_settings
from trailnotes_lab.compare.games import compile_games
from trailnotes_lab.compare.page import render_summary_json, render_summary_markdown
from trailnotes_lab.compare.picture import draw_summary
from trailnotes_lab.compare.results import read_result
from trailnotes_lab.compare.running import run_stages
from trailnotes_lab.compare.spec import INITIAL_MODEL_METHOD, ComparisonSpec, RunLocation, load_spec, slugify
from trailnotes_lab.compare.summary import PanelOptions, Summary, SummaryOptions, read_trials, summarise
from trailnotes_lab.story import RunEpisodes, render_before_and_after

logger = logging.getLogger(__name__)
SPEC_FILE = "compare.toml"
UNPLAYED = "not played yet: `trailnotes compare run` plays it"


def comparison_directory(spec: ComparisonSpec, out: StrPath | None) -> Path:
    return Path(out) if out else Path("runs/compare") / slugify(spec.compare.name)


def run_comparison(path: StrPath, *, out: StrPath | None = None, at_once: int | None = None) -> Summary:
    """Run every method with every seed, and write table and picture.

    Finished runs are not run again, and interrupted ones are resumed. A run that fails does not stop the others; its
    line gives the reason.

    Args:
        path: the comparison, a TOML file (see `compare/spec.py`), or the name of one of the package.
        out: its directory; ``runs/compare/NAME`` by default.
        at_once: processes side by side; `compare.jobs` by default.

    Raises:
        ConfigError: a comparison that cannot work, before anything is started.
        RunError: the directory is in use, holds runs of other settings, or in the end no run has a result.
        KeyboardInterrupt: interrupted; the same command resumes.
    """
    path = find_config(path)
    spec, text = load_spec(path), path.read_text(encoding="utf-8")
    return run_comparison_spec(spec, path, comparison_directory(spec, out), at_once=at_once, text=text)


def run_comparison_spec(spec: ComparisonSpec, path: Path, out: Path, *, text: str, at_once: int | None) -> Summary:
    """Run a comparison that need not be in a file, as `run_comparison` does.

    Errors name `path`, and the settings that all runs share lie beside it; `text` is kept beside the runs for
    `recompute`.
    """
    runs = expand_runs(spec, path, out)
    running.validate_unchanged_settings(runs)
    out.mkdir(parents=True, exist_ok=True)
    with RunLock(out / "lock"):
        write_text_atomic(out / SPEC_FILE, text)
        left = running.list_unfinished_stages(runs)
        missing: dict[str, str] = {}
        if left:
            _require_prerequisites(left)
            compile_games(stage.run for stage in left)
            with interrupt_on_signals():
                failures = run_stages(left, at_once or spec.compare.jobs)
            for stage in reversed(left):  # of several stages of one result, the first that failed says why
                missing |= {stage.result_name: failures[stage.key]} if stage.key in failures else {}
        summary = _summarise_runs(spec, missing, out, out)
        finished = [run for run in spec.list_run_locations(out) if run.name not in missing]
        if played := _load_story_episodes(spec, finished):
            write_text_atomic(out / "story.txt", render_before_and_after(played))
        return summary


def _require_prerequisites(left: Sequence[running.RunStage]) -> None:
    """Check packages and models before the first run; without stages left nothing is needed."""
    for stage in left:
        require_dependencies(stage.settings[1])
        if stage.name != EVAL_STAGE and not stage.panel and not stage.run.uses_prior_model:
            require_model_directory(stage.run.config.model.path)


def is_comparison(directory: StrPath) -> bool:
    """Say whether `run_comparison` made this directory, or a record of one was unpacked there."""
    return (Path(directory) / SPEC_FILE).is_file()


def recompute(directory: StrPath, out: StrPath | None = None) -> Summary:
    """Compute the table of a comparison, or of its unpacked record, again, and write it to `out` if there is one.

    Raises:
        ConfigError: `directory` holds no comparison.
        RunError: no run has a result.
    """
    spec = load_spec(Path(directory) / SPEC_FILE, imports=False)
    return _summarise_runs(spec, {}, Path(directory), None if out is None else Path(out))


def _summarise_runs(spec: ComparisonSpec, missing: dict[str, str], directory: Path, out: Path | None) -> Summary:
    labels, places = spec.labels(), spec.list_run_locations(directory)
    results, trials = [], []
    for run in places:
        if run.name not in missing:
            own = run.directory / EVAL_DIR  # others may lie below it
            try:
                results.append(read_result(own if is_evaluation(own) else run.directory, labels[run.method]))
            except RunError as error:
                missing[run.name] = str(error) if any(own.rglob("table.json")) else UNPLAYED
        for panel, place in run.panels.items():
            try:
                trials.append(read_trials(place, panel, labels[run.method], run.seed))
            except RunError as error:
                why = str(error) if (place / EVAL_DIR / "table.json").is_file() else UNPLAYED
                missing.setdefault(running.panel_result_name(run.name, panel), why)
    question = SummaryOptions(
        labels=list(labels.values()),
        title=spec.compare.title,
        remark=spec.compare.remark,
        threshold=spec.compare.threshold,
        baseline=labels.get(spec.compare.baseline, ""),
        missing={(labels[run.method], run.seed): missing[run.name] for run in places if run.name in missing},
        notes=_make_notes(spec, labels),
        panels=[_make_panel_options(spec, name, places, missing) for name in spec.panels],
    )
    summary = summarise(results, question, trials)
    if out is not None:
        write_summary(summary, out)
    return summary


def _load_story_episodes(spec: ComparisonSpec, runs: Sequence[RunLocation]) -> list[RunEpisodes]:
    """Load episodes of the first method that learns from tips, and of the initial model, seed by seed."""
    runs_by_key, models = {(run.method, run.seed): run.directory for run in runs}, spec.list_evaluable_methods()
    start = next((name for name in models if spec.get_algorithm(name) == INITIAL_MODEL_METHOD), "")
    taught = next((name for name in models if find_method(spec.get_algorithm(name)).shows_tips), "")
    episodes = []
    for seed in spec.compare.seeds:
        if {(start, seed), (taught, seed)} <= runs_by_key.keys():
            own = [runs_by_key[name, seed] for name in (start, taught)]
            played = [read_jsonl(run / EVAL_DIR / "episodes.jsonl") for run in own]
            before, after = ({record["task"]["id"]: record for record in records} for records in played)
            episodes.append(RunEpisodes(before, after, partial(read_jsonl, own[1] / "trajectories.jsonl")))
    return episodes


def _make_panel_options(
    spec: ComparisonSpec, name: str, runs: Sequence[RunLocation], missing: Mapping[str, str]
) -> PanelOptions:
    labels = spec.labels()
    lost = [(run, missing.get(running.panel_result_name(run.name, name))) for run in runs if name in run.panels]
    return PanelOptions(
        name=name,
        label=spec.panel_labels()[name],
        num_trials=spec.panels[name].trials,
        methods=[labels[method] for method in spec.list_panel_methods(name)],
        start=labels.get(spec.get_initial_method(name), ""),
        missing={(labels[run.method], run.seed): why for run, why in lost if why},
    )


def _make_notes(spec: ComparisonSpec, labels: Mapping[str, str]) -> list[str]:
    remark = spec.compare.remark
    notes = [f"{remark}: read no order of the methods from this table."] if remark else []
    for name, method in spec.methods.items():
        if method.after:
            learned = bool(find_method(spec.get_algorithm(name)).data)
            how = "learned from the episodes of" if learned else "plays the last model of"
            notes.append(f"{labels[name]} {how} {labels[method.after]}, whose cost is not in its line.")
    return notes


def write_summary(summary: Summary, out: Path) -> None:
    """Write `table.json`, `table.md`, and `curves.png` where matplotlib is installed."""
    write_text_atomic(out / "table.json", render_summary_json(summary))
    write_text_atomic(out / "table.md", render_summary_markdown(summary))
    try:
        draw_summary(summary, out / "curves.png")
    except MissingExtraError as error:
        logger.warning("no curves.png: %s", error)


def describe_comparison(path: Path, out: Path | None, at_once: int | None = None) -> str:
    """Describe a comparison: the settings of each method, and each run with the commands that are left of it."""
    spec = load_spec(path)
    out = comparison_directory(spec, out)
    runs = expand_runs(spec, path, out)
    running.validate_unchanged_settings(runs)
    left = running.list_unfinished_stages(runs)
    _require_prerequisites(left)
    lines = [f"{len(runs)} runs, {at_once or spec.compare.jobs} side by side, in {out}", ""]
    for name, label in spec.labels().items():
        own = flatten_settings(spec.methods[name].settings)
        values = ", ".join(f"{key} = {json.dumps(value)}" for key, value in own.items())
        lines.append(f"{label}: {values or 'as the settings shared by all'}")
    for run in runs:
        commands = [stage.command for stage in left if stage.run.name == run.name]
        lines += ["", f"{run.name}: {'' if commands else 'done'}"]
        lines += [f"  trailnotes {shlex.join(command)}" for command in commands]
    return "\n".join(lines) + "\n"
