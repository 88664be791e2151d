"""Engines from a config: started for a run, or served to other machines by `trailnotes engine serve`."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from trailnotes.config.model_schema import EngineConfig
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.policies.hf.decoder import Network
from trailnotes.policies.hf.policy import (
    get_context_length,
    load_model,
    load_tokenizer,
    resolve_base_model,
    resolve_device,
    validate_vocabulary,
)
from trailnotes.policies.vllm.link import (
    EngineConnection,
    EngineLostError,
    ModelRequirement,
    connect_engine,
    get_token,
    parse_address,
)
from trailnotes.policies.vllm.policy import VLLMPolicy
from trailnotes.policies.vllm.process import (
    CORE_FILE,
    EngineProcess,
    build_environment,
    find_engine_python,
    make_work_dir,
)
from trailnotes.policies.vllm.replica import MAX_REBUILDS, Connect
from trailnotes.policies.vllm.worker import wire

logger = logging.getLogger(__name__)

SHARED_GPU_FRACTION = 0.45  # of a GPU on which the learner has its weights, gradients and moments, too
DEDICATED_GPU_FRACTION = 0.9  # of a GPU that is the engine's own
CPU_MEMORY_FRACTION = 0.25  # of the host's memory, for the KV cache
CACHE_BLOCK_TOKENS = 32  # tokens of the KV cache that are taken at a time


def make_vllm_policy(
    config: Config, *, trains: bool = False, core: Path = CORE_FILE, connects: Sequence[Connect] = ()
) -> VLLMPolicy:
    """Load `model.path` into engines of vLLM, which have started when this returns.

    Args:
        config: its sections `model`, `engine` and `rollout`.
        trains: a learner will hand over its weights before any episode. Where not, this function hands over what
            engines
            cannot read of `model.path` by themselves: adapters, and everything to engines on other machines.
        core: the file with the engine's class `Core`.
        connects: how each engine is started or reached; () as the config says, see `make_connectors`.

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
    validate_vocabulary(tokenizer, settings["vocabulary"])
    path, is_local, saved = resolve_base_model(config.model)
    policy = VLLMPolicy(
        ways, tokenizer, folder, name=config.model.path, context_length=settings["context"],
        end_ids=_generation_end_ids(path, is_local), template_options=config.model.template_options,
        dtype=getattr(torch, config.model.dtype), temperature=config.rollout.temperature,
        tolerance=config.engine.max_logprob_mismatch, sleeps=settings["sleeps"] and trains,
        adapters=_adapter_settings(config, saved),
    )  # fmt: skip
    try:
        if (config.engine.urls or connects) and not trains:
            model, _ = load_model(config.model.model_copy(update={"device": "cpu", "attn_implementation": ""}))
            adapters, network = hasattr(model, "peft_config"), Network(model)
            weights = {name: p for name, p in model.named_parameters() if not adapters or ".lora_" in name}
            said = [network.score_replies(each.prompt_ids, [each.token_ids])[0] for each in policy.probes]
            policy.load_initial_weights(weights, said)
        elif saved and not trains:
            policy.load_initial_weights(_load_saved_adapters(config.model.path))
    except BaseException:
        policy.close()
        raise
    return policy


def validate_engine_settings(engine: EngineConfig) -> None:
    """Check that the engines can exist, before anything is loaded or asked. Raises as `make_vllm_policy`."""
    for host, _ in map(parse_address, engine.urls):
        get_token(host)
    if not engine.urls:
        find_engine_python(engine.python)


def make_connectors(config: Config, folder: Path, core: Path = CORE_FILE) -> list[Connect]:
    """Make a function for each engine of a config that starts or reaches it. Raises as `make_vllm_policy`."""
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
    """Describe the model that an engine of another process must have."""
    return fingerprint_model(resolve_base_model(config.model)[0]), _lora_rank(config)


def start_engine(
    config: Config, python: str, settings: Mapping[str, Any], core: Path, index: int, _again: bool = False
) -> EngineConnection:
    """Start the process of engine `index`, and wait for nothing. It inherits the descriptor `settings["listen"]`."""
    engine, devices = config.engine, config.engine.devices[index] if config.engine.devices else ""
    _, is_local, _ = resolve_base_model(config.model)
    variables = build_environment(
        on_cpu=resolve_device(config.model.device).type == "cpu",
        threads=config.run.threads,
        offline=is_local,
        devices=devices,
    )
    log, inherit = Path(settings["spool"]) / f"engine-{index}.log", [settings["listen"]] if "listen" in settings else []
    process = EngineProcess(python, variables, log, core=core, inherit=inherit)
    told = {**settings, "tensor_parallel": devices.count(",") + 1}
    process.connection.sendall(wire.encode_frame(["start", told]))
    return EngineConnection(
        process.connection, f"engine {index}",
        start_timeout=engine.start_timeout, timeout=engine.timeout, buried=process.kill,
    )  # fmt: skip


def build_engine_settings(config: Config, folder: Path, *, alone: bool = False) -> dict[str, Any]:
    """Build the settings of an engine's process, see `worker.core.Core`; `folder` is for weights and logs.

    With `alone`, the engine serves at an address, and the learner has another device.
    """
    path, is_local, _ = resolve_base_model(config.model)
    architecture = transformers.AutoConfig.from_pretrained(path, local_files_only=is_local, trust_remote_code=False)
    text = architecture.get_text_config(decoder=True)
    context = min(get_context_length(config.model), config.rollout.max_context_tokens)
    shared = config.has_shared_gpu and not alone and resolve_device(config.model.device).type == "cuda"
    engines = 1 if config.engine.devices else config.engine.replicas  # on one device
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
        or (SHARED_GPU_FRACTION if shared else DEDICATED_GPU_FRACTION) / engines,
        "cache_bytes": compute_cache_bytes(text, config, context),
        "lora_rank": _lora_rank(config),
        "sleeps": shared and not config.rollout.max_async_iterations,
        "spool": str(folder),
    }


def compute_cache_bytes(text: Any, config: Config, context: int) -> int:
    """Compute the bytes of the KV cache on a CPU: `engine.max_concurrent` full contexts, in a share of the memory.

    A token takes, in each layer, a key and a value of `head_dim` numbers for each of the key-value heads.
    """
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    channels = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token: int = 2 * text.num_hidden_layers * heads * channels * getattr(torch, config.model.dtype).itemsize
    one = -(-context // CACHE_BLOCK_TOKENS) * CACHE_BLOCK_TOKENS * token
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    engines = 1 if config.engine.devices else config.engine.replicas
    share = int(memory * (config.engine.device_memory or CPU_MEMORY_FRACTION) / engines)
    return max(2 * one, min(one * config.engine.max_concurrent, share))  # a block more than one context is needed


def count_weight_bytes(config: Config) -> int | None:
    """Count the bytes of the model's files, about as many as an update sends; None if they are in no directory."""
    files = list(Path(resolve_base_model(config.model)[0]).glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) if files else None


def fingerprint_model(path: str) -> str:
    """Tell models of different shapes apart, whatever machine and version of transformers reads them."""
    architecture = transformers.AutoConfig.from_pretrained(
        path, local_files_only=Path(path).is_dir(), trust_remote_code=False
    )
    text = architecture.get_text_config(decoder=True)
    names = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return hashlib.sha256(repr([getattr(text, name, None) for name in names]).encode()).hexdigest()[:16]


def _lora_rank(config: Config) -> int:
    saved = resolve_base_model(config.model)[2]
    own = config.model.lora.rank if config.model.lora.enabled else 0
    return int(saved.r) if saved else own


def _adapter_settings(config: Config, saved: Any | None) -> dict[str, Any] | None:
    """Collect the settings that the tensors of the adapters do not show; None for a whole model."""
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
    try:
        named = transformers.GenerationConfig.from_pretrained(path, local_files_only=is_local).eos_token_id
    except OSError:  # it brings none; transformers makes them of the model's config
        architecture = transformers.AutoConfig.from_pretrained(path, local_files_only=is_local, trust_remote_code=False)
        named = getattr(architecture, "eos_token_id", None)
    return frozenset(named) if isinstance(named, list) else frozenset() if named is None else frozenset({int(named)})


logger = logging.getLogger(__name__)
WEIGHT_BYTES_ALLOWANCE = 64 << 20  # bytes that the weights of any model may have
HEALTHY_SECONDS = 600.0  # seconds of service after which an engine that dies has not died at once


def serve_engine(
    config: Config, host: str, port: int, *, say: Callable[[str], None], token: str | None = None,
    core: Path = CORE_FILE,
) -> None:  # fmt: skip
    """Run one engine for policies that know the token, until this process is interrupted.

    Args:
        config: of the run that will use it; the engine gets the first of `engine.devices`.
        host: to listen at; beyond loopback only with a token.
        port: 0 takes a free one.
        say: receives the address once the engine is ready.
        token: shared with its users; None: the one of the environment.
        core: the file with the engine's class `Core`.

    Raises:
        ConfigError: there is no token, the port is taken, or the config cannot be used.
        PolicyError: vLLM cannot run the model, or the engine dies again and again.
    """
    token = get_token(host) if token is None else token
    python = find_engine_python(config.engine.python)
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"replicas": 1})})  # this one
    with open_listener(host, port) as door:
        folder = make_work_dir(count_weight_bytes(config))
        try:
            settings = build_engine_settings(config, folder, alone=True) | {
                "token": token,
                "listen": door.fileno(),
                "most_bytes": max_weight_bytes(config, folder),
            }
            address = f"{host}:{door.getsockname()[1]}"
            deaths = 0
            while True:
                link, began = start_engine(config, python, settings, core, 0), time.monotonic()
                try:
                    link.wait_until_ready()
                    if not deaths:
                        say(address)
                    failure = link.wait_until_lost()
                except EngineLostError as error:
                    failure = str(error)
                finally:
                    link.close()
                deaths = 1 if time.monotonic() - began > HEALTHY_SECONDS else deaths + 1
                if deaths > MAX_REBUILDS:
                    raise PolicyError(f"{failure} (it was started anew {MAX_REBUILDS} times in a row, in vain)")
                logger.warning("%s: it is started anew", failure)
                for upload in folder.glob(f"*{wire.WEIGHTS_SUFFIX}"):  # that it was killed over
                    upload.unlink()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def max_weight_bytes(config: Config, folder: Path) -> int:
    """Limit the bytes of sent weights to four times the model's own, for wider types, or to what is free."""
    size = count_weight_bytes(config)
    return WEIGHT_BYTES_ALLOWANCE + 4 * size if size else shutil.disk_usage(folder).free


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket that a process may inherit. Raises `ConfigError` where it cannot."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigError(
            f"an engine cannot listen at {host}:{port} ({reason}): name another --port (0 takes a free one) or --host"
        ) from error
