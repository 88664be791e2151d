"""Engines of vLLM as a policy whose weights a learner sends."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from math import fsum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.policies.base import TrainedPolicy, make_probes
from trailnotes.policies.chat import ChatFormat, encode_replies
from trailnotes.policies.hf import policy as hf
from trailnotes.policies.hf.decoder import Network
from trailnotes.policies.hf.engine import StopCondition, require_room
from trailnotes.policies.vllm import server
from trailnotes.policies.vllm.engine import Connect, ProbeRecord, Replica, WeightFiles
from trailnotes.types import Completion, Message, Sampling, TokenIds
from trailnotes.web.loopback import is_loopback

logger = logging.getLogger(__name__)
T = TypeVar("T")
_ADAPTER = re.compile(r"\.(\w+)\.lora_([AB])\.(?:\w+\.)?weight$")  # module, side, and the adapters' name


def make_vllm_policy(
    config: Config, *, trains: bool = False, connects: Sequence[Connect] = (), directory: Path | None = None
) -> VLLMPolicy:
    """Load `model.path` into engines of vLLM, which have started when this returns.

    Args:
        config: its sections `model`, `engine` and `rollout`.
        trains: a learner will hand over its weights before any episode. Where not, this function hands over what
            engines cannot read of `model.path` by themselves: adapters, and everything to engines on other machines.
        connects: how each engine is started or reached; () as the config says.
        directory: of the run, from which engines on other machines read weights.

    Raises `ConfigError` or `MissingExtraError` for settings that cannot be used, and `PolicyError` where an engine does
    not start or answer, or cannot run the model.
    """
    if config.run.deterministic:
        logger.warning(
            'run.deterministic is not kept by engine.name = "vllm": batches form as requests arrive, which may change '
            "the last bits of a log-probability, and with them a token now and then"
        )
    is_elsewhere = bool(connects or config.engine.urls)
    folder = _make_weight_dir(config, directory if is_elsewhere else None)
    if not connects:
        server.validate_engine_settings(config.engine)
        connects = [partial(server.EngineServer, f"engine {url}", url.rstrip("/")) for url in config.engine.urls]
    if not connects:
        connects = [partial(server.start_engine, config, i, folder) for i in range(config.engine.replicas)]
    policy = VLLMPolicy(config, connects, folder, sleeps=trains and not is_elsewhere and server.is_sleeping(config))
    try:
        policy.map_replicas(Replica.start)
        if not trains:
            _load_initial_weights(config, policy, is_elsewhere=is_elsewhere)
    except BaseException:
        policy.close()
        raise
    return policy


def _load_initial_weights(config: Config, policy: VLLMPolicy, *, is_elsewhere: bool) -> None:
    if is_elsewhere:
        model, _ = hf.load_model(config.model.model_copy(update={"attn_implementation": ""}), "cpu")
        has_adapters, network = hasattr(model, "peft_config"), Network(model)
        weights = {name: p for name, p in model.named_parameters() if not has_adapters or ".lora_" in name}
        logprobs = [network.score_replies(each.prompt_ids, [each.token_ids])[0] for each in policy.probes]
        policy.load_blocking(weights, 0, logprobs, 1.0)
    elif hf.resolve_base_model(config.model)[2]:
        file = Path(config.model.path).expanduser() / "adapter_model.safetensors"
        if not file.is_file():  # a pickle is never read
            raise ConfigError(f'{file} is not there: merge the adapters first, or set engine.name = "hf"')
        policy.load_blocking(load_file(file), 0)


def _make_weight_dir(config: Config, shared: Path | None) -> Path:
    """Make the folder of weights: in a private directory, or in the run directory, for engines on other machines."""
    hosts = [urlsplit(url).hostname or "" for url in config.engine.urls]
    if shared is None or (hosts and all(map(is_loopback, hosts))):
        files = list(Path(hf.resolve_base_model(config.model)[0]).glob("*.safetensors"))  # as many bytes as an update
        return server.make_work_dir(sum(file.stat().st_size for file in files) if files else None)
    folder = shared.resolve() / "engine-weights"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True)
    return folder


def _get_adapter_settings(config: Config) -> dict[str, Any] | None:
    """Collect the settings that the tensors of the adapters do not show; None for a whole model."""
    saved = hf.resolve_base_model(config.model)[2]
    if not saved:
        return {"lora_alpha": config.model.lora.alpha} if config.model.lora.enabled else None
    if saved.peft_type.value != "LORA" or saved.use_dora or saved.modules_to_save or saved.alpha_pattern:
        raise ConfigError(
            f"model.path = {config.model.path!r} holds adapters that vLLM cannot run: merge them first (trailnotes "
            f'export {config.model.path} --merge --out DIR), or set engine.name = "hf"'
        )
    return {"lora_alpha": saved.lora_alpha, "use_rslora": bool(saved.use_rslora)}


def _find_end_ids(config: Config) -> frozenset[int]:
    path, is_local, _ = hf.resolve_base_model(config.model)
    try:
        end = transformers.GenerationConfig.from_pretrained(path, local_files_only=is_local).eos_token_id
    except OSError:  # it brings none; transformers makes them of the model's config
        end = getattr(hf.load_architecture(config.model), "eos_token_id", None)
    return frozenset(end if isinstance(end, list) else [] if end is None else [end])


class VLLMPolicy(TrainedPolicy):
    """Policy that samples from engines with the same weights, which `make_vllm_policy` makes.

    An episode begins with the engine that has the fewest, and stays with it, where its prefix is in the cache. Batches
    form as requests arrive: equal seeds give equal tokens but for the last bits of what is computed together. Weights
    are files in `folder`, which every engine sees under this path, and which is the policy's own.
    """

    def __init__(self, config: Config, connects: Sequence[Connect], folder: Path, *, sleeps: bool) -> None:
        self.tokenizer, self.name, self.version = hf.load_tokenizer(config.model), config.model.path, 0
        self._architecture = hf.load_architecture(config.model)
        text = self._architecture.get_text_config(decoder=True)
        self.context_length = min(hf.get_context_length(config.model), config.rollout.max_context_tokens)
        self.format = ChatFormat(self.tokenizer, config.model.template_options)
        hf.validate_vocabulary(self.format, text.vocab_size)
        self.append_only = self.format.append_only
        end_ids = self.format.end_ids | _find_end_ids(config)
        self.endings = StopCondition(self.format.decode, end_ids, self.format.opening)
        self.probes: Sequence[Completion] = make_probes(self.format, self.context_length)
        self.replicas = [Replica(connect, self.endings, config.engine) for connect in connects]
        self._sleeps, self._asleep, self._loading = sleeps, False, False
        self._reported = [0, 0, 0]
        self._dtype, self._temperature = getattr(torch, config.model.dtype), config.rollout.temperature
        self._folder, self._adapters = folder, _get_adapter_settings(config)
        copied = self._adapters is not None or config.has_frozen_author  # who goes back to the first weights
        self.reads_learner_memory = sleeps and config.engine.shared_card and not copied and self._renaming is None
        self._assigned: dict[str, Replica | None] = {}  # to the open episodes, at their first request
        self._asking: set[str] = set()
        self._weights: WeightFiles | None = None

    @cached_property
    def _renaming(self) -> Any:
        """Model without memory, by which transformers splits joined experts as its files have them; None: no need.

        The parts are copies, for which a card that engine and learner share has no room.
        """
        if self._adapters is not None:
            return None
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(self._architecture, trust_remote_code=False)
        parameters = dict(model.named_parameters())
        return None if revert_weight_conversion(model, parameters).keys() == parameters.keys() else model

    def open_episode(self, episode: str) -> None:
        if episode in self._assigned:
            raise PolicyError(f"episode {episode!r} is open already: each live episode needs a name of its own")
        self._assigned[episode] = None

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Sample the next assistant turn. An engine that is lost meanwhile is replaced, and asked again."""
        prompt_ids = self.encode(messages)
        require_room(prompt_ids, sampling, self.context_length)
        if episode not in self._assigned:
            raise PolicyError(f"episode {episode!r} is not open: call open_episode first")
        if episode in self._asking:
            raise PolicyError(f"episode {episode!r} has a completion under way: await it first")
        self._require_awake()
        self._asking.add(episode)
        try:
            replica = self._assigned[episode]
            if replica is None:
                replica = self._assigned[episode] = min(self.replicas, key=lambda each: each.num_episodes)
                replica.num_episodes += 1
            return await replica.complete(prompt_ids, sampling)
        finally:
            self._asking.discard(episode)

    def close_episode(self, episode: str) -> None:
        if replica := self._assigned.pop(episode, None):
            replica.num_episodes -= 1

    async def score(self, messages: Sequence[Message], replies: Sequence[str | TokenIds]) -> list[float]:
        """Mean log-probability of the tokens of each reply, at temperature 1; see `HFPolicy.score`."""
        self._require_awake()
        prompt, rows = encode_replies(self.format, messages, replies, self.context_length)
        replica = min(self.replicas, key=lambda each: each.num_episodes)
        whole = [((*prompt, *row), len(prompt)) for row in rows]
        scored = await asyncio.to_thread(replica.ask, lambda client: client.score(whole, 1.0))
        return [fsum(row) / len(row) for row in scored]

    async def load(
        self, weights: Mapping[str, Tensor], version: int, logprobs: Sequence[Sequence[float]] = ()
    ) -> float:
        """Hand weights to every engine, and compare its log-probabilities of the probes with the learner's."""
        if self._asking or self._loading:
            raise PolicyError(f"the weights changed while {len(self._asking)} completions were under way")
        self._loading = True
        try:
            return await asyncio.to_thread(self.load_blocking, weights, version, logprobs, self._temperature)
        finally:
            self._loading = False

    async def sleep(self) -> None:
        if self._sleeps:
            # Level 2 drops the weights: `load` brings others. Level 1 keeps them in the host's memory, from where
            # adapters get their base again; with adapters vLLM 0.32 fails at level 2 (its issue 39934).
            self._asleep, path = True, f"/sleep?level={2 if self.reads_learner_memory else 1}"
            await asyncio.to_thread(self.map_replicas, lambda replica: replica.call(path))

    async def wake(self) -> bool:
        if self._sleeps:
            torch.cuda.empty_cache()  # where there is none, nothing happens
            await asyncio.to_thread(self.map_replicas, lambda replica: replica.call("/wake_up"))
        are_gone, self._asleep = self._asleep and self.reads_learner_memory, False
        return are_gone

    def _require_awake(self) -> None:
        if self._loading or self._asleep:  # vLLM would let a request wait
            state = "take over new weights: await load" if self._loading else "sleep: await wake"
            raise PolicyError(f"the engines {state} before the next completion")

    def report(self) -> dict[str, float]:
        """Count engines started anew since the last call, and the share of prompt tokens found in their caches."""
        names = ("num_rebuilds", "num_read", "num_cached")
        counts = [sum(getattr(each, name) for each in self.replicas) for name in names]
        rebuilds, read, cached = (now - then for now, then in zip(counts, self._reported, strict=True))
        self._reported = counts
        return {"rebuilds": float(rebuilds), "cached": cached / read if read else 0.0}

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def load_blocking(
        self, weights: Mapping[str, Tensor], version: int, logprobs: Sequence[Sequence[float]] = (),
        temperature: float = 1.0,
    ) -> float:  # fmt: skip
        """Do the work of `load`, whose log-probabilities are at this temperature."""
        weights = weights if self._renaming is None else revert_weight_conversion(self._renaming, weights)
        rows = [(probe.prompt_ids + probe.token_ids, len(probe.prompt_ids)) for probe in self.probes]
        record = ProbeRecord(rows, logprobs, temperature) if logprobs else None
        folder = self._folder / f"weights-{secrets.token_hex(8)}"
        before, files = self._weights, WeightFiles(folder, version, is_adapters=False, tensors=weights)
        if not self.reads_learner_memory:
            files = write_weights(weights, folder, version, self._dtype, self._adapters)
        self._weights = files
        distances = self.map_replicas(lambda replica: replica.load(files, record))
        if before:
            shutil.rmtree(before.folder, ignore_errors=True)
        self.version = version
        return max(distances)

    def map_replicas(self, ask: Callable[[Replica], T]) -> list[T]:
        """Ask all engines at once; raise the first error once all have answered."""
        with ThreadPoolExecutor(len(self.replicas)) as pool:
            try:
                return list(pool.map(ask, self.replicas))
            except KeyboardInterrupt:  # or the threads would be waited for
                self.close()
                raise


def write_weights(
    weights: Mapping[str, Tensor], folder: Path, version: int, dtype: torch.dtype, adapters: Mapping[str, Any] | None
) -> WeightFiles:
    """Write a whole model, by the names of its files, or adapters, by peft's, to a new folder.

    `adapters` are the settings that the tensors of adapters do not show, ``lora_alpha`` among them; None for a whole
    model. Raises `PolicyError` where the weights are of the other kind, or cannot be written.
    """

    def convert(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", dtype).contiguous()

    matches = {name: match for name in weights if (match := _ADAPTER.search(name))}
    ranks = {weights[name].shape[0 if match[2] == "A" else 1] for name, match in matches.items()}
    if not weights or len(matches) != (0 if adapters is None else len(weights)):
        wanted = "the adapters alone" if adapters is not None else "a whole model, or set model.lora.enabled = true"
        raise PolicyError(f"{len(matches)} of {len(weights)} tensors are adapters by their names: hand over {wanted}")
    if len(ranks) > 1:
        raise PolicyError(f"the adapters have ranks {sorted(ranks)}: vLLM is given adapters of one rank alone")
    try:
        folder.mkdir(parents=True)
        if adapters is None:
            first: dict[Any, str] = {}  # tied weights are written once
            for name, tensor in weights.items():
                first.setdefault((tensor.data_ptr() or name, tensor.shape, tensor.stride()), name)
            for number, name in enumerate(first.values()):  # a file each: no second copy of the whole model
                save_file({name: convert(weights[name])}, folder / f"model-{number:05}.safetensors")
        else:
            settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": ranks.pop(), **adapters}
            settings["target_modules"] = sorted({match[1] for match in matches.values()})
            (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
            plain = {f"{n[: m.start()]}.{m[1]}.lora_{m[2]}.weight": convert(weights[n]) for n, m in matches.items()}
            save_file(plain, folder / "adapter_model.safetensors")
    except (OSError, SafetensorError) as error:
        raise PolicyError(f"the weights for the engine cannot be written: {error}") from error
    return WeightFiles(folder, version, adapters is not None)
