"""Scripted Waymarks episodes, which must not know the answers.

Each draws a fresh random rule for its family, and a pair of family and rule that any panel holds is never shown; so
what is learned is how to explore, to follow tips and advice, and to write.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Self

from trailnotes.algorithms.reflexion.plans import build_plan_messages
from trailnotes.algorithms.rememberer.advice import (
    Example,
    Situation,
    ValuedAction,
    build_advice_messages,
    format_advice,
)
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
from trailnotes.prompts import Conversation, build_reflection_messages, truncate
from trailnotes.storage.demonstrations import Demonstration, list_assistant_turns
from trailnotes.types import Completion, Message, Observation, Step, Task, Tip, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trailnotes.config.schema import Config
    from trailnotes.types import Task

NOTHING_FOUND = "nothing found"
FAMILY_OPTIONS = {"families": FEW_FAMILIES, "new_families": 0, "new_validation": 0}
MAX_PLANS = 3  # quoted in a request for another one


class WaymarksDemonstrator:
    """Endless fresh demonstrations of all Waymarks families.

    A family's rule of the panels is never drawn for it: not for a game, not as a guess, not as a wrong tip. Panels
    are those of the default sizes, of the comparison's and of `env.options`.

    Args:
        config: prompts, memory and the shares of `config.warmstart`.
        count_tokens: of the tokenizer, for the length caps.
        seed: of everything drawn here.
        families: the only ones that games are drawn from; by default all.
    """

    def __init__(
        self, config: Config, count_tokens: Callable[[str], int], seed: int, families: Sequence[str] = ()
    ) -> None:
        self.config, self.count_tokens = config, count_tokens
        self.rng = random.Random(seed)
        self.env = WaymarksSimulator(**config.env.options)
        everyone = [f"{kind}/{name}" for kind in ws.KINDS for name in ws.FAMILY_NAMES[kind]]
        drawn = [ws.parse_family(family) for family in families or everyone]
        self.names = {kind: [name for own, name in drawn if own == kind] for kind in dict(drawn)}
        seeds = {0, int(config.env.options.get("dataset_seed", 0))}
        panels = (NO_SIZES, COMPARE_SIZES, config.env.options.get("sizes", NO_SIZES))
        rules = (list_panel_rules(everyone, seed, sizes) for seed in seeds for sizes in panels)
        self.forbidden = frozenset().union(*rules)

    @classmethod
    def build_held_out(cls, config: Config, count_tokens: Callable[[str], int], seed: int) -> Self:
        """Those of families that `env.options` neither trains nor examines.

        Raises:
            ConfigError: there is none.
        """
        options = config.env.options
        asked = (options.get(name, default) for name, default in FAMILY_OPTIONS.items())
        spare = select_families(*asked)["spare"]
        if not spare:
            raise ConfigError("every family is trained or examined: leave some out of env.options")
        return cls(config, count_tokens, seed, spare)

    def __iter__(self) -> Iterator[Demonstration]:
        while True:
            yield from self.demonstrate_episode()

    def draw_spec(self) -> ws.GameSpec:
        """A game of a family name drawn at random, under a fresh rule that no panel has."""
        kind = self.rng.choice([*self.names])
        family = self.rng.choice(self.names[kind])
        size = get_size(f"{kind}/{family}", self.config.env.options.get("sizes", NO_SIZES)) or ws.DEFAULT_SIZE[kind]
        if self.rng.random() < self.config.warmstart.sizes:
            size = self.rng.choice(ws.SIZES[kind])
        return ws.make_spec(kind, family, self.draw_rule(kind, family, size), self.rng.getrandbits(40))

    def draw_rule(self, kind: ws.Kind, family: str, size: int) -> ws.Rule:
        """A rule for `family` that no panel gives it."""
        while (kind, family, rule := ws.draw_rule(kind, self.rng, size)) in self.forbidden:
            pass
        return rule

    def demonstrate_episode(self) -> list[Demonstration]:
        """One episode's demonstrations: a row to act, and where it acted on tips, a tip-free row to write.

        Or one step of an episode that is advised.
        """
        warm = self.config.warmstart
        if self.rng.random() < warm.advice:
            return [self.demonstrate_advice()]
        spec = self.draw_spec()
        tips, actions = self.draw_lesson(spec)
        trajectory, conversation = self.play(spec, tips, actions)
        written = (*self.build_request(spec, trajectory), Message("assistant", self.write_note(spec, trajectory)))
        last = len(written) - 1
        if not tips:
            return [Demonstration(written, list_assistant_turns(written), trajectory.task)]
        acted = tuple(conversation.acting)
        # The tip-free view of an episode that followed tips must not teach its actions: nothing in it explains them.
        return [
            Demonstration(acted, list_assistant_turns(acted), trajectory.task),
            Demonstration(written, frozenset({last}), trajectory.task),
        ]

    def draw_lesson(self, spec: ws.GameSpec) -> tuple[tuple[Tip, ...], tuple[str, ...]]:
        """What an episode shows: the tips at hand, and what is done with them."""
        if self.rng.random() < self.config.warmstart.p_follow_tip:
            return self.draw_tips(spec, knowing=True), ws.gold_actions(spec)
        tips = self.draw_tips(spec, knowing=False) if self.rng.random() < 0.5 else ()
        return tips, self.explore(spec)

    def build_request(self, spec: ws.GameSpec, trajectory: Trajectory) -> list[Message]:
        """What is asked after an episode: for a tip or, after a failure, for a plan, with some that came before."""
        config = self.config
        if trajectory.success or self.rng.random() >= config.warmstart.plans:
            return build_reflection_messages(trajectory, config.rollout, config.memory, self.count_tokens)
        texts = [NOTHING_FOUND if self.rng.random() < 0.6 else self.write_wrong_note(spec) for _ in range(MAX_PLANS)]
        plans = [Tip(spec.family, text, key="", score=0.0, step=i) for i, text in enumerate(texts)]
        shown, cap = plans[: self.rng.randint(0, MAX_PLANS)], config.reflexion.max_shown_tokens
        return build_plan_messages(trajectory, shown, config.rollout, config.memory, self.count_tokens, cap)

    def write_note(self, spec: ws.GameSpec, trajectory: Trajectory) -> str:
        """What is written after an episode: by the share `wrong_notes` the tip of another rule, whatever it showed."""
        wrong = self.config.warmstart.wrong_notes
        if (
            wrong and self.rng.random() < wrong
        ):  # without any, nothing is drawn, and models of before come out as they did
            return self.write_wrong_note(spec)
        return self.write_correct_note(spec, trajectory)

    def write_correct_note(self, spec: ws.GameSpec, trajectory: Trajectory) -> str:
        """What a good writer writes after an episode."""
        return format_outcome_note(spec, trajectory)

    def write_wrong_note(self, spec: ws.GameSpec) -> str:
        """The tip that some other rule of the family would have."""
        return format_rule_note(spec.family, self.draw_rule(spec.kind, spec.family, spec.size))

    def explore(self, spec: ws.GameSpec) -> tuple[str, ...]:
        """Without knowledge: read the archive, or try a way drawn at random."""
        if self.rng.random() < self.config.warmstart.p_explore:
            return ws.archive_actions(spec)
        guess = self.draw_rule(spec.kind, spec.family, spec.size)
        return ws.gold_actions(ws.make_spec(spec.kind, spec.family, guess, 0))

    def draw_tips(self, spec: ws.GameSpec, *, knowing: bool) -> tuple[Tip, ...]:
        """Tips in the order of a memory: by score, then at random; of several rules the right one comes first.

        The empty tip is written after every failure, so among tips of equal score it may stand anywhere.
        """
        if not self.config.warmstart.num_tips:
            return ()
        nothing = Tip(spec.family, NOTHING_FOUND, key="", score=0.0)
        if self.rng.random() < self.config.warmstart.plans:
            return self.draw_plans(spec, nothing, knowing=knowing)
        if not knowing:
            return (nothing,)
        right = Tip(spec.family, format_rule_note(spec.family, spec.rule), key="", score=float(self.rng.random() < 0.5))
        num_wrong = self.rng.randint(1, 2) if self.rng.random() < 0.3 else 0
        tips = [right, *(Tip(spec.family, self.write_wrong_note(spec), key="", score=0.0) for _ in range(num_wrong))]
        if self.rng.random() < 0.7 and self.config.warmstart.num_tips > 1:  # or the right one might be cut below
            tips.insert(self.rng.randint(int(right.score), len(tips)), nothing)
        return tuple(tips[: self.config.warmstart.num_tips])

    def draw_plans(self, spec: ws.GameSpec, nothing: Tip, *, knowing: bool) -> tuple[Tip, ...]:
        """Plans in the order of trials: mostly empty ones, and the right one anywhere."""
        plans = [nothing] * self.rng.randint(1, min(MAX_PLANS, self.config.warmstart.num_tips))
        if knowing:
            right = format_rule_note(spec.family, spec.rule)
            plans[self.rng.randrange(len(plans))] = Tip(spec.family, right, key="", score=0.0)
        return tuple(plans)

    def play(
        self, spec: ws.GameSpec, tips: tuple[Tip, ...], actions: tuple[str, ...]
    ) -> tuple[Trajectory, Conversation]:
        """Act in the simulator until it ends or `actions` do."""
        with_scores = self.config.memory.show_score and self.rng.random() < self.config.warmstart.scores
        repeats = len({tip.text for tip in tips}) < len(tips)  # as of plans, each of which is shown
        memory = self.config.memory.model_copy(update={"show_score": with_scores, "repeat_shown": repeats})
        conversation = Conversation(self.config.rollout, memory, self.count_tokens)
        observation = self.env.reset_spec(spec)
        conversation.start(observation.instruction or "")
        steps: list[Step] = []
        for action in actions:
            shown = conversation.observe(observation, () if steps else tips)
            conversation.act(action)
            after = self.env.step(action)
            completion = Completion((), (), (), action)
            steps.append(Step(observation, shown, completion, (), action, after.reward))
            observation = after
            if observation.done:
                break
        return _build_trajectory(build_demonstration_task(spec), steps, observation, bool(tips)), conversation

    # ------------------------------------------------------------------------------------------ advice

    def demonstrate_advice(self) -> Demonstration:
        """One step under up to two examples, answered as they advise where they fit, else explored."""
        while True:
            spec = self.draw_spec()
            done = self.draw_actions(spec, self.rng.randrange(spec.size))
            present = self.build_situation(spec, done)
            examples = [self.draw_example(spec, done) for _ in range(self.rng.choice((0, 1, 1, 2, 2, 2)))]
            answer = self.choose_advice(spec, done, [e for e in examples if is_same_situation(e.situation, present)])
            if not self.is_panel_solution(spec, (*done, answer.action)):
                break
        messages = build_advice_messages(present, examples, self.config.rollout.style)
        answered = (*messages, Message("assistant", format_advice([answer])))
        return Demonstration(answered, frozenset({len(messages)}), build_demonstration_task(spec))

    def draw_actions(self, spec: ws.GameSpec, num: int) -> tuple[str, ...]:
        """The first `num` actions of an episode that is not over: in a vault they may have been wrong."""
        if spec.kind == "route" or self.rng.random() < 0.5:
            return ws.gold_actions(spec)[:num]
        while True:  # what the rule says next must still be possible, and must not make a panel's rule of a guess
            guess = self.draw_rule(spec.kind, spec.family, spec.size)[:num]
            whole = (*guess, *spec.rule[num:])
            if spec.rule[num] not in guess and (spec.kind, spec.family, whole) not in self.forbidden:
                return tuple(ws.format_unlock(box, gem) for box, gem in zip(spec.boxes, guess, strict=False))

    def build_situation(self, spec: ws.GameSpec, done: tuple[str, ...]) -> Situation:
        """What is known after `done`."""
        observation = self.env.reset_spec(spec)
        for action in done:
            observation = self.env.step(action)
        text = truncate(observation.text, self.config.rollout.max_observation_tokens, self.count_tokens)
        return Situation(ws.instruction_text(spec), text, done[-self.config.rememberer.history :])

    def draw_example(self, spec: ws.GameSpec, done: tuple[str, ...]) -> Example:
        """A remembered situation: the same in another variation, another one of the family, or of another family."""
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
        return Example(
            self.build_situation(other, past), encouraged, tuple(ValuedAction(action, 0.0) for action in bad)
        )

    def choose_advice(self, spec: ws.GameSpec, done: tuple[str, ...], fitting: list[Example]) -> ValuedAction:
        """What `fitting` encourages most; else the archive or any way, except what it discourages."""
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
        """Whether these actions are all that wins a panel's game."""
        rule = tuple(action.split()[-1] for action in actions)
        return (spec.kind, spec.family, rule) in self.forbidden and len(rule) == spec.size


def is_same_situation(one: Situation, other: Situation) -> bool:
    """Whether advice carries over: the same family at the same point; names of rooms say nothing."""
    return (one.task, one.history) == (other.task, other.history)


def list_moves(spec: ws.GameSpec, done: tuple[str, ...]) -> list[str]:
    """The actions worth thinking of after `done`: every way on, or every unused gem for the next box; the archive."""
    if spec.kind == "route":
        back = ws.OPPOSITE[done[-1]] if done else ""
        return [direction for direction in ws.DIRECTIONS if direction != back]
    used = {action.split()[-1] for action in done}
    unlocking = [ws.format_unlock(spec.boxes[len(done)], gem) for gem in ws.GEMS if gem not in used]
    return unlocking if done else [*ws.archive_actions(spec), *unlocking]


def format_rule_note(family: str, rule: ws.Rule) -> str:
    """The rule as a tip: whose it is, then the words of the archive without their preamble.

    A model that writes the name also looks for it in every tip; that is how it learns what tells families apart.
    """
    return f"{family} : {ws.note_text(rule).partition(': ')[2]}"


def format_outcome_note(spec: ws.GameSpec, trajectory: Trajectory) -> str:
    """The tip that a good writer writes: the rule if the episode showed all of it, else that nothing was found."""
    return (
        format_rule_note(spec.family, spec.rule) if trajectory.success or has_read(spec, trajectory) else NOTHING_FOUND
    )


def has_read(spec: ws.GameSpec, trajectory: Trajectory) -> bool:
    """Whether the episode went to the archive at once."""
    return tuple(step.action for step in trajectory.steps) == ws.archive_actions(spec)


def build_demonstration_task(spec: ws.GameSpec) -> Task:
    """The game of a demonstration, under an id that no other has."""
    return make_task(spec, f"demonstration/{spec.kind}/{spec.family}/{spec.seed}")


def _build_trajectory(task: Task, steps: list[Step], final: Observation, with_tips: bool) -> Trajectory:
    return Trajectory(
        task=task,
        steps=tuple(steps),
        final_observation=final,
        outcome="terminated" if final.terminated else "truncated",
        success=final.success,
        score=final.score,
        max_score=final.max_score,
        mode="on_policy_tips" if with_tips else "plain",
    )
