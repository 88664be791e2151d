"""Any causal LM of transformers as a policy: loading it, and generating with a KV cache for each episode."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trailnotes.config.builtin import resolve_model_path
from trailnotes.config.model_schema import NO_MODEL_MESSAGE, EngineConfig, ModelConfig, require_model_directory
from trailnotes.errors import ConfigError, MissingExtraError, PolicyError, format_install_command, require_extra
from trailnotes.policies.base import TrainedPolicy
from trailnotes.types import Completion, Message, Sampling, TokenIds
from trailnotes.web.faults import is_retryable

try:
    import torch
    import transformers
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError
    from torch import Tensor

    from trailnotes.policies.chat import WORD_START, ChatFormat, encode_replies
    from trailnotes.policies.hf.adapters import (
        FoldedModel,
        add_adapters,
        get_trained_parameters,
        load_adapter_config,
        load_adapters,
        suppress_future_warnings,
    )
    from trailnotes.policies.hf.decoder import MAX_TOKENS, make_decoder
    from trailnotes.policies.hf.engine import Engine, require_room
    from trailnotes.policies.hf.graphs import make_static
    from trailnotes.policies.template import SYSTEM_HEAD, alternate_roles
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"{missing.name} is not installed: {format_install_command('train')}") from missing


logger = logging.getLogger(__name__)
UNLIMITED = 1 << 30  # context of a model that states none
REQUEST_TIMEOUT = 20.0  # seconds for the one request to the hub


class HFPolicy(TrainedPolicy):
    """Policy that samples from a model of transformers in this process.

    After the learner has changed the weights of this model, it must call `bump_version`. `template_options` go to the
    tokenizer's chat template.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "", deterministic: bool = True,
        engine: EngineConfig | None = None, max_context_tokens: int | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.model, settings = model, engine or EngineConfig()
        self._folded = FoldedModel(model) if settings.fold_adapters and hasattr(model, "peft_config") else None
        if settings.fold_adapters and self._folded is None:
            logger.warning("settings without effect: engine.fold_adapters (needs a model with adapters)")
        self.tokenizer = tokenizer
        self.name = name or str(getattr(model.config, "name_or_path", "") or type(model).__name__)
        self.version = 0
        self.context_length = min(_compute_context_length(model.config), max_context_tokens or UNLIMITED)
        self.format = ChatFormat(tokenizer, template_options)
        self.append_only = self.format.append_only
        validate_vocabulary(self.format, model.get_input_embeddings().num_embeddings)
        end = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        end_ids = self.format.end_ids.union(end if isinstance(end, list) else () if end is None else (int(end),))
        self._update_folded()
        acting = model if self._folded is None else self._folded.model
        decoder = make_decoder(
            acting, self.context_length, shared_prompts=settings.shared_prompts, burst=settings.burst
        )
        decoder = make_static(decoder) if settings.graphs else decoder
        self.engine = Engine(
            decoder, self.format.decode, end_ids, deterministic=deterministic, opening=self.format.opening
        )

    def open_episode(self, episode: str) -> None:
        self.engine.open(episode)

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        prompt_ids = self.encode(messages)
        require_room(prompt_ids, sampling, self.context_length)
        self._update_folded()
        return await self.engine.generate(prompt_ids, sampling, episode)

    async def score(self, messages: Sequence[Message], replies: Sequence[str | TokenIds]) -> list[float]:
        """Compute the mean log-probability of the tokens of each reply to a conversation, in nats at temperature 1.

        A text counts with the end of its turn, ids as they were sampled; neither may be empty. Raises `PolicyError`
        where prompt and longest reply exceed the context.
        """
        prompt, rows = encode_replies(self.format, messages, replies, self.context_length)
        self._update_folded()
        width = len(prompt) + max(map(len, rows), default=0)
        size = max(1, MAX_TOKENS // width)
        network = self.engine.decoder.network
        parts = (network.score_replies(prompt, rows[i : i + size]) for i in range(0, len(rows), size))
        return [math.fsum(row) / len(row) for part in parts for row in part]

    def close_episode(self, episode: str) -> None:
        self.engine.close(episode)

    async def sleep(self) -> None:
        self.engine.decoder.free_idle()

    def bump_version(self) -> None:
        """Count a new version of the weights and clear the cache. Raises `PolicyError` as `reset_cache`."""
        self.reset_cache()
        self.version += 1

    async def load(self, weights: Mapping[str, Tensor], version: int, logprobs: Any = ()) -> float:  # noqa: ARG002
        """Copy the weights of a learner whose model is another one; no probes, since a copy cannot go wrong."""
        self.reset_cache()
        own = get_trained_parameters(self.model)
        if strange := weights.keys() - own.keys():
            raise PolicyError(f"the learner's weights are another model's, e.g. {min(strange)}")
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        self.version = version
        return 0.0

    def reset_cache(self) -> None:
        """Forget all that was computed with the old weights. Raises `PolicyError` if a completion is under way."""
        if self.engine.num_unfinished:
            raise PolicyError(f"the weights changed while {self.engine.num_unfinished} completions were under way")
        self.engine.decoder.reset_cache()
        if self._folded is not None:  # the weights may change further before the next completion
            self._folded.is_stale = True

    def _update_folded(self) -> None:
        if self._folded is not None:
            self._folded.update()


@contextmanager
def _report_damage(what: str) -> Iterator[None]:
    """Raise `PolicyError` for any error of the block: damaged files raise whatever their readers do."""
    try:
        yield
    except (ConfigError, MissingExtraError, PolicyError):
        raise
    except Exception as error:
        raise PolicyError(f"{what} does not load: {' '.join(str(error).split())}") from error


def load_model(config: ModelConfig, device: str = "") -> tuple[Any, Any]:
    """Load model and tokenizer from a directory or hub name, with adapters if these are to be trained.

    The model is put on `device`, by default on that of the config; its dtype is for the latter, where it will compute.
    Where `model.path` holds adapters, they sit on their base; with `model.lora.enabled` they are trained further. A
    directory never causes network traffic, and no code that a model brings along is run. Raises `ConfigError` for
    settings that cannot be used, and `PolicyError` for files that do not load.
    """
    path, _ = _resolve_path(config.path)
    computing, place = choose_dtype(config), resolve_device(device or config.device)
    if config.tf32:
        torch.backends.cuda.matmul.allow_tf32 = True
    transformers.utils.logging.disable_progress_bar()  # two bars on one terminal garble each other; ours is of the run
    with _report_damage(f"model.path = {config.path!r}"):
        base, is_local, adapters = resolve_base_model(config)
        tokenizer = load_tokenizer(config)
        # Weights below adapters are rounded to model.dtype on every machine: a merge then finds those that they had.
        frozen = (adapters is not None or config.lora.enabled) and not config.load_in_4bit
        model = transformers.AutoModelForCausalLM.from_pretrained(
            base, local_files_only=is_local, trust_remote_code=False,
            **_make_load_options(config, place, getattr(torch, config.dtype) if frozen else computing),
        )  # fmt: skip
        if frozen and computing == torch.float32:
            model = model.float()
        for layer in model.modules() if config.load_in_4bit else ():
            layer.support_avx512bf16_for_cpu = False  # it rounds what acts further, in place, and learns no more
        base = str(Path(base).resolve()) if is_local else base
        if config.liger and place.type == "cuda":  # logits are computed at few positions, so its loss is left out
            from transformers.integrations.liger import apply_liger_kernel

            apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})
        if config.gradient_checkpointing:
            with suppress_future_warnings():
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if adapters:
            model = load_adapters(model, path, adapters, config.lora, base)
    if config.lora.enabled and not adapters:
        model = add_adapters(model, config.lora, base)
    return model.to(place).eval(), tokenizer


def _make_load_options(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    options: dict[str, Any] = {"dtype": dtype}
    if config.attn_implementation:
        options["attn_implementation"] = config.attn_implementation
    if config.load_in_4bit:
        require_extra("quantize", "model.load_in_4bit")
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
        )
        options["device_map"] = {"": device}
    return options


def load_tokenizer(config: ModelConfig) -> Any:
    """Load the tokenizer of `load_model` alone; adapters without one use that of their base. Raises as `load_model`."""
    path, is_local = _resolve_path(config.path)
    with _report_damage(f"the tokenizer of model.path = {config.path!r}"):
        if not (Path(path) / "tokenizer_config.json").is_file():
            path, is_local, _ = resolve_base_model(config)
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=is_local, trust_remote_code=False)


def get_context_length(config: ModelConfig) -> int:
    """Find how many tokens the model can hold, without loading its weights. Raises as `load_architecture`."""
    resolve_device(config.device)
    return _compute_context_length(load_architecture(config))


def load_architecture(config: ModelConfig, *, download: bool = True) -> Any:
    """Load the config by which transformers builds the model; of adapters that of their base. Raises as `load_model`.

    With `download`, the hub is asked for a model that is not on this machine.
    """
    with _report_damage(f"model.path = {config.path!r}"):
        path, is_local, _ = resolve_base_model(config, download=download)
        return transformers.AutoConfig.from_pretrained(path, local_files_only=is_local, trust_remote_code=False)


def resolve_base_model(config: ModelConfig, *, download: bool = True) -> tuple[str, bool, Any | None]:
    """Find the whole model, which of adapters is their base. Raises `ConfigError` as `load_architecture`.

    Returns its directory or name, whether it is read from this machine alone, and peft's settings of adapters or None.
    """
    path, is_local = _resolve_path(config.path, download=download)
    adapters = load_adapter_config(path, is_local)
    if adapters is None:
        return path, is_local, None
    named = config.base or adapters.base_model_name_or_path or ""
    try:
        return *_resolve_path(named, download=download), adapters
    except ConfigError as error:
        raise ConfigError(
            f"the adapters at model.path = {config.path!r} belong to the model {named!r}, which is not there: set "
            "model.base to where it is"
        ) from error


def is_downloaded(config: ModelConfig) -> bool:
    """Return whether the weights are on this machine, so that `load_model` downloads nothing."""
    path, _, _ = resolve_base_model(config, download=False)
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    return Path(path).is_dir() or any(isinstance(try_to_load_from_cache(path, name), str) for name in names)


def require_trainable(config: ModelConfig) -> None:
    """Raise `ConfigError` where all weights are to be trained of a base in 4 bits, or of one and its adapters."""
    if config.load_in_4bit and not config.lora.enabled:
        raise ConfigError("model.load_in_4bit trains adapters alone: set model.lora.enabled = true, or leave it out")
    if not config.lora.enabled and load_adapter_config(*_resolve_path(config.path)):
        raise ConfigError(
            f"model.path = {config.path!r} holds adapters: set model.lora.enabled = true to train them further, or "
            f"merge them first: trailnotes export {config.path} --merge --out DIR"
        )


def _resolve_path(path: str, *, download: bool = True) -> tuple[str, bool]:
    """Find the model, and whether it is read from this machine alone; without `download` the hub is not asked."""
    if not path:
        raise ConfigError(NO_MODEL_MESSAGE)
    local = Path(resolve_model_path(path)).expanduser()
    if local.is_dir():
        if not any((local / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise ConfigError(f"model.path = {path!r} holds no model: there is no config.json in it")
        return str(local), True
    require_model_directory(path)
    if local.exists():
        raise ConfigError(f"model.path = {path!r}: there is no such directory")
    logging.getLogger("huggingface_hub").handlers.clear()  # it prints its warnings, and hands them on to be printed
    return path, not download or is_cache_only(path)


def resolve_device(name: str) -> torch.device:
    """Resolve the device that a config names; auto takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"model.device = {name!r} is not a device: write auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"model.device = {name!r}, but torch finds no GPU: write auto or cpu")
    return device


def choose_dtype(config: ModelConfig) -> torch.dtype:
    """Choose the type to compute in: `model.dtype`, but float32 on a CPU that has no instructions for bfloat16."""
    device = resolve_device(config.device).type
    if config.dtype == "bfloat16" and device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        _warn_of_emulation()
    slow = config.dtype == "bfloat16" and device == "cpu" and not multiplies_bfloat16()
    return torch.float32 if slow else getattr(torch, config.dtype)


@functools.cache
def _warn_of_emulation() -> None:
    logger.warning(
        "this GPU has no instructions for bfloat16, which torch emulates slowly (T4 and V100 are of this kind): set "
        'model.dtype = "float32", with a smaller model where that does not fit'
    )


def multiplies_bfloat16() -> bool:
    """Tell whether torch has fast kernels for bfloat16 on this CPU."""
    is_built = torch._C._has_mkldnn  # noqa: SLF001 - the operator has no public name
    return is_built and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001


def require_context_length(config: ModelConfig, wanted: int) -> None:
    """Raise `ConfigError` for episodes of `wanted` tokens where the model holds fewer."""
    room = get_context_length(config)
    if wanted > room:
        raise ConfigError(
            f"rollout.max_context_tokens = {wanted}, but the model at model.path holds {room} tokens: set "
            f"rollout.max_context_tokens to {room} or less"
        )


def _compute_context_length(config: Any) -> int:
    """Compute the tokens that a model can hold with one set of position factors, whatever else is in the batch.

    Where a batch has a token beyond `original_max_position_embeddings`, longrope computes all of it by its long
    factors, while cached keys keep the short ones. Dynamic rope changes beyond `max_position_embeddings`.
    """
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = [each for each in (rope, *rope.values()) if isinstance(each, dict)]  # of all layers, or of a kind of them
    short = [each["original_max_position_embeddings"] for each in kinds if each.get("rope_type") == "longrope"]
    return min(int(getattr(text, "max_position_embeddings", None) or UNLIMITED), *map(int, short), UNLIMITED)


def validate_vocabulary(chat: ChatFormat, num_embeddings: int) -> None:
    """Raise `PolicyError` for a tokenizer with more tokens than the model embeds.

    Special tokens beyond them do not count where no conversation holds them, as those for images that a text model's
    tokenizer keeps: `ChatFormat` cuts them apart in data.
    """
    added = chat.tokenizer.added_tokens_decoder.items()
    spare = [str(token.content) for index, token in added if token.special and index >= num_embeddings]
    spelt = " ".join([*spare, *(text.replace(WORD_START, " ") for text in spare)])
    talk = [Message(role, f"x {spelt}") for role in (*SYSTEM_HEAD, *alternate_roles(3))] if spare else []
    if len(chat.tokenizer) - len(spare) > num_embeddings or max(chat.encode(talk) if talk else (0,)) >= num_embeddings:
        raise PolicyError(
            f"the tokenizer has {len(chat.tokenizer)} tokens but the model embeds only {num_embeddings}: save the "
            "model's own tokenizer with it, or save the model after model.resize_token_embeddings(len(tokenizer))"
        )


@functools.cache
def is_cache_only(name: str) -> bool:
    """Return whether to read a model from the cache alone, since the hub is out of reach or not wanted."""
    cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    if constants.HF_HUB_OFFLINE:
        return True
    try:
        HfApi().model_info(name, timeout=REQUEST_TIMEOUT)
    except Exception as error:
        reason = " ".join(str(error).split())
        is_refused = isinstance(error, HfHubHTTPError) and not is_retryable(error.response.status_code, None)
        if cached and not is_refused:
            logger.warning("%s is read from the cache, since the hub does not give it now (%s)", name, reason)
            return True
        raise PolicyError(
            f"model.path = {name!r} is no directory here, and the hub does not give it ({reason}): correct it, log in "
            "(HF_TOKEN) where the model asks for it, or fetch it where there is a network"
        ) from error
    if not cached:
        logger.warning("%s is not in the cache yet: fetching it from the hub to %s", name, constants.HF_HUB_CACHE)
    return False
