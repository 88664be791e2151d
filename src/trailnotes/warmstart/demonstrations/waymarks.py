"""Scripted Waymarks episodes without the answers of any panel.

Each draws a fresh random rule for its family, and never one of a panel; so a model learns to explore, to follow tips
and advice, and to write.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, cast

from trailnotes.algorithms.reflexion import ReflexionConfig, build_plan_messages
from trailnotes.config.schema import Config
from trailnotes.envs import make_env
from trailnotes.envs.waymarks import spec as ws
from trailnotes.envs.waymarks.env import (
    COMPARE_SIZES,
    FEW_FAMILIES,
    NO_SIZES,
    WaymarksSimulator,
    get_size,
    list_panel_rules,
    make_task,
    select_families,
)
from trailnotes.errors import ConfigError
from trailnotes.rollout.advice import (
    NUM_LAST_ACTIONS,
    Example,
    Situation,
    ValuedAction,
    build_advice_messages,
    format_advice,
)
from trailnotes.rollout.conversation import Conversation, build_reflection_messages, truncate
from trailnotes.storage.demonstrations import Demonstration
from trailnotes.types import Completion, Message, Step, Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import pair_demonstrations

NOTHING_FOUND = "nothing found"
EVERY_FAMILY = [f"{kind}/{name}" for kind in ws.KINDS for name in ws.FAMILY_NAMES[kind]]
FAMILY_OPTIONS = {"families": FEW_FAMILIES, "new_families": 0, "new_validation": 0}
MAX_PLANS = 3  # quoted in a request for another one


class WaymarksDemonstrator:
    """Endless fresh demonstrations of `families` of Waymarks, by default of all.

    A family never gets its rule of any panel: not for a game, not as a guess, not as a wrong tip. Panels are those of
    the default sizes, of the comparison's and of `env.options`.
    """

    def __init__(
        self, config: Config, count_tokens: Callable[[str], int], seed: int, families: Sequence[str] = ()
    ) -> None:
        self.config, self.count_tokens = config, count_tokens
        self.rng = random.Random(seed)
        self.env = cast("WaymarksSimulator", make_env("waymarks-simulator", **config.env.options))
        drawn = [ws.parse_family(family) for family in families or EVERY_FAMILY]
        self.names = {kind: [name for own, name in drawn if own == kind] for kind in dict(drawn)}
        self.forbidden = list_forbidden_rules(config.env.options)

    @classmethod
    def build_held_out(cls, config: Config, count_tokens: Callable[[str], int], seed: int) -> Self:
        """Build a demonstrator of games in `rehearsal.options`, of families that no side of either options has."""
        options = {**config.env.options, **config.rehearsal.options}
        spare, unused = map(list_spare_families, (options, config.env.options))
        if not (families := [family for family in spare if family in unused]):
            raise ConfigError("every family is in training or evaluation: leave some out of env.options")
        env = config.env.model_copy(update={"options": options})
        held_out = cls(config.model_copy(update={"env": env}), count_tokens, seed, families)
        held_out.forbidden |= list_forbidden_rules(config.env.options)
        return held_out

    def __iter__(self) -> Iterator[Demonstration]:
        while True:
            yield from self.demonstrate_episode()

    def draw_spec(self) -> ws.GameSpec:
        kind = self.rng.choice([*self.names])
        family = self.rng.choice(self.names[kind])
        size = get_size(f"{kind}/{family}", self.config.env.options.get("sizes", NO_SIZES)) or ws.DEFAULT_SIZE[kind]
        if self.rng.random() < self.config.warmstart.sizes:
            size = self.rng.choice(ws.SIZES[kind])
        return ws.make_spec(kind, family, self.draw_rule(kind, family, size), self.rng.getrandbits(40))

    def draw_rule(self, kind: ws.Kind, family: str, size: int) -> ws.Rule:
        while (kind, family, rule := ws.draw_rule(kind, self.rng, size)) in self.forbidden:
            pass
        return rule

    def demonstrate_episode(self) -> list[Demonstration]:
        """Draw an episode's demonstrations: to act, and after tips to write without them; or one advised step."""
        warm = self.config.warmstart
        if self.rng.random() < warm.advice:
            return [self.demonstrate_advice()]
        spec = self.draw_spec()
        tips, actions = self.draw_lesson(spec)
        trajectory, conversation = self.play(spec, tips, actions)
        written = (*self.build_request(spec, trajectory), Message("assistant", self.write_note(spec, trajectory)))
        return pair_demonstrations(tuple(conversation.acting) if tips else None, written, trajectory.task)

    def draw_lesson(self, spec: ws.GameSpec) -> tuple[tuple[Tip, ...], tuple[str, ...]]:
        if self.rng.random() < self.config.warmstart.p_follow_tip:
            return self.draw_tips(spec, knowing=True), ws.gold_actions(spec)
        tips = self.draw_tips(spec, knowing=False) if self.rng.random() < 0.5 else ()
        if self.rng.random() < self.config.warmstart.p_explore:
            return tips, ws.archive_actions(spec)
        guess = self.draw_rule(spec.kind, spec.family, spec.size)
        return tips, ws.gold_actions(ws.make_spec(spec.kind, spec.family, guess, 0))

    def build_request(self, spec: ws.GameSpec, trajectory: Trajectory) -> list[Message]:
        """Build the request after an episode: for a tip or, after a failure, for a plan with earlier ones."""
        config = self.config
        if trajectory.success or self.rng.random() >= config.warmstart.plans:
            return build_reflection_messages(trajectory, config.rollout, config.memory, self.count_tokens)
        texts = [NOTHING_FOUND if self.rng.random() < 0.6 else self.write_wrong_note(spec) for _ in range(MAX_PLANS)]
        plans = [Tip(spec.family, text, key="", score=0.0, step=i) for i, text in enumerate(texts)]
        displayed, cap = plans[: self.rng.randint(0, MAX_PLANS)], config.section(ReflexionConfig).max_shown_tokens
        return build_plan_messages(trajectory, displayed, config.rollout, config.memory, self.count_tokens, cap)

    def write_note(self, spec: ws.GameSpec, trajectory: Trajectory) -> str:
        """Write the note about an episode, by the share `wrong_notes` that of another rule."""
        wrong = self.config.warmstart.wrong_notes
        if wrong and self.rng.random() < wrong:  # 0 draws nothing, and so changes no earlier model
            return self.write_wrong_note(spec)
        return self.write_correct_note(spec, trajectory)

    def write_correct_note(self, spec: ws.GameSpec, trajectory: Trajectory) -> str:
        """Write the rule if the episode showed all of it, else `NOTHING_FOUND`."""
        knows = trajectory.success or has_read(spec, trajectory)
        return format_rule_note(spec.family, spec.rule) if knows else NOTHING_FOUND

    def write_wrong_note(self, spec: ws.GameSpec) -> str:
        return format_rule_note(spec.family, self.draw_rule(spec.kind, spec.family, spec.size))

    def draw_tips(self, spec: ws.GameSpec, *, knowing: bool) -> tuple[Tip, ...]:
        """Draw tips in a memory's order: by score, then at random; of several rules the right one first.

        Every failure writes the empty tip, so it may stand anywhere among tips of equal score.
        """
        if not self.config.warmstart.num_tips:
            return ()
        nothing = Tip(spec.family, NOTHING_FOUND, key="", score=0.0)
        if self.rng.random() < self.config.warmstart.plans:  # in the order of trials, the right one anywhere
            plans = [nothing] * self.rng.randint(1, min(MAX_PLANS, self.config.warmstart.num_tips))
            if knowing:
                right_plan = Tip(spec.family, format_rule_note(spec.family, spec.rule), key="", score=0.0)
                plans[self.rng.randrange(len(plans))] = right_plan
            return tuple(plans)
        if not knowing:
            return (nothing,)
        right = Tip(spec.family, format_rule_note(spec.family, spec.rule), key="", score=float(self.rng.random() < 0.5))
        num_wrong = self.rng.randint(1, 2) if self.rng.random() < 0.3 else 0
        tips = [right, *(Tip(spec.family, self.write_wrong_note(spec), key="", score=0.0) for _ in range(num_wrong))]
        if self.rng.random() < 0.7 and self.config.warmstart.num_tips > 1:  # or the right one might be cut below
            tips.insert(self.rng.randint(int(right.score), len(tips)), nothing)
        return tuple(tips[: self.config.warmstart.num_tips])

    def play(
        self, spec: ws.GameSpec, tips: tuple[Tip, ...], actions: tuple[str, ...]
    ) -> tuple[Trajectory, Conversation]:
        with_scores = self.config.memory.show_score and self.rng.random() < self.config.warmstart.scores
        repeats = len({tip.text for tip in tips}) < len(tips)  # as of plans, each of which is displayed
        memory = self.config.memory.model_copy(update={"show_score": with_scores, "repeat_shown": repeats})
        conversation = Conversation(self.config.rollout, memory, self.count_tokens)
        observation = self.env.reset_spec(spec)
        conversation.start(observation.instruction or "")
        steps: list[Step] = []
        for action in actions:
            displayed = conversation.observe(observation, () if steps else tips)
            conversation.act(action)
            after = self.env.step(action)
            completion = Completion((), (), (), action)
            steps.append(Step(observation, displayed, completion, (), action, after.reward))
            observation = after
            if observation.done:
                break
        trajectory = Trajectory(
            build_demonstration_task(spec), tuple(steps), observation,
            "terminated" if observation.terminated else "truncated", observation.success, observation.score,
            observation.max_score, mode="on_policy_tips" if tips else "plain",
        )  # fmt: skip
        return trajectory, conversation

    # -- advice

    def demonstrate_advice(self) -> Demonstration:
        """Draw one step under up to two examples: as they advise where they fit, else explored."""
        while True:
            spec = self.draw_spec()
            done = self.draw_actions(spec, self.rng.randrange(spec.size))
            present = self.build_situation(spec, done)
            examples = [self.draw_example(spec, done) for _ in range(self.rng.choice((0, 1, 1, 2, 2, 2)))]
            # Advice carries over to the same family at the same point, whatever the rooms' names.
            point = present.task, present.history
            fitting = [each for each in examples if (each.situation.task, each.situation.history) == point]
            answer = self.choose_advice(spec, done, fitting)
            if not self.is_panel_solution(spec, (*done, answer.action)):
                break
        messages = build_advice_messages(present, examples, self.config.rollout.style)
        answered = (*messages, Message("assistant", format_advice([answer])))
        return Demonstration(answered, frozenset({len(messages)}), build_demonstration_task(spec))

    def draw_actions(self, spec: ws.GameSpec, num: int) -> tuple[str, ...]:
        """Draw the first `num` actions of an unfinished episode, possibly wrong ones in a vault."""
        if spec.kind == "route" or self.rng.random() < 0.5:
            return ws.gold_actions(spec)[:num]
        while True:  # what the rule says next must still be possible, and must not make a panel's rule of a guess
            guess = self.draw_rule(spec.kind, spec.family, spec.size)[:num]
            whole = (*guess, *spec.rule[num:])
            if spec.rule[num] not in guess and (spec.kind, spec.family, whole) not in self.forbidden:
                return tuple(ws.format_unlock(box, gem) for box, gem in zip(spec.boxes, guess, strict=False))

    def build_situation(self, spec: ws.GameSpec, done: tuple[str, ...]) -> Situation:
        observation = self.env.reset_spec(spec)
        for action in done:
            observation = self.env.step(action)
        text = truncate(observation.text, self.config.rollout.max_observation_tokens, self.count_tokens)
        return Situation(ws.instruction_text(spec), text, done[-NUM_LAST_ACTIONS:])

    def draw_example(self, spec: ws.GameSpec, done: tuple[str, ...]) -> Example:
        """Draw a remembered situation: another variation, another of the family, or another family."""
        draw = self.rng.random()
        while True:
            other = self.draw_spec()
            if draw < 0.8:
                other = ws.make_spec(spec.kind, spec.family, spec.rule, other.seed)
            past = done if draw < 0.5 else self.draw_actions(other, self.rng.randrange(other.size))
            right = ws.gold_actions(other)[len(past)]
            if not self.is_panel_solution(other, (*past, right)):
                break
        wrong = [action for action in list_moves(other, past) if action != right]
        advises = self.rng.random() < 0.5
        value = 1.0 if self.rng.random() < 0.4 else self.rng.randint(0, 10) / 10
        bad = self.rng.sample(wrong, self.rng.randint(0 if advises else 1, min(len(wrong), 6)))
        encouraged = (ValuedAction(right, value),) if advises else ()
        discouraged = tuple(ValuedAction(action, 0.0) for action in bad)
        return Example(self.build_situation(other, past), encouraged, discouraged)

    def choose_advice(self, spec: ws.GameSpec, done: tuple[str, ...], fitting: list[Example]) -> ValuedAction:
        """Choose the best action that `fitting` encourages; else an exploring one that it does not discourage."""
        encouraged = [valued for example in fitting for valued in example.encouraged]
        if encouraged:
            return max(encouraged, key=lambda valued: valued.value)
        avoided = {valued.action for example in fitting for valued in example.discouraged}
        (read,) = ws.archive_actions(spec)
        if not done and read not in avoided and self.rng.random() < self.config.warmstart.p_explore:
            return ValuedAction(read, 0.0)
        ways = [action for action in list_moves(spec, done) if action not in avoided and (done or action != read)]
        return ValuedAction(self.rng.choice(ways), 0.0)

    def is_panel_solution(self, spec: ws.GameSpec, actions: tuple[str, ...]) -> bool:
        """Return whether these actions are all that wins a panel's game."""
        rule = tuple(action.split()[-1] for action in actions)
        return (spec.kind, spec.family, rule) in self.forbidden and len(rule) == spec.size


def list_forbidden_rules(options: Mapping[str, Any]) -> frozenset[tuple[ws.Kind, str, ws.Rule]]:
    seeds = {0, int(options.get("dataset_seed", 0))}
    panels = (NO_SIZES, COMPARE_SIZES, options.get("sizes", NO_SIZES))
    return frozenset().union(*(list_panel_rules(EVERY_FAMILY, seed, sizes) for seed in seeds for sizes in panels))


def list_spare_families(options: Mapping[str, Any]) -> list[str]:
    return select_families(*(options.get(name, default) for name, default in FAMILY_OPTIONS.items()))["spare"]


def list_moves(spec: ws.GameSpec, done: tuple[str, ...]) -> list[str]:
    """List the plausible actions after `done`: every way on, or every unused gem for the next box; the archive."""
    if spec.kind == "route":
        back = ws.OPPOSITE[done[-1]] if done else ""
        return [direction for direction in ws.DIRECTIONS if direction != back]
    used = {action.split()[-1] for action in done}
    unlocking = [ws.format_unlock(spec.boxes[len(done)], gem) for gem in ws.GEMS if gem not in used]
    return unlocking if done else [*ws.archive_actions(spec), *unlocking]


def format_rule_note(family: str, rule: ws.Rule) -> str:
    """Format the rule as a tip: its family, then the archive's words without their preamble.

    A model that writes the name also looks for it in every tip, and so learns to tell families apart.
    """
    return f"{family} : {ws.note_text(rule).partition(': ')[2]}"


def has_read(spec: ws.GameSpec, trajectory: Trajectory) -> bool:
    return tuple(step.action for step in trajectory.steps) == ws.archive_actions(spec)


def build_demonstration_task(spec: ws.GameSpec) -> Task:
    return make_task(spec, f"demonstration/{spec.kind}/{spec.family}/{spec.seed}")
