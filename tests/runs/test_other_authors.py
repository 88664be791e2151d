"""`algorithm.author`: tips that the trained model does not write itself."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from proxy import Proxy
from served import MODEL
from small import small_config
from tinyrun import SAME, differences, episodes, metrics, tiny_config, train_in_process
from trailnotes.memory import open_memory
from trailnotes.memory.tips import clean_tip
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.tips import write_tips
from trailnotes.runs.adapt import adapt
from trailnotes.runs.train import train
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory, TrajectoryGroup

REWARDED = (("go to hall", 0.25), ("look", 0.0), ("take 'lamp'", 0.5), ("sleep", 0.0), ("eat lamp", -1.0))


def extracted(
    *played: tuple[str, float], style: str = "terse", max_tip_tokens: int = 100, entries: str = "episode"
) -> list[Tip]:
    """What is written about an episode of these actions and rewards; a token of this policy is a byte."""
    scores = [0.0, *accumulate(reward for _, reward in played)]
    steps = tuple(
        Step(Observation("here", score=score), (), Completion((), (), (), action), (), action, reward)
        for score, (action, reward) in zip(scores, played, strict=False)
    )
    trajectory = Trajectory(Task("t", "rooms"), steps, Observation("end"), "terminated", success=False, score=-0.25)
    config = small_config(
        rollout={"style": style},
        memory={"max_tip_tokens": max_tip_tokens, "entries": entries},
        algorithm={"author": "extract"},
    )

    def never(_: Any) -> str:
        raise AssertionError("no model is asked")

    groups = [TrajectoryGroup(trajectory.task, (trajectory,))]
    tips, num_tokens = asyncio.run(write_tips(ScriptedPolicy(never), groups, config, seed=0, step=3))
    assert num_tokens == 0
    return tips


def test_the_actions_up_to_the_last_raise_are_quoted() -> None:
    (tip,) = extracted(*REWARDED)
    assert tip.text == "go to hall ; look ; take 'lamp'"
    assert (tip.score, tip.model, tip.step, tip.namespace) == (0.75, "extract", 3, "t"), "the score of what is quoted"
    (tip,) = extracted(*REWARDED, style="full")
    assert tip.text == "What raised the score: 'go to hall', 'look', 'take 'lamp''."


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


def test_an_episode_that_raised_nothing_has_no_tip() -> None:
    assert extracted(("look", 0.0), ("eat lamp", -1.0)) == []


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
