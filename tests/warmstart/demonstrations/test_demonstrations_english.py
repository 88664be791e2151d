"""Waymarks demonstrations in the full wording."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from start_model import parse_rule
from test_demonstrations import ALL_FAMILIES, episodes

from small import small_config
from trailnotes.config.schema import Config
from trailnotes.envs.waymarks import spec as ws
from trailnotes.envs.waymarks.env import COMPARE_SIZES, list_panel_rules, parse_spec
from trailnotes.storage.demonstrations import Demonstration
from trailnotes.warmstart.demonstrations import waymarks_english as words
from trailnotes.warmstart.demonstrations.waymarks_english import truncate_guess

SIZES = {"route": 4, "keys": 3}
KIND_OF = {family: kind for kind in ws.KINDS for family in ws.FAMILY_NAMES[kind]}
LAYOUTS = [(seed, sizes) for seed in (0, 7) for sizes in ({}, COMPARE_SIZES, SIZES)]
PANELS = {rule for layout in LAYOUTS for rule in list_panel_rules(ALL_FAMILIES, *layout)}
BEGINNINGS = re.compile(rf"\b({'|'.join(KIND_OF)})\b", re.IGNORECASE)


def a_config(**warmstart: Any) -> Config:
    env = {"name": "waymarks-simulator", "num_workers": 0, "options": {"dataset_seed": 7, "sizes": SIZES}}
    rollout = {"style": "full", "max_observation_tokens": 4000, "max_context_tokens": 9000}
    return small_config(env=env, rollout=rollout, memory={"max_tip_tokens": 400}, warmstart=warmstart)


def family_of(text: str) -> str:
    """The only family that a tip names."""
    (family,) = {name.lower() for name in BEGINNINGS.findall(text)}
    return str(family)


def told(text: str) -> ws.Rule:
    """What a tip tells about its own family."""
    return parse_rule(KIND_OF[family_of(text)], text)


def failed(text: str) -> bool:
    """Whether a tip says so."""
    return not any(
        re.fullmatch(re.escape(wording).replace(r"\{family\}", r"\w+").replace(r"\{way\}", ".*"), text, re.IGNORECASE)
        for wordings in (*words.TEMPLATES["read"].values(), *words.TEMPLATES["won"].values())
        for wording in wordings
    )


def tells_a_panel(family: str, rule: ws.Rule) -> bool:
    return any((KIND_OF[family], family, rule[:n]) in PANELS for n in range(1, len(rule) + 1))


@pytest.mark.parametrize("won", [True, False])
@pytest.mark.parametrize("kind", ws.KINDS)
def test_a_rule_is_read_back_out_of_every_wording(kind: ws.Kind, won: bool) -> None:
    rng, texts = random.Random(0), set()
    for _ in range(600):
        rule = ws.draw_rule(kind, rng, rng.choice(ws.SIZES[kind]))
        family = rng.choice(ws.FAMILY_NAMES[kind])
        text = words.format_rule_tip(kind, family, rule, rng, won=won)
        assert (family_of(text), told(text), failed(text)) == (family, rule, False), text
        texts.add(re.sub(r"\b(?:ruby|north|east)\b", "x", text.lower().replace(family, "")))
    assert len(texts) > 100


@pytest.mark.parametrize("kind", ws.KINDS)
def test_an_attempt_is_read_back_out_of_every_wording(kind: ws.Kind) -> None:
    rng = random.Random(0)
    for _ in range(600):
        size = rng.choice(ws.SIZES[kind])
        rule, guess = ws.draw_rule(kind, rng, size), ws.draw_rule(kind, rng, size)
        if rule != guess:
            spec = ws.make_spec(kind, "amber" if kind == "route" else "granite", rule, 0)
            tried = truncate_guess(spec, guess)
            text = words.format_failure_tip(spec, tried, rng)
            assert (told(text), failed(text)) == (tried, True), text


def all_that_is_said(demo: Demonstration) -> Iterator[tuple[str, ws.Rule]]:
    """Family and rule of each line that tells one, be it quoted, read in the archive, or written."""
    assert demo.task
    own = parse_spec(demo.task).family
    for message in demo.messages:
        for line in message.content.splitlines():
            if line.startswith("Observation: ") and "carved here: " not in line:
                continue  # the ways out of a room tell nothing
            named = {name.lower() for name in BEGINNINGS.findall(line)}
            family = named.pop() if named else own
            yield family, parse_rule(KIND_OF[family], line.partition("carved here: ")[2] or line)


@pytest.mark.parametrize("shares", [{}, {"sizes": 1.0, "wrong_notes": 0.5}])
def test_no_demonstration_reveals_a_panel_rule(shares: dict[str, float]) -> None:
    for spec, tips, actions, _, demos in episodes(a_config(**shares), 800, len):
        assert not tells_a_panel(spec.family, spec.rule)
        assert not any(tells_a_panel(family_of(tip.text), told(tip.text)) for tip in tips)
        if actions != ws.archive_actions(spec):
            assert not tells_a_panel(spec.family, tuple(action.split()[-1] for action in actions))
        for demo in demos:
            for family, rule in all_that_is_said(demo):
                assert not tells_a_panel(family, rule), (family, rule)


def test_the_right_tip_is_followed() -> None:
    seen: Counter[str] = Counter()
    for spec, tips, actions, trajectory, _ in episodes(a_config(p_follow_tip=1.0), 600, len):
        assert 1 <= len(tips) <= 4
        assert [tip.score for tip in tips] == sorted((tip.score for tip in tips), reverse=True)
        own = [tip for tip in tips if family_of(tip.text) == spec.family]
        rules = [tip for tip in own if not failed(tip.text)]
        (right,) = (tip for tip in rules if told(tip.text) == spec.rule)
        assert actions == ws.gold_actions(spec)
        assert trajectory.success
        refuted = [told(tip.text) for tip in own if failed(tip.text)]
        for tip in rules:
            if tip is not right:
                beaten = right.score > tip.score
                assert beaten or any(told(tip.text)[: len(tried)] == tried for tried in refuted)
                seen["beaten" if beaten else "refuted"] += 1
        seen["last of several"] += len(tips) > 1 and tips[-1] is right
        seen["a better score elsewhere"] += any(t.score > right.score for t in tips if t not in own)
    assert min(seen.values()) > 10, seen
    assert len(seen) == 4
