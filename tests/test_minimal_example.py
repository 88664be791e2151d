"""The method in one file computes what the package computes: prompts, advantages, rows, log-probabilities, loss."""

from __future__ import annotations

import ast
import copy
from pathlib import Path
from typing import Any

import empo2_minimal as minimal
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from trailnotes.config.schema import Config, LossConfig, OptimConfig
from trailnotes.envs.waymarks.env import WaymarksSimulator, make_task
from trailnotes.learner.credit.episodes import group_advantages, score_group
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import build_samples, replace_behavior_logprobs
from trailnotes.policies.chat import ChatFormat
from trailnotes.rollout.conversation import Conversation, build_reflection_messages, parse_action
from trailnotes.types import Completion, Mode, Sample, Step, Task, Tip, Trajectory, TrajectoryGroup

CHAT = ChatFormat(minimal.tokenizer)
CONFIG = Config.model_validate({
    "rollout": {"style": "terse", "max_observation_tokens": 64},
    "memory": {"max_tip_tokens": 24},
    "algorithm": {"name": "empo2"},
})  # fmt: skip


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_pretrained(minimal.MODEL).eval()


@pytest.fixture(scope="module")
def episodes(model: nn.Module) -> list[minimal.Episode]:
    """Two mixed groups; one member has lost an action to the limit of tokens, so that it lacks its end token."""
    games = minimal.make_games("train", 1)
    played = []
    for game in games[0], games[-1]:
        tips = [(minimal.spec.note_text(game.rule), 1.0), ("north is a dead end", 0.0)]
        played += [minimal.Episode(game, tips, off_policy=True), minimal.Episode(game, tips)]
        played += [minimal.Episode(game) for _ in range(minimal.GROUP_SIZE - 2)]
    played[2].act(minimal.tokenizer.encode("look"))
    minimal.play(model, played)
    assert 0 < minimal.success_rate(played) < 1
    return played


def replay(episode: minimal.Episode, task: Task) -> Trajectory:
    """The same actions in the package's environment and conversation."""
    env, conversation = WaymarksSimulator(), Conversation(CONFIG.rollout, CONFIG.memory, CHAT.count_tokens)
    observation = env.reset(task)
    conversation.start(observation.instruction or "")
    tips = [Tip(task.id, text, "", score) for text, score in episode.tips]
    steps = []
    for ids in map(tuple, episode.actions):
        shown = conversation.observe(observation, tips)
        prompts = CHAT.encode(conversation.acting), CHAT.encode(conversation.plain)
        completion = Completion(prompts[0], ids, (0.0,) * len(ids), CHAT.decode(ids))
        conversation.act(completion.text, ids)
        action = parse_action(completion.text, "line", "terse")
        after = env.step(action)
        steps.append(Step(observation, shown, completion, prompts[1], action, after.reward))
        observation = after
    assert [*(step.observation.text for step in steps), observation.text] == episode.observations
    assert observation.done == episode.done
    mode: Mode = "plain" if not tips else "off_policy" if episode.off_policy else "on_policy_tips"
    score = observation.score
    return Trajectory(task, tuple(steps), observation, "terminated", observation.success, score, mode=mode)


@pytest.fixture(scope="module")
def groups(episodes: list[minimal.Episode]) -> list[TrajectoryGroup]:
    size = minimal.GROUP_SIZE
    parts = [episodes[i : i + size] for i in range(0, len(episodes), size)]
    named = [(make_task(part[0].game, f"game-{i}"), part) for i, part in enumerate(parts)]
    return [TrajectoryGroup(task, tuple(replay(episode, task) for episode in part)) for task, part in named]


@pytest.fixture(scope="module")
def samples(groups: list[TrajectoryGroup]) -> list[Sample]:
    advantages = [group_advantages(score_group(group, CONFIG.algorithm), CONFIG.algorithm) for group in groups]
    return [sample for sample in build_samples(groups, advantages) if any(sample.advantages)]


def learner(model: nn.Module, reference: nn.Module, **loss: Any) -> Learner:
    """It freezes its reference and moves its model, so it gets copies."""
    optim, terms = OptimConfig(epochs=1, minibatch=0), LossConfig(kl=minimal.KL, **loss)
    return Learner(copy.deepcopy(model), optim, terms, reference=copy.deepcopy(reference))


def test_the_file_is_short_and_imports_nothing_of_the_package_but_the_games() -> None:
    text = Path(minimal.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    modules = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    package = [ast.unparse(node) for node in modules if "trailnotes" in ast.unparse(node)]
    assert package == ["from trailnotes.envs.waymarks import spec"]


def test_prompts_hold_the_ids_of_the_package(episodes: list[minimal.Episode], groups: list[TrajectoryGroup]) -> None:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    for episode, trajectory in zip(episodes, trajectories, strict=True):
        request = f"\nscore {trajectory.score:g} / 1 . note ?"
        asked = build_reflection_messages(trajectory, CONFIG.rollout, CONFIG.memory, CHAT.count_tokens)
        assert minimal.render(episode, [], request)[0] == [*CHAT.encode(asked)]
        last = trajectory.steps[-1].completion
        assert minimal.render(episode, episode.tips)[0] == [*last.prompt_ids, *last.token_ids]


def test_advantages_are_those_of_the_package(episodes: list[minimal.Episode], groups: list[TrajectoryGroup]) -> None:
    theirs = [
        rows[0] for group in groups for rows in group_advantages(score_group(group, CONFIG.algorithm), CONFIG.algorithm)
    ]
    assert minimal.group_advantages([float(e.scene.won) for e in episodes]) == pytest.approx(theirs, abs=1e-12)
    assert minimal.group_advantages([1.0] * 8 + [0.0] * 8) == [0.0] * 16


def test_rows_are_those_of_the_package(
    model: nn.Module, episodes: list[minimal.Episode], samples: list[Sample]
) -> None:
    ids, mask, advantages, off_policy = minimal.make_rows(episodes)
    behavior = minimal.score_tokens(model, ids) * mask
    theirs = learner(model, model).logprobs(samples)
    assert [sample.off_policy for sample in samples] == off_policy[:, 0].tolist()
    assert any(sample.off_policy for sample in samples)
    for i, sample in enumerate(samples):
        length = len(sample.token_ids)
        assert tuple(ids[i, :length].tolist()) == sample.token_ids
        assert tuple(mask[i, :length].tolist()) == sample.loss_mask
        assert not mask[i, length:].any()
        assert (advantages[i] * mask[i, :length]).tolist() == pytest.approx(sample.advantages, abs=1e-6)
        assert behavior[i, :length].tolist() == pytest.approx(theirs[i], abs=1e-5)


@pytest.mark.parametrize("mask_logprob", [None, -0.5])
def test_loss_and_gradient_are_those_of_the_package(
    model: nn.Module,
    episodes: list[minimal.Episode],
    samples: list[Sample],
    mask_logprob: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a step away from the old policy, so that ratios differ from 1."""
    if mask_logprob is not None:
        monkeypatch.setattr(minimal, "MASK_LOGPROB", mask_logprob)
    torch.manual_seed(1)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    ids, *rest = minimal.make_rows(episodes)
    with torch.no_grad():
        old = minimal.score_tokens(model, ids)
    logprobs = minimal.score_tokens(moved, ids)
    ratio = ((logprobs - old) * rest[0]).exp()
    assert ((ratio < 1 - minimal.CLIP_LOW) | (ratio > 1 + minimal.CLIP_HIGH)).any()
    improbable = rest[0].bool() & rest[2] & (logprobs < minimal.MASK_LOGPROB)
    assert improbable.any() == (mask_logprob is not None)
    loss = minimal.compute_loss(logprobs, old, old, *rest)
    loss.backward()
    norm = nn.utils.get_total_norm([p.grad for p in moved.parameters() if p.grad is not None])

    theirs = learner(moved, model, mask_logprob=mask_logprob)
    start = theirs.logprobs(samples, initial=True)
    metrics = theirs.update(replace_behavior_logprobs(samples, start))
    assert loss.item() == pytest.approx(metrics["loss"], abs=1e-5)
    assert norm.item() == pytest.approx(metrics["grad_norm"], rel=1e-4)


def test_retrieval_goes_by_score_then_support_then_recency() -> None:
    (game,) = minimal.make_games("train", 1)[:1]
    memory = {game: {"old": (0.0, 1), "won": (1.0, 1), "repeated": (0.0, 2), "new": (0.0, 1), "newest": (0.0, 1)}}
    assert [text for text, _ in minimal.retrieve(memory, game)] == ["won", "repeated", "newest", "new"]
