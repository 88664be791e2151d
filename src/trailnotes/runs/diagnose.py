"""Checks of a run from its own files, from the tip that is written to the model that needs none.

Each has its measure and, where it is weak, the usual remedy (docs/algorithms/empo2.md, "why it may not learn").
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from trailnotes.config.methods import find_method
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.schema import Config
from trailnotes.runs.directory import load_run_config, report_damaged_run
from trailnotes.storage.files import read_jsonl
from trailnotes.types import MODES, StrPath

JsonRecord = Mapping[str, Any]
WINDOW = 0.2  # share of the run that counts as its start and as its end
MIN_COUNT = 10  # episodes, tips, rows, turns, tokens: of fewer nothing is concluded
MIN_ITERATIONS = 5  # of fewer, no trend
HARMFUL_GAIN = -0.1  # gain in return below which reading tips does harm
NEGLIGIBLE_GAIN = 0.05  # a gain in return, or in nats a token, that is not worth having
MAX_FLOAT32_MISMATCH = 1e-3  # nats a token between engine and learner, on average, that float32 does not explain
NEGLIGIBLE_RELIANCE = 0.05  # nats a token; below this the model acts as if it had read the tip
WIDTH = 100


@dataclass(frozen=True, slots=True)
class Check:
    """Check of a run: a question, its answers at the start and at the end, and the advice."""

    question: str
    advice: str
    first: float | None = None  # None: nothing to measure it by
    last: float | None = None
    holds: bool | None = None  # None: too few data
    counts: tuple[int, int] = (0, 0)  # what `first` and `last` are means of
    unit: str = ""  # of the counts

    def __str__(self) -> str:
        if self.last is None:
            return f"  -  {self.question:<52} no data"
        mark = {True: "ok  ", False: "WEAK", None: "  ? "}[self.holds]
        counts = " -> ".join(f"{n:,}" if n < 10_000 else f"{n / 1000:,.0f}k" for n in self.counts)
        numbers = f"{f'{_format_number(self.first)} -> {_format_number(self.last)}':<16} ({counts} {self.unit})"
        lines = [f"{mark} {self.question:<52} {numbers}"]
        if self.holds is False:
            indent = " " * 7
            lines += textwrap.wrap(self.advice, WIDTH, initial_indent=indent, subsequent_indent=indent)
        return "\n".join(lines)


def diagnose(run_dir: StrPath) -> str:
    """Report on the run in `run_dir`, one check a line; `RunError` if there is none, or its files are damaged."""
    run_dir = Path(run_dir)
    config = load_run_config(run_dir)
    lines = list(read_jsonl(run_dir / "metrics.jsonl"))
    episodes = list(read_jsonl(run_dir / "trajectories.jsonl"))
    if not lines:
        return _describe_failure(episodes) or f"{run_dir} has no finished iteration yet\n"
    with report_damaged_run(run_dir):
        steps = f"{lines[-1]['env_steps']:,} environment steps"
        links = run_checks(lines, episodes, config)
    title = f"{run_dir}: {config.algorithm.name}, {len(lines)} iterations, {steps}"
    weak = next((link for link in links if link.holds is False), None)
    missing = sum(link.last is None for link in links)
    judged = sum(link.holds is not None for link in links)
    verdict = f"first weak link: {weak.question}" if weak else f"no weak link in {judged} of {len(links)} checks"
    verdict += "; the others could not be judged" if not weak and judged < len(links) else ""
    title += f"\nno data for {missing} of {len(links)} checks" if missing else ""
    legend = [f"numbers are means over the first and the last {WINDOW:.0%} of the iterations; in brackets, of how many"]
    if any(link.holds is None and link.last is not None for link in links):
        legend.append("?: too few, or too noisy, to say")
    return _describe_failure(episodes) + "\n".join([title, *map(str, links), verdict, *legend, ""])


def _describe_failure(episodes: Sequence[JsonRecord]) -> str:
    """Describe the last iteration if all its episodes failed."""
    last = [e for e in episodes if e["iteration"] == episodes[-1]["iteration"]]
    if not last or any(e["outcome"] != "error" for e in last):
        return ""
    return f"all {len(last)} episodes of iteration {last[0]['iteration']} failed; the first one: {last[0]['error']}\n"


def run_checks(lines: Sequence[JsonRecord], episodes: Sequence[JsonRecord], config: Config) -> list[Check]:
    return [
        _check_threshold(
            lines, "actions that could be read",
            lambda m: 1 - m["rollout/unparsable"] if "rollout/unparsable" in m else None, 0.5,
            ("rollout/env_steps", "turns"),
            "the model's answers are no actions, so nothing else counts: show it how (rollout.example_turns), let it "
            "finish (rollout.stop, rollout.max_action_tokens), or change rollout.action_format",
        ),
        _check_threshold(
            lines, "usable tips, of those written",
            lambda m: 1 - m["tips/unusable"] / m["tips/written"] if m.get("tips/written") else None, 0.8,
            ("tips/written", "tips"),
            "the model does not write tips that can be kept: warm-start it on writing, or raise "
            "memory.max_write_tokens",
        ),
        _check_tips_shown(lines, config),
        _check_tip_gain(episodes, config),
        _check_group_variance(lines, config),
        _check_engine_match(lines, config),
        _check_threshold(
            lines, "off-policy tokens that the mask leaves in",
            lambda m: 1 - m["update/masked_fraction"] if m.get("update/tokens_off_policy") else None, 0.5,
            ("update/tokens_off_policy", "tokens"),
            "the tip-free model finds the tips' actions too unlikely: lower loss.mask_logprob, or train more slowly "
            "(optim.lr, optim.epochs)",
        ),
        *([_check_corrections(lines)] if config.loss.mismatch != "none" or config.loss.max_negative_kl else []),
        _check_reliance(lines, config),
        _check_improvement(lines),
    ]  # fmt: skip


def _check_threshold(
    lines: Sequence[JsonRecord],
    question: str,
    value: Callable[[JsonRecord], float | None],
    least: float,
    counted: tuple[str, str],
    advice: str,
    judge: Callable[[float, float], float] = lambda _, last: last,
) -> Check:
    """Check that a measure reaches `least`; `counted` is the metric of what it is a mean of, and its unit.

    `judge` makes one number of the means at both ends: the last, since training may break what worked.
    """
    name, unit = counted
    known = [(measure, line.get(name, 0)) for line in lines if (measure := value(line)) is not None]
    link = _check_ends(question, advice, [measure for measure, _ in known], lambda *ends: judge(*ends) >= least,
                       [number for _, number in known], unit)  # fmt: skip
    return link if link.counts[1] >= MIN_COUNT else replace(link, holds=None)


def _check_ends(
    question: str, advice: str, values: Sequence[float], judge: Callable[[float, float], bool | None],
    counts: Sequence[float] = (), unit: str = "iterations",
) -> Check:  # fmt: skip
    """Judge the means of `values` at both ends of the run; `counts` are what the values are means of."""
    if not values:
        return Check(question, advice)
    size, counts = _get_window_size(values), counts or [1] * len(values)
    first, last = fmean(values[:size]), fmean(values[-size:])
    numbers = int(sum(counts[:size])), int(sum(counts[-size:]))
    return Check(question, advice, first, last, judge(first, last), numbers, unit)


def _check_tips_shown(lines: Sequence[JsonRecord], config: Config) -> Check:
    memory = config.memory
    causes = [
        (memory.top_k == 0, "memory.top_k = 0 shows none"),
        (memory.threshold > -1, f"is memory.threshold = {memory.threshold:g} too high (it belongs to the embedder)?"),
        (memory.scope == "task", "do tasks come again (a tip belongs to its task: train longer, or on fewer tasks)?"),
        (True, "is there room (rollout.max_context_tokens)? `trailnotes memory list` shows what there is"),
    ]
    link = _check_threshold(
        lines, "tips shown in a turn with memory", _tips_shown, 0.01, ("rollout/env_steps", "turns"),
        "nothing is shown: " + " ".join(text for is_possible, text in causes if is_possible), max,
    )  # fmt: skip
    empo2 = config.section(Empo2Config)
    draws = config.algorithm.name == "empo2" and empo2.mode_unit == "iteration" and empo2.p_memory
    if link.last is not None or not draws or len(lines) < MIN_ITERATIONS:
        return link
    advice = (f"none of {len(lines)} iterations was drawn to be played with tips (empo2.p_memory = "
              f'{empo2.p_memory:g}, empo2.mode_unit = "iteration"), so this was GRPO: train longer, choose '
              'another run.seed, or mix the modes (empo2.mode_unit = "trajectory")')  # fmt: skip
    return replace(link, first=0.0, last=0.0, holds=False, advice=advice, unit="turns")


def _check_group_variance(lines: Sequence[JsonRecord], config: Config) -> Check:

    def link(lines: Sequence[JsonRecord], where: str = "") -> Check:
        question = f"rows with an advantage other than zero{where}"
        return _check_threshold(
            lines, question,
            lambda m: 1 - m["update/zero_advantage_rows"] / m["update/rows"] if m.get("update/rows") else None, 0.05,
            ("update/rows", "rows"),
            "groups whose returns are all equal teach nothing: raise rollout.group_size or rollout.temperature, mix "
            'the modes (empo2.mode_unit = "trajectory"), or use an intrinsic reward (algorithm.intrinsic)', max,
        )  # fmt: skip

    whole = link(lines)
    if config.section(Empo2Config).mode_unit != "iteration" or whole.holds is False:
        return whole
    reading = link([line for line in lines if _tips_shown(line)], ", with tips")
    return reading if reading.holds is False else whole


def _check_corrections(lines: Sequence[JsonRecord]) -> Check:
    return _check_threshold(
        lines, "tokens that loss.mismatch and loss.max_negative_kl leave in",
        lambda m: 1 - m.get("engine/truncated", 0.0) - m.get("update/dropped_fraction", 0.0), 0.9,
        ("update/tokens_trained", "tokens"),
        "engine and learner, or the weights before and after the update, are too far apart: lower optim.lr or "
        "optim.epochs, sample in float32, or raise loss.max_negative_kl",
    )  # fmt: skip


def _check_engine_match(lines: Sequence[JsonRecord], config: Config) -> Check:
    values = [line["engine/difference"] for line in lines if "engine/difference" in line]
    rounds, tolerance = config.is_hosted or config.model.dtype == "bfloat16", config.engine.max_logprob_mismatch
    fix = 'model.dtype = "float32"' if rounds else 'learner.packed = "never" and engine.shared_prompts = false'
    if config.is_hosted:  # what the server computes in is not known here
        fix = 'loss.mismatch = "truncate"'
    why = f"bfloat16 rounds (max_logprob_mismatch = {tolerance:g})" if rounds else "float32 explains"
    advice = f"engine and learner differ on the tokens that were sampled by more than {why}: set {fix}"
    question, most = "nats between engine and learner, a sampled token", tolerance if rounds else MAX_FLOAT32_MISMATCH
    return _check_ends(question, advice, values, lambda *ends: max(ends) <= most)


def _check_tip_gain(episodes: Sequence[JsonRecord], config: Config) -> Check:
    """Compare the return of episodes with tips with that of episodes without.

    Weak only outside the interval of two standard errors (Welch) around the last gain.
    """
    question = "return with tips shown, less return without"
    played = [e for e in episodes if e["outcome"] != "error"]
    num_iterations = 1 + max((e["iteration"] for e in played), default=0)
    gains: list[tuple[float, float, int]] = []  # of each fifth: gain, two standard errors, episodes
    for i in range(5):
        part = [e for e in played if e["iteration"] * 5 // num_iterations == i]
        with_tips = [e["return"] for e in part if any(step["tips"] for step in e["steps"])]
        plain = [e["return"] for e in _select_baseline(part, played, config)]
        if with_tips and plain:
            width = math.inf
            if min(len(with_tips), len(plain)) >= MIN_COUNT:
                width = 2 * math.sqrt(variance(with_tips) / len(with_tips) + variance(plain) / len(plain))
            gains.append((fmean(with_tips) - fmean(plain), width, len(with_tips) + len(plain)))
    if not gains:
        return Check(question, "")
    last, width, _ = gains[-1]
    trains = find_method(config.algorithm.name).trains
    helped = trains and any(gain > 0 and bound < math.inf for gain, bound, _ in gains[:-1])
    if helped and last < HARMFUL_GAIN:
        advice = ("episodes with tips now do worse than the others: the model is unlearning to follow them; train a "
                  "share of these episodes with their tips (empo2.q_off_policy below 1), or train more slowly "
                  "(optim.lr, optim.epochs)")  # fmt: skip
    else:
        advice = "tips do not help their readers: are they right (trailnotes memory list)? does the model obey them?"
    holds = _is_better(last, width)
    if holds is False and helped and last >= HARMFUL_GAIN:
        holds = True  # they helped, though no reader needs them any more
    return Check(question, advice, gains[0][0], last, holds, (gains[0][2], gains[-1][2]), "episodes")


def _select_baseline(part: Sequence[JsonRecord], played: Sequence[JsonRecord], config: Config) -> list[JsonRecord]:
    """Select episodes without tips, or trial 0 of an adaptation; none where it repeats failures alone (Reflexion)."""
    if find_method(config.algorithm.name).trains:
        return [e for e in part if e["mode"] == "plain"]
    first = [e for e in played if e["mode"] == "plain"]
    return first if {e["task"]["id"] for e in part} == {e["task"]["id"] for e in first} else []


def _check_reliance(lines: Sequence[JsonRecord], config: Config) -> Check:
    """Check that the policy comes to expect the actions of tips without them: KL(with the tip || without), by k3."""
    known = [
        (nats, tokens)
        for line in lines
        if (tokens := line.get("update/tokens_off_policy")) and (nats := _get_reliance(line, config)) is not None
    ]
    question = "reliance on tips: log-probability with less without"
    advice = ("what tips make the model do does not become more likely without them: are there off-policy rows that "
              f"win (empo2.q_off_policy = {config.section(Empo2Config).q_off_policy:g})? does loss.kl = "
              f"{config.loss.kl:g} hold the model where it was?")  # fmt: skip
    values = [nats for nats, _ in known]

    def judge(first: float, last: float) -> bool | None:
        holds = _is_better(first - last, _estimate_half_width(values))
        return True if holds is False and last < NEGLIGIBLE_RELIANCE else holds

    return _check_ends(question, advice, values, judge, [tokens for _, tokens in known], "tokens")


def _check_improvement(lines: Sequence[JsonRecord]) -> Check:
    values = [line["rollout/return/plain"] for line in lines if "rollout/return/plain" in line]
    advice = "nothing reaches the tip-free policy: look at the links above, then at optim.lr and optim.epochs"
    width = _estimate_half_width(values)
    return _check_ends("return without tips", advice, values, lambda first, last: _is_better(last - first, width))


def _is_better(gain: float, width: float) -> bool | None:
    """Return whether there is a gain; None where `gain` +- `width` leaves it open."""
    if width == math.inf:
        return None
    if gain > 0:
        return True
    return None if gain + width > NEGLIGIBLE_GAIN else False


def _estimate_half_width(values: Sequence[float]) -> float:
    """Return two standard errors of the ends' difference, with the noise of neighbours (von Neumann)."""
    if len(values) < MIN_ITERATIONS:
        return math.inf
    noise = fmean([(b - a) ** 2 for a, b in pairwise(values)]) / 2
    return 2 * math.sqrt(noise * 2 / _get_window_size(values))


def _tips_shown(line: JsonRecord) -> float | None:
    with_memory = any(f"rollout/return/{mode}" in line for mode in MODES if mode != "plain")
    return line.get("rollout/tips_per_step") if with_memory else None


def _get_reliance(line: JsonRecord, config: Config) -> float | None:
    settings = config.section(Empo2Config)
    acting = settings.old_logprobs == "acting" and settings.distilled_context == "tip_free"
    nats: float | None = line.get("tips/reliance", line.get("update/kl_to_behavior_off_policy") if acting else None)
    return nats


def _get_window_size(values: Sequence[object]) -> int:
    return max(1, round(WINDOW * len(values)))


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
