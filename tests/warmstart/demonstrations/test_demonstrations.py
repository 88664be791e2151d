from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from small import count_words, small_config
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs.waymarks import spec as ws
from trailnotes.envs.waymarks.env import (
    COMPARE_SIZES,
    WaymarksSimulator,
    list_panel_rules,
    make_task,
    parse_command,
    select_families,
)
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import ConfigError
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.advice import Example, Situation, ValuedAction, parse_advice
from trailnotes.rollout.episode import run_episode
from trailnotes.rollout.tips import write_tips
from trailnotes.types import Message, Tip, Trajectory, TrajectoryGroup
from trailnotes.warmstart.demonstrations import (
    Demonstration,
    iter_held_out_demonstrations,
    load_demonstrator,
    read_demonstrations,
)
from trailnotes.warmstart.demonstrations.waymarks import (
    NOTHING_FOUND,
    WaymarksDemonstrator,
    build_demonstration_task,
    format_rule_note,
)
from trailnotes.warmstart.training import SETTING

Played = tuple[ws.GameSpec, tuple[Tip, ...], tuple[str, ...], Trajectory, list[Demonstration]]
ALL_FAMILIES = [f"{kind}/{family}" for kind in ws.KINDS for family in ws.FAMILY_NAMES[kind]]

EVERY_RULE = {
    rule for seed in (0, 7) for sizes in ({}, COMPARE_SIZES) for rule in list_panel_rules(ALL_FAMILIES, seed, sizes)
}


def a_config(style: str = "terse", **warmstart: Any) -> Config:
    options = {"dataset_seed": 7}
    env = {"name": "waymarks-simulator", "num_workers": 0, "options": options}
    rollout = {"style": style, "max_steps": 20, "max_observation_tokens": 4000, "max_context_tokens": 9000}
    rollout["max_action_tokens"] = 99
    memory = {"top_k": 4, "threshold": -1.0, "max_tip_tokens": 400}
    return small_config(env=env, rollout=rollout, memory=memory, warmstart=warmstart)


def episodes(config: Config, num: int, count: Callable[[str], int] = count_words) -> Iterator[Played]:
    """Each episode's game, tips, intended actions and trajectory beside its demonstrations."""
    demonstrator = load_demonstrator(config.env.name, config.rollout.style)(config, count, 0)
    seen: list[Any] = []
    play = demonstrator.play

    def watched(spec: ws.GameSpec, tips: tuple[Tip, ...], actions: tuple[str, ...]) -> Any:
        result = play(spec, tips, actions)
        seen.append((spec, tips, actions, result[0]))
        return result

    demonstrator.play = watched  # type: ignore[method-assign]
    for _ in range(num):
        demos = demonstrator.demonstrate_episode()
        yield (*seen.pop(), demos)


@pytest.mark.parametrize(
    "warmstart",
    [
        {"p_follow_tip": 1.0, "sizes": 0.5}, {"p_follow_tip": 0.0, "p_explore": 0.0, "plans": 1.0},
        {"p_follow_tip": 0.0, "p_explore": 1.0},
    ],
)  # fmt: skip
def test_a_rule_of_a_panel_is_drawn_again(warmstart: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first draw is the answer of some panel; with luck alone a test of many draws might miss it."""
    rest = {kind: sorted(rule for k, _, rule in EVERY_RULE if k == kind) for kind in ws.KINDS}
    fresh = {"route": ("east",) * 7, "keys": ws.GEMS[:4]}
    draws = 0

    def loaded(kind: ws.Kind, rng: Any, size: int) -> ws.Rule:
        nonlocal draws
        draws += 1
        answers = [rule for rule in rest[kind] if len(rule) == size]
        return fresh[kind][:size] if draws % 30 == 0 or not answers else rng.choice(answers)

    config = a_config(num_tips=4, **warmstart)
    list(episodes(config, 1))  # the panels' rules are drawn, and cached, before the draws are loaded
    monkeypatch.setattr(ws, "draw_rule", loaded)
    for spec, tips, actions, _, demos in episodes(config, 200):
        assert (spec.kind, spec.family, spec.rule) not in EVERY_RULE
        own = [rule for kind, family, rule in EVERY_RULE if (kind, family) == (spec.kind, spec.family)]
        notes = {format_rule_note(spec.family, rule) for rule in own}
        assert not notes & {tip.text for tip in tips}
        texts = "\n".join(message.content for demo in demos for message in demo.messages)
        # whole: a longer rule may begin like a short one, and is another game's
        assert not [note for note in notes if re.search(rf"{note}( \"|$)", texts, re.MULTILINE)]
        assert actions not in {ws.gold_actions(ws.make_spec(spec.kind, spec.family, rule, 0)) for rule in own}


def test_the_tip_free_view_teaches_only_the_note() -> None:
    for spec, tips, actions, trajectory, demos in episodes(a_config(p_follow_tip=1.0), 200):
        acted, written = demos
        assert next(tip.text for tip in tips if tip.text != NOTHING_FOUND) == format_rule_note(spec.family, spec.rule)
        assert trajectory.success
        spoken = [i for i, message in enumerate(acted.messages) if message.role == "assistant"]
        assert acted.taught == frozenset(spoken)
        assert tuple(acted.messages[i].content for i in spoken) == actions
        assert f'- " {format_rule_note(spec.family, spec.rule)} "' in acted.messages[0].content
        assert written.taught == {len(written.messages) - 1}
        assert "notes" not in written.messages[0].content


@pytest.mark.parametrize("num_tips", [1, 2, 4])
def test_the_right_tip_leads_the_rules_and_is_never_cut(num_tips: int) -> None:
    firsts = set()
    for spec, tips, *_ in episodes(a_config(p_follow_tip=1.0, num_tips=num_tips), 200):
        rules = [tip for tip in tips if tip.text != NOTHING_FOUND]
        assert 1 <= len(tips) <= num_tips
        assert rules[0].text == format_rule_note(spec.family, spec.rule)
        assert [tip.score for tip in tips] == sorted((tip.score for tip in tips), reverse=True)
        firsts.add(tips[0] is rules[0])
    assert firsts == ({True} if num_tips == 1 else {True, False})


@pytest.mark.parametrize("style", ["terse", "full"])
def test_every_taught_action_is_legal(style: str) -> None:
    env = WaymarksSimulator(actions=True)
    for spec, *_, trajectory, demos in episodes(a_config(style), 300):
        observation = env.reset_spec(spec)
        taught = [demos[0].messages[i].content for i in sorted(demos[0].taught)][: len(trajectory.steps)]
        for action in taught:
            assert action in (observation.actions or ())
            assert parse_command(action) == (action, False)
            observation = env.step(action)
        assert observation.done


def test_the_published_start_model_would_be_shown_the_same() -> None:
    config = load_config("demo-warmstart")
    digest = hashlib.sha256()
    for demo in islice(WaymarksDemonstrator(config, count_words, config.run.seed), 200):
        for i, message in enumerate(demo.messages):
            digest.update(f"{message.role}\x1f{int(i in demo.taught)}\x1f{message.content}\x1e".encode())
        digest.update(b"\x1d")
    assert digest.hexdigest() == "e8e1a5538a50a38ff3e79520e7e0ce807abae7dcb6d5153e6c0d28e80abaf2ee"


# -- plans


def test_plans_are_requested_after_failures_only() -> None:
    quoted = set()
    for spec, _, _, trajectory, demos in episodes(a_config(plans=1.0, sizes=0.5), 400):
        *_, request, answer = demos[-1].messages
        assert request.content.endswith("note ?" if trajectory.success else "plan ?")
        is_known = trajectory.success or ws.note_text(spec.rule) in trajectory.final_observation.text
        assert answer.content == (format_rule_note(spec.family, spec.rule) if is_known else NOTHING_FOUND)
        if not trajectory.success:
            quoted.add(request.content.partition("notes :")[2].count('- "'))
    assert quoted == {0, 1, 2, 3}


# -- advice

Advised = tuple[tuple[Example, ...], Situation, ValuedAction, ws.GameSpec, tuple[str, ...]]


def advised(num: int, **shares: float) -> Iterator[Advised]:
    """Examples, the situation and the answer of each demonstration, with the game and all that was done in it."""
    demonstrator = WaymarksDemonstrator(a_config(advice=1.0, sizes=0.5, **shares), count_words, 3)
    seen: list[Any] = []
    decide = demonstrator.choose_advice

    def watched(spec: ws.GameSpec, done: tuple[str, ...], fitting: list[Example]) -> ValuedAction:
        answer = decide(spec, done, fitting)
        seen[:] = [(fitting, demonstrator.build_situation(spec, done), answer, spec, done)]
        return answer

    demonstrator.choose_advice = watched  # type: ignore[method-assign]
    for _ in range(num):
        (demo,) = demonstrator.demonstrate_episode()
        assert demo.taught == {len(demo.messages) - 1}
        assert parse_advice(demo.messages[-1].content) == [seen[0][2]]
        assert demo.messages[-2].content.endswith(f"{seen[0][1].observation}\ndo :")
        yield seen[0]


def test_fitting_advice_is_followed_or_avoided_and_the_rest_explored() -> None:
    followed = avoided = explored = read = starts = 0
    env = WaymarksSimulator(actions=True)
    for fitting, situation, answer, spec, done in advised(2000, p_explore=0.5):
        assert all((e.situation.task, e.situation.history) == (situation.task, done[-5:]) for e in fitting)
        observation = env.reset_spec(spec)
        for action in done:
            observation = env.step(action)
        assert answer.action in (observation.actions or ())
        good = [valued for example in fitting for valued in example.encouraged]
        bad = {valued.action for example in fitting for valued in example.discouraged}
        if good:
            assert answer in good
            assert answer.value == max(valued.value for valued in good)
            followed += 1
            continue
        assert answer.value == 0.0
        assert answer.action not in bad
        avoided, explored = avoided + bool(bad), explored + (not bad)
        if not done and "west" not in bad:
            starts, read = starts + 1, read + (answer.action == "west")
    assert min(followed, avoided, explored) > 200
    assert read / starts == pytest.approx(0.5, abs=0.08)


async def play_demonstrations_again(config: Config) -> None:
    with EnvPool(config.env) as pool:
        for spec, tips, actions, _, demos in episodes(config, 80, lambda text: len(text.encode())):
            memory: Any = SimpleNamespace(search=lambda namespace, query, top_k, tips=tips: list(tips[:top_k]))
            lines, prompts = iter(actions), []

            def script(messages: Sequence[Message], lines: Iterator[str] = lines, prompts: Any = prompts) -> str:
                prompts.append([(message.role, message.content) for message in messages])
                return next(lines, "a note")

            policy = ScriptedPolicy(script)
            async with pool.lease() as env:
                trajectory = await run_episode(
                    policy, env, make_task(spec, "x"), "on_policy_tips" if tips else "plain", memory, config,
                    member=0, seed=0,
                )  # fmt: skip
            task = build_demonstration_task(spec)
            assert all(demo.task == task for demo in demos), "known where it is rehearsed"
            messages = [(message.role, message.content) for message in demos[0].messages]
            if tips:
                assert messages == [*prompts[-1], ("assistant", trajectory.steps[-1].completion.text)]
            else:
                assert messages[: len(prompts[-1])] == prompts[-1]
            lines = iter(())
            await write_tips(policy, [TrajectoryGroup(trajectory.task, (trajectory,))], config, seed=0, step=0)
            assert [(message.role, message.content) for message in demos[-1].messages[:-1]] == prompts[-1]


@pytest.mark.parametrize("style", ["terse", "full"])
def test_demonstrations_are_what_real_episodes_render_byte_for_byte(style: str) -> None:
    asyncio.run(play_demonstrations_again(a_config(style)))


def test_apart_draws_spare_families_alone_and_rules_that_no_panel_has() -> None:
    """Neither for a game, nor in an example or a tip is any other family named; requests for plans name two always."""
    options = {"families": 4, "new_families": 12, "new_validation": 4}
    config = a_config(sizes=0.5, scores=0.5, plans=0.0, advice=0.3)
    config.env.options.update(options)
    spare = select_families(4, 12, 4)["spare"]
    names = {name.partition("/")[2] for name in ALL_FAMILIES} - {name.partition("/")[2] for name in spare}
    assert len(spare) == 28
    demos = islice(WaymarksDemonstrator.build_held_out(config, count_words, 0), 400)
    words = {word for demo in demos for message in demo.messages for word in message.content.split()}
    assert not names & words
    assert {name.partition("/")[2] for name in spare} <= words


def test_apart_draws_the_games_that_rehearsal_options_name() -> None:
    config = a_config(sizes=0.0)
    config.rehearsal.options.update(families=["route/birch"], sizes={"route": 3, "keys": 2}, dataset_seed=5)
    apart = WaymarksDemonstrator.build_held_out(config, count_words, 0)
    assert {(kind, len(apart.names[kind])) for kind in apart.names} == {("route", 22), ("keys", 22)}
    assert {(spec.kind, spec.size) for spec in (apart.draw_spec() for _ in range(50))} == {("route", 3), ("keys", 2)}
    assert apart.forbidden > WaymarksDemonstrator(config, count_words, 0).forbidden


def test_apart_is_refused_where_every_family_is_used() -> None:
    config = a_config()
    config.env.options["families"] = 48
    with pytest.raises(ConfigError, match="every family is in training or evaluation"):
        WaymarksDemonstrator.build_held_out(config, count_words, 0)
    other = config.model_copy(update={"env": config.env.model_copy(update={"name": "textworld"})})
    with pytest.raises(ConfigError, match=r"'textworld' has no scripted episodes.*trailnotes rehearsal record"):
        iter_held_out_demonstrations(other, count_words, 0)


# -- conversations from a file


def jsonl(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


GOOD = {"messages": [turn("system", "s"), turn("user", "u"), turn("assistant", "a"), turn("user", "v")]}


def test_all_assistant_turns_of_a_file_teach(tmp_path: Path) -> None:
    more = {"messages": [turn("user", "u"), turn("assistant", "a"), turn("user", "v"), turn("assistant", "b")], "x": 1}
    path = jsonl(tmp_path / "d.jsonl", "\ufeff" + json.dumps(GOOD), "", "  ", more)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # neither a final line end nor the mark of an editor matters
    first, second = read_demonstrations(path, SETTING)
    assert first.messages[2] == Message("assistant", "a")
    assert (first.taught, second.taught) == ({2}, {1, 3})


@pytest.mark.parametrize(
    "line",
    [
        "{no json",
        {"turns": []},
        {"messages": [turn("user", None), turn("assistant", "a")]},
        {"messages": [turn("user", "u"), turn("user", "a"), turn("assistant", "b")]},
        {"messages": [turn("user", "u")]},
        {"messages": []},
        *({"messages": [turn("user", "u"), turn("assistant", "a")], **more} for more in (
            {"taught": [0]}, {"taught": [True]}, {"taught": 1}, {"helped": 1}, {"kind": 3}, {"task": 7},
            {"task": {"id": "a", "env": "b", "seed": True}}, {"task": {"id": 3, "env": "b"}},
            {"task": {"id": "a", "env": "b", "sed": 1}},
        )),
        {"messages": [turn("user", "u"), turn("assistant", "a") | {"token_ids": ["x"]}]},
    ],
)  # fmt: skip
def test_a_bad_line_is_named(line: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"d\.jsonl, line 2: "):
        read_demonstrations(jsonl(tmp_path / "d.jsonl", GOOD, line), SETTING)


def test_a_file_that_is_empty_missing_or_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    jsonl(tmp_path / "empty.jsonl")
    for name in ("empty", "gone", "bytes"):
        with pytest.raises(ConfigError, match=name):
            read_demonstrations(tmp_path / f"{name}.jsonl", SETTING)
