"""The stand-in does what the real server does: the same tests, by the SDK, on both of its dialects and on skyrl-tx."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from peft import PeftModel
from tinker import types
from transformers import AutoModelForCausalLM

from tinker_servers import RANK, Server, StandIn, ask

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

SECONDS = 120.0  # no wait is without an end
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAM = {"learning_rate": 1e-2, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.1, "grad_clip_norm": 0.5}
PROMPT = list(range(40, 60))
ROWS = [[*range(20, 45)], [*range(300, 317)], [7, 7, 9, 30, 200, 201, 17, 5]]
CLIP = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}


@pytest.fixture(scope="module")
def base(model_dir: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(model_dir).eval()


@pytest.fixture
def create(server: Server) -> Iterator[Callable[..., tinker.TrainingClient]]:
    """Create models that are unloaded after the test: the real server holds few."""
    clients = []

    def create(**options: Any) -> tinker.TrainingClient:
        clients.append(server.create(**options))
        return clients[-1]

    yield create
    for client in clients:
        ask(f"{server.url}/api/v1/unload_model", {"model_id": client.model_id})


def score(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Return the log-probabilities (N - 1,) of all ids but the first."""
    logprobs = model(input_ids=torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def make_datum(ids: list[int], **inputs: torch.Tensor) -> types.Datum:
    inputs = {name: types.TensorData.from_torch(value) for name, value in inputs.items()}
    inputs["target_tokens"] = types.TensorData.from_torch(torch.tensor(ids[1:]))
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def make_inputs(base: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
    """Return what the loss takes for each of `ROWS`; half of the ratios are beyond the clips."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for ids in ROWS:
        old = score(base, ids).detach() + 0.3 * torch.randn(len(ids) - 1, generator=generator)
        rows.append({"logprobs": old, "advantages": torch.randn(len(ids) - 1, generator=generator)})
    return rows


def train(client: tinker.TrainingClient, inputs: list[dict[str, torch.Tensor]]) -> None:
    data = [make_datum(ids, **row) for ids, row in zip(ROWS, inputs, strict=True)]
    client.forward_backward(data, "ppo", CLIP).result(SECONDS)
    client.optim_step(types.AdamParams(**ADAM)).result(SECONDS)


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name].data, rtol=0, atol=tolerance, msg=lambda text, name=name: name + text
        )


def assert_differ(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert max(float((value - other[name]).abs().max()) for name, value in one.items()) > 1e-3


def get_logprobs(output: types.ForwardBackwardOutput, row: int = 0) -> torch.Tensor:
    return output.loss_fn_outputs[row]["logprobs"].to_torch()


def test_a_saved_state_goes_on_as_if_nothing_had_been(server: Server, create: Any, base: torch.nn.Module) -> None:
    client, inputs = create(seed=3), make_inputs(base)
    train(client, inputs)
    path = client.save_state("state").result(SECONDS).path
    train(client, inputs)
    expected = server.read_adapter(client, "end")

    other = create(seed=4)
    train(other, inputs)
    other.load_state_with_optimizer(path).result(SECONDS)
    train(other, inputs)
    assert_equal(server.read_adapter(other, "end"), expected, 1e-6)

    other.load_state(path).result(SECONDS)
    train(other, inputs)
    weights_only = server.read_adapter(other, "weights-only")
    if server.dialect == "skyrl":  # knows no state without an optimizer
        assert_equal(weights_only, expected, 1e-6)
    else:
        assert_differ(weights_only, expected)


def test_samples_are_repeated_by_seed_and_scored_as_forward_scores_them(
    server: Server, create: Any, base: torch.nn.Module
) -> None:
    client, prompt = create(), types.ModelInput.from_ints(PROMPT)
    train(client, make_inputs(base))
    sampler = client.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=6, seed=5, temperature=0.7, top_k=50, top_p=0.9)
    first, again = (sampler.sample(prompt, 2, params).result(SECONDS).sequences for _ in range(2))
    assert [one.tokens for one in first] == [one.tokens for one in again]
    assert first[0].tokens != first[1].tokens
    assert all(one.stop_reason == "length" for one in first)
    for one in first:
        scored = get_logprobs(client.forward([make_datum([*PROMPT, *one.tokens])], "cross_entropy").result(SECONDS))
        torch.testing.assert_close(torch.tensor(one.logprobs), scored[-6:], rtol=0, atol=1e-5)

    computed = sampler.compute_logprobs(prompt).result(SECONDS)
    scored = get_logprobs(client.forward([make_datum(PROMPT)], "cross_entropy").result(SECONDS))
    if server.dialect == "documented":
        assert computed.pop(0) is None
    torch.testing.assert_close(torch.tensor(computed), scored, rtol=0, atol=1e-5)


def test_the_archive_is_a_peft_directory(server: Server, create: Any, tmp_path: Path, base: torch.nn.Module) -> None:
    client = create()
    train(client, make_inputs(base))
    client.save_weights_for_sampler("end").result(SECONDS)
    for name, content in server.download(client, "end").items():
        (tmp_path / name).write_bytes(content)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (RANK, 32)
    if server.dialect == "skyrl":
        assert config["target_modules"] is None
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"target_modules": TARGETS}))
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(server.model), tmp_path)
    scored = get_logprobs(client.forward([make_datum(PROMPT)], "cross_entropy").result(SECONDS))
    torch.testing.assert_close(score(model, PROMPT).detach(), scored, rtol=0, atol=1e-5)


def test_requests_are_done_in_the_order_of_their_submission_but_not_on_skyrl(
    server: Server, create: Any, base: torch.nn.Module
) -> None:
    inputs = make_inputs(base)
    data = [make_datum(ids, **row) for ids, row in zip(ROWS, inputs, strict=True)]
    awaited = create(seed=1)
    for _ in range(2):
        train(awaited, inputs)
    expected = server.read_adapter(awaited, "end")
    client = create(seed=1)
    server.pause(0.5)
    passes, steps = [], []
    for _ in range(2):
        passes.append(client.forward_backward(data, "ppo", CLIP))
        steps.append(client.optim_step(types.AdamParams(**ADAM)))
    for future in [*passes, *steps]:
        future.result(SECONDS)
    if server.dialect == "skyrl":  # steps that wait are done together: the second, which has no gradients yet, is lost
        if isinstance(server, StandIn):
            assert_differ(server.read_adapter(client, "before"), expected)
        client.optim_step(types.AdamParams(**ADAM)).result(SECONDS)
    assert_equal(server.read_adapter(client, "end"), expected)


def test_weight_decay_reaches_the_other_models_of_skyrl(server: Server, create: Any, base: torch.nn.Module) -> None:
    client, other = create(seed=1), create(seed=2)
    before = server.read_adapter(other, "before")
    train(client, make_inputs(base))
    decayed = {name: value * (1 - ADAM["learning_rate"] * ADAM["weight_decay"]) for name, value in before.items()}
    assert_equal(server.read_adapter(other, "after"), decayed if server.dialect == "skyrl" else before, 1e-7)


def test_an_old_checkpoint_that_is_sampled_overwrites_what_is_trained_on_skyrl(
    server: Server, create: Any, base: torch.nn.Module
) -> None:
    client, inputs, prompt = create(), make_inputs(base), types.ModelInput.from_ints(PROMPT)
    start = server.read_adapter(client, "start")
    sampler = server.service.create_sampling_client(model_path=client.save_weights_for_sampler("old").result(60).path)
    train(client, inputs)
    trained = server.read_adapter(client, "trained")
    old = sampler.compute_logprobs(prompt).result(SECONDS)[-10:]
    torch.testing.assert_close(torch.tensor(old), score(base, PROMPT).detach()[-10:], rtol=0, atol=1e-5)
    assert_equal(server.read_adapter(client, "after"), start if server.dialect == "skyrl" else trained, 1e-6)

    train(client, inputs)
    again = sampler.compute_logprobs(prompt).result(SECONDS)[-10:]
    assert (again == pytest.approx(old, abs=1e-5)) == (server.dialect != "skyrl")
