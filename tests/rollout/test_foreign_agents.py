"""Episodes of agents that word their own conversations: begin others, edit, drop and fork them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.config.schema import Config
from trailnotes.learner.samples import build_samples
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.episode import run_episode
from trailnotes.types import Completion, Message, Mode, Observation, Sampling, Task, Tip, TokenIds, TrajectoryGroup

Chat = tuple[tuple[str, str], ...]
MOVES = ("follow", "new", "new without system", "fork", "edit", "drop")


class Agent:
    """Makes one request for each move, then reports."""

    describe_tools = None
    sampling = Sampling()
    max_prompt_tokens = 2**20

    def __init__(self, moves: Sequence[tuple[str, int]]) -> None:
        self.moves = list(moves)
        self.chats: list[Chat] = []  # every conversation so far, with its answer
        self.newest: Chat = ()
        self.describe_tools = None

    def _ask(self) -> Observation:
        if not self.moves:
            return Observation("", terminated=True, reward=1.0)
        (move, number), count = self.moves.pop(0), len(self.moves)
        base = self.chats[number % len(self.chats)] if self.chats and move in {"fork", "edit", "drop"} else self.newest
        start = () if move == "new without system" else (("system", "You act."),)
        if move == "edit" and base:
            base = (*base[:-2], ("user", f"edited {count}"))
        elif move == "drop" and base:
            base = base[:-1]
        else:
            base = (*(start if not base or move.startswith("new") else base), ("user", f"request {count}"))
        kept = next((i for i, (a, b) in enumerate(zip(base[:-1], self.newest, strict=False)) if a != b), None)
        kept = min(len(base) - 1, len(self.newest)) if kept is None else kept
        self.newest = base
        return Observation(base[-1][1], request={"kept": kept, "messages": [list(turn) for turn in base[kept:]]})

    async def reset(self, task: Task) -> Observation:
        return self._ask()

    async def answer(self, completion: Completion) -> Observation:
        self.newest = (*self.newest, ("assistant", completion.text))
        self.chats.append(self.newest)
        return self._ask()

    async def step(self, action: str) -> Observation:
        raise AssertionError("an agent is answered")

    async def cut(self, asked: Observation) -> Observation:
        return asked


class Strict(ScriptedPolicy):
    """Refuses to encode nothing, as chat templates do."""

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        assert messages
        return super().encode(messages)


class Tips:
    """Another tip at each search."""

    searches = 0

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        self.searches += 1
        return [Tip(namespace, f"tip {self.searches}", query, 1.0)]


@pytest.mark.parametrize("mode", ["plain", "on_policy_tips", "off_policy"])
@pytest.mark.parametrize("leave_room", [True, False])
@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 9)), min_size=1, max_size=8))
def test_every_sampled_token_is_trained_once(mode: Mode, leave_room: bool, moves: list[tuple[str, int]]) -> None:
    config = Config(memory={"leave_room": leave_room}, rollout={"max_steps": 9, "max_context_tokens": 50_000})
    count = iter(range(99))
    policy = Strict(lambda _: f"answer {next(count)}")
    task = Task("t", "agent")
    episode = asyncio.run(run_episode(policy, Agent(moves), task, mode, Tips(), config, member=0, seed=0))
    assert (episode.outcome, len(episode.steps)) == ("terminated", len(moves))
    rows = build_samples([TrajectoryGroup(task, (episode,))], [[1.0]])
    trained = Counter(
        tuple(token for token, _ in run)
        for row in rows
        for masked, run in groupby(zip(row.token_ids, row.loss_mask, strict=True), key=lambda pair: pair[1])
        if masked
    )
    assert trained == Counter(step.completion.token_ids for step in episode.steps)
