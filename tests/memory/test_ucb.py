"""What readers did with tips: who counts, what is kept, the orders that follow; attempts of other agents."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptrun import Guesser, adapt_by
from tinyrun import SAME, differences, metrics, tiny_config, train_in_parts, train_in_process
from trailnotes.commands import main
from trailnotes.config.schema import Config, MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.learner.samples import build_samples
from trailnotes.memory import TipMemory, open_memory
from trailnotes.memory.tip_stats import TipEffect, compute_gain_bounds, compute_ucb_scores, mean_gain
from trailnotes.runs.tip_effects import estimate_reliance, estimate_tip_effects
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Completion, Mode, Observation, Step, Task, Tip, Trajectory, TrajectoryGroup

UCB = MemoryConfig(threshold=-1, order=("ucb",))


def read(tips: Sequence[Tip], success: bool, **fields: object) -> Trajectory:
    """An episode that was shown `tips`, in its first turn and again in its second."""
    step = Step(Observation("a room"), tuple(tips), Completion((1,), (2,), (0.0,), "go"), (1,), "go", 0.0)
    defaults = {"outcome": "terminated", "score": float(success), "mode": "on_policy_tips"}
    return Trajectory(Task("task", "env"), (step, step), Observation("the end"), success=success, **defaults | fields)


def written(memory: TipMemory, *texts: str) -> dict[str, Tip]:
    """Tips whose score falls from the first to the last."""
    memory.add([Tip("task", text, "key", -float(number)) for number, text in enumerate(texts)])
    return {tip.text: tip for tip in memory.store.load_tips()}


def order(memory: TipMemory) -> list[str]:
    return [tip.text for tip in memory.search("task", "key", 9)]


def readings(path: Path) -> list[tuple[str, int, float]]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.execute("SELECT text, shown, earned FROM tips ORDER BY id"))


# --- the formula --------------------------------------------------------------------------------------------------


def test_the_bound_is_the_mean_and_a_bonus_for_what_was_read_seldom() -> None:
    # n = 1 and 4, N = 5: 0.5 + sqrt(ln 5) and 3.5/4 + sqrt(ln 5 / 4); ln 5 = 1.609438
    assert compute_ucb_scores(np.array([0, 3]), np.array([0, 3]), 1.0).tolist() == pytest.approx([1.768636, 1.509318])
    assert compute_ucb_scores(np.array([0, 3]), np.array([0, 3]), 0.0).tolist() == [0.5, 0.875]
    assert compute_ucb_scores(np.array([0]), np.array([0]), 1.0).tolist() == [0.5], "ln 1 = 0: it has no rival"
    assert compute_ucb_scores(np.array([]), np.array([]), 1.0).tolist() == []


# --- the order ----------------------------------------------------------------------------------------------------


def test_what_fails_its_readers_sinks_what_helps_rises_and_what_nobody_read_is_tried() -> None:
    with open_memory(None, UCB) as memory:
        tips = written(memory, "sounds best", "helps", "unread")
        memory.report([read([tips["sounds best"]], False), read([tips["helps"]], True)] * 2)
        # n = 3, 3, 1 and N = 7: .5/3 + sqrt(ln 7 / 3) = .972, 2.5/3 + the same = 1.639, .5 + sqrt(ln 7) = 1.895
        assert order(memory) == ["unread", "helps", "sounds best"]
        with open_memory(None, MemoryConfig(threshold=-1)) as by_score:
            written(by_score, "sounds best", "helps", "unread")
            assert order(by_score) == ["sounds best", "helps", "unread"]


def test_a_tip_that_does_harm_is_withheld_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # W + 1 / sqrt(n): unread; 3 readers who gained -1 (-3/4 + 1/2); 8 with -1/4 (-2/9 + 1/3); 8 with -1/2
    bounds = compute_gain_bounds(np.array([0, 3, 8, 8]), np.array([0, -3, -2, -4]))
    assert bounds.tolist() == pytest.approx([1.0, -0.25, 1 / 9, -1 / 9])
    with open_memory(None, MemoryConfig(threshold=-1)) as memory:
        tips = written(memory, "bad", "good")
        for _ in range(8):
            memory.report([read([tips["bad"]], False), read([tips["good"]], True), read([], True)])
        searches = []
        for _ in range(300):
            memory.report([read([tips["good"]], True)])
            searches.append(order(memory))
        assert ["good", "bad"] in searches
        assert searches.count(["good"]) > 250
        monkeypatch.setattr(memory, "search", lambda *_: [replace(tips["good"], id=99)])
        assert memory.session("task", "key").tips == (), "it was deleted after the search"


@pytest.mark.long
@pytest.mark.parametrize(
    "effects", [(0.1, 0.1, 0.1, -0.49), (0.0, 0.0, 0.0, -0.49), (-0.49, -0.2, -0.2, -0.2), (-0.49,)], ids=str
)
def test_sessions_do_no_worse_than_without_tips(effects: tuple[float, ...]) -> None:
    """An agent wins .49 of its attempts, and with each tip more or less; 400 reports, ten seeds, one in ten plain."""
    for seed in range(10):
        draw, chances = random.Random(seed), []
        with open_memory(None, MemoryConfig(threshold=-1, top_k=4), clock=str) as memory:
            tips = written(memory, *(f"tip {number}" for number in range(len(effects))))
            for _ in range(400):
                session = memory.session("task", "key", show_tips=draw.random() > 0.1)
                gains = [effects[list(tips).index(tip.text)] for tip in session.tips]
                chances.append(min(1.0, max(0.0, 0.49 + sum(gains))))
                session.report(float(draw.random() < chances[-1]))
        assert sum(chances) / 400 > 0.49 - 0.05


def test_a_search_may_name_fields() -> None:
    with open_memory(None, MemoryConfig(threshold=-1)) as memory:
        memory.add([Tip("task", f"by {run}", "key", 1.0, run=run, model="m") for run in "ab"])
        assert [tip.run for tip in memory.search("task", "key", 9, filters={"run": "b", "model": "m"})] == ["b"]
        assert memory.search("task", "key", 9, filters={"run": "c"}) == []
        with pytest.raises(ValueError, match="text"):
            memory.search("task", "key", 9, filters={"text": "by a"})


# --- what is kept -------------------------------------------------------------------------------------------------


def test_an_episode_counts_once_and_a_named_batch_too(tmp_path: Path) -> None:
    with open_memory(tmp_path / "memory.db", UCB) as memory:
        tips = written(memory, "a", "b")
        batch = [read([tips["a"], tips["b"]], True), read([tips["a"]], False, score=0.5)]
        for _ in range(2):
            memory.report(batch, once="trial-1")
    assert readings(tmp_path / "memory.db") == [("a", 2, 1.5), ("b", 1, 1.0)]


def test_what_readers_gained_is_over_those_of_their_group_that_did_not_read_it() -> None:
    with open_memory(None, MemoryConfig(threshold=-1, order=("worth",))) as memory:
        tips = written(memory, "useless", "misleads", "helps", "unread")
        useless, misleads, helps = (tips[text] for text in ("useless", "misleads", "helps"))
        alone = replace(read([useless], True), task=Task("another", "env"))
        memory.report([
            read([helps, useless], True), read([helps], True), read([misleads], False),
            read([], False, mode="plain"), read([useless], False, score=0.5), alone,
        ])  # fmt: skip
        # helps: 1 and 1 less (0 + 0 + .5)/3; misleads: 0 less (1 + 1 + 0 + .5)/4; useless: 1 and .5 less (1 + 0 + 0)/3,
        # and once with nobody to compare
        expected = {"helps": (2, 5 / 3), "misleads": (1, -0.625), "useless": (2, 5 / 6), "unread": (0, 0.0)}
        readers = {text: memory.store.load_reader_stats()[tip.id] for text, tip in tips.items() if tip.id}
        for text, (compared, gained) in expected.items():
            assert (readers[text].compared, readers[text].gained) == (compared, pytest.approx(gained))
        assert (readers["useless"].shown, readers["useless"].earned) == (3, 2.5)
        assert order(memory) == ["helps", "useless", "unread", "misleads"], "5/9, 5/18, 0, -.3125"
        assert mean_gain(np.array([2, 1]), np.array([5 / 3, -0.625])).tolist() == pytest.approx([5 / 9, -0.3125])


# --- whoever plays reports ----------------------------------------------------------------------------------------


def test_an_adaptation_counts_each_reader_once_however_often_it_is_started(tmp_path: Path, capsys: Any) -> None:
    sections = {"memory": {"order": ["ucb"]}, "eval": {"trials": 2}}
    for _ in range(2):
        adapt_by(Guesser(), "empo2-tips", tmp_path, **sections)
    counted = [shown for _, shown, _ in readings(tmp_path / "memory.db")]
    assert main(["memory", "show", str(tmp_path), "1"]) == 0
    assert capsys.readouterr().out.count("\nread by") == counted[0]
    assert sum(counted) == 4 + 6, "four gates, of one tip each in trial 1; two of them have a second one in trial 2"


def test_training_counts_and_a_resumed_run_is_the_same(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryConfig, "distilled_readers", 1)
    monkeypatch.setattr("trailnotes.runs.tip_effects.SUCCESS_THRESHOLD", 0.0)  # a random model does nothing well

    def config(iterations: int) -> Config:
        memory = {"order": ["ucb"], "capacity": 3, "retire": "least_worth", "distilled": 0.1, "scope": "family"}
        own = {"env": {"name": "waymarks-simulator"}, "train": {"iterations": iterations}}
        algorithm = {"p_memory": 0.5, "q_off_policy": 1.0}
        return tiny_config(start_model, memory=memory | {"threshold": -1}, algorithm=algorithm, **own)

    train_in_process(config(3), tmp_path / "whole")
    train_in_parts(tmp_path / "parts", config(2), config(3))
    assert differences(tmp_path / "whole", tmp_path / "parts") == SAME
    counted = readings(tmp_path / "whole" / "memory.db")
    assert sum(shown for _, shown, _ in counted) > 0
    assert all(0 <= earned <= shown for _, shown, earned in counted)
    last = metrics(tmp_path / "whole")[-1]
    assert math.isfinite(last["update/loss"])
    assert last["memory/retired"] > 0
    assert sum(line["tips/measured"] for line in metrics(tmp_path / "whole")) > 0
    records = [record for record in read_jsonl(tmp_path / "whole" / "trajectories.jsonl") if record["steps"]]
    shown = {(r["task"]["id"], tip["namespace"]) for r in records for step in r["steps"] for tip in step["tips"]}
    assert any(reader != writer for reader, writer in shown), "tips of the family are read"


TASK = Task("task", "numbers")
ACTED = -0.25  # what the sampler says of each token, with tips


def tip(tip_id: int) -> Tip:
    return Tip("task", f"tip {tip_id}", "key", 0.0, id=tip_id)


def played(shown: Sequence[Sequence[int]], score: float = 1.0, mode: Mode = "off_policy") -> Trajectory:
    """An episode of two tokens a turn, which was shown tips of these ids in each turn; a tip is one token."""
    acting, plain, steps = [1], [1], []
    for turn, ids in enumerate(shown):
        acting, plain = [*acting, *(100 + tip_id for tip_id in ids), 10 + turn], [*plain, 10 + turn]
        completion = Completion(tuple(acting), (20, 21), (ACTED, ACTED), "go")
        steps.append(Step(Observation("here"), tuple(map(tip, ids)), completion, tuple(plain), "go", 0.0))
        acting, plain = [*acting, 20, 21], [*plain, 20, 21]
    return Trajectory(TASK, tuple(steps), Observation("end"), "terminated", score >= 1, score, mode=mode)


def leads(*episodes: Trajectory, without: float = -1.25, rows: str = "auto") -> list[TipEffect]:
    """Where the policy says `without` of each turn's first token without tips, and the same as with of the second."""
    groups = [TrajectoryGroup(TASK, episodes)]
    samples = [row for row in build_samples(groups, [[1.0] * len(episodes)], rows=rows) if row.off_policy]
    logprobs = [tuple({20: without, 21: ACTED}.get(token, 0.0) for token in row.token_ids) for row in samples]
    return estimate_tip_effects(groups, samples, logprobs)


def test_a_tip_leads_from_the_turn_that_it_was_shown_in() -> None:
    assert leads(played([[1], [2], [], [2]])) == [TipEffect(1, 4.0), TipEffect(2, 3.0)]


def test_what_the_policy_does_anyway_is_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryConfig, "distilled_readers", 2)
    with open_memory(None, MemoryConfig(threshold=-1, distilled=0.5)) as memory:
        written(memory, "known", "new")
        memory.record_effects([TipEffect(1, 0.25), TipEffect(2, 3.0)])
        assert len(order(memory)) == 2, "one reader does not tell"
        memory.record_effects([TipEffect(1, 0.75), TipEffect(2, 0.0)])
        (mark,) = memory.store.load_retirements().values()
        assert mark.by == "0.61 as often without it, by 2 readers who did well"  # exp(-1/2)
        written(memory, "known")
        assert order(memory) == ["new"]


def test_rows_of_an_episode_or_of_a_step_give_the_same() -> None:
    for rows in ("auto", "step"):
        effects = leads(played([[], [1]]), played([[3], [1]]), rows=rows)
        assert effects == [TipEffect(1, 1.0), TipEffect(3, 2.0), TipEffect(1, 1.0)]


def test_only_readers_who_did_well_and_were_trained_without_tips_tell() -> None:
    assert leads(played([[1]], score=0.25), played([[1]], mode="on_policy_tips"), played([[]], mode="plain")) == []
    assert leads(played([[1]], score=0.5)) == [TipEffect(1, 1.0)]


def test_reliance_is_the_divergence_of_a_token() -> None:
    """Of two tokens a turn one is e times as probable with tips: k3 of it is 1 - (1 - 1/e) = 1/e."""
    rows = build_samples([TrajectoryGroup(TASK, (played([[1], [2]]),))], [[1.0]])
    logprobs = [tuple({20: ACTED - 1, 21: ACTED}.get(token, 0.0) for token in row.token_ids) for row in rows]
    assert estimate_reliance(rows, logprobs) == pytest.approx(math.exp(-1) / 2)
    assert estimate_reliance([], []) == 0.0


HELPS, MISLEADS = "take the red key", "jump"


def memory_at(path: Path | None) -> TipMemory:
    memory = open_memory(path, MemoryConfig(threshold=-1.0, top_k=1, order=("worth",)))
    if not memory.stats()["tips"]:
        memory.add([Tip("door", HELPS, "a door", 0.0), Tip("door", MISLEADS, "a door", 0.0)])
    return memory


def worth_of(memory: TipMemory) -> dict[str, float]:
    stats = memory.store.load_reader_stats()
    return {tip.text: stats[tip.id].worth for tip in memory.store.load_tips() if tip.id}


def test_worth_by_hand() -> None:
    with memory_at(None) as memory:
        memory.session("door", "a door", show_tips=False).report(0.25)
        first = memory.session("door", "a door")
        assert [tip.text for tip in first.tips] == [MISLEADS], "of equal worth the newest"
        first.report(0.0)
        assert worth_of(memory) == {HELPS: 0.0, MISLEADS: -0.25 / 2}
        second = memory.session("door", "a door")
        assert [tip.text for tip in second.tips] == [HELPS]
        second.report(2.0, max_score=2.0)
        # earned 1, where those without it earned 0.25 and 0
        assert worth_of(memory)[HELPS] == (1 - 0.125) / 2
        assert HELPS in second.text
        assert memory.session("door", "a door", show_tips=False).text == ""


def test_a_report_may_come_from_another_process_and_comes_once(tmp_path: Path) -> None:
    with memory_at(tmp_path / "memory.db") as memory:
        session = memory.session("door", "a door")
    with memory_at(tmp_path / "memory.db") as memory:
        session.memory = memory
        with pytest.raises(ValueError, match="5 is above the highest, 1: give that as max_score"):
            session.report(5.0)
        session.report(sum([0.05] * 20), success=False)
        page = memory.store.load_page("door", ())
        with pytest.raises(MemoryStoreError, match="waits for its report"):
            session.report(1.0)
        assert memory.store.load_page("door", ()) is page, "a refused report has nothing read again"
        (stats,) = [stats for stats in memory.store.load_reader_stats().values() if stats.shown]
        assert (stats.shown, stats.earned, stats.compared) == (1, 1.0, 0)
        memory.session("door", "a door").report(2 / 3, max_score=2 / 3)  # not above it, however it is rounded


def test_an_author_of_ones_choice_writes_from_the_transcript() -> None:
    requests: list[str] = []

    def author(request: str) -> str:
        requests.append(request)
        return "the door wants <b>both</b> keys"

    with memory_at(None) as memory:
        memory.session("door", "a door", author=author).report(0.5, transcript="you push {the} door")
        assert "you push {the} door" in requests[0]
        assert "0.5 of 1" in requests[0]
        tip = memory.store.load_tips("door")[-1]
        assert (tip.text, tip.score, tip.key) == ("the door wants both keys", 0.5, "a door")
        memory.session("door", "a door", author=author).report(0.5)
        assert len(requests) == 1, "nothing happened that could be told"
        memory.session("door", "a door", author=lambda _: None).report(0.5, transcript="you push the door")
        assert memory.store.load_tips("door")[-1] == tip, "an API may give no text"
        with pytest.raises(TypeError, match="named by a text, not by 3"):
            memory.session(3, "a door")  # type: ignore[arg-type]

        async def slow(request: str) -> str:
            return author(request)

        with pytest.raises(TypeError, match="author must be a plain function"):
            memory.session("door", "a door", author=slow)  # type: ignore[arg-type]


def test_attempts_travel_with_snapshots_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes.memory.tips.KEPT_ATTEMPTS", 2)
    with memory_at(tmp_path / "memory.db") as memory:
        old, *later = [memory.session("door", "a door") for _ in range(3)]
        with pytest.raises(MemoryStoreError, match="no session"):
            old.report(1.0)
        memory.snapshot(tmp_path / "copy.db")
        with memory_at(None) as other:
            other.restore(tmp_path / "copy.db")
            for session in later:
                session.memory = other
                session.report(1.0)
