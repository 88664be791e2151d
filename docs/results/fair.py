"""Compute the table of a question of scienceworld-fair.md, over the comparisons of its tasks, one of each.

    python docs/results/fair.py runs/compare/fair-find-animal runs/compare/fair-find-living-thing ...
    python docs/results/fair.py quoted,fatal runs/compare/plateau-find-animal runs/compare/plateau-lifespan

Each is the directory of a `trailnotes compare run compare/fair/TASK`, or its unpacked record. Prints means by task,
of the seeds that played every game, then the second method less the first (grpo and empo2, or those named) with the
tasks fixed (over seeds; the registered interval) and with tasks and seeds crossed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import load_tasks
from trailnotes.reporting.intervals import estimate_difference
from trailnotes.storage.files import read_jsonl

MEASURES = {  # title -> file of episodes in a run directory, and the figure of one
    "return, raw": ("eval/episodes.jsonl", "return"),
    "full score": ("eval/episodes.jsonl", "success"),
    "return, a failure keeps its last score": ("panels/last-positive/trajectories.jsonl", "return"),
}
Values = dict[int, dict[str, float]]  # seed -> game -> value


def read_values(folders: list[Path], method: str, file: str, name: str) -> tuple[Values, dict[str, str]]:
    """Read a figure of the episodes without tips, by seed and game, and the family of each game."""
    values: Values = defaultdict(dict)
    families: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob(f"runs/{method}-*/{file}")):
            seed = int(path.relative_to(folder).parts[1].rpartition("-")[2])
            for episode in read_jsonl(path):
                task = episode["task"]
                if episode.get("iteration", 0) == 0 and episode["outcome"] != "error":
                    values[seed][task["id"]] = float(episode[name])
                    families[task["id"]] = task["family"]
    return values, families


def average_by_task(values: Values, families: dict[str, str]) -> dict[str, list[float]]:
    """Average the games of each task, seed by seed."""
    means = defaultdict(list)
    for _, own in sorted(values.items()):
        for family in dict.fromkeys(families.values()):
            if games := [value for game, value in own.items() if families[game] == family]:
                means[family].append(fmean(games))
    return means


def list_games(folder: Path) -> list[str]:
    """List the variations of each split of a comparison, by the settings of its first run."""
    configs = sorted(folder.glob("runs/*/config.toml"))
    if not configs:
        sys.exit(f"{folder} holds no runs: give the directory of a comparison, or its unpacked record")
    config = load_config(configs[0])
    lines = []
    for split in (config.train.split, config.eval.split):
        variations = (task.id.rpartition("/")[2] for task in load_tasks(config, split))
        lines.append(f"{folder.name}, {split}: {' '.join(variations)}")
    return lines


def main(folders: list[Path], methods: tuple[str, ...]) -> None:
    """Print the games, and a table of each measure."""
    print("\n".join(line for folder in folders for line in list_games(folder)))
    for title, (file, name) in MEASURES.items():
        runs = [(folder, method) for folder in folders for method in methods]
        if missing := [f"{method} in {f}" for f, method in runs if not any(f.glob(f"runs/{method}-*/{file}"))]:
            print(f"\n{title}: there is no {file} of {', '.join(missing)}")
            continue
        (first, families), (second, _) = (read_values(folders, method, file, name) for method in methods)
        games = families.keys()
        whole = [seed for seed in sorted(first) if first[seed].keys() == games == second.get(seed, {}).keys()]
        if not whole:
            print(f"\n{title}: no seed has played every game with both methods")
            continue
        first, second = ({seed: own[seed] for seed in whole} for own in (first, second))
        means = [average_by_task(values, families) for values in (first, second)]
        print(f"\n| {title} | {' | '.join(methods)} | seeds |\n|---|---:|---:|---:|")
        for family in means[0]:
            print(f"| {family} | {' | '.join(f'{fmean(m[family]):.2f}' for m in means)} | {len(means[0][family])} |")
        gap = estimate_difference(second, first, families, rates=False)
        if gap is not None:
            by_task = " ".join(f"{fmean(means[1][family]) - fmean(means[0][family]):.1f}" for family in means[0])
            print(f"{methods[1]} less {methods[0]} {gap.mean:.2f}, by task {by_task}")
            print(f"tasks fixed, over seeds {gap.on_panel or gap.not_on_panel}; crossed {gap.beyond or gap.not_beyond}")


if __name__ == "__main__":
    words = sys.argv[1:] or sys.exit(__doc__)
    methods = tuple(words.pop(0).split(",")) if "," in words[0] else ("grpo", "empo2")
    main([Path(word) for word in words], methods)
