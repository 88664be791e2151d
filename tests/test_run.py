"""What a run counts."""

from __future__ import annotations

from pathlib import Path

from tinyrun import Paid, episodes, metrics, tiny_config
from trailnotes.errors import EnvError
from trailnotes.training import train
from trailnotes.types import Observation


class Brittle(Paid):
    """Fails at the second step of every other episode."""

    episodes = 0

    def step(self, action: str) -> Observation:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 2:
            Brittle.episodes += 1
            if Brittle.episodes % 2:
                raise EnvError("brittle")
        return super().step(action)


def test_what_failed_episodes_cost_is_counted(start_model: Path, tmp_path: Path) -> None:
    env = {"name": "test_run:Brittle", "num_workers": 0}
    train(tiny_config(start_model, env=env, train={"iterations": 1}), tmp_path)
    (line,), played = metrics(tmp_path), episodes(tmp_path)
    assert any(episode["steps"] for episode in played if episode["outcome"] == "error")
    acted = sum(step["tokens"] for episode in played for step in episode["steps"])
    assert line["tokens_generated"] == acted + line["notes/note_tokens"]
    assert line["env_steps"] == sum(len(episode["steps"]) for episode in played)
