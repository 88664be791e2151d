"""Pack the record of a comparison: what ``trailnotes compare table`` reads of its runs, and nothing else.

    python docs/results/records.py runs/compare/scope docs/results/records/scope.tar.xz
    python docs/results/records.py runs/compare/qwen-adapt docs/results/records/qwen-adapt.tar.xz steps

A folder of comparisons is packed as one. Settings, costs, curves and the score of every episode stay; weights, tips,
prompts and steps go. With `steps` the actions stay, those of trainings too, with the tips that were shown and their
scores. Unpacked, ``trailnotes compare table DIR/runs/*`` computes the table again, and ``DIR/runs/*/panels/NAME`` that
of a further panel; unpacked into ``runs/compare``, ``trailnotes compare run`` plays what is left.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from trailnotes.storage.files import read_jsonl

WHOLE = {
    "compare.toml",
    "config.toml",
    "eval.toml",
    "trained.toml",
    "panel.json",
    "table.json",
    "cost.json",
    "run.json",
}
EPISODE = ("iteration", "task", "outcome", "success", "score", "return", "mode")
LINE = (
    "iteration", "phase", "env_steps", "tokens", "seconds", "validation/", "rollout/success", "rollout/return",
    "notebook/", "tips/unusable", "tips/written", "tips/tokens_read", "update/rows", "update/zero_advantage_rows",
)  # fmt: skip
KEPT = {"episodes.jsonl": EPISODE, "trajectories.jsonl": EPISODE, "metrics.jsonl": LINE}  # beginnings of names


def main(source: Path, target: Path, *, steps: bool = False) -> None:
    """Write the record of the comparison or run at `source` to `target`, the same bytes for the same runs."""
    if not any(found for name in ("compare.toml", "*/compare.toml", "config.toml") for found in source.glob(name)):
        sys.exit(f"{source} holds no comparison and no run: {target} stays as it is")
    files = sorted(_files(source, steps))  # all read before an earlier record is replaced
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path, content in files:
            entry = tarfile.TarInfo(f"{source.name}/{path.relative_to(source)}")
            entry.size = len(content)
            if path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry, io.BytesIO(content))
    print(f"{target}: {target.stat().st_size:,} bytes")


def _files(source: Path, steps: bool) -> Iterator[tuple[Path, bytes]]:
    for path in source.rglob("*"):
        # No table counts the episodes of a training.
        trained = path.name == "trajectories.jsonl" and _checkpoints(path.parent) and not steps
        if path.name in WHOLE:
            yield path, re.sub(rb'"/[^"]*/', b'"', path.read_bytes())  # nobody else has these folders
        elif path.name in KEPT and not trained:
            yield path, _lines(path, KEPT[path.name], steps=steps and path.name == "trajectories.jsonl")
        elif path in _checkpoints(path.parent.parent):
            yield path, b""  # by it a run is known to have trained


def _checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))[-1:]


def _lines(path: Path, names: tuple[str, ...], *, steps: bool) -> bytes:
    lines = []
    for record in read_jsonl(path):
        kept = {key: value for key, value in record.items() if key.startswith(names)}
        if steps:
            tips = [[{"text": tip["text"], "score": tip["score"]} for tip in step["tips"]] for step in record["steps"]]
            kept["steps"] = [
                {"action": step["action"], "tips": own} for step, own in zip(record["steps"], tips, strict=True)
            ]
        lines.append(json.dumps(kept, ensure_ascii=False) + "\n")
    return "".join(lines).encode()


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[3:] not in ([], ["steps"]):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), steps=bool(sys.argv[3:]))
