"""Demonstrations of ScienceWorld with other names in each, so that a small model copies names instead of knowing them.

    python examples/scienceworld_renamed.py CONFIG 30000 runs/renamed.jsonl
    trailnotes warmstart CONFIG --out runs/copying --warmstart.demonstrations runs/renamed.jsonl

The names are the words of actions that are no verb or preposition. Each demonstration draws new ones, the same in
observations, tips and actions: other names, other words of the game, or two halves of words. Most demonstrations act on
tips, which tell the action of the turn that shows them (`memory.entries = "step"`); in some of these the actions are
words in no order, so that nothing but the tip tells them. The rest act without tips, under the old names. Recorded are
the training variations of `env.options.task`: the simulator's solution, wanderings, and roaming by admissible actions
of all kinds.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs import make_env
from trailnotes.rollout.conversation import Conversation
from trailnotes.storage.demonstrations import Demonstration, list_assistant_turns, write_demonstrations
from trailnotes.types import Observation, Step, Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import Script, play_script
from trailnotes_worlds.demonstrations.recorded import RecordedGame
from trailnotes_worlds.demonstrations.scienceworld import ScienceWorldDemonstrator

P_FOLLOW, P_BABBLE, P_OLD_NAMES, P_BEGINNING, P_DENSE = 0.8, 0.4, 0.2, 0.3, 0.7
P_GOLD, P_ROAM = 0.35, 0.4
NUM_ROAMS, MAX_TOKENS = 4, 600
CAPS = {8: 0.45, 24: 0.25, 64: 0.15, 96: 0.15}  # tokens of an observation in renamed demonstrations: most are short
LENGTHS = (2, 3, 3, 4, 4, 5, 6, 7, 8, 10, 12, 14)  # of babble, in words
SMALL = ("in", "the", "to", "of", "on", "a", "and", "from", "with", "at", "into", "terminal", "pot", *"123456789")
CHARS = 12  # of a token at most, nearly always
WORD = re.compile(r"[A-Za-z]{3,}")
FORMS = {
    *WORD.findall(
        "look around focus pick move pour mix connect disconnect terminal anode cathode use activate deactivate open "
        "close wait inventory examine read dunk into put down drop eat teleport flush door the and task"
    )
}
PART = re.compile(r"[A-Za-z]+|\d|[^\sA-Za-z\d]|\n")


def count_tokens(text: str) -> int:
    """Estimate, before there is a tokenizer."""
    return int(1.25 * len(PART.findall(text))) + 1


def words_of(text: str) -> set[str]:
    """The words that may be names."""
    return {word.lower() for word in WORD.findall(text)} - FORMS


def roam(rng: random.Random, seen: Observation) -> Script:
    """Take 2 to 16 admissible actions, each verb equally often; only the last may focus, which may end the episode."""
    for left in range(rng.randint(1, 15), -1, -1):
        kinds: dict[str, list[str]] = {"look": ["look around"]}
        for action in seen.actions or ():
            kinds.setdefault(action.split()[0], []).append(action)
        unfit = {"reset", "wait", "wait1", "task"} | ({"focus"} if left else set())
        seen = yield rng.choice(kinds[rng.choice(sorted(kinds.keys() - unfit))])


class Renamed:
    """Endless demonstrations; `config` names tasks, caps and the number of variations."""

    def __init__(self, config: Config, seed: int) -> None:
        self.config, self.rng = config, random.Random(seed)
        self.script = ScienceWorldDemonstrator(config, count_tokens, seed)
        env = make_env("scienceworld", max_steps=config.rollout.max_steps, actions="valid")
        self.games: dict[str, list[tuple[RecordedGame, list[Trajectory]]]] = {}  # by family, with what roamed
        names, texts = set(), set()
        for game in self.script.recordings:
            task = game.wandered[0].task
            roams = [play_script(env, task, partial(roam, random.Random(f"{task.id} {i}"))) for i in range(NUM_ROAMS)]
            roamed = [episode for episode in roams if episode.steps]
            self.games.setdefault(task.family, []).append((game, roamed))
            steps = [step for episode in (*game.all_episodes, *roamed) for step in episode.steps]
            names |= set().union(*(words_of(step.action) for step in steps))
            texts |= set().union(*(words_of(step.observation.text) for step in steps))
        env.close()
        self.names, self.texts = sorted(names), sorted(texts)

    def __iter__(self) -> Iterator[Demonstration]:
        rng = self.rng
        while True:
            game, roamed = rng.choice(self.games[rng.choice(sorted(self.games))])
            follows = rng.random() < P_FOLLOW
            if not follows and rng.random() >= P_ROAM:
                episode = (game.gold if rng.random() < P_GOLD else None) or rng.choice(game.wandered)
            elif not follows:
                episode = rng.choice(roamed)
            else:
                episode = (game.gold if rng.random() < P_GOLD else None) or rng.choice([*game.wandered, *roamed])
            cap = rng.choices([*CAPS], [*CAPS.values()])[0] if follows else self.config.rollout.max_observation_tokens
            if follows and rng.random() >= P_OLD_NAMES:
                episode = self.rename(episode, CHARS * cap)
            yield self.demonstrate(episode, cap, follows=follows)

    def demonstrate(self, episode: Trajectory, cap: int, *, follows: bool) -> Demonstration:
        """The episode, on tips if it `follows` some: of all its actions or the first ones, and not always of each."""
        rng, num = self.rng, len(episode.steps)
        told = rng.randrange(1, num) if num > 1 and rng.random() < P_BEGINNING else num
        known = 1.0 if rng.random() < P_DENSE else rng.random()
        score = 100 if rng.random() < 0.5 else rng.randint(3, 100)
        rollout = self.config.rollout.model_copy(update={"max_observation_tokens": cap})
        conversation = Conversation(rollout, self.config.memory, count_tokens)
        conversation.start(episode.steps[0].observation.instruction or "")
        babbles = follows and rng.random() < P_BABBLE
        for number, step in enumerate(episode.steps):
            is_told = follows and number < told and rng.random() < known
            action = self.babble() if babbles and is_told else step.action
            tip = Tip(episode.task.id, action, key="", score=score, max_score=100)
            conversation.observe(step.observation, [tip] if is_told else [])
            conversation.act(action)
        messages = tuple(conversation.acting)
        return Demonstration(messages, list_assistant_turns(messages), episode.task)

    def rename(self, episode: Trajectory, most: int) -> Trajectory:
        """The episode under other names; observations end after `most` characters."""
        instruction = episode.steps[0].observation.instruction or ""
        seen = words_of(instruction).union(
            *(words_of(f"{step.action} {step.observation.text[:most]}") for step in episode.steps)
        )
        names: dict[str, str] = {}
        for word in sorted(seen & {*self.names}):
            while (new := self.draw_name()) in names.values() or new in FORMS or not 2 < len(new) < 14:
                pass
            names[word] = new

        def put(text: str) -> str:
            return WORD.sub(lambda found: names.get(found[0].lower(), found[0]), text)

        def shown(seen: Observation) -> Observation:
            given = put(seen.instruction) if seen.instruction else None
            return replace(seen, text=put(seen.text[:most]), instruction=given)

        def renamed(step: Step) -> Step:
            said = replace(step.completion, text=put(step.completion.text))
            return replace(step, observation=shown(step.observation), action=put(step.action), completion=said)

        steps = tuple(map(renamed, episode.steps))
        return replace(episode, steps=steps, final_observation=shown(episode.final_observation))

    def babble(self) -> str:
        """Draw words of the game and digits in no order: a reader can only copy them."""
        rng = self.rng
        return " ".join(rng.choice(self.texts if rng.random() < 0.7 else SMALL) for _ in range(rng.choice(LENGTHS)))

    def draw_name(self) -> str:
        """One of the names, another word of the game, or halves of two words."""
        first, second = self.rng.choice(self.texts), self.rng.choice(self.texts)
        halves = first[: self.rng.randint(1, len(first))] + second[self.rng.randint(0, len(second) - 1) :]
        return self.rng.choices((self.rng.choice(self.names), first, halves), (4, 1, 5))[0]


def main(settings: str, num: str, out: str) -> None:
    """Write `num` demonstrations that are short enough."""
    config = load_config(Path(settings), [])
    source = iter(Renamed(config, config.run.seed))
    made: list[Demonstration] = []
    while len(made) < int(num):
        demonstration = next(source)
        if sum(count_tokens(message.content) for message in demonstration.messages) <= MAX_TOKENS:
            made.append(demonstration)
    write_demonstrations(made, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
