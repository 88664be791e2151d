"""The learner at a server against the learner here: the same adapters, data and Adam give the same weights."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from tinker_servers import RANK, Server
from tiny import episode, group, make_row
from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import resolve_config
from trailnotes.errors import ServerError
from trailnotes.learner.learner import Learner
from trailnotes.learner.losses import UpdateMetrics
from trailnotes.learner.samples import build_samples, replace_behavior_logprobs
from trailnotes.learner.tinker import TinkerLearner
from trailnotes.policies.hf.policy import load_model
from trailnotes.policies.tinker import TinkerPolicy
from trailnotes.runs.rehearsal import build_recording_config
from trailnotes.types import Sample
from trailnotes.web.tinker import TinkerServer

TOLERANCE = 1e-4  # of a weight after three updates of lr 1e-3, each of several steps


def make_config(server: Server, *words: str) -> Config:
    settings = [
        "--env.name", "waymarks", "--model.path", str(server.model), "--model.lora.rank", str(RANK),
        "--learner.name", "tinker", "--learner.url", server.url, "--learner.timeout", "120",
        "--optim.grad_clip", "0", "--optim.lr", "1e-3", "--optim.minibatch", "4",
    ]  # fmt: skip
    return resolve_config(None, [*settings, *words]).config


class Pair:
    """A learner at the server, and one here that begins with its adapters."""

    def __init__(self, config: Config, path: Path) -> None:
        self.there = TinkerLearner(config, TinkerServer(config.learner), dump_dir=path / "dumps")
        self.there.export(path / "start")
        adapters = config.model.model_copy(
            update={"path": str(path / "start"), "lora": config.model.lora.model_copy(update={"enabled": True})}
        )
        torch.set_num_threads(1)
        self.here = Learner(load_model(adapters)[0], config.optim, config.loss, temperature=config.rollout.temperature)
        self.path = path

    def assert_equal(self) -> None:
        self.there.export(self.path / "end")
        found = load_file(self.path / "end" / "adapter_model.safetensors")
        start = load_file(self.path / "start" / "adapter_model.safetensors")
        own = self.here.weights()
        assert found.keys() == own.keys()
        for name, tensor in own.items():
            torch.testing.assert_close(found[name], tensor, atol=TOLERANCE, rtol=0.0, msg=name)
        assert max(float((found[name] - start[name]).abs().max()) for name in found) > 20 * TOLERANCE


@pytest.fixture
def pair(server: Server, tmp_path: Path) -> Iterator[Any]:
    opened = []

    def make(*words: str) -> Pair:
        opened.append(Pair(make_config(server, *words), tmp_path / str(len(opened))))
        return opened[-1]

    yield make
    for each in opened:
        each.there.close()


def build_rows(seed: int, modes: Sequence[Any], here: Learner) -> list[Sample]:
    """Rows of two groups of random episodes, off policy too, with the denominators that the weights here give."""
    rng = random.Random(seed)
    groups = [group(*(episode(rng, rng.randint(2, 3), mode) for mode in modes)) for _ in range(2)]
    samples = build_samples(groups, [[rng.gauss(0, 1) for _ in modes] for _ in groups])
    return replace_behavior_logprobs(samples, here.logprobs(samples))


CASES = {  # modes of a group's members, and settings
    "clipped on one side": (["plain"] * 4, ["--loss.dual_clip", "0", "--loss.clip_high", "0.2"]),
    "off policy, masked, with a KL, twice": (
        ["plain", "on_policy_tips", "off_policy", "off_policy"],
        ["--loss.kl", "0.05", "--loss.mask_logprob", "-6.0", "--optim.epochs", "2"],
    ),
    "means over rows": (["plain"] * 4, ["--loss.aggregation", "sequence"]),
}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("case", CASES)
def test_three_updates_give_the_weights_that_they_give_here(case: str, pair: Any) -> None:
    modes, words = CASES[case]
    both = pair(*words)
    for update in range(3):
        samples = build_rows(update, modes, both.here)
        mine, theirs = (each.update(samples, seed=update) for each in (both.here, both.there))
        assert theirs["optimizer_steps"] == mine["optimizer_steps"] > 0
        for name in set(mine) & set(theirs) - {"seconds", "seconds_reference", "tokens_forward"}:
            assert theirs[name] == pytest.approx(mine[name], abs=1e-4), name
        for one, other in zip(both.here.logprobs(samples), both.there.logprobs(samples), strict=True):
            assert one == pytest.approx(other, abs=1e-4)
    assert both.here.steps == both.there.steps >= 6
    both.assert_equal()


def test_the_command_lists_the_models_of_a_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--learner.url", server.url]) == 0
    assert capsys.readouterr().out == f"{server.model}\n"


@pytest.mark.parametrize("tensors", [{"a.q_proj.lora_A.weight": [3]}, {"a.q_proj.weight": [4, 8]}], ids=str)
def test_other_adapters_than_were_asked_for_are_not_written(
    stand_in: Any, monkeypatch: pytest.MonkeyPatch, tensors: dict[str, list[int]]
) -> None:
    config = make_config(stand_in("documented"))
    learner = TinkerLearner(config, TinkerServer(config.learner))

    def send(_self: TinkerServer, _run: str, _name: str, file: Any, _most: int) -> None:
        data = save({name: torch.zeros(shape) for name, shape in tensors.items()})
        member = tarfile.TarInfo("folder/adapter_model.safetensors")
        member.size = len(data)
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            archive.addfile(member, io.BytesIO(data))

    monkeypatch.setattr(TinkerServer, "download_archive", send)
    with pytest.raises(ServerError, match="gives other adapters than were asked for"):
        learner._download_adapters()


def test_thoughts_are_not_ended_by_a_stop_text(stand_in: Any) -> None:
    config = make_config(stand_in("documented"), "--rollout.max_context_tokens", "256")
    policy = TinkerPolicy(config, TinkerServer(config.learner))
    ends = {*policy.endings.end_ids}
    assert {*policy._find_stop_ids(("\n",))} > ends
    policy._thinks, policy._stop_ids = True, {}
    assert {*policy._find_stop_ids(("\n",))} == ends


def test_rehearsal_is_recorded_where_the_model_is(stand_in: Any) -> None:
    server = stand_in("documented")
    options = ["--rehearsal.split", "spare", "--learner.price_train", "3", "--learner.max_tokens_total", "9"]
    learner = build_recording_config(make_config(server, *options)).learner
    assert (learner.name, learner.url, learner.max_tokens_total, learner.price_train) == ("tinker", server.url, 9, 0)


def test_held_and_imitated_rows_of_one_role_and_weight_are_means_of_their_own(stand_in: Any) -> None:
    config = make_config(stand_in("documented"), "--learner.anchor_by", "samples")
    learner = TinkerLearner(config, TinkerServer(config.learner))
    imitated = [make_row("rehearsal", seed, tokens, imitate=0.5) for seed, tokens in ((1, 3), (2, 5))]
    given = [*imitated, make_row("rehearsal", 3, 4, hold=0.5)]
    rows, metrics = learner._replace_anchors(given, seed=0), UpdateMetrics()
    scored = [torch.tensor(row) for row in learner.logprobs(rows)]
    logprobs = torch.nn.utils.rnn.pad_sequence(scored, batch_first=True)
    loss = learner._compute_loss(rows, logprobs, None, metrics)[0]
    one, two, held = (-float(row.sum()) / sum(sample.loss_mask) for row, sample in zip(scored, rows, strict=True))
    assert loss.item() == pytest.approx(0.5 * (one + two) / 2 + 0.5 * held, rel=1e-5)
    tokens = [sum(row.loss_mask) for row in rows]
    nll = sum(mean * num for mean, num in zip((one, two, held), tokens, strict=True)) / sum(tokens)
    assert metrics.result()["nll_rehearsal"] == pytest.approx(nll, rel=1e-5)


def test_a_minibatch_without_gradient_takes_no_step(stand_in: Any) -> None:
    config = make_config(stand_in("documented"), "--loss.drop_zero_advantage", "false", "--loss.dual_clip", "0")
    learner = TinkerLearner(config, TinkerServer(config.learner))
    rng = random.Random(0)
    samples = build_samples([group(*(episode(rng, 2) for _ in range(4)))], [[0.0] * 4])
    assert learner._is_plain_ppo(samples)
    assert learner.update(samples)["optimizer_steps"] == learner.steps == 0
