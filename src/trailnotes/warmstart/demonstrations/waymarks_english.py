"""Scripted Waymarks episodes in the full wording, for language models that know English but not the game.

Beside the right tip there may be tips of failures, wrong tips, and tips of other families. Only their words and scores
differ, and the actions follow from them. Each tip names its family, since it may turn up where another one is played,
and is drawn from several wordings, which teach a reader words and not one format.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Final

from trailnotes.config.schema import Config
from trailnotes.envs.waymarks import spec as ws
from trailnotes.errors import ConfigError
from trailnotes.types import Tip, Trajectory
from trailnotes.warmstart.demonstrations.waymarks import WaymarksDemonstrator, has_read

# By kind of tip ("read" in the archive, "won" or "failed" by playing) and of game.
TEMPLATES: Final[dict[str, dict[ws.Kind, list[str]]]] = tomllib.loads(
    files("trailnotes.warmstart.demonstrations").joinpath("waymarks_words.toml").read_text(encoding="utf-8")
)
PAIR_TEMPLATES: Final = ("{box} with {gem}", "{gem} for the {box}", "{gem} in the {box}", "{box} {gem}")
P_MISLED = 0.1  # of the episodes without a right tip: a wrong one is followed, and what is written says how it ended


class EnglishWaymarks(WaymarksDemonstrator):
    """Endless fresh demonstrations in English. No rule begins with a panel's rule either, whatever its size."""

    def __init__(
        self, config: Config, count_tokens: Callable[[str], int], seed: int, families: Sequence[str] = ()
    ) -> None:
        super().__init__(config, count_tokens, seed, families)
        self.families = [name for names in self.names.values() for name in names]
        if config.warmstart.plans:
            raise ConfigError('warmstart.plans are scripted in rollout.style = "terse" alone: set warmstart.plans = 0')

    def draw_rule(self, kind: ws.Kind, family: str, size: int) -> ws.Rule:
        while True:
            rule = super().draw_rule(kind, family, size)
            if not any((kind, family, rule[:n]) in self.forbidden for n in range(1, size)):
                return rule

    def draw_lesson(self, spec: ws.GameSpec) -> tuple[tuple[Tip, ...], tuple[str, ...]]:
        """Draw tips in a memory's order, by score and then at random, and the actions that follow from them.

        The episode follows the right tip; without it, it heeds failures by another guess, or reads the archive.
        """
        warm, most = self.config.warmstart, self.config.warmstart.num_tips
        knowing = most > 0 and self.rng.random() < warm.p_follow_tip
        tips = [self.build_rule_tip(spec, spec.rule, won=self.rng.random() < 0.5)] if knowing else []
        scored = bool(tips and tips[0].score)
        if most and not knowing and self.rng.random() < P_MISLED:
            wrong = self.draw_rule(spec.kind, spec.family, spec.size)
            tips.append(self.build_rule_tip(spec, wrong, won=False))
            return self.rank_tips(tips), ws.gold_actions(ws.make_spec(spec.kind, spec.family, wrong, 0))
        failures: list[ws.Rule] = []
        for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
            if failed := self.draw_failure(spec, lone=scored):
                tried, notes = failed
                if len(tips) + len(notes) <= most:
                    tips += notes
                    failures.append(tried)
        for _ in range(self.rng.choice((0, 0, 0, 1, 2)) if len(self.families) > 1 else 0):
            tips += [self.draw_unrelated_tip(spec)][: most - len(tips)]
        return self.rank_tips(tips), ws.gold_actions(spec) if knowing else self.explore_after(spec, failures)

    def rank_tips(self, tips: list[Tip]) -> tuple[Tip, ...]:
        self.rng.shuffle(tips)
        return tuple({tip.text: tip for tip in sorted(tips, key=lambda tip: -tip.score)}.values())

    def build_rule_tip(self, spec: ws.GameSpec, rule: ws.Rule, *, won: bool) -> Tip:
        return Tip(
            spec.family, format_rule_tip(spec.kind, spec.family, rule, self.rng, won=won), key="", score=float(won)
        )

    def draw_failure(self, spec: ws.GameSpec, *, lone: bool) -> tuple[ws.Rule, list[Tip]] | None:
        """Draw a guess at the rule of `spec`, and tips that it failed, or that give it, or both; None if it was right.

        A tip that gives it comes without the other only where `lone`: beside a right one of a higher score.
        """
        guess = self.draw_rule(spec.kind, spec.family, spec.size)
        if guess == spec.rule:
            return None
        tried = truncate_guess(spec, guess)
        tips = [Tip(spec.family, format_failure_tip(spec, tried, self.rng), key="", score=0.0)]
        if self.rng.random() < 0.4:
            wrong = self.build_rule_tip(spec, guess, won=False)
            tips = [wrong] if lone and self.rng.random() < 0.5 else [*tips, wrong]
        return tried, tips

    def draw_unrelated_tip(self, spec: ws.GameSpec) -> Tip:
        while (other := self.draw_spec()).family == spec.family or (
            other.kind != spec.kind and len(self.names) > 1 and self.rng.random() < 0.8
        ):
            pass
        if self.rng.random() < 0.2:
            guess = self.draw_rule(other.kind, other.family, other.size)
            if guess != other.rule:
                words = format_failure_tip(other, truncate_guess(other, guess), self.rng)
                return Tip(other.family, words, key="", score=0.0)
        return self.build_rule_tip(other, other.rule, won=self.rng.random() < 0.5)

    def explore_after(self, spec: ws.GameSpec, failures: Sequence[ws.Rule]) -> tuple[str, ...]:
        if self.rng.random() < self.config.warmstart.p_explore:
            return ws.archive_actions(spec)
        while True:
            guess = self.draw_rule(spec.kind, spec.family, spec.size)
            other = ws.make_spec(spec.kind, spec.family, guess, 0)
            if all(compare_with_rule(other, tried) == compare_with_rule(spec, tried) for tried in failures):
                return ws.gold_actions(other)

    def write_wrong_note(self, spec: ws.GameSpec) -> str:
        rule = self.draw_rule(spec.kind, spec.family, spec.size)
        return format_rule_tip(spec.kind, spec.family, rule, self.rng, won=False)

    def write_correct_note(self, spec: ws.GameSpec, trajectory: Trajectory) -> str:
        if trajectory.success or has_read(spec, trajectory):
            return format_rule_tip(spec.kind, spec.family, spec.rule, self.rng, won=trajectory.success)
        return format_failure_tip(spec, tuple(step.action.split()[-1] for step in trajectory.steps), self.rng)


def truncate_guess(spec: ws.GameSpec, guess: ws.Rule) -> ws.Rule:
    """Truncate a wrong guess to its playable part: in a maze, up to the dead end."""
    if spec.kind == "keys":
        return guess
    wrong = next(i for i, (word, right) in enumerate(zip(guess, spec.rule, strict=True)) if word != right)
    return guess[: wrong + 1]


def compare_with_rule(spec: ws.GameSpec, tried: ws.Rule) -> tuple[bool, ...]:
    return tuple(word == right for word, right in zip(tried, spec.rule, strict=False))


def format_rule_tip(kind: ws.Kind, family: str, rule: ws.Rule, rng: random.Random, *, won: bool) -> str:
    """Format a tip that tells a whole rule, as it was read in the archive or played to the end."""
    return _format_sentence(TEMPLATES["won" if won else "read"][kind], rng, family=family, way=_format_rule(rule, rng))


def format_failure_tip(spec: ws.GameSpec, tried: ws.Rule, rng: random.Random) -> str:
    """Format a tip about a guess that failed.

    `tried` has the moves up to the dead end, or the gem for each box.
    """
    opened = [f"the {box}" for box, gem, key in zip(spec.boxes, tried, spec.rule, strict=False) if gem == key]
    return _format_sentence(
        TEMPLATES["failed"][spec.kind], rng, family=spec.family, way=_format_rule(tried, rng),
        fit=f"only {_join_words(opened, ' and ')} opened" if opened else "nothing opened",
    )  # fmt: skip


def _format_sentence(wordings: Sequence[str], rng: random.Random, **words: str) -> str:
    text = rng.choice(wordings).format(**words)
    return text[0].upper() + text[1:]


def _format_rule(rule: ws.Rule, rng: random.Random) -> str:
    words = [*rule]
    if rule[0] in ws.GEMS:
        pair = rng.choice(PAIR_TEMPLATES)
        words = [pair.format(box=box, gem=gem) for box, gem in zip(ws.BOXES, rule, strict=False)]
    return _join_words(words, rng.choice((", ", " then ", " and ", ", then ")))


def _join_words(words: Sequence[str], last: str) -> str:
    """Join words by commas and `last` before the last one, or by " then " everywhere."""
    if last == " then ":
        return last.join(words)
    return last.join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
