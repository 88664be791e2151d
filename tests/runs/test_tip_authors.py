"""Authors of tips: rows that credit them, and those that are not the trained model (`algorithm.author`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from proxy import Proxy
from served import MODEL
from small import small_config
from tinyrun import SAME, differences, episodes, equal_weights, metrics, record, tiny_config, train_in_process
from trailnotes.config.schema import Config
from trailnotes.learner.learner import Learner
from trailnotes.memory import open_memory
from trailnotes.memory.tips import clean_tip
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.tips import WrittenTip, write_tips
from trailnotes.runs.adapt import adapt
from trailnotes.runs.authors import AuthorRegistry, compute_author_credit
from trailnotes.runs.iteration import Iteration
from trailnotes.runs.train import train
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Completion, Observation, Sample, Step, Task, Tip, Trajectory, TrajectoryGroup

TASK = Task("task", "numbers")
TEXT = "granite : chest ruby"
ONE = {("task", TEXT): 1.0}


def written(number: int, text: str = TEXT) -> WrittenTip:
    """A tip whose tokens say who wrote it."""
    step = Step(Observation("here"), (), Completion((1,), (2,), (-0.5,), "go"), (1,), "go", 0.0)
    about = Trajectory(TASK, (step,), Observation("end"), "terminated", False, 0.0)
    completion = Completion((1, 2, number), (number, 9), (-0.25, -number / 3), f'" {text} ')  # which the memory cleans
    return WrittenTip(about, completion, (Tip("task", f'" {text} "', key="", score=0.0),))


def authors(**algorithm: Any) -> AuthorRegistry:
    return AuthorRegistry(small_config(algorithm={"author_credit": 0.5, **algorithm}))


def writer(kept: AuthorRegistry, iteration: int) -> list[int]:
    """Who is credited in this iteration."""
    return [row.token_ids[2] for row in kept.build_rows(ONE, iteration)]


def test_a_row_is_what_the_author_read_and_wrote() -> None:
    kept = authors()
    kept.remember([written(5)], 0)
    (row,) = kept.build_rows({("task", TEXT): -0.5, ("task", "unknown"): 1.0, ("other", TEXT): 1.0}, 1)
    assert row.token_ids == (1, 2, 5, 5, 9)
    assert row.loss_mask == (0, 0, 0, 1, 1)
    assert row.behavior_logprobs == (0, 0, 0, -0.25, -5 / 3)
    assert row.advantages == (0, 0, 0, -0.25, -0.25)
    assert (row.role, row.hold) == ("tip", 0)
    assert kept.build_rows({("task", TEXT): 0.0}, 1) == [], "nothing to learn"


def test_author_age_limits_credit() -> None:
    kept = authors(author_age=3)
    kept.remember([written(5)], 0)
    kept.remember([written(6)], 2)
    for iteration, author in ((3, 5), (4, 6), (5, 6)):
        kept.remember([], iteration)
        assert writer(kept, iteration) == [author]
    kept.remember([], 6)
    assert writer(kept, 6) == []
    assert kept.state_dict() == [], "and forgotten"


def test_authors_come_back_from_json_as_they_were() -> None:
    kept, again = authors(), authors()
    kept.remember([written(5), written(7, "nothing found")], 0)
    again.load_state_dict(json.loads(json.dumps(kept.state_dict())))
    credit = ONE | {("task", "nothing found"): -1 / 3}
    assert again.build_rows(credit, 1) == kept.build_rows(credit, 1)
    assert len(kept.build_rows(credit, 1)) == 2


def credited(start: Path, **sections: dict[str, Any]) -> Config:
    """Three iterations in which every task has tips from the second on."""
    return tiny_config(start, **{"algorithm": {"author_credit": 1.0}} | sections)


@dataclass
class Watched:
    """A credited run, and what was seen of it."""

    path: Path
    present: list[list[Tip]] = field(default_factory=list)  # before each iteration
    printed: list[tuple[int, Tip]] = field(default_factory=list)  # with the iteration
    scored: list[Sample] = field(default_factory=list)


@pytest.fixture(scope="module")
def watched(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    seen = Watched(tmp_path_factory.mktemp("watched") / "run")
    play = Iteration.rollout

    async def rollout(self: Iteration, *arguments: Any) -> list[TrajectoryGroup]:
        memory = self.run.memory
        before = memory.store.load_tips()
        groups = await play(self, *arguments)
        assert memory.store.load_tips() == before
        seen.present.append(before)
        steps = [step for group in groups for t in group.trajectories for step in t.steps]
        seen.printed.extend((self.number, tip) for step in steps for tip in step.tips)
        return groups

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Iteration, "rollout", rollout)
        scored = record(patch, Learner, "logprobs")
        train_in_process(credited(start_model), seen.path)
    seen.scored += [each for (_, rows), _ in scored for each in rows if not each.off_policy]  # those are EMPO2's own
    return seen


@pytest.mark.long
def test_a_coefficient_of_zero_is_empo2_bit_for_bit(start_model: Path, tmp_path: Path, watched: Watched) -> None:
    zero = {"author_credit": 0.0, "author_share": "equal", "author_age": 9}
    train_in_process(tiny_config(start_model), tmp_path / "empo2")
    train_in_process(credited(start_model, algorithm=zero), tmp_path / "zero")
    assert differences(tmp_path / "empo2", tmp_path / "zero") == SAME
    assert not any(name.startswith("authors/") for line in metrics(tmp_path / "zero") for name in line)
    assert not equal_weights(tmp_path / "zero", watched.path)


@pytest.mark.long
def test_a_credited_run_that_is_resumed_is_the_same_run(start_model: Path, tmp_path: Path, watched: Watched) -> None:
    train(credited(start_model, train={"iterations": 2}), tmp_path)
    train(credited(start_model), tmp_path, allow_change=["train.iterations"])
    assert differences(watched.path, tmp_path) == SAME


def test_tips_are_read_in_later_iterations_only(watched: Watched) -> None:
    """The memory is frozen while an iteration is played, or what a tip earned would depend on who was faster."""
    assert len(watched.printed) > 5
    assert all(tip in watched.present[iteration] and tip.step < iteration for iteration, tip in watched.printed)


def test_readers_scored_with_all_none_and_each_tip(watched: Watched) -> None:
    readers = [e for e in episodes(watched.path) if any(step["tips"] for step in e["steps"])]
    texts = [{tip["text"] for step in e["steps"] for tip in step["tips"]} for e in readers]
    assert max(map(len, texts)) > 1
    assert len(watched.scored) == sum(2 + len(each) for each in texts)


def test_equal_shares_score_nothing() -> None:
    config = small_config(algorithm={"author_credit": 1.0, "author_share": "equal", "normalize_std": False})
    tips = tuple(Tip("task", text, key="", score=0.0) for text in (TEXT, "nothing found"))
    about = written(5).trajectory
    reader = replace(about, steps=(replace(about.steps[0], tips=tips, reward=1.0),), mode="off_policy")
    nobody: Any = None
    credit = compute_author_credit([TrajectoryGroup(TASK, (reader, about))], nobody, nobody, config)
    assert credit == {("task", TEXT): 0.5, ("task", "nothing found"): 0.5}


# -- tips that the trained model does not write itself

REWARDED = (("go to hall", 0.25), ("look", 0.0), ("take 'lamp'", 0.5), ("sleep", 0.0), ("eat lamp", -1.0))


def extracted(
    *played: tuple[str, float], style: str = "terse", max_tip_tokens: int = 100, entries: str = "episode",
    change: Callable[[TrajectoryGroup], TrajectoryGroup] = lambda group: group,
) -> list[Tip]:  # fmt: skip
    """What is written about an episode of these actions and rewards; a token of this policy is a byte."""
    scores = [0.0, *accumulate(reward for _, reward in played)]
    steps = tuple(
        Step(Observation("here", score=score), (), Completion((), (), (), action), (), action, reward)
        for score, (action, reward) in zip(scores, played, strict=False)
    )
    end = Observation("end", score=scores[-1])
    trajectory = Trajectory(Task("t", "rooms"), steps, end, "terminated", success=False, score=scores[-1])
    memory = {"max_tip_tokens": max_tip_tokens, "entries": entries}
    config = small_config(rollout={"style": style}, memory=memory, algorithm={"author": "extract"})

    def never(_: Any) -> str:
        raise AssertionError("no model is asked")

    groups = [change(TrajectoryGroup(trajectory.task, (trajectory,)))]
    (written,) = asyncio.run(write_tips(ScriptedPolicy(never), groups, config, seed=0, step=3))
    assert written.completion.num_tokens == 0
    return list(written.tips)


def test_the_actions_up_to_the_last_raise_are_quoted() -> None:
    (tip,) = extracted(*REWARDED)
    assert tip.text == "go to hall ; look ; take 'lamp'"
    assert (tip.score, tip.model, tip.step, tip.namespace) == (0.75, "extract", 3, "t"), "the score of what is quoted"
    (tip,) = extracted(*REWARDED, style="full")
    assert tip.text == "What raised the score: 'go to hall', 'look', 'take 'lamp''."
    assert extracted(("look", 0.0), ("eat lamp", -1.0)) == [], "an episode that raised nothing has no tip"


def test_a_long_quotation_loses_whole_actions_at_its_end() -> None:
    whole = "go to hall ; look ; take 'lamp'"
    assert [tip.text for tip in extracted(*REWARDED, max_tip_tokens=len(whole))] == [whole]
    (shorter,) = extracted(*REWARDED, max_tip_tokens=len(whole) - 1)
    assert (shorter.text, shorter.score) == ("go to hall ; look", 0.25)
    assert extracted(*REWARDED, max_tip_tokens=9) == [], "not even the first action fits"


def test_an_entry_of_a_step_quotes_its_action_alone() -> None:
    tips = extracted(*REWARDED, entries="step")
    assert [tip.text for tip in tips] == ["go to hall", "look", "take 'lamp'"]
    assert {tip.score for tip in tips} == {0.75}
    assert [tip.text for tip in extracted((" ", 0.0), *REWARDED, entries="step")] == [tip.text for tip in tips]
    (first, *_) = extracted(*REWARDED, entries="step", style="full")
    assert first.text == "What raised the score: 'go to hall'."


def test_of_a_lost_game_the_last_action_alone_is_quoted() -> None:
    pytest.importorskip("scienceworld")
    from scienceworld_plateau import quote_fatal

    (tip,) = extracted(*REWARDED, entries="step", change=quote_fatal)
    assert (tip.text, tip.score) == ("eat lamp", -0.25)
    assert quote_fatal(TrajectoryGroup(TASK, (written(1).trajectory,))).trajectories == (), "it was not lost"


@pytest.mark.long
def test_run_with_extracted_tips_resumes_exactly(start_model: Path, tmp_path: Path) -> None:
    config = tiny_config(start_model, algorithm={"author": "extract"}, train={"iterations": 2})
    train_in_process(config, tmp_path / "whole")
    train(tiny_config(start_model, algorithm={"author": "extract"}, train={"iterations": 1}), tmp_path / "run")
    train(config, tmp_path / "run", allow_change=["train.iterations"])
    assert differences(tmp_path / "whole", tmp_path / "run") == SAME
    wanted = set()
    for episode in episodes(tmp_path / "run"):
        raised = [number for number, step in enumerate(episode["steps"], 1) if step["reward"] > 0]
        quoted = " ; ".join(step["action"] for step in episode["steps"][: max(raised, default=0)])
        wanted.add(clean_tip(quoted))
    with open_memory(tmp_path / "run" / "memory.db", config.memory) as memory:
        tips = memory.store.load_tips()
    assert {tip.model for tip in tips} == {"extract"}
    assert len(tips) > 3
    assert {tip.text for tip in tips} <= wanted
    assert [line["tips/tokens"] for line in metrics(tmp_path / "run")] == [0, 0]
    printed = [tip for episode in episodes(tmp_path / "run") for step in episode["steps"] for tip in step["tips"]]
    assert printed, "the second iteration reads what was extracted in the first"


def asks(proxy: Proxy) -> dict[str, Any]:
    endpoint = {"base_url": proxy.url, "concurrency": 1, "context_tokens": 512}
    return {"algorithm": {"author": f"openai:{MODEL}"}, "endpoint": endpoint}


@pytest.mark.long
def test_endpoint_author_is_paid_once(start_model: Path, tmp_path: Path, proxy: Proxy) -> None:
    config = tiny_config(start_model, **asks(proxy), train={"iterations": 2}, rollout={"num_tasks": 2})
    train_in_process(config, tmp_path / "whole")
    answers = len(proxy.asked)
    assert answers == len(episodes(tmp_path / "whole"))
    assert all("note ?" in asked.body["messages"][-1]["content"] for asked in proxy.asked)
    assert metrics(tmp_path / "whole")[-1]["endpoint/requests"] == answers

    train(config.model_copy(update={"train": config.train.model_copy(update={"iterations": 1})}), tmp_path / "run")
    train(config, tmp_path / "run", allow_change=["train.iterations"])
    assert set(proxy.counts.values()) == {2}, "each request once by each of the two runs"
    with open_memory(tmp_path / "run" / "memory.db", config.memory) as memory:
        assert {tip.model for tip in memory.store.load_tips()} == {MODEL}


def test_an_adaptation_reads_what_another_author_wrote(start_model: Path, tmp_path: Path, proxy: Proxy) -> None:
    options = {"rollout": {"max_context_tokens": 200}, "eval": {"num_tasks": 1, "trials": 1, "num_samples": 2}}
    adapt(tiny_config(start_model, **options, algorithm={"author": "extract"}), start_model, out=tmp_path / "extract")
    assert proxy.asked == []
    adapt(tiny_config(start_model, **options | asks(proxy)), start_model, out=tmp_path / "openai")
    assert len(proxy.asked) == 4
    for name, author in (("extract", "extract"), ("openai", MODEL)):
        first, second = read_jsonl(tmp_path / name / "metrics.jsonl")
        assert first["tips/written"] == second["tips/written"] == 2
        with open_memory(tmp_path / name / "memory.db") as memory:
            assert {tip.model for tip in memory.store.load_tips()} == {author}
    assert second["endpoint/requests"] == 4
