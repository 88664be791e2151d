"""Play test games with tips of their task's training games, verbatim and rebound: question 4 of scienceworld-fair.md.

    python docs/results/family_tips.py play runs/family-tips \
        runs/compare/fair-{find-*,lifespan-*,use-thermometer}/runs/empo2-[0-3]
    python docs/results/family_tips.py table runs/family-tips

Each run is one of question 1 of EMPO² with quoted actions; its memory holds the tips of its training games. `play`
has the run's model and the initial model play the run's panel, and skips what was played. `--eval.split validation` and
other settings follow the runs.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from statistics import fmean
from typing import Any

from trailnotes import adapt, open_memory
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs import make_env
from trailnotes.envs.tasks import load_panel, load_tasks
from trailnotes.reporting.intervals import estimate_difference
from trailnotes.runs.evaluate import evaluate_model
from trailnotes.runs.load_policy import EvaluatedModel, open_evaluated_model
from trailnotes.runs.panels import write_episodes
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Tip

SEARCH = ["--memory.order", '["similarity", "score", "support", "recency"]', "--memory.threshold", "-1"]
TRIALS = 3
AGENTS = ("trained", "initial")
ARMS = ("none", "own", "verbatim", "rebound")
GAPS = (  # (agent, arm) less (agent, arm)
    ("trained", "own", "trained", "none"),
    ("trained", "verbatim", "trained", "own"),
    ("trained", "rebound", "trained", "own"),
    ("trained", "rebound", "trained", "verbatim"),
    ("initial", "own", "initial", "none"),
    ("initial", "rebound", "initial", "own"),
    ("trained", "own", "initial", "own"),
    ("trained", "rebound", "initial", "rebound"),
)


def map_words(source: str, target: str) -> dict[str, str]:
    """Align two instructions, and map the words of `source` that differ to those of `target`."""
    ours, theirs = re.findall(r"[\w-]+", source), re.findall(r"[\w-]+", target)
    found = {}
    for kind, a, b, c, d in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if kind == "replace":
            found[" ".join(ours[a:b])] = " ".join(theirs[c:d])
    return found


def rebind(text: str, words: dict[str, str]) -> str:
    """Exchange these words, all at once, so that none is exchanged twice."""
    if not words:
        return text
    longest_first = "|".join(re.escape(each) for each in sorted(words, key=len, reverse=True))
    return re.sub(rf"\b(?:{longest_first})\b", lambda match: words[match[0]], text)


def read_instructions(config: Config, split: str) -> dict[str, str]:
    """Begin every game of a split for its instruction."""
    tasks = load_panel(config) if split == config.eval.split else load_tasks(config, split)
    with closing(make_env(config.env.name, **config.env.options)) as env:
        return {task.id: env.reset(task).instruction for task in tasks}


def write_memory(path: Path, config: Config, tips: list[Tip], *, is_rebound: bool) -> None:
    """Give every game of the panel all tips of the training games, as its own."""
    sources, targets = (read_instructions(config, split) for split in (config.train.split, config.eval.split))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    with closing(open_memory(part, config.memory)) as memory:
        for game, target in targets.items():
            words = {source: map_words(sources[source], target) if is_rebound else {} for source in sources}
            own = []
            for tip in tips:
                text, key, action = (rebind(each, words[tip.namespace]) for each in (tip.text, tip.key, tip.action))
                own.append(replace(tip, namespace=game, text=text, key=key, action=action, id=None))
            memory.add(own)
    part.rename(path)


def play(out: Path, run: Path, settings: list[str]) -> None:
    """Play all arms of one run with both models."""
    config = load_config(run / "config.toml", settings)
    name = f"{config.env.options['task']}-{config.run.seed}"
    with open_evaluated_model(run) as trained:
        initial = EvaluatedModel(config.model.path, "start", trained.memory, trained=trained.trained)
        assert trained.memory is not None
        with closing(open_memory(None, config.memory)) as memory:
            memory.restore(trained.memory)
            tips = [tip for tip in memory.store.load_tips() if tip.enabled]
        searching = load_config(run / "config.toml", [*SEARCH, *settings])
        for arm in ARMS[2:]:  # both models read the same tips
            if not (path := out / f"tips-{arm}-{name}.db").exists():
                write_memory(path, searching, tips, is_rebound=arm == "rebound")
        for agent, subject in zip(AGENTS, (trained, initial), strict=True):
            own = out / f"{agent}-own-{name}"
            if not (own / "eval" / "table.json").exists():
                adapt(config, subject.model, out=own, method="empo2-tips", trials=TRIALS)
            for arm in ARMS[2:]:
                folder = out / f"{agent}-{arm}-{name}"
                if not (folder / "episodes.jsonl").exists():
                    with_tips = replace(subject, memory=out / f"tips-{arm}-{name}.db")
                    episodes, _ = evaluate_model(searching, with_tips, use_memory=True, directory=folder)
                    write_episodes(episodes, folder / "episodes.jsonl")
            print(f"{name} {agent} played", flush=True)


def read_episodes(out: Path, agent: str, arm: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the seed and the episode of every game of an arm."""
    pattern, trial = f"{agent}-{arm}-*/episodes.jsonl", 0
    if arm in {"none", "own"}:
        pattern, trial = f"{agent}-own-*/trajectories.jsonl", 0 if arm == "none" else TRIALS
    for path in sorted(out.glob(pattern)):
        for episode in read_jsonl(path):
            if episode.get("iteration", 0) == trial and episode["outcome"] != "error":
                yield int(path.parent.name.rpartition("-")[2]), episode


def print_table(out: Path) -> None:
    """Print the mean return of each task and arm, and the registered differences, of the seeds that played all."""
    values: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    families: dict[str, str] = {}
    for agent in AGENTS:
        for arm in ARMS:
            of_arm = values[agent, arm] = defaultdict(dict)
            for seed, episode in read_episodes(out, agent, arm):
                game = episode["task"]["id"]
                families[game] = episode["task"]["family"]
                of_arm[seed][game] = float(episode["return"])
    seeds = set[int]().union(*values.values())
    whole = {seed for seed in seeds if all(of.get(seed, {}).keys() == families.keys() for of in values.values())}
    if not whole:
        sys.exit(f"no seed of {out} has played all arms: go on with play")
    values = {name: {seed: own for seed, own in of.items() if seed in whole} for name, of in values.items()}
    head = [f"{len(whole)} seeds", *(f"{agent}, {arm}" for agent, arm in values)]
    print(f"| {' | '.join(head)} |\n|---{'|---:' * len(values)}|")
    for family in sorted(set(families.values())):
        cells = []
        for of_arm in values.values():
            means = [fmean(v for g, v in own.items() if families[g] == family) for own in of_arm.values()]
            cells.append(f"{fmean(means):.1f}")
        print(f"| {family} | {' | '.join(cells)} |")
    for agent, arm, other_agent, other_arm in GAPS:
        gap = estimate_difference(values[agent, arm], values[other_agent, other_arm], families, rates=False)
        if gap is not None:
            print(f"{agent} {arm} less {other_agent} {other_arm}: {gap.mean:.1f}, tasks fixed, over seeds "
                  f"{gap.on_panel or gap.not_on_panel}; crossed {gap.beyond or gap.not_beyond}")  # fmt: skip


def main(arguments: list[str]) -> None:
    """Play, or print the table."""
    command, out, *rest = arguments
    if command == "table":
        print_table(Path(out))
        return
    first = next((index for index, word in enumerate(rest) if word.startswith("--")), len(rest))
    for run in rest[:first]:
        play(Path(out), Path(run), rest[first:])


if __name__ == "__main__":
    main(sys.argv[1:])
