"""`trailnotes diagnose`: follow a run link by link, from the tip that is written to the model that needs none.

A chain of seven links, each with the number that shows whether it holds and, where it does not, what usually mends it
(docs/algorithms/empo2.md, "why it may not learn"). Read from the run's own files; nothing is played.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.commands.command import Command, argument
from trailnotes.storage.files import read_jsonl
from trailnotes.types import MODES, StrPath

if TYPE_CHECKING:
    from argparse import Namespace

Line = Mapping[str, Any]
WINDOW = 0.2  # share of the run that counts as its start and as its end
HARM = -0.1  # gain in return below which reading tips does harm
RELIANCE = 0.05  # nats a token; below this the model acts as if it had read the tip
WIDTH = 100


@dataclass(frozen=True, slots=True)
class Link:
    """One link of the chain: a question, the answer at the start and at the end of the run, and the advice."""

    question: str
    first: float | None  # None: nothing to measure it by
    last: float | None
    holds: bool | None
    advice: str

    def __str__(self) -> str:
        mark = {True: "ok  ", False: "WEAK", None: "  - "}[self.holds]
        numbers = "no data" if self.last is None else f"{_number(self.first)} -> {_number(self.last)}"
        lines = [f"{mark} {self.question:<58} {numbers}"]
        if self.holds is False:
            indent = " " * 7
            lines += textwrap.wrap(self.advice, WIDTH, initial_indent=indent, subsequent_indent=indent)
        return "\n".join(lines)


def diagnose(run_dir: StrPath) -> str:
    """A report on the run in `run_dir`, one link a line.

    Raises:
        RunError: there is no run, or its files are damaged.
    """
    from trailnotes.runs.directory import run_config

    run_dir = Path(run_dir)
    config = run_config(run_dir)
    lines = list(read_jsonl(run_dir / "metrics.jsonl"))
    if not lines:
        return f"{run_dir} has no finished iteration yet\n"
    episodes = list(read_jsonl(run_dir / "trajectories.jsonl"))
    title = f"{run_dir}: {config.algorithm.name}, {len(lines)} iterations, {lines[-1]['env_steps']:,} environment steps"
    links = links_of(lines, episodes)
    weak = next((link for link in links if link.holds is False), None)
    verdict = f"first weak link: {weak.question}" if weak else "no weak link found"
    window = f"each number is the mean over the first and over the last {WINDOW:.0%} of the iterations"
    return "\n".join([title, *map(str, links), verdict, window, ""])


def links_of(lines: Sequence[Line], episodes: Sequence[Line]) -> list[Link]:
    """The chain of a run, from its metrics and its episodes."""
    return [
        _link(
            lines, "usable tips, of those written", _usable, 0.8,
            "the model does not write tips that can be kept: warm-start it on writing, or raise max_write_tokens",
        ),
        _link(
            lines, "tips shown in a turn with memory", _tips_shown, 0.01,
            "nothing is retrieved: lower memory.threshold (it belongs to the embedder), or look at `trailnotes memory`",
        ),
        _gain(episodes),
        _link(
            lines, "rows with an advantage other than zero", _gradient_rows, 0.05,
            'groups whose returns are all equal teach nothing: mix the modes (mode_unit = "trajectory"), raise '
            "group_size, or use an intrinsic reward",
        ),
        _link(
            lines, "off-policy tokens that the mask leaves in",
            lambda m: 1 - m["update/masked_fraction"] if m.get("update/tokens_off_policy") else None, 0.5,
            "the tip-free model finds the tips' actions too unlikely: lower loss.mask_logprob, or train more slowly",
        ),
        _reliance(lines),
        _rise(lines),
    ]  # fmt: skip


def _link(
    lines: Sequence[Line], question: str, value: Callable[[Line], float | None], least: float, advice: str
) -> Link:
    first, last = _ends([value(line) for line in lines])
    return Link(question, first, last, None if last is None else max(first or 0.0, last) >= least, advice)


def _gain(episodes: Sequence[Line]) -> Link:
    """Does following tips help? Return of episodes that were shown tips, less that of those without."""
    question = "return with tips shown, less return without"
    # An episode that returned to a kept state (archive.py) began on the way: no measure of playing without tips.
    whole = [e for e in episodes if "return_to" not in e.get("task", {}).get("options", {})]
    played = [e for e in whole if e["outcome"] != "error"]
    num_iterations = 1 + max((e["iteration"] for e in played), default=0)
    fifths = [[e for e in played if e["iteration"] * 5 // num_iterations == i] for i in range(5)]

    def gain(part: Sequence[Line]) -> float | None:
        shown = [e["return"] for e in part if any(step["tips"] for step in e["steps"])]
        plain = [e["return"] for e in part if e["mode"] == "plain"]
        return sum(shown) / len(shown) - sum(plain) / len(plain) if shown and plain else None

    known = [value for value in map(gain, fifths) if value is not None]
    if known and max(known) > 0 and known[-1] < HARM:
        advice = (
            "episodes with tips now do worse than the others: the model is unlearning to follow them; train a share "
            "of these episodes with their tips (algorithm.q_off_policy below 1), or more slowly"
        )
    else:
        advice = "tips do not help their readers: are they right (trailnotes memory list)? does the model obey them?"
    holds = max(known) > 0 and known[-1] >= HARM if known else None
    return Link(question, known[0] if known else None, known[-1] if known else None, holds, advice)


def _reliance(lines: Sequence[Line]) -> Link:
    """Does the tip-free policy come to expect what was done with tips?

    The mean log-probability of off-policy actions with the tip less that without it, as the k3 estimate of
    KL(with the tip || without), in nats a token: 0 is a model that needs no tip.
    """
    values = [m["update/kl_to_behavior_off_policy"] if m.get("update/tokens_off_policy") else None for m in lines]
    first, last, trend = _trend(values)
    advice = (
        "what tips make the model do does not become more likely without them: are there off-policy rows that win "
        "(algorithm.q_off_policy), and is loss.kl so large that it holds the model where it was?"
    )
    holds = None if trend is None or last is None else trend < 0 or last < RELIANCE
    return Link("reliance on tips: log-probability with less without", first, last, holds, advice)


def _rise(lines: Sequence[Line]) -> Link:
    """Does the tip-free policy get better?"""
    first, last, trend = _trend([line.get("rollout/return/plain") for line in lines])
    advice = "nothing reaches the tip-free policy: look at the links above, then at optim.lr and optim.epochs"
    return Link("return without tips", first, last, None if trend is None else trend > 0, advice)


def _tips_shown(line: Line) -> float | None:
    with_memory = any(f"rollout/return/{mode}" in line for mode in MODES if mode != "plain")
    return line.get("rollout/tips_per_step") if with_memory else None


def _gradient_rows(line: Line) -> float | None:
    rows = line.get("update/rows")
    return 1 - line["update/zero_advantage_rows"] / rows if rows else None


def _usable(line: Line) -> float | None:
    """Share of the tips written; older runs have the second names."""
    written, unusable = (
        line.get(name, line.get(before))
        for name, before in (("tips/written", "notes/notes"), ("tips/unusable", "notes/notes_unusable"))
    )
    return 1 - unusable / written if written else None


def _ends(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Means over the first and the last part of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    size = max(1, round(WINDOW * len(known)))
    return sum(known[:size]) / size, sum(known[-size:]) / size


def _trend(values: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """`_ends`, and their difference, None while they are one value."""
    first, last = _ends(values)
    few = sum(value is not None for value in values) < 2
    return first, last, None if few or first is None or last is None else last - first


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _run(args: Namespace) -> None:
    print(diagnose(args.run_dir))


DIAGNOSE = Command(
    name="diagnose",
    summary="find the weak link of a run",
    about="Follow a run link by link: are its tips right, are they found, are they followed, "
    "do members of a group differ, does the model learn to do without them?",
    example="trailnotes diagnose runs/smoke",
    run=_run,
    arguments=(argument("run_dir", type=Path, metavar="RUN", help="a run directory"),),
)
