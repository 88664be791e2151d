"""What EMPO2 is taken apart by: each key alone changes what it says, and the update with it."""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from paying import Paid
from tinyrun import episodes, equal_weights, metrics, tiny_config, train_in_process
from trailnotes.config.builtin import BUILTIN, find_config
from trailnotes.rollout.tips import TipBatch
from trailnotes.runs import iteration as run_module
from trailnotes.types import Observation
from trailnotes_lab.compare.spec import load_spec

CONFIGS = BUILTIN / "configs/compare"


class Telling(Paid):
    """`Paid` in which one of three things is seen after each action."""

    def step(self, action: str) -> Observation:
        answer = super().step(action)
        return replace(answer, text=f"{'abc'[zlib.crc32(action.encode()) // 4 % 3]} {answer.text}")


BASE: dict[str, dict[str, Any]] = {
    "env": {"name": "test_ablations:Telling"},
    "algorithm": {"p_memory": 0.5, "q_off_policy": 0.5},
    "loss": {"kl": 0.05, "mask_logprob": -6.0},
    "optim": {"lr": 1e-2, "epochs": 2},
    "train": {"iterations": 2},
}


@dataclass(frozen=True)
class Seen:
    """What a run left behind; in its second iteration there are tips to act on."""

    path: Path

    @property
    def first(self) -> dict[str, Any]:
        return metrics(self.path)[0]

    @property
    def last(self) -> dict[str, Any]:
        return metrics(self.path)[-1]

    @property
    def modes(self) -> list[set[str]]:
        """Of each iteration."""
        return [{e["mode"] for e in episodes(self.path) if e["iteration"] == i} for i in range(2)]

    @property
    def tips(self) -> int:
        return sum(len(step["tips"]) for e in episodes(self.path) for step in e["steps"])


Claim = Callable[[Seen, Seen], bool]  # of the whole method and of its ablation
ABLATIONS: dict[str, tuple[dict[str, dict[str, Any]], Claim]] = {
    "without memory": ({"algorithm": {"p_memory": 0.0}}, lambda base, less: base.tips > 0 == less.tips),
    "without on-policy with tips": (
        {"algorithm": {"q_off_policy": 1.0}},
        lambda base, less: len(base.modes[1]) == 3 and less.modes == [{"plain", "off_policy"}] * 2,
    ),
    "without off-policy": (
        {"algorithm": {"q_off_policy": 0.0}},
        lambda base, less: base.last["update/tokens_off_policy"] > 0 == less.last["update/tokens_off_policy"],
    ),
    "denominator of the release": (
        {"algorithm": {"old_logprobs": "acting"}},
        lambda base, less: (  # what acting with tips has drawn is as likely as it is without them
            less.last["update/kl_to_behavior_off_policy"] != base.last["update/kl_to_behavior_off_policy"]
        ),
    ),
    "without mask": (
        {"loss": {"mask_logprob": None}},
        lambda base, less: base.last["update/masked_fraction"] > 0 == less.last["update/masked_fraction"],
    ),
    "mask of responses": (
        {"loss": {"mask_unit": "response"}},
        lambda base, less: less.last["update/masked_fraction"] > base.last["update/masked_fraction"],
    ),
    "one mode an iteration": (
        {"algorithm": {"mode_unit": "iteration"}},
        lambda _, less: [len(modes) for modes in less.modes] == [1, 1],
    ),
    "duplicates rejected": (
        {"memory": {"duplicates": "reject"}},
        lambda base, less: base.last["memory/support"] > base.last["memory/tips"] == less.last["memory/support"],
    ),
    "an entry a step": (
        {"memory": {"entries": "step"}},
        lambda base, less: less.first["memory/support"] == 2 * base.first["memory/support"],  # the same, of two steps
    ),
    "shaped ratio": (
        {"loss": {"shaping": "luffy"}},
        # Near 1 the shaped gradient is a twelfth of the plain one, so off-policy tokens move less in the first pass.
        lambda base, less: 1 < less.last["update/ratio_mean_off_policy"] < base.last["update/ratio_mean_off_policy"],
    ),
    "without KL": (
        {"loss": {"kl": 0.0}},
        lambda base, less: base.last["update/kl_to_reference"] > 0 == less.last["update/kl_to_reference"],
    ),
    "novelty": (
        {"algorithm": {"intrinsic": "counts"}},
        lambda base, less: "novelty/bonus" not in base.last and 0 < less.last["novelty/bonus"] < 1,
    ),
    "archive": ({"archive": {"share": 1.0}}, lambda _, less: less.last["archive/returned"] > 0),
}


@pytest.fixture(scope="module", autouse=True)
def _notes_repeat() -> Iterator[None]:
    """A model of random weights never says the same twice."""
    write_tips = run_module.write_tips

    async def repeated(*args: Any, **options: Any) -> TipBatch:
        written = await write_tips(*args, **options)
        return TipBatch(
            [replace(tip, text=f"note {min(i % 3, 1)}") for i, tip in enumerate(written.tips)], written.num_tokens
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "write_tips", repeated)
        yield


def play(start: Path, path: Path, sections: dict[str, dict[str, Any]]) -> Seen:
    merged = {name: BASE.get(name, {}) | sections.get(name, {}) for name in BASE | sections}
    train_in_process(tiny_config(start, **merged), path)
    return Seen(path)


@pytest.fixture(scope="module")
def whole(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return play(start_model, tmp_path_factory.mktemp("whole") / "run", {})


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_does_what_it_says_and_reaches_the_weights(
    whole: Seen, start_model: Path, tmp_path: Path, name: str
) -> None:
    sections, claim = ABLATIONS[name]
    ablated = play(start_model, tmp_path / "run", sections)
    assert claim(whole, ablated)
    assert not equal_weights(whole.path, ablated.path)


@pytest.mark.parametrize(
    "path", sorted(set(CONFIGS.glob("*.toml")) - {*CONFIGS.glob("*-base.toml")}), ids=lambda path: path.stem
)
def test_comparisons_name_the_denominator_that_they_were_measured_with(path: Path) -> None:
    """Published figures come out to the digit whatever the default is."""
    plan = load_spec(path)
    shared = tomllib.loads(find_config(plan.compare.config).read_text(encoding="utf-8"))
    assert "old_logprobs" in shared["empo2"]
