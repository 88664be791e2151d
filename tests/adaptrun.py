"""Adaptations of no time: gates that open to one word each, and a policy that tries the next word after a failure.

Every completion carries its seed as its first log-probability, so that a file says which requests it answers.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from children import signal_at_write
from small import merge_sections, small_config
from trailnotes.config.schema import Config
from trailnotes.errors import BudgetError, EnvError
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.runs.adapt import adapt
from trailnotes.runs.panels import PanelResult
from trailnotes.storage.files import append_jsonl, read_jsonl
from trailnotes.types import Completion, Message, Observation, Sampling, Task

NEVER = 9  # the gate that no word opens
TOUCHES = ("open", "os.rename", "os.remove", "os.truncate")


class Gate:
    """Gate i opens to the word w<i>, and is asked once; gates of `broken` fail at their second step."""

    played: list[str] = []  # task ids, in this process  # noqa: RUF012

    def __init__(self, gates: Sequence[int] = (0, 1, 2, NEVER), broken: Sequence[int] = ()) -> None:
        self.broken = broken

    @staticmethod
    def tasks(split: str, gates: Sequence[int] = (0, 1, 2, NEVER), broken: Sequence[int] = ()) -> list[Task]:
        return [Task(f"gate/{split}-{gate}", "adaptrun:Gate", gate, split) for gate in gates]

    def reset(self, task: Task) -> Observation:
        Gate.played.append(task.id)
        self.gate, self.touched = task.seed, False
        return Observation("a gate ?", instruction=f"open gate {task.seed}")

    def step(self, action: str) -> Observation:
        if self.gate in self.broken and self.touched:
            raise EnvError("the hinges came off")
        if self.gate in self.broken:
            self.touched = True
            return Observation("a gate ?")
        won = action == f"w{self.gate}" and self.gate != NEVER
        return Observation(f"you said {action} .", float(won), terminated=True, success=won, score=float(won))

    def close(self) -> None:
        pass


class Guesser(ScriptedPolicy):
    """Says the last word that its prompt advises, w0 without any; advises the word after the one that was said.

    Args:
        asked: file that gets the seed of each request as it comes.
        allowed: requests after which a spending limit is reached; 0 = none.
    """

    def __init__(self, asked: Path | None = None, allowed: int = 0) -> None:
        super().__init__(guess, name="guesser")
        self.asked, self.allowed = asked, allowed
        self.prompts: list[list[Message]] = []

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        if self.allowed and len(self.prompts) >= self.allowed:
            raise BudgetError("the limit is reached")
        self.prompts.append(list(messages))
        seed = sampling.seed % 2**50
        if self.asked:
            append_jsonl(self.asked, [{"seed": seed}])
        for _ in range(seed % 4):  # episodes end in an order of their own
            await asyncio.sleep(0)
        completion = await super().generate(messages, sampling, episode)
        return replace(completion, logprobs=(float(seed), *completion.logprobs[1:]))


def guess(messages: Sequence[Message]) -> str:
    last = messages[-1].content
    if re.search(r"note \?|plan \?|New plan:|Write one note", last):
        (*_, word) = (message.content for message in messages if message.role == "assistant")
        won = re.search(r"score (?:of )?1 (?:/|of) 1", last)
        return f"next time say w{int(word[1:]) + (not won)}"
    words = re.findall(r"next time say w(\d+)", messages[-1].content)
    return f"w{max(map(int, words), default=0)}"


def gate_config(**sections: dict[str, Any]) -> Config:
    """Four gates, three trials after trial 0; sections are laid over it."""
    own: dict[str, dict[str, Any]] = {
        "env": {"name": "adaptrun:Gate", "options": {}},
        "rollout": {"max_action_tokens": 8, "max_context_tokens": 100_000, "max_observation_tokens": 1000},
        "memory": {"max_write_tokens": 64, "max_tip_tokens": 64},
        "eval": {"num_tasks": 0, "trials": 3},
    }
    return small_config(**merge_sections(own, sections))


def adapt_by(
    policy: Guesser, method: str, out: Path, *, picture: bool = False, **sections: dict[str, Any]
) -> list[PanelResult]:
    """`adapt` with this policy in the place of a model; without the picture, which takes longer than all else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trailnotes.runs.load_policy.load_policy", lambda *_: policy)
        if not picture:
            patch.setattr("trailnotes.reporting.plots.plot_trials", lambda *_, **__: None)
        return adapt(gate_config(**sections), "guesser", method=method, out=out)


def adapt_and_die(method: str, out: Path, asked: Path, fatal: int) -> None:
    """In a process of its own: killed at the `fatal`-th time that a file below `out` is written to; 0 never comes."""
    signal_at_write(out, TOUCHES, fatal)
    adapt_by(Guesser(asked), method, out)


def run_process(*arguments: object) -> int:
    """Exit code of `adapt_and_die`, negative for the signal that ended it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["adaptrun"])
    process = context.Process(target=adapt_and_die, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def seeds_asked(asked: Path) -> list[int]:
    return [line["seed"] for line in read_jsonl(asked)]


def seeds_on_disk(out: Path) -> set[int]:
    """Of all completions that the journals of a run hold, torn last lines left out."""
    held = set()
    for file in out.glob("phases/*.jsonl"):
        for record in read_jsonl(file):
            for holder in record.get("steps", [record]):
                held.add(int(holder["completion"]["logprobs"][0]))
    return held
