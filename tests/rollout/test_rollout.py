"""Episodes, groups of them, the tips written about them, and their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from trailnotes.config.schema import Config
from trailnotes.envs.base import wrap_env_errors
from trailnotes.errors import EnvError
from trailnotes.memory.base import Memory
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.episode import EpisodeContext, TipsActor, run_episode
from trailnotes.rollout.groups import GroupRunner, compute_rollout_metrics
from trailnotes.rollout.tips import compute_tip_metrics, write_tips
from trailnotes.types import (
    Completion,
    Message,
    Mode,
    Observation,
    Sampling,
    Step,
    Task,
    Tip,
    TokenIds,
    Trajectory,
    TrajectoryGroup,
    derive_seed,
)

# --- fakes: a corridor to walk, a pool that lends it, a memory that remembers what it was asked


class Corridor:
    """Walk "right" `length` times; each other action stays. Reward 1 at the end. Fails at its call `fail_at`."""

    def __init__(self, pause: Callable[[], float] = lambda: 0.0, fail_at: int | None = None) -> None:
        self.pause, self.fail_at = pause, fail_at
        self.actions: list[str] = []

    async def reset(self, task: Task) -> Observation:
        self.length, self.place = int(task.options.get("length", 2)), 0
        self._fail(0)
        await asyncio.sleep(self.pause())
        return Observation("place 0", instruction="walk right")

    async def step(self, action: str) -> Observation:
        self.actions.append(action)
        self._fail(len(self.actions))
        await asyncio.sleep(self.pause())
        self.place += action == "right"
        won = self.place == self.length
        return Observation(f"place {self.place}", float(won), terminated=won, success=won, score=float(won))

    def _fail(self, at: int) -> None:
        if self.fail_at == at:
            raise EnvError(f"the corridor\nfell at {at}")


class FakePool:
    """Lends corridors made by `make`; counts those lent so far, now, and at most at a time."""

    def __init__(self, make: Callable[[], Corridor] = Corridor) -> None:
        self.make, self.out, self.lent, self.most = make, 0, 0, 0

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Corridor]:
        self.out += 1
        self.lent += 1
        self.most = max(self.most, self.out)
        try:
            yield self.make()
        finally:
            self.out -= 1


class ListMemory:
    """Shows the tips it was given; keeps the queries."""

    def __init__(self, *texts: str) -> None:
        self.tips = [Tip("t", text, key="", score=1.0) for text in texts]
        self.queries: list[tuple[str, str, int]] = []

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        self.queries.append((namespace, query, top_k))
        return self.tips[:top_k]


class SeededPolicy(ScriptedPolicy):
    """Goes right or left by the completion's seed; keeps every request."""

    def __init__(self, script: Callable[[Sequence[Message]], str] | None = None, **options: Any) -> None:
        super().__init__(script or (lambda messages: ""), **options)
        self.scripted = script is not None
        self.requests: list[tuple[str, tuple[Message, ...], Sampling]] = []
        self.live_at_start: set[str] = set()

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        assert episode in self.open_episodes or not self.open_episodes
        if not self.requests:
            self.live_at_start = set(self.open_episodes)
        self.requests.append((episode, tuple(messages), sampling))
        if not self.scripted:
            self._script = lambda _: ("right", "left")[sampling.seed % 2]
        return await super().generate(messages, sampling, episode)


def settings(*, rollout: dict[str, Any] | None = None, memory: dict[str, Any] | None = None, **env: Any) -> Config:
    return Config.model_validate({
        "run": {"name": "r1"},
        "env": env,
        "rollout": {"style": "terse", "max_steps": 6, **(rollout or {})},
        "memory": memory or {},
    })  # fmt: skip


TASK = Task("t", "corridor")
SETTINGS = settings()


def right(_: Sequence[Message]) -> str:
    return "right"


def play(
    policy: ScriptedPolicy, config: Config = SETTINGS, mode: Mode = "plain", memory: Memory | None = None,
    env: Corridor | None = None,
) -> Trajectory:  # fmt: skip
    return asyncio.run(run_episode(policy, env or Corridor(), TASK, mode, memory, config, member=0, seed=0))


def play_groups(policy: ScriptedPolicy, pool: FakePool, config: Config = SETTINGS, **options: Any) -> Any:
    tasks = options.pop("tasks", [Task("a", "corridor"), Task("b", "corridor")])
    modes = options.pop("modes", [["plain"] * 3] * len(tasks))
    memory = options.pop("memory", None)
    return asyncio.run(GroupRunner(policy, pool, memory, config, **{"seed": 0, **options}).play(tasks, modes))


# --- one episode


def test_an_episode_step_by_step() -> None:
    policy = SeededPolicy(lambda messages: "> right" if len(messages) > 1 else "jump")
    env = Corridor()
    done = play(policy, env=env)
    assert env.actions == [step.action for step in done.steps] == ["jump", "right", "right"]
    assert [step.observation.text for step in done.steps] == ["place 0", "place 0", "place 1"]
    assert [step.reward for step in done.steps] == [0.0, 0.0, 1.0]
    assert done.final_observation.text == "place 2"
    assert (done.outcome, done.success, done.score, done.episode_return) == ("terminated", True, 1.0, 1.0)
    assert [len(messages) for _, messages, _ in policy.requests] == [1, 3, 5]
    assert policy.requests[0][1][0].content == "walk right\nplace 0"
    assert done.steps[1].completion.text == "> right"  # the sampled text stays as it is


def test_sampling_follows_the_config_and_every_completion_has_its_own_seed() -> None:
    policy = SeededPolicy(lambda _: "left")
    play(policy, settings(rollout={"max_steps": 3, "temperature": 0.7, "max_action_tokens": 9, "stop": ["."]}))
    samplings = [sampling for _, _, sampling in policy.requests]
    assert {(s.temperature, s.max_tokens, s.stop, s.top_p, s.top_k) for s in samplings} == {(0.7, 9, (".",), 1.0, 0)}
    assert [s.seed for s in samplings] == [derive_seed(0, "t", 0, i) for i in range(3)]


def test_an_environment_may_end_the_episode_at_once_or_at_reset() -> None:
    class Short(Corridor):
        async def step(self, action: str) -> Observation:
            return Observation("time is up", truncated=True)

    class Over(Corridor):
        async def reset(self, task: Task) -> Observation:
            return Observation("over", terminated=True)

    for env, num_steps, outcome in ((Short(), 1, "truncated"), (Over(), 0, "terminated")):
        done = play(ScriptedPolicy(right), env=env)
        assert (len(done.steps), done.outcome) == (num_steps, outcome)


@pytest.mark.parametrize("text", ["", "\n\n", "x" * 600, "\x00"])
def test_an_unreadable_action_is_the_no_op_and_counted(text: str) -> None:
    env = Corridor()
    config = settings(rollout={"max_steps": 2, "stop": [], "max_action_tokens": 1000})
    done = play(ScriptedPolicy(lambda _: text), config, env=env)
    assert env.actions == ["", ""]
    assert compute_rollout_metrics([TrajectoryGroup(TASK, (done,))])["unparsable"] == 1.0


def test_a_failing_environment_gives_an_error_trajectory_with_the_steps_so_far() -> None:
    done = play(ScriptedPolicy(right), env=Corridor(fail_at=2))
    assert (done.outcome, len(done.steps)) == ("error", 1)
    assert done.error == "the corridor fell at 2 (at the action 'right')"
    assert done.final_observation.text == "place 1"
    at_reset = play(ScriptedPolicy(right), env=Corridor(fail_at=0))
    assert (at_reset.outcome, at_reset.steps) == ("error", ())


@pytest.mark.parametrize("kind", [RuntimeError, EnvError])
def test_no_failed_episode_holds_a_key(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sesame-0123456789")

    class Telling(Corridor):
        def _fail(self, at: int) -> None:
            with wrap_env_errors("the corridor"):
                raise kind(480 * "." + " 401 for sesame-0123456789")

    done = play(ScriptedPolicy(right), env=Telling())
    assert "sesame" not in f"{done.error} {done.final_observation.info}"
    assert "401" in done.error
    assert (kind is EnvError) == ("traceback" not in done.final_observation.info)


def test_an_engine_without_ids_works_too() -> None:
    class Server(ScriptedPolicy):
        def encode(self, messages: Sequence[Message]) -> TokenIds:
            return ()

        async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
            return Completion((), (), (), "right")

    policy = Server(right)
    done = play(policy, mode="on_policy_tips", memory=ListMemory("go right"))
    assert done.success
    assert all(step.completion.prompt_ids == step.plain_prompt_ids == () for step in done.steps)
    full = play(policy, settings(rollout={"max_context_tokens": 40, "max_action_tokens": 20}))  # 18, 18 + 5 + 7 chars
    assert (len(full.steps), full.context_full) == (1, True)


# --- tips


def test_tips_are_searched_before_every_action_without_tips_in_the_query() -> None:
    memory = ListMemory("secret")
    policy = SeededPolicy(right)
    done = play(policy, settings(memory={"top_k": 3}), "on_policy_tips", memory)
    assert memory.queries == [("t", "walk right\nplace 0", 3), ("t", "walk right\nplace 1", 3)]
    assert [len(step.tips) for step in done.steps] == [1, 0]  # the second time the context holds it already
    assert done.steps[0].tips == tuple(memory.tips)
    assert policy.requests[0][1][0].content == 'walk right\nnotes :\n- " secret " 1 / 1\nplace 0'
    assert done.mode == "on_policy_tips"


def test_plain_mode_and_top_k_zero_never_ask_the_memory() -> None:
    memory = ListMemory("secret")
    play(ScriptedPolicy(right), memory=memory)
    play(ScriptedPolicy(right), settings(memory={"top_k": 0}), "off_policy", memory)
    assert memory.queries == []


# --- a full context: prompt "walk right\nplace 0" is 18 + 3 markers = 21 tokens; a turn adds "right" + end + 2 markers
#     + 7 characters + end + marker = 5 + 1 + 10 = 16, so the second prompt has 37


def test_an_episode_ends_where_the_next_turn_does_not_fit() -> None:
    fits = settings(rollout={"max_context_tokens": 47, "max_action_tokens": 10})
    assert play(ScriptedPolicy(right), fits).success
    tight = settings(rollout={"max_context_tokens": 46, "max_action_tokens": 10})
    done = play(ScriptedPolicy(right), tight)
    assert (len(done.steps), done.outcome, done.context_full) == (1, "truncated", True)
    assert done.final_observation.text == "place 1"


def test_tips_that_do_not_fit_are_dropped_before_the_episode_is() -> None:
    config = settings(rollout={"max_context_tokens": 47, "max_action_tokens": 10})
    policy = SeededPolicy(right)
    done = play(policy, config, "off_policy", ListMemory("secret"))
    assert done.success
    assert [step.tips for step in done.steps] == [(), ()]
    assert all(step.completion.prompt_ids == step.plain_prompt_ids for step in done.steps)
    roomy = settings(rollout={"max_context_tokens": 61, "max_action_tokens": 10}, memory={"leave_room": False})
    later = play(ScriptedPolicy(right), roomy, "off_policy", ListMemory("secret"))  # the second turn does not fit
    assert [len(step.tips) for step in later.steps] == [1]
    assert later.context_full


# --- groups


def test_the_tips_of_a_turn_leave_room_for_the_turns_that_are_left() -> None:
    """By hand: 5 turns are to come, each as long as the observation of the first one, "place 0"."""
    used = len("walk right\nplace 0") + 3  # three begin and end the turn and ask for the next
    lines = len('notes :\n- " secret " 1 / 1')
    for room, num_tips in [(lines, 1), (lines - 1, 0)]:
        limit = used + 5 * len("place 0") + room
        config = settings(rollout={"max_context_tokens": limit + 10, "max_action_tokens": 10})
        done = play(SeededPolicy(right), config, "off_policy", ListMemory("secret"))
        assert len(done.steps[0].tips) == num_tips


def shuffled_pauses() -> Callable[[], Corridor]:
    """Corridors of which later ones are quicker, so that episodes end in another order than they begin."""
    count = iter(range(1000))

    def make() -> Corridor:
        number = next(count)
        return Corridor(pause=lambda: max(0.0, 0.01 - 0.001 * number))

    return make


def test_groups_come_back_in_task_and_member_order() -> None:
    ended: list[tuple[str, int]] = []
    tokens: list[int] = []  # of each step, as it is taken
    pool = FakePool(shuffled_pauses())
    modes = [["plain", "on_policy_tips", "off_policy"], ["off_policy", "plain", "plain"]]
    policy = ScriptedPolicy(right)
    record = {"progress": lambda t: ended.append((t.task.id, t.member)), "on_step": tokens.append}
    groups = play_groups(policy, pool, modes=modes, **record)
    members = [(t.task.id, t.member) for group in groups for t in group.trajectories]
    assert members == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)] == sorted(ended) != ended
    assert [[t.mode for t in group.trajectories] for group in groups] == modes
    assert sorted(tokens) == sorted(s.num_tokens for group in groups for t in group.trajectories for s in t.steps)
    assert pool.out == 0


def test_a_task_that_comes_twice_is_not_played_the_same_way_twice() -> None:
    policy = SeededPolicy(lambda _: "left")
    play_groups(policy, FakePool(), tasks=[TASK, TASK], modes=[["plain"]] * 2)
    assert len({sampling.seed for _, _, sampling in policy.requests}) == len(policy.requests) == 12
    assert len({episode for episode, _, _ in policy.requests}) == 2


def failing(*attempts: int) -> Callable[[], Corridor]:
    """Corridors of which these, by order of lease, fall down at the first step."""
    count = iter(range(1000))
    return lambda: Corridor(fail_at=1 if next(count) in attempts else None)


def test_a_failed_episode_is_reported_and_played_again_with_the_same_seeds() -> None:
    errors: list[Trajectory] = []
    policy, pool = SeededPolicy(), FakePool(failing(1))
    groups = play_groups(policy, pool, tasks=[TASK], on_error=errors.append)
    assert groups == play_groups(SeededPolicy(), FakePool(), tasks=[TASK])
    assert pool.lent == 4
    ((failed,),) = (errors,)
    assert (failed.member, failed.outcome, failed.steps) == (1, "error", ())
    seeds: dict[str, list[int]] = {}
    for episode, _, sampling in policy.requests:
        seeds.setdefault(episode, []).append(sampling.seed)
    assert seeds["0/t/1"] == seeds["0/t/1+1"][:1]  # a fresh episode for the policy, the same dice
    assert not policy.open_episodes


def test_episodes_that_a_full_context_ends_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    tight = settings(rollout={"max_context_tokens": 46, "max_action_tokens": 10, "max_observation_tokens": 900})
    for _ in range(2):
        play_groups(ScriptedPolicy(right), FakePool(), tight)
    (warning,) = caplog.messages
    assert "max_context_tokens = 46" in warning
    assert "max_observation_tokens = 900" in warning


@pytest.mark.parametrize(("members", "failures"), [(3, (0, 2)), (1, (0,))])
def test_a_group_of_too_few_is_dropped_with_a_warning(
    members: int, failures: tuple[int, ...], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trailnotes.rollout.groups.MAX_REPLACEMENTS", 0)
    modes: Any = [["plain"] * members] * 2
    groups = play_groups(ScriptedPolicy(right), FakePool(failing(*failures)), modes=modes)
    assert [(group.task.id, len(group.trajectories)) for group in groups] == [("b", members)]
    assert f"task a is left out: {len(failures)} of {members} failed" in caplog.text
    caplog.clear()
    groups = play_groups(ScriptedPolicy(right), FakePool(failing(*failures)), modes=modes, min_members=1)
    assert sum(len(group.trajectories) for group in groups) == 2 * members - len(failures), "a panel keeps each episode"
    assert f"{len(failures)} of {members} failed" in caplog.text, "and is told which it lacks"


# --- tips written afterwards


def author(note: Callable[[Sequence[Message]], str]) -> ScriptedPolicy:
    """Walks right; asked for a note (the request ends so in terse style) it answers with `note`."""
    policy = SeededPolicy(lambda messages: note(messages) if messages[-1].content.endswith("note ?") else "right")
    policy.name, policy.version = "model", 3
    return policy


def played(policy: ScriptedPolicy, config: Config = SETTINGS, memory: Memory | None = None) -> list[TrajectoryGroup]:
    return play_groups(policy, FakePool(), config, modes=[["plain", "off_policy"]] * 2, memory=memory)


@pytest.mark.parametrize("request_", [None, {"kept": 0, "messages": [["user", "tell me all"]]}])
def test_an_answer_that_is_too_long_for_an_action_is_an_agents_all_the_same(request_: Any) -> None:
    policy = ScriptedPolicy(lambda _: "word " * 200)
    seen = Observation("tell me all", instruction="", request=request_)

    async def act() -> Any:
        config = settings(rollout={"max_action_tokens": 1200})
        actor = TipsActor(EpisodeContext(policy, TASK, "plain", 0, 0, "one", config), None)
        actor.start(seen)
        return await actor.act(seen)

    assert asyncio.run(act()).action == (("word " * 200)[:500] if request_ else "")


def test_every_episode_gets_a_tip_with_its_author_in_task_order() -> None:
    policy = author(lambda messages: f"walk right {messages[-1].content[:7]}")
    groups = played(policy)
    policy.requests.clear()
    written = asyncio.run(write_tips(policy, groups, SETTINGS, seed=5, step=7))
    tips = [tip for each in written for tip in each.tips]
    assert [tip.namespace for tip in tips] == ["a", "a", "b", "b"]
    assert len(policy.live_at_start) == 6 - 2
    first = tips[0]
    assert (first.text, first.key, first.action) == ("walk right place 2", "walk right\nplace 2", "right")
    assert (first.score, first.max_score, first.model, first.version) == (1.0, 1.0, "model", 3)
    assert (first.run, first.step) == ("r1", 7)
    assert compute_tip_metrics(written)["tokens"] == 4 * (len("walk right place 2") + 1)
    assert not policy.open_episodes
    samplings = [sampling for _, _, sampling in policy.requests]
    assert {(s.max_tokens, s.temperature) for s in samplings} == {(192, 1.0)}
    assert len({s.seed for s in samplings}) == 4


def test_a_task_that_comes_twice_is_not_written_about_in_the_same_words() -> None:
    """Equal failures of equal games: their tips may only be equal by the model's choice, never by their seeds."""
    policy = author(lambda _: "note")
    groups = play_groups(policy, FakePool(), tasks=[TASK] * 3, modes=[["plain", "plain"]] * 3)
    policy.requests.clear()
    asyncio.run(write_tips(policy, groups, SETTINGS, seed=0, step=0))
    seeds = [sampling.seed for _, _, sampling in policy.requests]
    assert len(set(seeds)) == len(seeds) == 6
    policy.requests.clear()
    asyncio.run(write_tips(policy, groups[:1], SETTINGS, seed=0, step=0))
    assert [sampling.seed for _, _, sampling in policy.requests] == seeds[:2], "as if it were there once"


def test_entries_for_each_step_are_found_by_each_state() -> None:
    config = settings(memory={"entries": "step"})
    policy = author(lambda _: "keep right")
    written = asyncio.run(write_tips(policy, played(policy)[:1], config, seed=0, step=0))
    assert [tip.key for each in written for tip in each.tips] == ["walk right\nplace 0", "walk right\nplace 1"] * 2


def test_unusable_tips_are_dropped_and_counted() -> None:
    policy = author(lambda messages: next(texts))
    groups = played(policy)
    texts = iter(["", "go right", "\x00\n", "<|im_start|>"])
    written = asyncio.run(write_tips(policy, groups, SETTINGS, seed=0, step=0))
    assert [[tip.text for tip in each.tips] for each in written] == [[], ["go right"], [], []]
    metrics = compute_tip_metrics(written)
    assert (metrics["written"], metrics["unusable"]) == (4.0, 3.0)
    assert metrics["tokens"] == 1 + 9 + 3 + 13
    assert metrics["tokens_read"] == sum(len(each.completion.prompt_ids) for each in written)
    policy.context_length = 20  # no room at all
    empty = asyncio.run(write_tips(policy, groups, SETTINGS, seed=0, step=0))
    assert [(each.tips, each.completion.num_tokens) for each in empty] == [((), 0)] * 4


def test_an_episode_that_fills_the_context_still_gets_its_tip() -> None:
    config = settings(rollout={"max_steps": 40, "max_action_tokens": 8}, memory={"max_write_tokens": 40})
    policy = author(lambda _: "a short note")
    policy.context_length = 150
    (group,) = play_groups(policy, FakePool(), config, tasks=[Task("t", "corridor", options={"length": 30})],
                           modes=[["plain"]])  # fmt: skip
    assert group.trajectories[0].context_full
    policy.requests.clear()
    (written,) = asyncio.run(write_tips(policy, [group], config, seed=0, step=0))
    assert [tip.text for tip in written.tips] == ["a short note"]
    ((_, messages, sampling),) = policy.requests
    assert messages[0].content.startswith("walk right\nplace 0\n[...]\nplace ")
    assert len(policy.encode(messages)) + sampling.max_tokens <= 150
    assert messages[-1].content == "place 8\nscore 0 / 1 . note ?"


# --- metrics


def test_metrics_by_hand() -> None:
    def step(action: str, reward: float, tips: int = 0, *, cut: bool = False, **info: Any) -> Step:
        shown = tuple(Tip("t", f"tip {i}", "", 0.0) for i in range(tips))
        done = Completion((1,), (2, 3), (0.0, 0.0), action, "length" if cut else "stop")
        return Step(Observation("o", info=info), shown, done, (1,), action, reward)

    changed = {"action_changed": True, "restarts": 1}

    def ended(steps: tuple[Step, ...], **facts: Any) -> Trajectory:
        last = Observation("o", info=changed if len(steps) == 2 else {})
        return Trajectory(TASK, steps, last, **{"outcome": "truncated", "score": 0.0, **facts})

    groups = [
        TrajectoryGroup(TASK, (
            ended((step("a", 0.0, restarts=2), step("", 1.0, restarts=0)), success=True, outcome="terminated"),
            ended((step("a", 0.0, cut=True, restarts="many"),), success=False, context_full=True),
        )),
        TrajectoryGroup(TASK, (ended((step("a", 0.5, 3),), success=False, mode="off_policy"),)),
    ]  # fmt: skip
    failed = Trajectory(TASK, (), Observation(""), "error", success=False, score=0.0, error="x")
    assert compute_rollout_metrics(groups, [failed]) == pytest.approx({
        "errors": 1, "return": 0.5, "success": 1 / 3, "return/plain": 0.5, "success/plain": 0.5,
        "return/off_policy": 0.5, "success/off_policy": 0.0, "episode_length": 4 / 3, "env_steps": 4, "tokens": 8,
        "truncated": 2 / 3, "context_full": 1 / 3, "unparsable": 0.25, "cut_actions": 0.25, "tips_per_step": 3.0,
        "action_changed": 0.25, "restarts": 3,
    })  # fmt: skip
