"""Weights on a server of the Tinker API as a policy; every completion is kept, and none is paid for twice."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import fsum
from pathlib import Path
from typing import Any, Final, NamedTuple

import tinker

from trailnotes.config.schema import Config
from trailnotes.config.toml import RUNTIME_KEYS, flatten_config, is_within
from trailnotes.errors import ConfigError, PolicyError, ServerError
from trailnotes.policies.base import TrainedPolicy, make_probes, shield_until_done
from trailnotes.policies.chat import ChatFormat, encode_replies
from trailnotes.policies.hf.engine import StopCondition, require_room
from trailnotes.policies.hf.policy import load_tokenizer
from trailnotes.storage import checkpoint
from trailnotes.storage.checkpoint import read_json
from trailnotes.storage.files import append_jsonl, read_jsonl, split_after
from trailnotes.types import THINK, Completion, FinishReason, Message, Sampling, TokenIds
from trailnotes.web.tinker import WEIGHTS_TTL, TinkerServer

logger = logging.getLogger(__name__)
MAX_STOP_IDS: Final = 32  # sent with a request; what a stop text looks like besides is cut off here
LEARNER_FILE: Final = "learner.json"  # beside the model of a checkpoint; what the learner wrote there
_UNHASHED_KEYS: Final = (
    *RUNTIME_KEYS, "run.name", "run.trackers", "train.save_every", "train.keep_last", "train.eval_every",
    "train.validation_split", "eval", "warmstart",
)  # fmt: skip
"""Settings on which the weights of a version do not depend. All others count: those of a method, and new ones."""

_STATE = re.compile(r"tinker://[\w:.-]+/weights/[\w.-]+")


class SampledTokens(NamedTuple):
    ids: list[int]
    logprobs: list[float]
    reason: FinishReason


class TinkerPolicy(TrainedPolicy):
    """Policy that samples on a server, from the base model until `load` names other weights.

    `model.path` names the base model there, and the tokenizer here; in the directory of a checkpoint it stands for what
    the server kept at that checkpoint. `directory` is that of the run, for its completions; None keeps none.
    """

    def __init__(self, config: Config, server: TinkerServer, directory: Path | None = None) -> None:
        self.server, self.name, self.version = server, config.model.path, 0
        if not (Path(self.name) / "adapter_config.json").is_file():
            server.require_model(self.name, config.rollout.max_context_tokens)
        # Its name on the hub has neither a variant nor a third part.
        path = self.name if Path(self.name).exists() else "/".join(self.name.partition(":")[0].split("/")[:2])
        self.tokenizer = load_tokenizer(config.model.model_copy(update={"path": path}))
        self.context_length = config.rollout.max_context_tokens
        self.format = ChatFormat(self.tokenizer, config.model.template_options)
        self.append_only = self.format.append_only
        self.endings = StopCondition(self.format.decode, self.format.end_ids, self.format.opening)
        self.probes: Sequence[Completion] = make_probes(self.format, self.context_length)
        self._tolerance = config.engine.max_logprob_mismatch
        is_off = config.model.template_options.get("enable_thinking") is False
        self._thinks = bool(self.endings.opening) or (THINK[0] in self.tokenizer.get_vocab() and not is_off)
        self._stop_ids: dict[tuple[str, ...], list[int]] = {}
        self._requests: dict[str, Counter[str]] = {}  # of each open episode: how often it made each request
        self._num_under_way = self._newest = 0
        self._kept = CompletionCache(directory, config)
        self._reported = (0, 0)
        if config.run.deterministic:
            logger.warning(
                "the server may batch other requests with these, so the run does not repeat bit for bit: set "
                "run.deterministic = false"
            )
        self._state = _find_state(Path(config.model.path))  # "" for a base model
        self._adapters: Any = None
        weights = ""
        if self._state:
            make = server.service.create_training_client_from_state
            self._adapters = server.call(lambda: make(self._state), f"loading {self._state}")
            kept = self._adapters.save_weights_for_sampler("evaluated", ttl_seconds=WEIGHTS_TTL)
            weights = server.wait(kept, "saving the weights").path
        self._sampler = self._open_sampler(weights)

    def open_episode(self, episode: str) -> None:
        if episode in self._requests:
            raise PolicyError(f"episode {episode!r} is open already: each live episode needs a name of its own")
        self._requests[episode] = Counter()

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Sample the next assistant turn, or take the one that is kept of an earlier start.

        Raises as `Policy.generate`, and `BudgetError` for a request that could pass `learner.max_tokens_total`.
        """
        prompt_ids = self.encode(messages)
        require_room(prompt_ids, sampling, self.context_length)
        if episode not in self._requests:
            raise PolicyError(f"episode {episode!r} is not open: call open_episode first")
        same = self._kept.hash_request(self._state or self.version, prompt_ids, sampling)
        key = f"{same}.{self._requests[episode][same]}"
        self._requests[episode][same] += 1
        kept = self._kept.find(key)
        if kept is None:
            self._num_under_way += 1
            try:
                kept = await shield_until_done(self._sample(key, prompt_ids, sampling))
            finally:
                self._num_under_way -= 1
        return self._cut(prompt_ids, kept, sampling)

    def close_episode(self, episode: str) -> None:
        self._requests.pop(episode, None)

    async def score(self, messages: Sequence[Message], replies: Sequence[str | TokenIds]) -> list[float]:
        prompt, rows = encode_replies(self.format, messages, replies, self.context_length)
        scored = await self._score([(prompt, row) for row in rows])
        return [fsum(row) / len(row) for row in scored]

    async def load(self, weights: Any, version: int, logprobs: Sequence[Sequence[float]] = ()) -> float:
        """Sample from the weights of this name from now on, as `TrainedPolicy.load`."""
        if self._num_under_way:
            raise PolicyError(f"the weights changed while {self._num_under_way} completions were under way")
        assert isinstance(weights, str), "they are on the server"
        self._sampler = self._open_sampler(weights)
        probes = [(probe.prompt_ids, probe.token_ids) for probe in self.probes]
        pairs = zip(await self._score(probes), logprobs, strict=True) if logprobs else ()
        apart = [abs(a - b) for row, other in pairs for a, b in zip(row, other, strict=True)]
        distance = fsum(apart) / max(1, len(apart))
        if not distance <= self._tolerance:
            raise PolicyError(
                f"{self.server.url} samples from other weights than it trains (version {version}): they are "
                f"{distance:.3g} nats apart, on average over {len(apart)} tokens, and engine.max_logprob_mismatch = "
                f"{self._tolerance:g}: raise it where the server rounds, else begin again at the last checkpoint"
            )
        self.version, self._newest = version, max(self._newest, version)
        self._kept.forget_saved()
        return distance

    def report(self) -> dict[str, float]:
        """Count the completions since the last call, and those that an earlier start had paid for."""
        now = self._kept.requests, self._kept.reused
        requests, reused = (a - b for a, b in zip(now, self._reported, strict=True))
        self._reported = now
        return {"completions": float(requests), "reused": float(reused)}

    def close(self) -> None:
        """Give the room of an evaluated checkpoint back; the session ends with the process."""
        if self._adapters is not None:
            self.server.release(self._adapters.model_id)

    def _open_sampler(self, weights: str) -> Any:
        base = None if weights else self.name
        return self.server.call(
            lambda: self.server.service.create_sampling_client(model_path=weights or None, base_model=base),
            "opening the sampler",
        )

    async def _sample(self, key: str, prompt_ids: TokenIds, sampling: Sampling) -> SampledTokens:
        """Sample a completion; it is counted and kept before it is used."""
        params = tinker.SamplingParams(
            max_tokens=sampling.max_tokens, temperature=sampling.temperature, top_p=sampling.top_p,
            top_k=sampling.top_k or -1, seed=sampling.seed % 2**31, stop=self._find_stop_ids(sampling.stop),
        )  # fmt: skip
        with self.server.ledger.reserve(len(prompt_ids) + sampling.max_tokens):
            pending = self._sampler.sample(tinker.ModelInput.from_ints(list(prompt_ids)), 1, params)
            (sequence,) = (await self.server.wait_async(pending, "sampling")).sequences
            self.server.ledger.add(prefilled=len(prompt_ids), sampled=len(sequence.tokens))
        tokens, logprobs = sequence.tokens, sequence.logprobs
        if not tokens or logprobs is None or len(logprobs) != len(tokens):
            raise PolicyError(f"{self.server.url} gives {len(tokens)} tokens without as many log-probabilities")
        sampled = SampledTokens([*tokens], [*logprobs], "length" if sequence.stop_reason == "length" else "stop")
        self._kept.store(self._newest, key, sampled)  # what older weights write is kept as long
        return sampled

    def _cut(self, prompt_ids: TokenIds, sampled: SampledTokens, sampling: Sampling) -> Completion:
        """Cut a completion where this package's engines would have ended it."""
        ids, logprobs = tuple(sampled.ids), tuple(sampled.logprobs)
        for size in range(1, len(ids) + 1):
            if end := self.endings.find_end(ids[:size], sampling):
                return Completion(prompt_ids, ids[:size], logprobs[:size], *end)
        text = self.endings.opening + self.format.decode(ids)  # the server ended it by a rule of its own
        return Completion(prompt_ids, ids, logprobs, sampling.cut_at_stop(text)[0], sampled.reason)

    def _find_stop_ids(self, stops: tuple[str, ...]) -> list[int]:
        """Find the tokens that end a completion for sure: the ends of a turn, and blank ones that hold a stop text."""
        if stops not in self._stop_ids:
            ids = list(self.endings.end_ids)
            # Thoughts may hold a stop text.
            for token in range(len(self.tokenizer)) if stops and not self._thinks else ():
                text = self.format.decode((token,))
                if not text.strip() and any(stop in text for stop in stops):
                    ids.append(token)
            self._stop_ids[stops] = ids[:MAX_STOP_IDS]
        return self._stop_ids[stops]

    async def _score(self, rows: Sequence[tuple[TokenIds, TokenIds]]) -> list[list[float]]:
        """Score the tokens of each reply after its prompt."""
        tokens = sum(len(prompt) + len(reply) for prompt, reply in rows)
        self.server.ledger.spend(prefilled=tokens, sampled=len(rows))  # the SDK has a token sampled after each row
        inputs = [tinker.ModelInput.from_ints([*prompt, *reply]) for prompt, reply in rows]
        pending = [self._sampler.compute_logprobs(each) for each in inputs]
        scores = [await self.server.wait_async(each, "scoring") or () for each in pending]
        if any(len(row) < len(reply) for row, (_, reply) in zip(scores, rows, strict=True)):
            raise ServerError(f"{self.server.url} gives no log-probabilities of prompts, which training here needs")
        # A server may leave out the first token, which has no context, so rows are counted from their ends.
        return [[float(value) for value in row[-len(reply) :]] for row, (_, reply) in zip(scores, rows, strict=True)]


def _find_state(path: Path) -> str:
    """Find the name of the state that a server saved with a checkpoint's model; "" for a base model."""
    if not (path / "adapter_config.json").is_file():
        return ""
    file = path.parent / LEARNER_FILE
    state = str(read_json(file).get("state")) if file.is_file() else ""
    if not _STATE.fullmatch(state):
        raise ConfigError(f"{file} does not say what a server of the Tinker API calls the weights of {path}: set "
                          'learner.name = "torch", which loads them here')  # fmt: skip
    return state


class CompletionCache:
    """Sampled completions since the last checkpoint, on disk before they are used.

    A run that was killed plays its iterations since then again, by the same seeds, and finds here what it has paid for.
    Each version of the weights has a file ``completions/VERSION.jsonl`` in the directory of the run, which also holds
    what older weights, those of an author, wrote meanwhile.
    """

    def __init__(self, directory: Path | None, config: Config) -> None:
        self._directory = directory
        self._completions: dict[str, SampledTokens] = {}
        self.requests = self.reused = 0
        values = flatten_config(config)
        # Without a decay of the learning rate more iterations change no earlier one.
        limits = () if config.optim.lr_decay else ("train.iterations", "train.max_env_steps", "train.max_tokens")
        settings = {name: values[name] for name in values if not is_within(name, (*_UNHASHED_KEYS, *limits))}
        self._settings = json.dumps(settings, sort_keys=True)
        if directory is not None:
            (directory / "completions").mkdir(parents=True, exist_ok=True)
            for path in sorted((directory / "completions").glob("*.jsonl")):
                split_after(path)  # a line that was cut short
                for line in read_jsonl(path):
                    self._completions[str(line["key"])] = SampledTokens(line["ids"], line["logprobs"], line["reason"])

    def hash_request(self, version: int | str, prompt_ids: TokenIds, sampling: Sampling) -> str:
        text = json.dumps([self._settings, version, prompt_ids, asdict(sampling)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def find(self, key: str) -> SampledTokens | None:
        """Find a completion, and drop it from memory: a start asks for each once."""
        self.requests += 1
        kept = self._completions.pop(key, None)
        self.reused += kept is not None
        return kept

    def store(self, version: int, key: str, sampled: SampledTokens) -> None:
        if self._directory is not None:
            path = self._directory / "completions" / f"{version:06d}.jsonl"
            append_jsonl(path, [{"key": key, **sampled._asdict()}])

    def forget_saved(self) -> None:
        """Delete the files of versions before the last two checkpoints, which no start plays again."""
        if self._directory is None:
            return
        saved = checkpoint.scan(self._directory / "checkpoints", contents=False)
        last = [each for each in saved if not each.problems][-2:]  # the newest may turn out to be damaged
        oldest = int(checkpoint.load_meta(last[0].path)["iteration"]) if last else 0
        for path in (self._directory / "completions").glob("*.jsonl"):
            if path.stem.isdecimal() and int(path.stem) < oldest:
                path.unlink(missing_ok=True)
