"""Record the costs of a run over all its starts, in `cost.json` of its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trailnotes.runs.directory import TRAJECTORIES
from trailnotes.runs.usage import COMPARISON_FIELDS, COSTS, SPENDING, USAGE_FIELDS
from trailnotes.storage.files import parse_record, read_jsonl, read_lines_from, write_text_atomic

COST_FILE = "cost.json"
COUNTERS = tuple(name for name in USAGE_FIELDS if name not in {"episodes", "seconds"})  # of steps and tokens
TIP_PROMPTS = ("tips/tokens_read", "notes/note_tokens_read")  # of a line of metrics.jsonl; the second in older runs
EVAL_STAGE = "eval"  # begins the stages whose processes count apart: a panel is no cost of training


@dataclass(frozen=True, slots=True)
class ProcessResult:
    status: int  # 0 = well; negative: the signal that ended it
    seconds: float  # wall clock
    cpu_seconds: float  # of all its threads, and of its own processes that it waited for
    peak_memory: int  # bytes resident, of its largest process; never less than the starter's own at the start


def record_process(run_dir: Path, stage: str, ended: ProcessResult) -> None:
    """Add the time and memory of one process of the run, and count steps and tokens of the run anew."""
    before = _read_json(run_dir)
    processes = [*before.get("processes", []), {
        "stage": stage, "status": ended.status, "seconds": round(ended.seconds, 2),
        "cpu_seconds": round(ended.cpu_seconds, 2), "peak_memory": ended.peak_memory,
    }]  # fmt: skip
    record = {"processes": processes, "total": _sum_costs(run_dir, processes, before.get("total", {}))}
    write_text_atomic(run_dir / COST_FILE, json.dumps(record, indent=1) + "\n")


def load_costs(run_dir: Path) -> dict[str, float]:
    """Load the totals of a run, by the names of `COMPARISON_FIELDS`; unknown ones are absent.

    Counts are those of the last line of metrics.jsonl, seconds and processor seconds are summed over the processes of
    training or adapting, peak memory (bytes) is the largest of any one process. Processes started by hand, and those
    that outlived a comparison that was killed, were not seen to end: seconds are at least those that the run itself
    counted, and processor seconds are not known.
    """
    record, line = _read_json(run_dir), (_read_lines(run_dir) or [{}])[-1]
    if "total" in record and _is_current(record["total"], line):
        return dict(record["total"])  # no command by hand has gone on since
    return _sum_costs(run_dir, record.get("processes", []), record.get("total", {}))


def _is_current(total: Mapping[str, Any], line: Mapping[str, Any]) -> bool:
    return all(total.get(name) == line[name] for name in COUNTERS if name in line)


def _read_lines(run_dir: Path) -> list[dict[str, Any]]:
    return [*filter(None, map(parse_record, read_lines_from(run_dir / "metrics.jsonl")))]


def _sum_costs(run_dir: Path, processes: list[Mapping[str, Any]], before: Mapping[str, float]) -> dict[str, float]:
    lines = _read_lines(run_dir)
    line = lines[-1] if lines else {}
    own = [own for own in processes if own["stage"].split()[0] != EVAL_STAGE]
    total = {name: line[name] for name in COMPARISON_FIELDS if name in line}
    if line and "tokens_read" not in total:  # a training run: the prompts of its actions and tips, each counted whole
        if "tokens_read" in before and _is_current(before, line):
            total["tokens_read"] = before["tokens_read"]  # a record has no prompts of its training
        elif (episodes := run_dir / TRAJECTORIES).exists():
            steps = (step for record in read_jsonl(episodes) for step in record["steps"])
            total["tokens_read"] = sum(step["prompt_tokens"] for step in steps)
            total["tokens_read"] += sum(each.get(key, 0) for each in lines for key in TIP_PROMPTS)
    if line or own:
        seconds = sum(process["seconds"] for process in own)
        total["seconds"] = round(max(seconds, line.get("seconds", 0.0)), 2)
    if own:
        total["peak_memory"] = max(process["peak_memory"] for process in own)
        if len(own) >= len(_read_json(run_dir, "run.json").get("starts", [])):
            total["cpu_seconds"] = round(sum(process["cpu_seconds"] for process in own), 2)
    charged = [line[name] for name in COSTS if name in line]
    return total | ({SPENDING: sum(charged)} if charged else {})


def _read_json(run_dir: Path, file: str = COST_FILE) -> dict[str, Any]:
    """{} where there is none, or none that can be read: `cost.json` is begun anew then, no result depends on it."""
    try:
        return parse_record((run_dir / file).read_bytes()) or {}
    except OSError:
        return {}
