"""Compute the tables of a comparison of methods that change no weights, from its runs.

    python docs/results/adapt.py runs/compare/qwen-adapt

Prints, trial by trial, the mean return of each method; its success and its difference to the baseline in the last
trial, with the 95 % interval over games and seeds crossed (each game counts as a family of its own); tokens and
processor minutes of a run. Then the links: answers of the author that could be used, and games that were lost by an
action that had lost them before, or that the agent had read about. Runs that have not ended, and methods without any
that has, are left out. Further directories add rows, with differences to the baseline of the first.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from trailnotes.errors import TrailnotesError
from trailnotes.reporting.intervals import estimate_difference
from trailnotes.storage.files import parse_json, read_jsonl
from trailnotes_lab.compare.spec import ComparisonSpec, RunLocation, load_spec

Games = dict[str, float]
UNUSABLE = ("notebook/unusable", "tips/unusable")
ASKED = ("notebook/asked", "tips/written")


def read_phases(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the finished episodes of each phase that the run has logged, in their order."""
    phases = {line["iteration"]: line["phase"] for line in read_jsonl(run / "metrics.jsonl")}
    episodes: dict[str, list[dict[str, Any]]] = {phase: [] for phase in phases.values()}
    for record in read_jsonl(run / "trajectories.jsonl"):
        if record["iteration"] in phases and record["outcome"] != "error":
            episodes[phases[record["iteration"]]].append(record)
    return episodes


def read_attempts(run: Path, name: str) -> list[Games]:
    """Read a figure of every game, attempt by attempt; a game that is solved and not played again keeps its figure."""
    attempts: list[Games] = []
    for phase, episodes in read_phases(run).items():
        if phase.startswith("trial-"):
            own: dict[str, list[float]] = defaultdict(list)
            for episode in episodes:
                own[episode["task"]["id"]].append(float(episode[name]))
            means = {game: fmean(samples) for game, samples in own.items()}
            attempts.append({**(attempts[-1] if attempts else {}), **means})
    return attempts


def has_ended(place: RunLocation) -> bool:
    return (place.directory / "cost.json").is_file() and (place.directory / "table.json").is_file()


def build_row(spec: ComparisonSpec, method: str, places: list[RunLocation], last: Mapping[int, Games]) -> list[str]:
    """Build the line of a method; `last` are the returns of the baseline's last trial, by seed."""
    attempts = {place.seed: read_attempts(place.directory, "return") for place in places}
    means = [f"{fmean(fmean(own.values()) for own in trial):.0f}" for trial in zip(*attempts.values(), strict=True)]
    success = fmean(fmean(read_attempts(place.directory, "success")[-1].values()) for place in places)
    ends = {seed: own[-1] for seed, own in attempts.items()}
    gap = format_gap(ends, last) if method != spec.compare.baseline else ""
    cells = [*means, format_by_task(list(ends.values())), f"{success:.2f}", gap, *average_costs(places)]
    return [spec.labels()[method], str(len(places)), *cells]


def format_by_task(seeds: list[Games]) -> str:
    """Format the mean of each task, in the order of their names."""
    values: dict[str, list[float]] = defaultdict(list)
    for game, value in sorted(item for own in seeds for item in own.items()):
        values[game.rpartition("/")[0]].append(value)
    return ", ".join(f"{fmean(own):.0f}" for own in values.values())


def format_gap(values: Mapping[int, Games], baseline: Mapping[int, Games]) -> str:
    games = {game: game for own in baseline.values() for game in own}
    gap = estimate_difference(values, baseline, games, rates=False)
    if gap is None:
        return ""
    limits = f"[{gap.beyond.low:+.0f}, {gap.beyond.high:+.0f}]" if gap.beyond else f"({gap.not_beyond})"
    return f"{gap.mean:+.0f} {limits}"


def average_costs(places: list[RunLocation]) -> list[str]:
    """Average thousands of tokens written and read, and processor minutes, over runs."""
    lines = [list(read_jsonl(place.directory / "metrics.jsonl"))[-1] for place in places]
    written, read = (fmean(line[name] for line in lines) / 1000 for name in ("tokens_generated", "tokens_read"))
    costs = [parse_json((place.directory / "cost.json").read_bytes())["total"] for place in places]
    seconds = [cost["cpu_seconds"] for cost in costs if "cpu_seconds" in cost]  # not of runs started by hand
    return [f"{written:.1f}", f"{read:.0f}", f"{fmean(seconds) / 60:.1f}" if seconds else ""]


def iter_links(places: list[RunLocation]) -> Iterator[str]:
    """Yield usable answers of the author, games lost after trial 0, and how many of these by a known mistake."""
    asked = unusable = lost = again = named = 0
    for place in places:
        for line in read_jsonl(place.directory / "metrics.jsonl"):
            asked += sum(line.get(name, 0) for name in ASKED)
            unusable += sum(line.get(name, 0) for name in UNUSABLE)
        fatal: set[tuple[str, str]] = set()  # game and action
        for phase, episodes in read_phases(place.directory).items():
            for episode in (episode for episode in episodes if episode["return"] < 0):
                action = episode["steps"][-1]["action"]
                shown = " ".join(tip["text"] for step in episode["steps"] for tip in step["tips"])
                lost += phase != "trial-0"
                again += (episode["task"]["id"], action) in fatal
                named += action in shown
                fatal.add((episode["task"]["id"], action))
    yield f"{asked - unusable:.0f} of {asked:.0f}"
    yield from map(str, (lost, again, named))


def main(folders: list[Path]) -> None:
    """Print both tables; the first folder has the baseline."""
    specs = {folder: load_spec(folder / "compare.toml") for folder in folders}
    last = dict[int, Games]()
    rows, links = [], []
    for folder, spec in specs.items():
        runs: dict[str, list[RunLocation]] = defaultdict(list)
        for place in spec.list_run_locations(folder):
            if has_ended(place):
                runs[place.method].append(place)
        ends = {
            place.seed: read_attempts(place.directory, "return")[-1] for place in runs.get(spec.compare.baseline, ())
        }
        last = ends | last
        rows += [build_row(spec, method, places, last) for method, places in runs.items()]
        links += [[spec.labels()[method], *iter_links(places)] for method, places in runs.items()]
    last_columns = ["by task", "success", "less no memory", "written, k", "read, k", "minutes"]
    longest = max((len(row) for row in rows), default=0)
    trials = [f"trial {trial}" for trial in range(longest - len(last_columns) - 2)]
    for row in rows:  # of a method with fewer trials
        row[-len(last_columns) : -len(last_columns)] = [""] * (longest - len(row))
    print_table(["", "seeds", *trials, *last_columns], rows)
    print_table(
        ["", "usable answers", "lost after trial 0", "by the same action again", "by one that it has read"], links
    )


def print_table(head: list[str], rows: list[list[str]]) -> None:
    lines = [head, ["---", *["---:" for _ in head[1:]]], *rows]
    print("\n".join(f"| {' | '.join(cells)} |" for cells in lines), end="\n\n")


if __name__ == "__main__":
    try:
        main([Path(argument) for argument in sys.argv[1:]] or sys.exit(__doc__))
    except TrailnotesError as fault:
        sys.exit(f"adapt.py: {fault}")
