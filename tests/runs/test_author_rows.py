"""Rows that credit the authors of tips: whose, for how long, and in whole runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from small import small_config
from tinyrun import SAME, differences, episodes, equal_weights, metrics, tiny_config, train_in_process
from trailnotes.commands.train import train
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.rollout import WrittenTip
from trailnotes.runs import training
from trailnotes.runs.authors import Authors
from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory, TrajectoryGroup

TASK = Task("task", "numbers")
TEXT = "granite : chest ruby"
ONE = {("task", TEXT): 1.0}


def written(number: int, text: str = TEXT) -> WrittenTip:
    """A tip whose tokens say who wrote it."""
    step = Step(Observation("here"), (), Completion((1,), (2,), (-0.5,), "go"), (1,), "go", 0.0)
    about = Trajectory(TASK, (step,), Observation("end"), "terminated", False, 0.0)
    completion = Completion((1, 2, number), (number, 9), (-0.25, -number / 3), f'" {text} "')  # as the memory cleans it
    return WrittenTip(about, completion, (Tip("task", completion.text, key="", score=0.0),))


def authors(**algorithm: Any) -> Authors:
    return Authors(small_config(algorithm={"author_credit": 0.5, **algorithm}))


def writer(kept: Authors, iteration: int) -> list[int]:
    """Who is credited in this iteration."""
    return [row.token_ids[2] for row in kept.rows(ONE, iteration, 0)]


def test_a_row_is_what_the_author_read_and_wrote() -> None:
    kept = authors()
    kept.keep([written(5)], 0)
    (row,) = kept.rows({("task", TEXT): -0.5, ("task", "unknown"): 1.0, ("other", TEXT): 1.0}, 1, first=8)
    assert row.token_ids == (1, 2, 5, 5, 9)
    assert row.loss_mask == (0, 0, 0, 1, 1)
    assert row.behavior_logprobs == (0, 0, 0, -0.25, -5 / 3)
    assert row.advantages == (0, 0, 0, -0.25, -0.25)
    assert row.trajectory == 8
    assert kept.rows({("task", TEXT): 0.0}, 1, first=8) == [], "nothing to learn"


def test_a_text_that_several_wrote_earns_its_first_author_alone() -> None:
    kept = authors()
    kept.keep([written(5), written(6)], 0)
    kept.keep([written(7)], 1)
    assert writer(kept, 2) == [5]


def test_what_is_written_in_an_iteration_was_not_read_in_it() -> None:
    kept = authors()
    kept.keep([written(5)], 4)
    assert writer(kept, 4) == []
    assert writer(kept, 5) == [5]


def test_a_tip_that_is_too_old_is_left_alone_and_the_next_author_follows() -> None:
    kept = authors(author_age=3)
    kept.keep([written(5)], 0)
    kept.keep([written(6)], 2)
    for iteration, author in ((3, 5), (4, 6), (5, 6)):
        kept.keep([], iteration)
        assert writer(kept, iteration) == [author]
    kept.keep([], 6)
    assert writer(kept, 6) == []
    assert kept.state_dict() == [], "and forgotten"


def test_authors_come_back_from_json_as_they_were() -> None:
    kept, again = authors(), authors()
    kept.keep([written(5), written(7, "nothing found")], 0)
    again.load_state_dict(json.loads(json.dumps(kept.state_dict())))
    credit = ONE | {("task", "nothing found"): -1 / 3}
    assert again.rows(credit, 1, 0) == kept.rows(credit, 1, 0)
    assert len(kept.rows(credit, 1, 0)) == 2


def test_tips_of_an_engine_without_token_ids_have_no_row() -> None:
    kept = authors()
    about = written(5).trajectory
    kept.keep([WrittenTip(about, Completion((), (), (), TEXT), (Tip("task", TEXT, key="", score=0.0),))], 0)
    assert kept.rows(ONE, 1, 0) == []


def credited(start: Path, **algorithm: Any) -> Config:
    """Three iterations in which every task has tips from the second on."""
    return tiny_config(start, algorithm={"author_credit": 1.0, **algorithm})


@pytest.mark.parametrize("share", ["used", "equal"])
def test_a_coefficient_of_zero_is_empo2_bit_for_bit(start_model: Path, tmp_path: Path, share: str) -> None:
    train_in_process(tiny_config(start_model), tmp_path / "empo2")
    train_in_process(credited(start_model, author_credit=0.0, author_share=share, author_age=9), tmp_path / "zero")
    assert differences(tmp_path / "empo2", tmp_path / "zero") == SAME
    train_in_process(credited(start_model, author_share=share), tmp_path / "one")
    assert not equal_weights(tmp_path / "zero", tmp_path / "one")
    assert not any(name.startswith("authors/") for line in metrics(tmp_path / "zero") for name in line)
    lines = metrics(tmp_path / "one")
    assert [line["authors/credited"] > 0 for line in lines] == [False, True, True]
    assert any(line["authors/credit"] for line in lines)
    assert all(0 <= line["authors/positive"] <= 1 for line in lines)


def test_a_credited_run_that_is_resumed_is_the_same_run(start_model: Path, tmp_path: Path) -> None:
    train(credited(start_model), tmp_path / "whole")
    first = tiny_config(start_model, algorithm={"author_credit": 1.0}, train={"iterations": 2})
    train(first, tmp_path / "parts")
    train(credited(start_model), tmp_path / "parts", allow_change=["train.iterations"])
    assert differences(tmp_path / "whole", tmp_path / "parts") == SAME


def test_no_member_reads_what_was_written_in_its_own_iteration(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is frozen while an iteration is played, or what a tip earned would depend on who was faster."""
    held: list[tuple[int, list[Tip]]] = []
    shown: list[tuple[int, Tip]] = []
    play = training.TrainingRun.rollout

    async def watched(self: training.TrainingRun, *arguments: Any) -> list[TrajectoryGroup]:
        assert self.memory is not None
        before = self.memory.store.tips()
        groups = await play(self, *arguments)
        assert self.memory.store.tips() == before
        held.append((len(held), before))
        steps = [step for group in groups for t in group.trajectories for step in t.steps]
        shown.extend((len(held) - 1, tip) for step in steps for tip in step.tips)
        return groups

    monkeypatch.setattr(training.TrainingRun, "rollout", watched)
    train_in_process(credited(start_model), tmp_path)
    assert len(shown) > 5
    assert all(tip in dict(held)[iteration] and tip.step < iteration for iteration, tip in shown)


def test_each_tip_of_each_reader_is_scored_once_alone_and_once_none(start_model: Path, tmp_path: Path) -> None:
    """The contexts that are scored are those of the episode with one text alone, and with none."""
    seen: list[tuple[Sequence[Any], list[tuple[float, ...]]]] = []
    config = credited(start_model)

    def watch(run: training.TrainingRun) -> None:
        score = run.learner.logprobs

        def logprobs(samples: Sequence[Any]) -> list[tuple[float, ...]]:
            seen.append((samples, score(samples)))
            return seen[-1][1]

        run.learner.logprobs = logprobs  # type: ignore[method-assign]

    begin = training.TrainingRun.__init__

    def watched(self: training.TrainingRun, *arguments: Any) -> None:
        begin(self, *arguments)
        watch(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.TrainingRun, "__init__", watched)
        train_in_process(config, tmp_path)
    readers = [e for e in episodes(tmp_path) if any(step["tips"] for step in e["steps"])]
    wanted = sum(1 + len({tip["text"] for step in e["steps"] for tip in step["tips"]}) for e in readers)
    assert sum(len({sample.trajectory for sample in samples}) for samples, _ in seen) == wanted


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"set algorithm\.mode_unit = \"trajectory\""):
        Config.model_validate({"algorithm": {"author_credit": 1.0, "mode_unit": "iteration"}})


def test_tips_must_be_sampled_as_they_are_trained(start_model: Path) -> None:
    config = tiny_config(start_model, algorithm={"author_credit": 1.0}, memory={"write_temperature": 0.5})
    with pytest.raises(ConfigError, match=r"set memory\.write_temperature = 1"):
        config.refuse_training()
