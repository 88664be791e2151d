"""Engines from a config: started for a run, or served to other machines by `trailnotes engine serve`."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import transformers
from safetensors.torch import load_file

from trailnotes.config.model_schema import EngineConfig
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.policies.hf.decoder import Network
from trailnotes.policies.hf.policy import (
    get_context_length,
    load_architecture,
    load_model,
    load_tokenizer,
    resolve_base_model,
    resolve_device,
    validate_vocabulary,
)
from trailnotes.policies.vllm import server
from trailnotes.policies.vllm.policy import VLLMPolicy
from trailnotes.policies.vllm.replica import Connect
from trailnotes.policies.vllm.server import EngineServer, build_environment, find_engine_python, make_work_dir
from trailnotes.web.loopback import is_loopback

logger = logging.getLogger(__name__)

SHARED_GPU_FRACTION = 0.45  # of a GPU on which the learner has its weights, gradients and moments, too
DEDICATED_GPU_FRACTION = 0.9  # of a GPU that is the engine's own
CPU_MEMORY_FRACTION = 0.25  # of the host's memory, for the KV cache
CACHE_BLOCK_TOKENS = 32  # tokens of the KV cache that are taken at a time
NUM_ADAPTERS = 2  # in an engine: the new ones are loaded before the old ones go
LORA_RANKS = 1, 8, 16, 32, 64, 128, 256, 320, 512  # that vLLM reserves room for


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

    Raises:
        ConfigError: `model`, `engine.python` or `engine.urls` cannot be used.
        MissingExtraError: vLLM is nowhere to be found.
        PolicyError: an engine does not start, does not answer at its address, or vLLM cannot run the model.
    """
    if config.run.deterministic:
        logger.warning(
            'run.deterministic is not kept by engine.name = "vllm": batches form as requests arrive, which may change '
            "the last bits of a log-probability, and with them a token now and then"
        )
    is_elsewhere = bool(connects or config.engine.urls)
    folder = _make_weight_dir(config, directory if is_elsewhere else None)
    if not connects:
        validate_engine_settings(config.engine)
        connects = [partial(EngineServer, f"engine {url}", url.rstrip("/")) for url in config.engine.urls]
        connects = connects or [partial(start_engine, config, each, folder) for each in range(config.engine.replicas)]
    tokenizer = load_tokenizer(config.model)
    validate_vocabulary(tokenizer, load_architecture(config.model).get_text_config(decoder=True).vocab_size)
    saved = resolve_base_model(config.model)[2]
    policy = VLLMPolicy(
        config, connects, tokenizer, folder, end_ids=_find_end_ids(config),
        adapters=_get_adapter_settings(config, saved),
        sleeps=trains and not is_elsewhere and is_sleeping(config),
    )  # fmt: skip
    if not trains and (is_elsewhere or saved):
        try:
            _load_initial_weights(config, policy, is_elsewhere=is_elsewhere)
        except BaseException:
            policy.close()
            raise
    return policy


def _load_initial_weights(config: Config, policy: VLLMPolicy, *, is_elsewhere: bool) -> None:
    if is_elsewhere:
        model, _ = load_model(config.model.model_copy(update={"device": "cpu", "attn_implementation": ""}))
        has_adapters, network = hasattr(model, "peft_config"), Network(model)
        weights = {name: p for name, p in model.named_parameters() if not has_adapters or ".lora_" in name}
        logprobs = [network.score_replies(each.prompt_ids, [each.token_ids])[0] for each in policy.probes]
        policy.load_initial_weights(weights, logprobs)
    else:
        file = Path(config.model.path).expanduser() / "adapter_model.safetensors"
        if not file.is_file():  # a pickle is never read
            raise ConfigError(f'{file} is not there: merge the adapters first, or set engine.name = "hf"')
        policy.load_initial_weights(load_file(file))


def validate_engine_settings(engine: EngineConfig) -> None:
    """Check that the engines can exist, before anything is loaded or asked. Raises as `make_vllm_policy`."""
    for url in engine.urls:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(
                f"engine.urls: {url!r} is no address of a vLLM server: write http://host:port, as trailnotes engine "
                "serve prints it (tcp:// was the protocol of earlier versions)"
            )
    if not engine.urls:
        find_engine_python(engine.python)


def start_engine(
    config: Config, index: int, folder: Path, *, host: str = "", port: int = 0, program: Path | None = None
) -> EngineServer:
    """Start engine `index`, and wait for nothing; see `start_server`. `program` stands in for vLLM's.

    At a host and port it serves a run elsewhere, and the learner has another device.
    """
    devices = config.engine.devices[index] if config.engine.devices else ""
    command, variables = build_command(config, devices, alone=bool(host), program=program)
    return server.start_server(f"engine {index}", command, variables, folder, host=host, port=port)


def build_command(
    config: Config, devices: str = "", *, alone: bool = False, program: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """Build the command that starts an engine, and its environment variables; with `alone`, for a run elsewhere."""
    path, is_local, saved = resolve_base_model(config.model)
    on_cpu = resolve_device(config.model.device).type == "cpu"
    options: dict[str, Any] = {
        "dtype": config.model.dtype,
        "max-model-len": min(get_context_length(config.model), config.rollout.max_context_tokens),
        "max-num-seqs": config.engine.max_concurrent,
        "seed": config.run.seed % (1 << 32),
        "tensor-parallel-size": devices.count(",") + 1,
        "generation-config": "vllm",  # or the model's own sampling settings would come in unasked
        "logprobs-mode": "processed_logprobs",  # at the temperature, of what is drawn from
        "worker-extension-cls": "engine_worker.WeightLoader",
    }
    flags = ["enable-prefix-caching", "enable-prompt-tokens-details", "skip-tokenizer-init"]
    flags += ["disable-log-stats", "disable-uvicorn-access-log"]
    num_engines = 1 if alone or config.engine.devices else config.engine.replicas  # on one device
    if on_cpu:  # blocks of 128, the default there, would never be shared by prompts that are shorter
        options |= {"block-size": CACHE_BLOCK_TOKENS, "distributed-executor-backend": "uni"}
        text = load_architecture(config.model).get_text_config(decoder=True)
        options["kv-cache-memory-bytes"] = compute_cache_bytes(text, config, options["max-model-len"], num_engines)
        flags.append("enforce-eager")
    else:
        fraction = SHARED_GPU_FRACTION if config.has_shared_gpu and not alone else DEDICATED_GPU_FRACTION
        options["gpu-memory-utilization"] = config.engine.device_memory or fraction / num_engines
        flags += ["enable-sleep-mode"] * (is_sleeping(config) and not alone)
    if rank := int(saved.r) if saved else config.model.lora.rank * config.model.lora.enabled:
        if rank > LORA_RANKS[-1]:
            raise ConfigError(f"model.lora.rank = {rank}: vLLM has adapters of rank {LORA_RANKS[-1]} at most")
        options |= {"max-loras": NUM_ADAPTERS, "max-lora-rank": next(room for room in LORA_RANKS if room >= rank)}
        flags.append("enable-lora")
    command = [find_engine_python(config.engine.python), str(program or server.PROGRAM), "serve", path]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    variables = build_environment(on_cpu=on_cpu, threads=config.run.threads, offline=is_local, devices=devices)
    return command + [f"--{name}" for name in flags], variables


def is_sleeping(config: Config) -> bool:
    """Tell whether the engines leave their GPU to the learner while it learns."""
    shared = config.has_shared_gpu and resolve_device(config.model.device).type == "cuda"
    return shared and not config.rollout.max_async_iterations


def compute_cache_bytes(text: Any, config: Config, context: int, num_engines: int | None = None) -> int:
    """Compute the bytes of the KV cache on a CPU: `engine.max_concurrent` full contexts, in a share of the memory.

    A token takes, in each layer, a key and a value of `head_dim` numbers for each of the key-value heads.
    """
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    channels = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token: int = 2 * text.num_hidden_layers * heads * channels * getattr(torch, config.model.dtype).itemsize
    one = -(-context // CACHE_BLOCK_TOKENS) * CACHE_BLOCK_TOKENS * token
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    num_engines = num_engines or (1 if config.engine.devices else config.engine.replicas)
    share = int(memory * (config.engine.device_memory or CPU_MEMORY_FRACTION) / num_engines)
    return max(2 * one, min(one * config.engine.max_concurrent, share))  # a block more than one context is needed


def _make_weight_dir(config: Config, shared: Path | None) -> Path:
    """Make the folder of weights: in a private directory, or in the run directory, for engines on other machines."""
    hosts = [urlsplit(url).hostname or "" for url in config.engine.urls]
    if shared is None or (hosts and all(map(is_loopback, hosts))):
        files = list(Path(resolve_base_model(config.model)[0]).glob("*.safetensors"))  # as many bytes as an update
        return make_work_dir(sum(file.stat().st_size for file in files) if files else None)
    folder = shared.resolve() / "engine-weights"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True)
    return folder


def _get_adapter_settings(config: Config, saved: Any | None) -> dict[str, Any] | None:
    """Collect the settings that the tensors of the adapters do not show; None for a whole model."""
    if not saved:
        return {"lora_alpha": config.model.lora.alpha} if config.model.lora.enabled else None
    if saved.peft_type.value != "LORA" or saved.use_dora or saved.modules_to_save:
        raise ConfigError(
            f"model.path = {config.model.path!r} holds adapters that vLLM cannot run: merge them first (trailnotes "
            f'export {config.model.path} --merge --out DIR), or set engine.name = "hf"'
        )
    return {"lora_alpha": saved.lora_alpha, "use_rslora": bool(saved.use_rslora)}


def _find_end_ids(config: Config) -> frozenset[int]:
    path, is_local, _ = resolve_base_model(config.model)
    try:
        end = transformers.GenerationConfig.from_pretrained(path, local_files_only=is_local).eos_token_id
    except OSError:  # it brings none; transformers makes them of the model's config
        end = getattr(load_architecture(config.model), "eos_token_id", None)
    return frozenset(end if isinstance(end, list) else [] if end is None else [end])
