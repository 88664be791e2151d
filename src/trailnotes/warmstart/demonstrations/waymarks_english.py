"""Scripted Waymarks episodes in the full wording, for language models that know English but not the game.

Beside the right tip there may be tips of failures, wrong tips, and tips of other families. Only their words and scores
differ, and the actions follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trailnotes.config.schema import Config
from trailnotes.envs.waymarks import spec as ws
from trailnotes.errors import ConfigError
from trailnotes.types import Tip, Trajectory
from trailnotes.warmstart.demonstrations.waymarks import WaymarksDemonstrator, has_read
from trailnotes.warmstart.demonstrations.waymarks_words import format_failure_tip, format_rule_tip

P_MISLED = 0.1  # of the episodes without a right tip: a wrong one is followed, and what is written says how it ended


class EnglishWaymarks(WaymarksDemonstrator):
    """Endless fresh demonstrations of all Waymarks families in English.

    No rule begins with a panel's rule either, whatever its size.

    Raises:
        ConfigError: `warmstart.plans` asks for plans.
    """

    def __init__(
        self, config: Config, count_tokens: Callable[[str], int], seed: int, families: Sequence[str] = ()
    ) -> None:
        super().__init__(config, count_tokens, seed, families)
        self.families = [name for names in self.names.values() for name in names]
        if config.warmstart.plans:
            raise ConfigError('warmstart.plans are scripted in rollout.style = "terse" alone: set warmstart.plans = 0')

    def draw_rule(self, kind: ws.Kind, family: str, size: int) -> ws.Rule:
        """Draw a rule for `family` that no panel gives it, nor begins with."""
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
                told, found = failed
                if len(tips) + len(found) <= most:
                    tips += found
                    failures.append(told)
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
        """Draw a guess at the rule of `spec`, and tips that it failed, or that told it, or both.

        A tip that told it comes without the other only where `lone`: beside a right one of a higher score. None if the
        guess was right.
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
        """Write what was read, what won, or what was tried in vain."""
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
