"""What EMPO2's release does otherwise than its paper, on hand-made batches; the rows are those of docs/reproduce.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tiny import group, learner, step, trajectory
from trailnotes.config.builtin import find_config
from trailnotes.config.presets import PRESETS
from trailnotes.config.schema import Config, MemoryConfig, RolloutConfig
from trailnotes.config.toml import load_config
from trailnotes.errors import ConfigError
from trailnotes.learner.credit.episodes import group_advantages, score_group
from trailnotes.learner.samples import build_samples, iter_minibatches
from trailnotes.memory import open_memory
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.conversation import Conversation, build_reflection_messages
from trailnotes.rollout.tips import parse_tips
from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory

TASK = Task("task", "env")
TIP_1, TIP_2 = 91, 92  # tokens that only tips have


def played(rewards: Sequence[float], text: str = "here") -> Trajectory:
    """An episode of one token an action, `a0`, `a1` and so on, whose final observation is `text`."""
    steps = []
    for t, reward in enumerate(rewards):
        completion = Completion((1,), (2,), (-0.5,), f"a{t}")
        steps.append(Step(Observation(f"state {t}", instruction="Win."), (), completion, (1,), f"a{t}", reward))
    total = sum(rewards)
    return Trajectory(TASK, tuple(steps), Observation(text, score=total, max_score=1.0), "terminated", True, total)


# Three turns 1, 3 and 5 of one token with answers 2, 4 and 6; the first two have a tip each, which stays.
READ = trajectory(
    [
        step([TIP_1, 1], [2], plain=[1]),
        step([TIP_1, 1, 2, TIP_2, 3], [4], plain=[1, 2, 3]),
        step([TIP_1, 1, 2, TIP_2, 3, 4, 5], [6], plain=[1, 2, 3, 4, 5]),
    ],
    "off_policy",
)


def test_row_1_the_newest_turn_keeps_its_tips_off_policy() -> None:
    rows = build_samples([group(READ)], [[1.0]], "step", "release")
    assert [row.token_ids for row in rows] == [(TIP_1, 1, 2), (1, 2, TIP_2, 3, 4), (1, 2, 3, 4, 5, 6)]
    assert [row.loss_mask for row in rows] == [(0, 0, 1), (0, 0, 0, 0, 1), (0, 0, 0, 0, 0, 1)]
    assert all(row.off_policy for row in rows)
    assert [row.shows_tips for row in rows] == [True, True, False]
    exact = build_samples([group(READ)], [[1.0]], "step")
    assert [row.token_ids for row in exact] == [(1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)]


def test_row_1_leaves_other_modes_alone_and_refuses_a_rewritten_history() -> None:
    acted = replace(READ, mode="on_policy_tips")
    assert build_samples([group(acted)], [[1.0]], "step", "release") == build_samples([group(acted)], [[1.0]], "step")
    forked = trajectory([step([TIP_1, 1], [2], plain=[1]), step([9, 3], [4])], "off_policy")
    with pytest.raises(ValueError, match="tip_free"):
        build_samples([group(forked)], [[1.0]], "step", "release")


def test_row_1_needs_a_row_for_each_turn() -> None:
    sections = {"model": {"path": "x"}, "empo2": {"distilled_context": "release"}}
    with pytest.raises(ConfigError, match=r"optim\.rows"):
        Config(**sections).validate_training()
    Config(**sections, optim={"rows": "step"}).validate_training()
    with pytest.raises(ConfigError, match=r"memory\.distilled"):
        Config(**sections, optim={"rows": "step"}, memory={"distilled": 0.5}).validate_training()


def test_row_2_a_minibatch_counts_the_rows_of_turns() -> None:
    """Two episodes of three turns: two mini-batches of four rows and two, though there are but two episodes."""
    rows = build_samples([group(READ, READ)], [[1.0, -1.0]], "step")
    batches = list(iter_minibatches(rows, 4, np.random.default_rng(0), unit="row"))
    assert [len(batch) for batch in batches] == [4, 2]
    assert sorted(i for batch in batches for i in batch) == list(range(6))
    assert len(list(iter_minibatches(rows, 4, np.random.default_rng(0)))) == 1


def test_row_4_weights_decay_by_the_rate_times_the_decay() -> None:
    samples = build_samples([group(READ, READ)], [[1.0, -0.5]], "step")
    subject, other = learner(lr=1e-2, weight_decay=0.01), learner(lr=1e-2)
    start = [p.detach().clone() for p in other.model.parameters()]
    for each in (subject, other):
        each.update(samples)
    for mine, theirs, before in zip(subject.model.parameters(), other.model.parameters(), start, strict=True):
        torch.testing.assert_close(mine, theirs - 1e-2 * 0.01 * before, atol=1e-6, rtol=0)
    assert any(not torch.equal(a, b) for a, b in zip(subject.model.parameters(), other.model.parameters(), strict=True))


def test_row_8_every_step_has_an_entry_under_the_final_state() -> None:
    policy = ScriptedPolicy(lambda _: "")
    (written,) = parse_tips(
        policy, [played([0.0, 0.0, 1.0], "the end")], [Completion((), (), (), "go left")],
        Config(memory={"entries": "final", "duplicates": "exact"}), step=0,
    )  # fmt: skip
    assert [tip.action for tip in written.tips] == ["a0", "a1", "a2"]
    assert {tip.key for tip in written.tips} == {"Win.\nthe end"}


def note(text: str, score: float, action: str = "a") -> Tip:
    return Tip("task", text, "here", score, action=action)


def test_rows_8_and_9_only_an_equal_action_and_score_make_a_repeat() -> None:
    settings = {"duplicates": "exact", "entries": "final", "order": ["score", "oldest"], "repeat_shown": True}
    memory = open_memory(None, MemoryConfig(threshold=-1, **settings))
    added = [note("left", 1.0), note("left", 1.0), note("left", 1.0, "b"), note("left", 2.0)]
    assert memory.add(added) == 3
    assert [(tip.score, tip.action, tip.support) for tip in memory.search("task", "here", 10)] == [
        (2.0, "a", 1), (1.0, "a", 1), (1.0, "b", 1)
    ]  # fmt: skip


def test_row_12_a_discount_pays_the_shorter_of_two_wins() -> None:
    """Wins after one step and after three: returns 1 and .25 with discount .5, less their mean .625."""
    algorithm = Config(algorithm={"discount": 0.5, "normalize_std": False}).algorithm
    scores = score_group(group(played([1.0]), played([0.0, 0.0, 1.0])), algorithm)
    assert scores.returns.tolist() == [1.0, 0.25]
    assert [row.tolist() for row in group_advantages(scores, algorithm)] == [[0.375], [-0.375] * 3]


def test_row_16_prompts_of_ones_own() -> None:
    prompts = {
        "task": "TASK {text}!", "observation": "SEEN {text}", "notes": "MEMORY", "request": "{score} of {max_score}?"
    }  # fmt: skip
    rollout, memory = RolloutConfig(prompts=prompts), MemoryConfig(show_score=False)
    conversation = Conversation(rollout, memory, len)
    conversation.start("Win.")
    conversation.observe(Observation("a {score}"), [note("left", 1.0, "")])
    assert conversation.plain[-1].content == "TASK Win.!\nSEEN a {score}"
    assert conversation.acting[-1].content == 'TASK Win.!\nMEMORY\n- "left"\n\nSEEN a {score}'
    request = build_reflection_messages(played([0.5]), rollout, memory, len)[-1]
    assert request.content == "SEEN here\n\n0.5 of 1?"


def test_the_presets_of_the_release_set_their_rows_and_can_train() -> None:
    for env, minibatch, discount, run in (("scienceworld", 128, 1.0, "release"), ("webshop", 512, 0.95, "webshop")):
        config = Config(**{**PRESETS[f"release-{env}"], "model": {"path": "x"}}).validate_training()
        assert (config.optim.minibatch, config.optim.minibatch_unit) == (minibatch, "row")
        assert (config.optim.rows, config.optim.weight_decay) == ("step", 0.01)
        assert (config.loss.aggregation, config.loss.mask_unit, config.loss.kl) == ("sequence", "response", 0.0)
        assert (config.eval.num_samples, config.rollout.num_examples) == (4, 2)
        assert (config.memory.entries, config.memory.duplicates, config.memory.top_k) == ("final", "exact", 10)
        assert (config.memory.order, config.memory.repeat_shown) == (("score", "oldest"), True)
        assert (config.algorithm.intrinsic, config.algorithm.discount) == ("none", discount)
        own = PRESETS[f"release-{env}"]["empo2"]
        assert (own["distilled_context"], own["p_memory"], own["q_off_policy"]) == ("release", 0.25, 0.17 / 0.25)
        assert load_config(find_config(f"paper/{run}")).train.iterations == 200
