from __future__ import annotations

from typing import Any

from trailnotes.storage.files import trajectory_to_json
from trailnotes.types import Completion, Mode, Observation, Step, Task, Tip, Trajectory
from trailnotes_lab.story import Record, RunEpisodes, render_before_and_after

FAMILY = "waymarks/route/amber"
RULE = "north east south"
NOTHING = "nothing found"


def tip(text: str, iteration: int, action: str, task: str = f"{FAMILY}/train-1") -> Tip:
    return Tip(task, text, key="k", score=0.0, step=iteration, action=action)


def episode(
    task: str, actions: list[str], end: str, *, won: bool = False, mode: Mode = "plain", tips: tuple[Tip, ...] = ()
) -> dict[str, Any]:
    steps = [
        Step(
            Observation(f"room {i}. exits north east.", instruction="find the way" if i == 0 else None),
            tips if i == 0 else (), Completion((1,), (2,), (0.0,), action), (1,), action, 0.0,
        )
        for i, action in enumerate(actions)
    ]  # fmt: skip
    final = Observation(end, terminated=True, success=won)
    episode = Trajectory(Task(task, "waymarks"), tuple(steps), final, "terminated", won, 0.0, mode=mode)
    return trajectory_to_json(episode)


TRAIN = f"{FAMILY}/train-1"
READS = episode(TRAIN, ["west"], f"archive. carved here: {RULE}.")
FAILS = episode(TRAIN, ["west"], "nook. a dead end.")
USES = episode(
    TRAIN, RULE.split(), "garden. the way out.", won=True, mode="off_policy",
    tips=(tip(NOTHING, 3, "east"), tip(RULE, 3, "west")),
)  # fmt: skip


def training(*records: tuple[int, Record]) -> Any:
    return lambda: ({"iteration": iteration, **record} for iteration, record in records)


def test_story_follows_the_tip() -> None:
    game = f"{FAMILY}/test-4"
    before = {game: episode(game, ["west"], "nook. a dead end.")}
    after = {game: episode(game, RULE.split(), "meadow. the way out.", won=True)}
    run = RunEpisodes(before, after, training((3, FAILS), (3, READS), (7, USES)))
    text = render_before_and_after([run])
    wanted = [
        "BEFORE. The start model meets an unseen game.", game, "find the way", "> west", "a dead end.  (not won)",
        "IN TRAINING, iteration 3.", TRAIN, "> west", f"carved here: {RULE}.  (not won)",
        f'tip it leaves: "{RULE}"',
        "IN TRAINING, iteration 7.", f'tip it is shown: "{RULE}"', "> north", "> east", "> south", "(won)",
        "AFTER. The trained agent meets the same unseen game", game, "> north", "> south", "meadow.", "(won)",
    ]  # fmt: skip
    position = 0
    for part in wanted:
        position = text.index(part, position) + len(part)
    assert NOTHING not in text
    assert max(map(len, text.splitlines())) <= 100
