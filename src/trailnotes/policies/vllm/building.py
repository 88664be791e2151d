"""From a config to engines that run."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from trailnotes.config.model_schema import EngineConfig
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.policies.hf.network import Network
from trailnotes.policies.hf.policy import (
    get_context_length,
    load_model,
    load_tokenizer,
    resolve_base_model,
    resolve_device,
)
from trailnotes.policies.vllm.link import EngineConnection
from trailnotes.policies.vllm.policy import VLLMPolicy
from trailnotes.policies.vllm.process import (
    CORE_FILE,
    EngineProcess,
    build_environment,
    find_engine_python,
    make_work_dir,
)
from trailnotes.policies.vllm.remote import ModelRequirement, connect_engine, get_token, parse_address
from trailnotes.policies.vllm.replica import Connect
from trailnotes.policies.vllm.worker import wire
from trailnotes.types import Completion

logger = logging.getLogger(__name__)

SHARED_GPU_FRACTION = 0.45  # of a GPU on which the learner has its weights, gradients and moments, too
DEDICATED_GPU_FRACTION = 0.9  # of a GPU that is the engine's own
CPU_MEMORY_FRACTION = 0.25  # of the host's memory, for the KV cache
CACHE_BLOCK_TOKENS = 32  # tokens of the KV cache that are taken at a time


def make_vllm_policy(
    config: Config, *, trains: bool = False, core: Path = CORE_FILE, connects: Sequence[Connect] = ()
) -> VLLMPolicy:
    """The model at `model.path` in engines of vLLM, which have started when this returns.

    Args:
        config: its sections `model`, `engine` and `rollout`.
        trains: a learner will hand over its weights before anybody plays. Where not, what engines cannot read of
            `model.path` by themselves is handed over here: adapters, and everything to engines on other machines.
        core: the file with the engine's class `Core`.
        connects: how each engine is started or reached; () as the config says, see `connections`.

    Raises:
        ConfigError: `model`, `engine.python` or `engine.urls` cannot be used.
        MissingExtraError: vLLM is nowhere to be found.
        PolicyError: an engine does not start, an address is none of an engine, or vLLM cannot run the model.
    """
    if config.run.deterministic:
        logger.warning(
            'run.deterministic is not kept by engine.name = "vllm": batches form as requests arrive, which may change '
            "the last bits of a log-probability, and with them a token now and then"
        )
    folder = make_work_dir(count_weight_bytes(config))
    ways = connects or make_connectors(config, folder, core)
    tokenizer = load_tokenizer(config.model)
    settings = build_engine_settings(config, folder)
    if len(tokenizer) > settings["vocabulary"]:
        raise PolicyError(
            f"the tokenizer has {len(tokenizer)} tokens but the model embeds only {settings['vocabulary']}: "
            "they do not belong together, or the embeddings were never resized"
        )
    path, is_local, saved = resolve_base_model(config.model)
    policy = VLLMPolicy(
        ways,
        tokenizer,
        folder,
        name=config.model.path,
        context_length=settings["context"],
        end_ids=_generation_end_ids(path, is_local),
        template_options=config.model.template_options,
        dtype=getattr(torch, config.model.dtype),
        temperature=config.rollout.temperature,
        tolerance=config.engine.max_logprob_mismatch,
        sleeps=settings["sleeps"] and trains,
        adapters=_adapter_settings(config, saved),
    )
    try:
        if (config.engine.urls or connects) and not trains:
            policy.load_initial_weights(*_load_weights(config, policy.probes))
        elif saved and not trains:
            policy.load_initial_weights(_load_saved_adapters(config.model.path))
    except BaseException:
        policy.close()
        raise
    return policy


def _load_weights(config: Config, probes: Sequence[Completion]) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """The model at `model.path`, of a base with adapters these alone; and what the whole says of each probe."""
    model, _ = load_model(config.model.model_copy(update={"device": "cpu"}))
    adapters = hasattr(model, "peft_config")
    weights = {name: p for name, p in model.named_parameters() if not adapters or ".lora_" in name}
    network = Network(model)
    return weights, [network.score_replies(each.prompt_ids, [each.token_ids])[0] for each in probes]


def validate_engine_settings(engine: EngineConfig) -> None:
    """Refuse engines that cannot be there, before anything is loaded. Raises as `vllm_policy` does; asks nobody."""
    for host, _ in map(parse_address, engine.urls):
        get_token(host)
    if not engine.urls:
        find_engine_python(engine.python)


def make_connectors(config: Config, folder: Path, core: Path = CORE_FILE) -> list[Connect]:
    """How to start, or to reach, each of the engines that a config names. Raises as `vllm_policy` does."""
    engine = config.engine
    if engine.urls:
        return [
            partial(connect_engine, partial(parse_address, url), engine, get_model_requirement(config))
            for url in engine.urls
        ]
    python = find_engine_python(engine.python)
    settings = build_engine_settings(config, folder)
    return [partial(start_engine, config, python, settings, core, index) for index in range(engine.replicas)]


def get_model_requirement(config: Config) -> ModelRequirement:
    """What an engine that somebody else has started must have."""
    return fingerprint_model(resolve_base_model(config.model)[0]), _lora_rank(config)


def start_engine(
    config: Config, python: str, settings: Mapping[str, Any], core: Path, index: int, _again: bool
) -> EngineConnection:
    """Start an engine's process. Nothing is waited for."""
    engine, devices = config.engine, config.engine.devices
    own = devices[index] if devices else ""
    process = spawn_engine_process(config, python, Path(settings["spool"]) / f"engine-{index}.log", core, devices=own)
    told = {**settings, "tensor_parallel": own.count(",") + 1}
    return send_settings(process, f"engine {index}", engine, told)


def spawn_engine_process(
    config: Config, python: str, log: Path, core: Path, *, devices: str = "", inherit: int | None = None
) -> EngineProcess:
    """A process for an engine of this config."""
    _, is_local, _ = resolve_base_model(config.model)
    variables = build_environment(
        on_cpu=resolve_device(config.model.device).type == "cpu",
        threads=config.run.threads,
        offline=is_local,
        devices=devices,
    )
    return EngineProcess(python, variables, log, core=core, inherit=() if inherit is None else (inherit,))


def send_settings(
    process: EngineProcess, label: str, engine: EngineConfig, settings: Mapping[str, Any]
) -> EngineConnection:
    """The link to a process, which has been told its settings."""
    process.connection.sendall(wire.encode_frame(["start", dict(settings)]))
    return EngineConnection(
        process.connection,
        label,
        start_timeout=engine.start_timeout,
        timeout=engine.timeout,
        buried=process.kill,
    )


def build_engine_settings(config: Config, folder: Path, *, alone: bool = False) -> dict[str, Any]:
    """What an engine's process is told about the model, see `worker.core.Core`.

    Args:
        config: its sections `model`, `engine` and `rollout`.
        folder: for weights and logs.
        alone: the engine serves at an address, and whoever learns has another device.
    """
    path, is_local, _ = resolve_base_model(config.model)
    architecture = transformers.AutoConfig.from_pretrained(path, local_files_only=is_local, trust_remote_code=False)
    text = architecture.get_text_config(decoder=True)
    context = min(get_context_length(config.model), config.rollout.max_context_tokens)
    shared = config.has_shared_gpu and not alone and resolve_device(config.model.device).type == "cuda"
    return {
        "model": path,
        "fingerprint": fingerprint_model(path),
        "vocabulary": text.vocab_size,
        "dtype": config.model.dtype,
        "context": context,
        "max_concurrent": config.engine.max_concurrent,
        "seed": config.run.seed % (1 << 32),
        "tensor_parallel": 1,
        "device_memory": config.engine.device_memory
        or (SHARED_GPU_FRACTION if shared else DEDICATED_GPU_FRACTION) / _count_engines_per_device(config.engine),
        "cache_bytes": compute_cache_bytes(text, config, context),
        "lora_rank": _lora_rank(config),
        "sleeps": shared and not config.rollout.max_async_iterations,
        "spool": str(folder),
    }


def compute_cache_bytes(text: Any, config: Config, context: int) -> int:
    """Bytes of the KV cache on a CPU: room for `engine.max_concurrent` full contexts, in a share of the memory.

    A token takes, in each layer, a key and a value of `head_dim` numbers for each of the key-value heads.
    """
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    channels = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token: int = 2 * text.num_hidden_layers * heads * channels * getattr(torch, config.model.dtype).itemsize
    one = -(-context // CACHE_BLOCK_TOKENS) * CACHE_BLOCK_TOKENS * token
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = int(
        memory * (config.engine.device_memory or CPU_MEMORY_FRACTION) / _count_engines_per_device(config.engine)
    )
    return max(2 * one, min(one * config.engine.max_concurrent, share))  # a block more than one context is needed


def count_weight_bytes(config: Config) -> int | None:
    """Bytes of the model's files, about as many as travel at each update; None where they are not in a directory."""
    files = list(Path(resolve_base_model(config.model)[0]).glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) if files else None


def fingerprint_model(path: str) -> str:
    """Tells models of different shapes apart, whatever machine and version of transformers they are read by."""
    architecture = transformers.AutoConfig.from_pretrained(
        path, local_files_only=Path(path).is_dir(), trust_remote_code=False
    )
    text = architecture.get_text_config(decoder=True)
    names = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return hashlib.sha256(repr([getattr(text, name, None) for name in names]).encode()).hexdigest()[:16]


def _count_engines_per_device(engine: EngineConfig) -> int:
    """Engines on one device."""
    return 1 if engine.devices else engine.replicas


def _lora_rank(config: Config) -> int:
    saved = resolve_base_model(config.model)[2]
    own = config.model.lora.rank if config.model.lora.enabled else 0
    return int(saved.r) if saved else own


def _adapter_settings(config: Config, saved: Any | None) -> dict[str, Any] | None:
    """What the tensors of the adapters do not show; None for a whole model."""
    if saved:
        if saved.peft_type.value != "LORA" or saved.use_dora or saved.modules_to_save:
            raise ConfigError(
                f"model.path = {config.model.path!r} holds adapters that vLLM cannot run: merge them first (trailnotes "
                f'export {config.model.path} --merge --out DIR), or set engine.name = "hf"'
            )
        return {"lora_alpha": saved.lora_alpha, "use_rslora": bool(saved.use_rslora)}
    return {"lora_alpha": config.model.lora.alpha} if config.model.lora.enabled else None


def _load_saved_adapters(path: str) -> dict[str, torch.Tensor]:
    file = Path(path).expanduser() / "adapter_model.safetensors"
    if not file.is_file():  # a pickle is never read
        raise ConfigError(f'{file} is not there: merge the adapters first, or set engine.name = "hf"')
    tensors: dict[str, torch.Tensor] = load_file(file)
    return tensors


def _generation_end_ids(path: str, is_local: bool) -> frozenset[int]:
    """End tokens that the model's own settings name, beside those of its tokenizer."""
    try:
        named = transformers.GenerationConfig.from_pretrained(path, local_files_only=is_local).eos_token_id
    except OSError:  # it brings none; transformers makes them of the model's config
        architecture = transformers.AutoConfig.from_pretrained(path, local_files_only=is_local, trust_remote_code=False)
        named = getattr(architecture, "eos_token_id", None)
    return frozenset(named) if isinstance(named, list) else frozenset() if named is None else frozenset({int(named)})
