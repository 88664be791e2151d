"""A comparison from its TOML file to its table: `trailnotes compare run`.

::

    DIR/compare.toml      the plan as it was read last
    DIR/settings/         the settings of each run
    DIR/runs/NAME-SEED/   ordinary run directories, each with eval/ and cost.json
    DIR/runs/NAME-SEED/panels/PANEL/   its model on another panel, as `trailnotes adapt` leaves it
    DIR/table.json, table.md, curves.png
    DIR/story.txt         an unseen game before and after, where a start model and one that learns from tips play it
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from trailnotes.config.methods import find_method
from trailnotes.config.model_schema import require_model_directory
from trailnotes.errors import MissingExtraError, RunError
from trailnotes.runs.directory import RunLock
from trailnotes.runs.needs import require_dependencies
from trailnotes.runs.signals import interrupt_on_signals
from trailnotes.storage.files import read_jsonl, write_text_atomic
from trailnotes.types import StrPath
from trailnotes_lab.compare.expand import expand_runs, flatten_settings
from trailnotes_lab.compare.live import ProgressBoard
from trailnotes_lab.compare.page import draw_summary, render_summary_json, render_summary_markdown
from trailnotes_lab.compare.panels import PanelOptions, read_trials
from trailnotes_lab.compare.published.comparability import render_comparability
from trailnotes_lab.compare.published.figures import PUBLISHED_PANELS
from trailnotes_lab.compare.published.page import to_json, to_markdown
from trailnotes_lab.compare.published.table import Comparison, build_comparison
from trailnotes_lab.compare.results import RunResult, read_result
from trailnotes_lab.compare.running import (
    RunStage,
    compile_games,
    list_stages,
    list_unfinished_stages,
    panel_result_name,
    run_stages,
    validate_unchanged_settings,
)
from trailnotes_lab.compare.spec import INITIAL_MODEL_METHOD, ComparisonSpec, RunLocation, load_spec, slugify
from trailnotes_lab.compare.summary import Summary, SummaryOptions, summarise
from trailnotes_lab.story import Record, RunEpisodes, render_before_and_after

logger = logging.getLogger(__name__)
OUTPUT_ROOT = Path("runs/compare")
SPEC_FILE = "compare.toml"


def comparison_directory(plan: ComparisonSpec, out: StrPath | None) -> Path:
    """The directory of a comparison."""
    return Path(out) if out else OUTPUT_ROOT / slugify(plan.compare.name)


def run_comparison(path: StrPath, *, out: StrPath | None = None, at_once: int | None = None) -> Summary:
    """Run every method with every seed, and write table and picture.

    What is finished is not run again, and what was interrupted is resumed. A run that fails does not stop the others;
    its line says what is missing and why.

    Args:
        path: the comparison, a TOML file (see `plan`).
        out: its directory; ``runs/compare/NAME`` by default.
        at_once: processes side by side; `compare.jobs` by default.

    Raises:
        ConfigError: a comparison that cannot work, before anything is started.
        RunError: the directory is in use, holds runs of other settings, or in the end no run has a result.
        KeyboardInterrupt: interrupted; the same command resumes.
    """
    path = Path(path)
    plan = load_spec(path)
    return run_comparison_spec(
        plan, path, comparison_directory(plan, out), at_once=at_once, text=path.read_text(encoding="utf-8")
    )


def run_comparison_spec(
    plan: ComparisonSpec, path: Path, out: Path, *, at_once: int | None = None, text: str = ""
) -> Summary:
    """As `run_comparison`, for a plan that need not be in a file.

    Args:
        plan: the comparison.
        path: what errors name; the settings that all runs share lie beside it.
        out: directory of the comparison.
        at_once: processes side by side; `compare.jobs` by default.
        text: the plan as a file, kept beside its runs, from which `recompute` reads it.
    """
    runs = expand_runs(plan, path, out)
    validate_unchanged_settings(runs)
    out.mkdir(parents=True, exist_ok=True)
    lock = RunLock(out / "lock")
    try:
        if text:
            write_text_atomic(out / SPEC_FILE, text)
        left = list_unfinished_stages(runs)
        missing: dict[str, str] = {}
        if left:
            _require_prerequisites(left)
            compile_games(stage.run for stage in left)
            with interrupt_on_signals(), ProgressBoard(runs, left) as board:
                missing = run_stages(left, at_once or plan.compare.jobs, board.update)
        summary = _summarise_runs(plan, missing, out, out)
        if played := _load_story_episodes(
            plan, [run for run in plan.list_run_locations(out) if run.name not in missing]
        ):
            write_text_atomic(out / "story.txt", render_before_and_after(played))
        return summary
    finally:
        lock.release()


def _require_prerequisites(stages: Sequence[RunStage]) -> None:
    """What any of the runs needs must be there before the first begins; a comparison that is finished needs nothing."""
    for stage in stages:
        require_dependencies(stage.settings[1])
        if stage.loads_initial_model:
            require_model_directory(stage.run.config.model.path)


def is_comparison(directory: StrPath) -> bool:
    """Whether `run_comparison` made this directory, or a record of one was unpacked there."""
    return (Path(directory) / SPEC_FILE).is_file()


def recompute(directory: StrPath, out: StrPath | None = None) -> Summary:
    """Compute the table of a comparison again from what its runs left; play nothing.

    Args:
        directory: of the comparison, or where its record was unpacked.
        out: where table and picture go; None writes nothing.

    Raises:
        ConfigError: `directory` holds no comparison.
        RunError: no run has a result.
    """
    directory = Path(directory)
    plan = load_spec(directory / SPEC_FILE, imports=False)
    return _summarise_runs(plan, {}, directory, None if out is None else Path(out))


def _summarise_runs(plan: ComparisonSpec, missing: dict[str, str], directory: Path, out: Path | None) -> Summary:
    labels, places = plan.labels(), plan.list_run_locations(directory)
    results, trials = [], []
    for run in places:
        if run.name not in missing:
            try:
                results.append(read_result(run.directory, labels[run.method]))
            except RunError as error:
                missing[run.name] = str(error)
        for panel, place in run.panels.items():
            try:
                trials.append(read_trials(place, panel, labels[run.method], run.seed))
            except RunError as error:
                missing.setdefault(panel_result_name(run.name, panel), str(error))
    question = SummaryOptions(
        labels=list(labels.values()),
        title=plan.compare.title,
        remark=plan.compare.remark,
        threshold=plan.compare.threshold,
        baseline=labels.get(plan.compare.baseline, ""),
        missing={(labels[run.method], run.seed): missing[run.name] for run in places if run.name in missing},
        notes=[*_make_remark_notes(plan), *_make_dependency_notes(plan)],
        panels=[_make_panel_options(plan, name, places, missing) for name in plan.panels],
    )
    summary = summarise(results, question, trials)
    if out is not None:
        write_summary(summary, results, out)
    return summary


def _load_story_episodes(plan: ComparisonSpec, runs: Sequence[RunLocation]) -> list[RunEpisodes]:
    """The first method that learns from tips beside the start model, seed by seed."""
    panels, models = {(run.method, run.seed): run.directory for run in runs}, plan.list_evaluable_methods()
    start = next((name for name in models if plan.get_algorithm(name) == INITIAL_MODEL_METHOD), "")
    taught = next((name for name in models if find_method(plan.get_algorithm(name)).shows_tips), "")
    return [
        RunEpisodes(
            _load_panel_episodes(panels[start, seed]),
            _load_panel_episodes(panels[taught, seed]),
            partial(read_jsonl, panels[taught, seed] / "trajectories.jsonl"),
        )
        for seed in plan.compare.seeds
        if {(start, seed), (taught, seed)} <= panels.keys()
    ]


def _load_panel_episodes(run: Path) -> dict[str, Record]:
    return {record["task"]["id"]: record for record in read_jsonl(run / "eval" / "episodes.jsonl")}


def _make_panel_options(
    plan: ComparisonSpec, name: str, runs: Sequence[RunLocation], missing: Mapping[str, str]
) -> PanelOptions:
    labels = plan.labels()
    lost = [(run, missing.get(panel_result_name(run.name, name))) for run in runs if name in run.panels]
    return PanelOptions(
        name=name,
        label=plan.panel_labels()[name],
        num_trials=plan.panels[name].trials,
        methods=[labels[method] for method in plan.list_panel_methods(name)],
        start=labels.get(plan.get_initial_method(name), ""),
        missing={(labels[run.method], run.seed): why for run, why in lost if why},
    )


def _make_remark_notes(plan: ComparisonSpec) -> list[str]:
    """The remark again, below the table, with what follows from it."""
    return [f"{plan.compare.remark}: read no order of the methods from this table."] if plan.compare.remark else []


def _make_dependency_notes(plan: ComparisonSpec) -> list[str]:
    """What a reader must know of methods that start from the run of another."""
    labels, notes = plan.labels(), []
    for name, method in plan.methods.items():
        if method.after:
            learned = bool(find_method(plan.get_algorithm(name)).data)
            how = "learned from the episodes of" if learned else "plays the last model of"
            notes.append(f"{labels[name]} {how} {labels[method.after]}, whose cost is not in its line.")
    return notes


def write_summary(summary: Summary, results: Sequence[RunResult], out: Path) -> None:
    """`table.json`, `table.md`, and `curves.png` where matplotlib is installed.

    Where the panel is one that figures were published for, they follow in columns of their own.
    """
    text, published = render_summary_markdown(summary), compare_with_published(summary.env, results)
    more = {}
    if published is not None:
        theirs = to_markdown(published).replace("# ", "## Beside the published figures: ", 1)
        text = "\n".join([text, theirs, *render_comparability(), ""])
        more["published"] = json.loads(to_json(published))
    write_text_atomic(out / "table.json", render_summary_json(summary, **more))
    write_text_atomic(out / "table.md", text)
    try:
        draw_summary(summary, out / "curves.png")
    except MissingExtraError as error:
        logger.warning("no curves.png: %s", error)


def compare_with_published(env: str, results: Sequence[RunResult]) -> Comparison | None:
    """The published table of this environment with ours beside it; None where there is none for what was played."""
    panel = next((name for name, table in PUBLISHED_PANELS.items() if table.env == env), None)
    if panel is None:
        return None
    try:
        return build_comparison([result.evaluation for result in results], panel, PUBLISHED_PANELS[panel])
    except RunError as error:
        logger.warning("no published figures beside these: %s", error)
        return None


def describe_comparison(path: Path, out: Path | None) -> str:
    """The plan in words: what differs, and each run with the commands that are left of it."""
    plan = load_spec(path)
    out = comparison_directory(plan, out)
    runs = expand_runs(plan, path, out)
    validate_unchanged_settings(runs)
    stages_left = list_unfinished_stages(runs)
    _require_prerequisites(stages_left)
    left = {stage.job.name for stage in stages_left}
    lines = [f"{len(runs)} runs, {plan.compare.jobs} side by side, in {out}", ""]
    for name, label in plan.labels().items():
        own = flatten_settings(plan.methods[name].settings)
        said = ", ".join(f"{key} = {json.dumps(value)}" for key, value in own.items())
        lines.append(f"{label}: {said or 'as the settings shared by all'}")
    for run in runs:
        stages = [stage for stage in list_stages(run) if stage.job.name in left]
        lines += ["", f"{run.name}: {'' if stages else 'done'}"]
        lines += [f"  trailnotes {shlex.join(stage.job.command[3:])}" for stage in stages]
    return "\n".join(lines) + "\n"
