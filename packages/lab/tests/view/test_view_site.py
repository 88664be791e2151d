"""The window: what its pages say is what the runs hold, nobody gets in without the token, and no text can act."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from trailnotes.config.schema import Config
from trailnotes.errors import RunError
from trailnotes.runs.directory import RunDir
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Observation
from trailnotes_lab.view.app import NO_TOKEN, make_app
from trailnotes_lab.view.curves import make_chart, make_sparkline
from trailnotes_lab.view.lines import DAMAGED, LineReader, parse_episode_row, read_episode
from trailnotes_lab.view.window import Window
from viewed import HOSTILE, WORDS, Seen, episode, make_run, tip

HERE, TOKEN = "http://127.0.0.1:8765", "open-sesame"
PAGES = ("/", "/run/first", "/run/first/episodes", "/run/first/episodes/4", "/run/first/tips")


class Person:
    """Goes to pages with a browser's cookies."""

    def __init__(self, root: Path, token: str = TOKEN) -> None:
        self.client = TestClient(make_app(Window(root), TOKEN), base_url=HERE, raise_server_exceptions=True)
        if token:
            self.client.get("/", params={"token": token})

    def look(self, path: str, status: int = 200) -> Seen:
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return Seen(answer.text)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has changed below the directory shows on the next page."""
    monkeypatch.setattr("trailnotes_lab.view.window.ENTRIES_TTL_S", 0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs/first")
    return tmp_path / "runs"


@pytest.fixture
def person(root: Path) -> Person:
    return Person(root)


def test_the_table_of_runs(root: Path, person: Person) -> None:
    make_run(root / "second", optim={"lr": 0.5})
    page = person.look("/")
    assert "2 runs in runs" in page.text
    assert "optim.lr 0.5" in page.text, "what differs"
    assert "memory.threshold" not in page.text, "what is the same in all"
    assert "run.seed" not in page.text
    assert "75 %" in page.text
    assert page.values("polyline", "points"), "curves"
    boxes = [values.get("value") for tag, values in page.tags if values.get("type") == "checkbox"]
    assert len({*boxes} - {None}) == len(boxes) == 4, "by these values the page keeps the marks of two runs and curves"
    laid = person.look("/?run=second&metric=memory/tips")
    assert len([tag for tag, values in laid.tags if "data-series" in values]) == 1


def test_runs_alone_in_their_folders_are_compared_with_each_other(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / f"job-{seed}/run", run={"seed": seed})
    page = Person(tmp_path).look("/")
    assert all(f"run.seed {seed}" in page.text for seed in (1, 2))


def test_a_run_whose_episodes_all_failed_says_so_first(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "bad", Config()) as run:
        failed = [replace(episode(won=False), outcome="error", error="ValueError: reset returned a tuple", score=0.0)]
        run.append_trajectories(0, failed * 4)
        run.append_metrics({"iteration": 0, "rollout/errors": 4.0})
        assert "runs (process " in Person(tmp_path).look("/run/bad").text
    table, page = (Person(tmp_path).look(path).text for path in ("/", "/run/bad"))
    assert "runs (process " not in page, "the process lives on, without its lock"
    assert "reset returned a tuple" in table
    assert page.index("reset returned a tuple") < page.index("State"), "before anything else"


def test_episodes_are_narrowed(person: Person) -> None:
    counts = {"": 6, "iteration=1": 2, "mode=off_policy": 3, "success=no": 2, "task=keys": 0, "tip=1": 2}
    for words, count in counts.items():
        assert f"{count} episodes" in person.look(f"/run/first/episodes?{words}").text
    for nonsense in ("?iteration=x&page=0", "?page=99999999999999999999", "?tip=-1&success=perhaps", "?page=7"):
        person.look(f"/run/first/episodes{nonsense}")


def test_an_episode_stands_in_both_its_contexts(person: Person) -> None:
    page = person.look("/run/first/episodes/4")
    acting, plain = page.text.split("trained on, without them", 2)[1].split("trained on, without them")[0], page.text
    assert f'- "{WORDS[2]}" (action taken: "go north"; score 1 of 1)' in acting
    assert plain.count(WORDS[2]) == 1, "only where it entered"
    assert page.text.count("Observation: a dim hall") == 2
    group, lacking = "mean 0.5, this one +0.5", "Not recorded, so not shown: the advantage of each step"
    for words in ("log-probability -1.75", "policy version 3", "reward +1", group, lacking):
        assert words in page.text
    assert "/run/first/tips/1" in page.values("a", "href")
    alone = person.look("/run/first/episodes/1")
    assert "both contexts are the same" in alone.text
    assert alone.text.count("Observation: a dim hall") == 1


def test_a_foreign_agent_words_its_own_turns(tmp_path: Path) -> None:
    played = episode("off_policy", (tip(),))
    seen = [Observation(text, request={"kept": 0, "messages": [["user", text]]}) for text in ("a hall", "a yard")]
    steps = tuple(replace(step, observation=each) for step, each in zip(played.steps, seen, strict=True))
    with RunDir.open(tmp_path / "own", Config()) as run:
        run.append_trajectories(0, [replace(played, steps=steps)])
    page = Person(tmp_path).look("/run/own/episodes/1").text
    assert (page.count("a hall"), page.count("a yard")) == (2, 2), "in both contexts, after a fork, too"
    assert "What every conversation of this run begins with" not in page


def test_a_tip_knows_its_author_and_its_readers(person: Person) -> None:
    page = person.look("/run/first/tips/1")
    assert WORDS[2] in page.text
    assert "/run/first/episodes/2" in page.values("a", "href"), "it was written after that one"
    assert {f"/run/first/episodes/{n}" for n in (4, 6)} <= set(page.values("a", "href")), "these have read it"
    assert "2 readers" in page.text
    assert "2, who earned 1.00" in page.text


def test_a_comparison_is_read_as_it_was_written(root: Path, person: Person) -> None:
    estimate = {"mean": 0.75, "on_panel": {"mean": 0.75, "low": 0.5, "high": 1.0}, "beyond": None}
    line = {
        "label": "EMPO2", "seeds": [0, 1], "num_games": 8, "num_attempts": 1, "one": estimate, "last": None,
        "best": None, "difference": None, "missing": {"2": "it failed"}, "costs": {"env_steps": 1500},
    }  # fmt: skip
    cumulative = line | {"label": "Reflexion", "num_attempts": 3, "best": estimate}
    panel = {"label": "new", "metric": "success", "lines": [{"label": "EMPO2", "trials": [{"mean": 0.125}]}]}
    record = {
        "title": "small", "metric": "success", "baseline": "", "lines": [line, cumulative], "panels": [panel],
        "notes": ["too short"], "methods": [],
        "curves": {"EMPO2": [[[0, 0.0], [10, 0.5]]]},
    }  # fmt: skip
    (root / "table.json").write_text(json.dumps(record), encoding="utf-8")
    (root / "runs").mkdir()
    page = person.look("/compare/here")
    for words in ("small", "0.75", "[0.5, 1]", "1,500", "seed 2: it failed", "too short", "0.125", "best of 3"):
        assert words in page.text
    (root / "table.json").write_text("{}", encoding="utf-8")
    assert "run `trailnotes compare` again" in person.look("/compare/here", 409).text


def test_nothing_is_shown_without_the_token(root: Path) -> None:
    stranger = Person(root, token="")
    for path in ("/", "/run/first", "/view.css", "/?token=guess", "/run/first/tips/1"):
        page = stranger.look(path, 403)
        assert NO_TOKEN in page.text
        assert WORDS[2] not in page.text


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    make_run(tmp_path / "runs/mild")
    make_run(tmp_path / "runs/hostile", words=HOSTILE)
    folder = tmp_path / "runs" / HOSTILE[3].replace("/", "")
    shutil.copytree(tmp_path / "runs/mild", folder)
    person = Person(tmp_path / "runs")
    pages = ("", "/episodes", "/episodes/4", "/tips", "/tips/1", f"/episodes?task={HOSTILE[0]}")
    ours = {tag for page in pages for tag, _ in person.look(f"/run/mild{page}").tags}
    for page in pages:
        hostile = person.look(f"/run/hostile{page}")
        assert {tag for tag, _ in hostile.tags} <= ours
        assert not [name for _, values in hostile.tags for name in values if name.startswith("on")]
        assert all(link.startswith(("/", "#")) for link in hostile.values("a", "href"))
        assert hostile.values("script", "src") == person.look("/").values("script", "src")
    assert HOSTILE[1] in " ".join(person.look("/run/hostile/episodes/4").texts), "shown as it is, as text"
    assert folder.name in " ".join(person.look("/").texts)


@pytest.mark.parametrize(
    ("name", "where", "missing", "broken"),
    [
        ("config.toml", "", "there is no run of this name", "own settings cannot be used"),
        ("metrics.jsonl", "", "", "1 lines of metrics.jsonl are damaged"),
        ("trajectories.jsonl", "/episodes", "0 episodes", "damaged line"),
        ("memory.db", "/tips", "there is no memory.db", "memory.db is damaged"), ("run.json", "", "", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("content", [None, b"\xff\xfe{\n"])
def test_a_damaged_run_gives_pages_that_say_so(
    root: Path, name: str, where: str, missing: str, broken: str, content: bytes | None
) -> None:
    file = root / "first" / name
    for beside in root.glob(f"first/{name}-*"):
        beside.unlink()
    file.unlink() if content is None else file.write_bytes(content)
    person = Person(root)
    for page in PAGES:
        answer = person.client.get(page)
        assert answer.status_code in {200, 404, 409}, (page, answer.text)
        assert "<h1>" in answer.text
    assert (missing if content is None else broken) in person.client.get(f"/run/first{where}").text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", '{"iteration": 0, "env_steps": 1%s, "memory/tips": 1}\n' % ("0" * 400)),
        ("config.toml", "[env.options]\nx = " + "[" * 3000),
    ],
)
def test_a_damaged_run_leaves_the_others_on_the_page_of_all(root: Path, name: str, content: str) -> None:
    make_run(root / "second")
    (root / "second" / name).write_text(content, encoding="utf-8")
    person = Person(root)
    page = person.look("/?metric=memory/tips&run=first&run=second")
    assert {"/run/first", "/run/second"} <= set(page.values("a", "href"))
    assert page.values("polyline", "points"), "the curve of the other run"
    assert person.client.get("/run/second").status_code in {200, 409}


def test_runs_of_earlier_versions(tmp_path: Path) -> None:
    shutil.unpack_archive(Path(__file__).parents[4] / "tests/data/old_runs.tar.xz", tmp_path, filter="data")
    person = Person(tmp_path)
    assert "2 runs" in person.look("/").text
    for page in ("", "/episodes", "/episodes/1"):
        person.look(f"/run/trained{page}")
    person.look("/run/trained/tips")
    assert "adapted" in person.look("/run/adapted/episodes/1").text


def test_episodes_of_a_record_have_scores_but_no_steps(root: Path, person: Person) -> None:
    path, lost = root / "first/trajectories.jsonl", {"steps", "max_score", "final_observation"}
    write(path, *[{name: line[name] for name in line.keys() - lost} for line in read_jsonl(path)])
    assert "3 episodes" in person.look("/run/first/episodes?mode=off_policy").text
    assert "a record holds no steps" in person.look("/run/first/episodes/4", 409).text


def record(iteration: int = 0, task: str = "maze/1", tips: tuple[int | None, ...] = (), **more: Any) -> dict[str, Any]:
    step = {"tips": [{"id": tip, "text": "t"} for tip in tips], "action": "north", "observation": {"text": "a hall"}}
    plain = {"mode": "off_policy" if tips else "plain", "member": 0, "outcome": "terminated", "success": True}
    numbers = {"score": 1.0, "max_score": 1.0, "return": 1.0}
    return {"iteration": iteration, "task": {"id": task}, **plain, **numbers, "steps": [step], **more}


def write(path: Path, *records: object, mode: str = "w") -> Path:
    with path.open(mode, encoding="utf-8") as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in records)
    return path


def test_a_file_that_grows_is_read_on_and_half_a_line_waits(tmp_path: Path) -> None:
    reader = LineReader(path := tmp_path / "trajectories.jsonl", parse_episode_row)
    assert reader.read() == []
    write(path, record(), record(1))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"iteration": 2')
    assert [row.number for row in reader.read()] == [1, 2]
    path.write_text(path.read_text(encoding="utf-8").rpartition("\n")[0] + "\n", encoding="utf-8")
    write(path, record(2), mode="a")
    assert [(row.number, row.iteration) for row in reader.read()] == [(1, 0), (2, 1), (3, 2)]


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"iteration": 1}', '{"steps": 5}', "[" * 5000, "\x00\ufffd", ""])
def test_a_damaged_line_is_one_episode_that_says_so(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "trajectories.jsonl", record(), line, record(1))
    rows = LineReader(path, parse_episode_row).read()
    assert [row.outcome for row in rows] == ["terminated", DAMAGED, "terminated"]
    if line not in {'{"iteration": 1}', '{"steps": 5}'}:
        with pytest.raises(RunError, match="line 2 is damaged"):
            read_episode(path, rows[1])


FINITE = st.floats(-1e9, 1e9)
ANY = st.floats() | st.sampled_from([1e308, -1e308, 5e-324, 1e100, 1e17])


@given(st.lists(st.tuples(FINITE, FINITE), max_size=50), st.lists(st.tuples(ANY, ANY), max_size=50))
@example([], [(0, 0), (2.2250738585e-313, 0)])
def test_every_point_lies_within_the_picture(
    points: list[tuple[float, float]], extreme: list[tuple[float, float]]
) -> None:
    drawn = make_chart([("a", sorted(points), "")])
    assert (drawn is None) == (not points)
    for curve in drawn.curves if drawn else ():
        for place in curve.points.split():
            x, y = map(float, place.split(","))
            assert -0.1 <= x <= drawn.size[0] + 0.1 if drawn else True
            assert -0.1 <= y <= drawn.size[1] + 0.1 if drawn else True
    extreme = sorted(extreme, key=str)
    make_sparkline(extreme)
    drawn = make_chart([("a", extreme, ""), ("b", [*extreme, *extreme], "")])
    assert not drawn or not any("n" in curve.points for curve in drawn.curves), "neither nan nor inf"
