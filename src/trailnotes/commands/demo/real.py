"""`trailnotes demo --real`: a pretrained model learns a task of ScienceWorld, evaluated before and after."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.reporting.intervals import Interval
from trailnotes.reporting.plots import plot_learning
from trailnotes.reporting.tables import format_table, print_table, print_text
from trailnotes.reporting.terminal import ProgressBar, format_duration
from trailnotes.runs.evaluate import evaluate
from trailnotes.runs.panels import estimate_interval, get_family
from trailnotes.runs.train import train
from trailnotes.storage.files import read_jsonl, trajectory_from_json, write_text_atomic
from trailnotes.types import StrPath, Trajectory

CONFIG, SMALL_CONFIG = "qwen/scienceworld", "qwen/scienceworld-small"
FETCHED, HUB_NAME = "models/qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct"
LABELS = "initial model", "trained"
WIDTH = 58  # characters of an episode beside another


def run_real_demo(out: Path, settings: Sequence[str] = (), config_name: str = CONFIG) -> dict[str, list[Trajectory]]:
    """Evaluate a pretrained model on unseen games, train it by GRPO, evaluate it again, and print what changed."""
    started = time.monotonic()
    config = load_config(config_name, settings)
    if config.model.path == FETCHED and not Path(FETCHED).is_dir():
        config = load_config(config_name, ["--model.path", HUB_NAME, *settings])
    games = f"{config.eval.num_tasks} games that it is not trained on"
    print(f"1/3  {config.model.path} plays {games} ...", flush=True)
    with ProgressBar(1.0, "eval") as bar:
        before = load_or_play(config, config.model.path, out / "before", bar)
    size, iterations = config.rollout.num_tasks * config.rollout.group_size, config.train.iterations
    print(f"2/3  GRPO trains it on other games, in {iterations} iterations of {size} episodes ...", flush=True)
    train(config, out / "run")
    print(f"3/3  The trained model plays the {games} ...", flush=True)
    with ProgressBar(1.0, "eval") as bar:
        after = load_or_play(config, out / "run", out / "after", bar)
    episodes = dict(zip(LABELS, (before, after), strict=True))
    report(config, episodes, out)
    print(f"\n{out / 'table.md'}  {out / 'curve.png'}  {out / 'episode.txt'}   "
          f"({format_duration(time.monotonic() - started)})")  # fmt: skip
    return episodes


def load_or_play(config: Config, model: StrPath, directory: Path, bar: ProgressBar) -> list[Trajectory]:
    if not (directory / "table.json").exists():
        evaluate(config, model, out=directory, progress=bar)
    return [trajectory_from_json(record) for record in read_jsonl(directory / "episodes.jsonl")]


def report(config: Config, episodes: dict[str, list[Trajectory]], out: Path) -> None:
    rows: list[list[str]] = []
    points: dict[str, Interval] = {}
    scope = ""
    for label, played in episodes.items():
        cells = []
        for metric, digits in {"success": 2, "return": 1}.items():
            chosen = config.model_copy(update={"eval": config.eval.model_copy(update={"metric": metric})})
            mean, interval, scope = estimate_interval(played, chosen)
            points[label] = interval or Interval(mean, mean, mean)
            limits = f" [{interval.low:.{digits}f}, {interval.high:.{digits}f}]" if interval else ""
            cells.append(f"{mean:.{digits}f}{limits}")
        rows.append([label, *reversed(cells)])
    table = ["agent", "return, at most 100", "success"], rows
    print()
    print_table("", table)
    print_text([f"{len(episodes[LABELS[0]])} episodes each. Intervals: {scope}."])
    write_text_atomic(out / "table.md", "\n".join(format_table(*table)) + "\n")
    metrics = list(read_jsonl(out / "run" / "metrics.jsonl"))
    curve = [(record["seconds"] / 60, float(record["rollout/return/plain"])) for record in metrics]
    title = f"{Path(config.model.path).name} learns {get_family(episodes[LABELS[0]][0].task)} by GRPO"
    plot_learning([curve], points, out / "curve.png", title)
    text = render_side_by_side(*find_largest_gain(*episodes.values()))
    write_text_atomic(out / "episode.txt", text)
    print(f"\n{text}", end="")


def find_largest_gain(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> tuple[Trajectory, Trajectory]:
    later = {episode.task.id: episode for episode in after}
    pairs = [(episode, later[episode.task.id]) for episode in before if episode.task.id in later]
    return max(pairs, key=lambda pair: pair[1].episode_return - pair[0].episode_return)


def render_side_by_side(before: Trajectory, after: Trajectory) -> str:
    """Render two episodes of a game in columns: each action, its reward, and how the answer begins."""
    columns = []
    for episode in (before, after):
        answers = [*(step.observation for step in episode.steps[1:]), episode.final_observation]
        lines = []
        for step, answer in zip(episode.steps, answers, strict=True):
            lines.append(f"> {step.action}" + (f"   [{step.reward:+g}]" if step.reward else ""))
            lines.append(f"  {(answer.text.strip().splitlines() or [''])[0]}")
        columns.append([*lines, f"return {episode.episode_return:g}"])
    task = (before.steps[0].observation.instruction if before.steps else None) or ""
    head = [f"one game before and after training: {before.task.id}", *textwrap.wrap(task, 2 * WIDTH), ""]
    body = zip_longest([LABELS[0], ""] + columns[0], [LABELS[1], ""] + columns[1], fillvalue="")
    return "\n".join([*head, *(f"{shorten(left)} | {shorten(right)}".rstrip() for left, right in body)]) + "\n"


def shorten(line: str) -> str:
    return (line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}...").ljust(WIDTH)
