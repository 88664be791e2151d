"""The engines side by side: tokens a second, and what vLLM takes to start, to feed, and to start anew after a kill.

Ours, transformers' own continuous batching, and vLLM play the same episodes of the same model, 16 at a time, with one
thread each: a random one, or that of --model. Continuous batching shares what prompts begin with by pages of 32 tokens,
as vLLM does here. vLLM runs where `make vllm` has put it, or in the environment of --python; without it the others are
measured alone.

    python benchmarks/engines.py --json engines.json
    python benchmarks/engines.py --model HuggingFaceTB/SmolLM2-135M-Instruct --json engines-smollm2.json
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from shared import cpu_seconds, finish, make_model, make_parser, make_tokenizer, print_table

from rollout import QUICK, Workload, observations
from trailnotes.config.schema import Config
from trailnotes.errors import MissingExtraError
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.policies.vllm import VLLMPolicy, make_vllm_policy
from trailnotes.types import Completion, Message, Sampling

CONTEXT = 2048  # at least
PAGE = 32  # tokens that are shared at a time, the block of vLLM on a CPU
SIDES = ("hf", "transformers", "vllm")
SPARE = 64  # rows of the embeddings, for what transformers adds to a tokenizer that it loads


def play(policy: Any, texts: Sequence[Sequence[str]], load: Workload, *pids: int) -> tuple[float, float]:
    """Sampled tokens a second, and a CPU second of this process and of `pids`; all episodes at once."""

    async def episode(index: int) -> int:
        name = f"episode-{index:02d}"
        policy.open_episode(name)
        messages: list[Message] = []
        for turn, row in enumerate(texts):
            messages.append(Message("user", row[index]))
            sampling = Sampling(max_tokens=load.action_tokens, seed=1000 * index + turn)
            completion = await policy.generate(messages, sampling, name)
            messages.append(Message("assistant", completion.text, completion.token_ids))
        policy.close_episode(name)
        return load.turns * load.action_tokens

    async def run() -> int:
        return sum(await asyncio.gather(*(episode(index) for index in range(load.batch))))

    start, spent = time.perf_counter(), sum(map(cpu_seconds, (0, *pids)))
    num = asyncio.run(run())
    return num / (time.perf_counter() - start), num / (sum(map(cpu_seconds, (0, *pids))) - spent)


class Continuous:
    """transformers' continuous batching, as far as `play` asks it."""

    def __init__(self, policy: HFPolicy, manager: Any) -> None:
        self._policy, self._manager = policy, manager
        self._number = 0

    def open_episode(self, episode: str) -> None:
        """It knows no episodes."""

    close_episode = open_episode

    async def generate(self, messages: Sequence[Message], sampling: Sampling, _episode: str) -> Completion:
        """Sample the next turn, with log-probabilities; seeds are the manager's own."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._number += 1
        ids = self._policy.encode(messages)
        self._manager.register_result_handler(str(self._number), answer.set_result)
        self._manager.add_request(list(ids), request_id=str(self._number), max_new_tokens=sampling.max_tokens)
        found = await answer
        if found.error:
            raise RuntimeError(found.error)
        tokens = tuple(found.generated_tokens)
        return Completion(ids, tokens, tuple(found.logprobs), self._policy.format.decode(tokens), "length")


@contextmanager
def continuous(policy: HFPolicy, load: Workload, context: int) -> Iterator[Continuous]:
    """It runs in a thread inside the block, with room for all episodes, as both others have it."""
    settings = transformers.generation.configuration_utils.ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=load.batch * context // PAGE + 176, max_batch_tokens=CONTEXT, return_logprobs=True,
        auto_switch_to_flash=False, use_cuda_graph=False, use_async_batching=False, seed=0,
    )  # fmt: skip
    sampled = transformers.GenerationConfig(do_sample=True, temperature=1.0, eos_token_id=-1, pad_token_id=0)
    manager = policy.model.init_continuous_batching(sampled, settings)
    manager.start()
    try:
        yield Continuous(policy, manager)
    finally:
        manager.stop(block=True)
        manager.destroy()


def words_of(tokenizer: Any) -> list[str]:
    """Words that are one token each after a space, in the order of their ids; [] where words are tokens anyway."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return [token[1:] for token, _ in vocabulary if re.fullmatch("[Ġ▁][a-z]{3,9}", token)]


def context_of(policy: HFPolicy, texts: Sequence[Sequence[str]], load: Workload) -> int:
    """Tokens that the longest episode may take, in whole pages."""
    said = Message("assistant", "", (policy.encode([Message("user", "a")])[0],) * load.action_tokens)
    talks = [[m for row in texts for m in (Message("user", row[index]), said)] for index in range(load.batch)]
    longest = max(len(policy.encode(talk)) for talk in talks)
    return max(CONTEXT, -(-longest // PAGE) * PAGE)


def medians(speeds: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Of several repeats."""
    wall, cpu = (statistics.median(column) for column in zip(*speeds, strict=True))
    return {"tokens_per_second": wall, "tokens_per_cpu_second": cpu}


def scorer(model: Any) -> Callable[[Sequence[Completion]], list[list[float]]]:
    """The learner's part of a check."""

    def score(completions: Sequence[Completion]) -> list[list[float]]:
        found = []
        for completion in completions:
            with torch.no_grad():
                logits = model(torch.tensor([completion.prompt_ids + completion.token_ids])).logits[0].float()
            rows = torch.log_softmax(logits, dim=-1)[len(completion.prompt_ids) - 1 :]
            found.append([float(row[token]) for row, token in zip(rows, completion.token_ids, strict=False)])
        return found

    return score


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def start_vllm(config: Config, tokenizer: Any, *, trains: bool = False) -> closing[VLLMPolicy]:
    """An engine with this tokenizer: from a file of Qwen2's kind transformers would make another."""
    with mock.patch("trailnotes.policies.hf.policy.load_tokenizer", return_value=tokenizer):
        return closing(make_vllm_policy(config, trains=trains))


def measure_vllm(
    path: Path, model: Any, tokenizer: Any, texts: Any, load: Workload, python: str, context: int
) -> dict[str, float]:
    """What the engine gives, and what it takes to start it, to feed it, and to start anew after a kill."""
    config = Config(
        run={"deterministic": False, "threads": 1},
        model={"path": str(path), "device": "cpu", "dtype": str(model.dtype).removeprefix("torch.")},
        engine={"name": "vllm", "python": python, "max_concurrent": load.batch},
        rollout={"max_context_tokens": context},
    )
    score = scorer(model)
    start, engine = timed(lambda: start_vllm(config, tokenizer))
    with engine as policy:
        policy.endings.end_ids = frozenset()
        play(policy, texts[:1], load)  # whatever is made at the first request
        client = policy.replicas[0].client
        assert client is not None
        assert client.server.process is not None
        pid = client.server.process.pid
        children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        pids = [pid, *map(int, itertools.chain.from_iterable(children))]
        speeds = [play(policy, texts, load, *pids) for _ in range(load.repeats)]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)
        loads = [timed(lambda: asyncio.run(policy.load(model.state_dict(), 1, score(policy.probes)))) for _ in range(3)]
        os.kill(pid, signal.SIGKILL)
        rebuild, _ = timed(lambda: play(policy, texts[:1], load))
        return {
            **medians(speeds),
            "start_seconds": start,
            "load_seconds": statistics.median(seconds for seconds, _ in loads),
            "rebuild_seconds": rebuild,
            "nats": max(nats for _, nats in loads),
        }


def loaded(load: Workload, path: str, dtype: str) -> tuple[Any, Any]:
    """The model, and its tokenizer."""
    if path:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), trust_remote_code=False
        )
        return model.eval(), transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    model = make_model(
        load.vocab_size + SPARE, load.hidden_size, load.num_layers, heads=load.hidden_size // 64, pad_token_id=0,
        max_position_embeddings=CONTEXT, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return model, make_tokenizer(load.vocab_size)


def measure(load: Workload, python: str, path: str = "", dtype: str = "float32") -> dict[str, Any]:
    """All engines on one workload."""
    torch.set_num_threads(1)
    model, tokenizer = loaded(load, path, dtype)
    texts = observations(load, words_of(tokenizer))
    policy = HFPolicy(model, tokenizer, deterministic=False)
    policy.engine.endings.end_ids = frozenset()
    context = context_of(policy, texts, load)
    play(policy, texts[:1], load)
    speeds = [play(policy, texts, load) for _ in range(load.repeats)]
    result: dict[str, Any] = {
        "workload": asdict(load), "model": path or "random", "dtype": dtype, "context": context, "hf": medians(speeds),
    }  # fmt: skip
    with continuous(policy, load, context) as theirs:
        play(theirs, texts[:1], load)
        result["transformers"] = medians([play(theirs, texts, load) for _ in range(load.repeats)])
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        try:
            result["vllm"] = measure_vllm(Path(folder), model, tokenizer, texts, load, python, context)
        except MissingExtraError as error:
            result["vllm_missing"] = str(error)
    result["ratios"] = {
        name: result["hf"]["tokens_per_cpu_second"] / result[name]["tokens_per_cpu_second"]
        for name in ("transformers", "vllm")
        if name in result
    }
    return result


def report(result: dict[str, Any]) -> None:
    """As a table."""
    rows = [(name, figure, f"{value:.3g}") for name in SIDES for figure, value in result.get(name, {}).items()]
    load = result["workload"]
    print_table(
        f"{load['batch']} episodes of {load['turns']} turns of {load['action_tokens']} tokens, one thread",
        ("engine", "figure", "value"),
        rows,
        left=("engine", "figure"),
    )
    for name, ratio in result["ratios"].items():
        print(f"tokens a CPU second, hf over {name}: {ratio:.2f}")
    if "vllm_missing" in result:
        print(result["vllm_missing"])


def main() -> None:
    """Measure and report."""
    parser = make_parser(__doc__, "a smaller model, once")
    parser.add_argument("--python", default="", metavar="PATH", help="as engine.python")
    parser.add_argument("--model", default="", metavar="PATH", help="a causal LM of transformers, played once")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of --model")
    parser.add_argument("--episodes", type=int, metavar="N", help="side by side (16)")
    parser.add_argument("--action-tokens", type=int, metavar="N", help="sampled in each turn (8)")
    parser.add_argument("--turns", type=int, metavar="N", help="of each episode (20)")
    args = parser.parse_args()
    load = QUICK if args.quick else Workload()
    if args.episodes:
        load = replace(load, batch=args.episodes)
    if args.action_tokens:
        load = replace(load, action_tokens=args.action_tokens)
    if args.turns:
        load = replace(load, turns=args.turns)
    if args.model:
        load = replace(load, repeats=1)
    finish(measure(load, args.python, args.model, args.dtype), report, args.json)


if __name__ == "__main__":
    main()
