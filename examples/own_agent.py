"""An agent of one's own with a memory: a plain loop around any OpenAI-compatible model, and no training at all.

It plays one Waymarks game again and again. Before an attempt it searches the memory, after one that was lost the model
writes a tip::

    python examples/own_agent.py http://127.0.0.1:8000/v1 MODEL own_agent.db
    trailnotes memory list own_agent.db

A server that wants a key gets the one in the environment variable OPENAI_API_KEY.

The words of the prompts are those that our small start model knows; for another model, write your own.
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

import trailnotes
from trailnotes.envs import list_env_tasks
from trailnotes.rollout.conversation import quoted
from trailnotes.types import Task, Tip

ENV = "waymarks-simulator"


class Agent:
    """Plays one game at a time, and remembers only the one it is in."""

    def __init__(self, url: str, model: str) -> None:
        key = os.environ.get("OPENAI_API_KEY") or "none"  # the client insists on one; a local server wants none
        self.client, self.model = OpenAI(base_url=url, api_key=key), model
        self.talk: list[dict[str, str]] = []

    def say(self, text: str, max_tokens: int, seed: int) -> str:
        """The model's next line."""
        self.talk.append({"role": "user", "content": text})
        answer = self.client.chat.completions.create(
            model=self.model, messages=self.talk, max_tokens=max_tokens, stop=["\n"], seed=seed, temperature=0.7
        )
        self.talk.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        return self.talk[-1]["content"]

    def play(self, task: Task, tips: list[Tip], seed: int) -> tuple[str, float]:
        """One attempt; returns how it ended, and its score."""
        env, self.talk = trailnotes.make_env(ENV), []
        seen = env.reset(task)
        lines = [f'- " {quoted(tip.text)} " {tip.score:g} / {tip.max_score:g}' for tip in tips]
        text = "\n".join([seen.instruction or "", *(["notes :", *lines] if lines else []), seen.text])
        while not seen.done:
            seen = env.step(self.say(text, max_tokens=8, seed=seed))
            text = seen.text
        env.close()
        return text, seen.score


def main(url: str, model: str, path: str, attempts: int = 4) -> list[float]:
    """Play the game; returns the scores."""
    agent, task, scores = Agent(url, model), list_env_tasks(ENV, "test")[0], []
    start = trailnotes.make_env(ENV).reset(task)
    state = f"{start.instruction}\n{start.text}"

    with trailnotes.open_memory(path) as memory:
        for attempt in range(attempts):
            tips = memory.search(task.id, state, top_k=4)
            end, score = agent.play(task, tips, seed=attempt)
            print(f"attempt {attempt}: score {score:g} with {len(tips)} tips")
            if score < 1:
                text = agent.say(f"{end}\nscore {score:g} / 1 . note ?", max_tokens=16, seed=attempt)
                memory.add([Tip(task.id, text, key=state, score=score, model=model, step=attempt)])
            scores.append(score)
    return scores


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("say where the model is: python examples/own_agent.py URL MODEL FILE")
    main(*sys.argv[1:])
