"""The policy and its engines' processes: weights, replicas, and everything that may happen to a process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from children import alive, wait_for
from trailnotes.errors import ConfigError, MissingExtraError, PolicyError
from trailnotes.policies.vllm import server
from trailnotes.policies.vllm.policy import VLLMPolicy
from trailnotes.types import Completion, Message, Sampling

PROGRAM = Path(__file__).parents[2] / "markov.py"
HALL = [Message("user", "A hall.")]


def pid_of(policy: VLLMPolicy, index: int = 0) -> int:
    served = policy.replicas[index].server
    assert served is not None
    assert served.process is not None
    return served.process.pid


def ask(policy: VLLMPolicy, *samplings: Sampling) -> list[Completion]:
    """Completions of as many episodes, all at once."""

    async def run() -> list[Completion]:
        names = [f"e{i}" for i in range(len(samplings))]
        for name in names:
            policy.open_episode(name)
        try:
            pairs = zip(names, samplings, strict=True)
            return await asyncio.gather(*(policy.generate(HALL, sampling, name) for name, sampling in pairs))
        finally:
            for name in names:
                policy.close_episode(name)

    return asyncio.run(run())


def seeded(num: int, **options: Any) -> list[Sampling]:
    return [Sampling(**{"max_tokens": 6, "seed": seed} | options) for seed in range(num)]


# -- what it says


def test_tokens_come_with_their_logprobs_of_the_newest_weights(policy_of, learner) -> None:
    policy = policy_of(temperature=0.5)

    def score(completions: Any) -> Any:
        return learner.score(completions, 0.5)

    assert asyncio.run(policy.load({"table": learner.table}, 0, score(policy.probes))) < 1e-6
    for version in (1, 2):
        assert asyncio.run(policy.load(learner.update(version), version, score(policy.probes))) < 1e-5
        assert policy.version == version
        for completion in ask(policy, *seeded(4, temperature=0.5)):
            (wanted,) = score([completion])
            assert list(completion.logprobs) == pytest.approx(wanted, abs=1e-5)


def test_a_stop_text_ends_ids_and_text_as_it_does_with_the_embedded_engine(policy_of, learner) -> None:
    policy = policy_of()
    (free,) = ask(policy, Sampling(max_tokens=30, seed=5))
    texts = [policy.format.decode((token,)) for token in free.token_ids]
    place = next(
        i for i, text in enumerate(texts) if i > 3 and text.isascii() and text.strip() and text not in texts[:i]
    )
    (cut,) = ask(policy, Sampling(max_tokens=30, seed=5, stop=(texts[place],)))
    assert cut.token_ids == free.token_ids[: place + 1]
    assert cut.logprobs == free.logprobs[: place + 1]
    assert (cut.text, cut.finish_reason) == (policy.format.decode(free.token_ids[:place]), "stop")


def test_an_end_token_is_in_the_ids_and_not_in_the_text(policy_of, learner) -> None:
    policy = policy_of()
    end = min(policy.endings.end_ids)
    weights = learner.update(1)
    weights["table"][:, end] = 50.0
    asyncio.run(policy.load(weights, 1, learner.score(policy.probes)))
    (completion,) = ask(policy, Sampling(max_tokens=9))
    assert (completion.token_ids, completion.text, completion.finish_reason) == ((end,), "", "stop")


def test_adapters_reach_the_engine_by_either_of_peft_s_names(policy_of, learner) -> None:
    policy = policy_of(model={"lora": {"enabled": True, "rank": 2, "alpha": 6.0}})
    size = len(learner.table)
    for version, suffix in ((1, "weight"), (2, "default.weight")):
        a, b = torch.randn(2, size), torch.randn(size, 2)
        learner.table = 3.0 * b @ a  # alpha / rank
        adapters = {f"base_model.model.table.lora_A.{suffix}": a, f"base_model.model.table.lora_B.{suffix}": b}
        assert asyncio.run(policy.load(adapters, version, learner.score(policy.probes))) < 1e-4
    with pytest.raises(PolicyError, match="hand over the adapters alone"):
        asyncio.run(policy.load(learner.update(1), 3, learner.score(policy.probes)))
    with pytest.raises(PolicyError, match="1 of 2 tensors are adapters"):
        asyncio.run(policy.load({"m.x.lora_A.weight": a, "table": b}, 3, learner.score(policy.probes)))


def test_a_whole_model_takes_no_adapters(policy_of, learner) -> None:
    with pytest.raises(PolicyError, match=r"set model.lora.enabled = true"):
        asyncio.run(policy_of().load({"m.x.lora_A.weight": torch.zeros(2, 3)}, 1))


def test_what_is_reported_is_since_the_last_report(policy_of) -> None:
    policy = policy_of(replicas=2)

    async def run() -> None:
        for name in "abc":  # by turns with either engine
            policy.open_episode(name)
            await policy.generate(HALL, Sampling(max_tokens=2), name)

    asyncio.run(run())
    assert policy.report() == {"rebuilds": 0.0, "cached": pytest.approx(1 / 3)}  # the third found all of its prompt
    assert policy.report() == {"rebuilds": 0.0, "cached": 0.0}
    os.kill(pid_of(policy, 1), signal.SIGKILL)  # which has the fewest episodes
    wait_for(lambda: policy.replicas[1].server.has_ended)
    asyncio.run(policy.score(HALL, ["no"]))
    assert policy.report()["rebuilds"] == 1.0


def test_a_score_is_the_mean_over_a_reply_at_temperature_1_even_while_others_speak(policy_of, learner, faults) -> None:
    policy = policy_of(temperature=0.5)
    asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes, 0.5)))
    (faults / "slow").touch()
    reply = (5, 6, 7)

    async def run() -> tuple[Completion, list[float]]:
        policy.open_episode("e")
        speaking = asyncio.create_task(policy.generate(HALL, Sampling(max_tokens=20), "e"))
        await asyncio.sleep(0)
        scores = await policy.score(HALL, [reply, "go north"])
        return await speaking, scores

    completion, scores = asyncio.run(run())
    assert len(completion.token_ids) == 20
    prompt, spoken = policy.encode(HALL), policy.format.encode_reply(HALL, "go north")
    wanted = learner.score([Completion(prompt, ids, (0.0,) * len(ids), "") for ids in (reply, spoken)])
    assert scores == pytest.approx([sum(row) / len(row) for row in wanted], abs=1e-5)
    with pytest.raises(PolicyError, match="exceed the context of 200"):
        asyncio.run(policy.score(HALL, [reply * 100]))


def test_engines_sleep_where_they_share_a_device_with_the_learner(policy_of, faults: Path) -> None:
    policy = policy_of()
    asyncio.run(policy.sleep())
    assert not (faults / "asleep").exists()  # there is none on a CPU
    policy._sleeps = True
    asyncio.run(policy.sleep())
    assert (faults / "asleep").exists()
    asyncio.run(policy.wake())
    assert not (faults / "asleep").exists()
    os.kill(pid_of(policy), signal.SIGKILL)
    wait_for(lambda: policy.replicas[0].server.has_ended)
    asyncio.run(policy.sleep())  # a new one is started when it is needed
    asyncio.run(policy.wake())
    assert ask(policy, Sampling())


def test_a_closed_policy_starts_no_engine_anew(policy_of) -> None:
    policy = policy_of()
    policy.close()
    with pytest.raises(PolicyError, match="the engines were closed"):
        ask(policy, Sampling())


# -- weights that do not arrive


def test_an_engine_that_keeps_its_old_weights_is_found_out(policy_of, learner, faults: Path) -> None:
    policy = policy_of(tolerance=0.01)
    (faults / "ignore-load").touch()
    with pytest.raises(PolicyError, match=r"engine 0 has other weights than the learner \(version 4\): .* nats off"):
        asyncio.run(policy.load(learner.update(4), 4, learner.score(policy.probes)))


def test_weights_that_an_engine_refuses(policy_of, learner) -> None:
    with pytest.raises(PolicyError, match="engine 0: there is no tensor named other"):
        asyncio.run(policy_of().load({"other": torch.zeros(2, 2)}, 1))


def test_weights_may_not_change_under_a_completion(policy_of, learner, faults: Path) -> None:
    policy = policy_of()
    (faults / "slow").touch()

    async def run() -> None:
        policy.open_episode("e")
        asking = asyncio.create_task(policy.generate(HALL, Sampling(max_tokens=8), "e"))
        await asyncio.sleep(0)
        with pytest.raises(PolicyError, match="changed while 1 completions were under way"):
            await policy.load(learner.update(1), 1, learner.score(policy.probes))
        await asking
        loading = asyncio.create_task(policy.load(learner.update(1), 1, learner.score(policy.probes)))
        await asyncio.sleep(0)
        with pytest.raises(PolicyError, match="await load before the next completion"):
            await policy.generate(HALL, Sampling(), "e")
        await loading

    asyncio.run(run())
    assert policy.version == 1


def test_numbers_that_are_not_finite_are_an_error(policy_of, faults: Path) -> None:
    policy = policy_of()
    (faults / "nan").touch()
    with pytest.raises(PolicyError, match="not finite"):
        ask(policy, Sampling())


# -- several


def test_episodes_go_to_the_engine_that_has_the_fewest_and_stay(policy_of, learner) -> None:
    policy = policy_of(replicas=2)
    asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes)))
    seats: list[tuple[str, Any]] = []

    async def run() -> None:
        for name in "abcd":
            policy.open_episode(name)
            await policy.generate(HALL, Sampling(max_tokens=2), name)
            seats.append((name, policy._assigned[name]))
        policy.close_episode("a")
        policy.close_episode("c")  # the first engine has none now
        policy.close_episode("never opened")
        for name in "ebfd":
            if name in "ef":
                policy.open_episode(name)
            await policy.generate(HALL, Sampling(max_tokens=2), name)
            seats.append((name, policy._assigned[name]))

    asyncio.run(run())
    first, second = policy.replicas
    assert seats[:4] == [("a", first), ("b", second), ("c", first), ("d", second)]
    assert seats[4:] == [("e", first), ("b", second), ("f", first), ("d", second)]
    assert Counter(replica.num_episodes for replica in policy.replicas) == {2: 2}


# -- processes that end


@pytest.mark.parametrize("fault", ["die-once", "hang-once", "stop-once"])
def test_an_engine_lost_in_mid_generation_is_replaced_and_asked_again(policy_of, learner, faults, fault) -> None:
    policy = policy_of(timeout=3.0)
    asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes)))
    before, pid = ask(policy, *seeded(3)), pid_of(policy)
    (faults / fault).touch()
    assert ask(policy, *seeded(3)) == before  # with the weights of the last load
    assert policy.replicas[0].num_rebuilds == 1
    wait_for(lambda: not alive(pid))
    assert ask(policy, *seeded(3)) == before


def test_nobody_asks_a_new_engine_before_it_has_the_weights(policy_of, learner, faults: Path) -> None:
    policy = policy_of()
    asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes)))
    before = ask(policy, *seeded(3))
    (faults / "slow-load").touch()
    os.kill(pid_of(policy), signal.SIGKILL)

    async def late(policy: VLLMPolicy) -> Completion:
        await asyncio.sleep(0.3)
        policy.open_episode("late")
        return await policy.generate(HALL, Sampling(max_tokens=6, seed=2), "late")

    async def run() -> list[Completion]:
        policy.open_episode("early")
        early = policy.generate(HALL, Sampling(max_tokens=6, seed=1), "early")
        return await asyncio.gather(early, late(policy))

    assert asyncio.run(run()) == before[1:]


def test_an_engine_lost_between_two_requests_or_in_a_load(policy_of, learner, faults: Path) -> None:
    policy = policy_of()
    os.kill(pid_of(policy), signal.SIGKILL)
    ask(policy, Sampling())
    (faults / "die-in-load-once").touch()
    assert asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes))) < 1e-5
    assert policy.replicas[0].num_rebuilds == 2


def test_an_engine_that_dies_each_time_is_given_up_with_its_last_words(policy_of, faults: Path) -> None:
    policy = policy_of()
    (faults / "die-always").touch()
    with pytest.raises(PolicyError) as raised:
        ask(policy, Sampling())
    assert "engine 0 died of SIGKILL; its last words: RuntimeError: out of memory" in str(raised.value)
    assert "started anew 3 times in a row, in vain" in str(raised.value)
    (faults / "die-always").unlink()
    with pytest.raises(PolicyError, match="in vain"):
        ask(policy, Sampling())


def test_an_engine_that_comes_back_with_other_weights_is_no_good(policy_of, learner, faults: Path) -> None:
    policy = policy_of()
    asyncio.run(policy.load(learner.update(1), 1, learner.score(policy.probes)))
    (faults / "ignore-load").touch()
    os.kill(pid_of(policy), signal.SIGKILL)
    with pytest.raises(PolicyError, match="other weights than the learner"):
        ask(policy, Sampling())


def test_a_cancelled_request_leaves_the_others_alone(policy_of, faults: Path) -> None:
    policy = policy_of()
    (expected,) = ask(policy, Sampling(max_tokens=6))
    (faults / "slow").touch()

    async def run() -> Completion:
        policy.open_episode("a")
        policy.open_episode("b")
        doomed = asyncio.create_task(policy.generate(HALL, Sampling(max_tokens=60), "a"))
        other = asyncio.create_task(policy.generate(HALL, Sampling(max_tokens=6), "b"))
        await asyncio.sleep(0.01)
        doomed.cancel()
        return await other

    assert asyncio.run(run()) == expected
    assert not policy._asking


def test_engines_end_with_a_policy_that_is_closed(policy_of, faults: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(replicas=2)
    pids = [pid_of(policy, index) for index in (0, 1)]
    policy.close()
    policy.close()
    assert not any(map(alive, pids))


def test_engines_end_with_a_parent_that_is_killed(config_of, model_path: Path, tmp_path: Path) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from trailnotes.config.schema import Config
        from trailnotes.policies.vllm import make_vllm_policy, server
        config = Config(model={"path": sys.argv[1], "device": "cpu"}, engine={"python": sys.executable})
        server.PROGRAM = Path(sys.argv[2])
        policy = make_vllm_policy(config)
        print(policy.replicas[0].server.process.pid, policy._folder, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(model_path), str(PROGRAM)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout
        pid, folder = parent.stdout.readline().split()
        assert alive(int(pid))
        assert Path(folder).exists()
        parent.kill()
    wait_for(lambda: not alive(int(pid)))
    server.make_work_dir()  # the next one clears away what was left, here or in any process of this machine
    assert not Path(folder).exists()


# -- what never starts


def test_an_engine_that_dies_at_its_start(policy_of, faults: Path) -> None:
    (faults / "die-at-start").touch()
    with pytest.raises(PolicyError, match=r"engine 0 exited with status 1; its last words: .*no memory left"):
        policy_of()


def test_an_engine_that_takes_too_long(policy_of, faults: Path) -> None:
    (faults / "slow-start").touch()
    with pytest.raises(PolicyError, match=r"did not start within engine.start_timeout = 2 s"):
        policy_of(start_timeout=2.0)


def test_a_python_that_is_none_and_one_without_vllm(config_of, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from trailnotes.policies.vllm import make_vllm_policy

    with pytest.raises(ConfigError, match=r"engine.python = '/no/python' is no program"):
        make_vllm_policy(config_of(python="/no/python"))
    with pytest.raises(PolicyError, match=r"vLLM is not installed for .*: name a Python that has it"):
        make_vllm_policy(config_of())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "CLONE_PYTHON", Path("not-there") / "python")
    with pytest.raises(MissingExtraError, match=r"run make vllm in a clone .* as engine\.python"):
        server.find_engine_python("")
    own = tmp_path / "not-there" / "python"
    own.parent.mkdir()
    own.touch()
    assert server.find_engine_python("") == str(own)


def test_a_run_that_wants_to_be_deterministic_is_told_that_it_is_not(config_of, caplog, faults: Path) -> None:
    from trailnotes.policies.vllm import make_vllm_policy

    config = config_of()
    config = config.model_copy(update={"run": config.run.model_copy(update={"deterministic": True})})
    make_vllm_policy(config).close()
    assert "run.deterministic is not kept" in caplog.text
