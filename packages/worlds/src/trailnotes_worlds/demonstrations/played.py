"""Demonstrations of people's play: their actions, replayed in the environment of the agents.

Each turn is word for word an agent's with the same settings, and actions that do not repeat are not recorded.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.errors import RunError
from trailnotes.prompts import Conversation, parse_action
from trailnotes.storage.demonstrations import Demonstration, demonstration_to_json, list_assistant_turns
from trailnotes.storage.files import append_jsonl, parse_json, split_after

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.envs import Env
    from trailnotes.prompts import CountTokens
    from trailnotes.types import Task

KIND = "played"
LINE_PREFIX = b'{"messages": ['  # of each line


class PlayRecorder:
    """Recorder of people's episodes to a file for `warmstart.demonstrations`, for one process at a time.

    Args:
        path: the JSONL file to append to. A last line that a crash has cut moves to another file.
        env: replays the actions.
        config: `rollout`, `memory`: wording and length of turns.
        count_tokens: for the length.

    Raises:
        RunError: the file is not writable or holds other content, or another process records to it.
    """

    def __init__(self, path: Path, env: Env, config: Config, count_tokens: CountTokens) -> None:
        self.path = path
        self._env, self._config, self._count_tokens = env, config, count_tokens
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(f"cannot write {path} ({error.strerror}): choose another file to record to") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise RunError(f"another process records to {path}: stop it, or choose another file") from error
        try:
            validate_recording_file(path)
        except RunError:
            self.close()
            raise
        self.torn_line_path = split_after(path)  # the file that now holds the half of a line, if there was one

    def line(self, task: Task, actions: Sequence[str]) -> Mapping[str, Any]:
        """Make the record of an episode. Raises `RunError` if the environment does not end with the last action."""
        made = build_played_demonstration(self._env, task, actions, self._config, self._count_tokens)
        return demonstration_to_json(made)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a record and sync it to the disk. Raises `RunError` on failure; the earlier lines stay whole."""
        append_jsonl(self.path, [line], sync=True)

    def close(self) -> None:
        """Release the file for other processes. A second call is harmless."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def validate_recording_file(path: Path) -> None:
    """Raise `RunError` for a file whose first line is no demonstration, nor the cut beginning of one."""
    with path.open("rb") as file:
        line = file.readline()
    if not line:
        return
    try:
        record = parse_json(line)
        is_ours = isinstance(record, dict) and "messages" in record
    except ValueError:
        is_ours = LINE_PREFIX.startswith(line[: len(LINE_PREFIX)]) and not line.endswith(b"\n")
    if not is_ours:
        raise RunError(f"the first line of {path} is no demonstration: choose another file to record to")


def build_played_demonstration(
    env: Env, task: Task, actions: Sequence[str], config: Config, count_tokens: CountTokens
) -> Demonstration:
    """Replay a person's actions as an agent's conversation. Whether it helped is whether it won.

    Raises:
        RunError: the environment does not end with the last of `actions`: it refuses one, or allows fewer steps.
    """
    rollout = config.rollout
    conversation = Conversation(rollout, config.memory, count_tokens)
    observation = env.reset(task)
    conversation.start(observation.instruction or "")
    for number, action in enumerate(actions):
        if observation.done:
            raise RunError(f"{task.id} ends after {number} of {len(actions)} steps: raise the environment's max_steps")
        said = " ".join(action.split())
        text = {"line": said, "tags": f"<action>{said}</action>", "react": f"Action: {said}"}[rollout.action_format]
        conversation.observe(observation)
        conversation.act(text)
        observation = env.step(parse_action(text, rollout.action_format, rollout.style).action)
    if not observation.terminated:
        raise RunError(f"{task.id} has not ended after the {len(actions)} steps that were recorded of it")
    messages = tuple(conversation.plain)
    return Demonstration(messages, list_assistant_turns(messages), task, KIND, observation.success)
