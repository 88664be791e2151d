"""Any causal LM of transformers as a policy: loading it, and generating with a KV cache that lives with the episode."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from trailnotes.config.model_schema import NO_MODEL_MESSAGE, ModelConfig, require_model_directory
from trailnotes.errors import ConfigError, MissingExtraError, PolicyError, format_install_command
from trailnotes.types import Completion, Message, Sampling, TokenIds

try:
    import torch
    import transformers
    from huggingface_hub import try_to_load_from_cache
    from torch import Tensor

    from trailnotes.policies.chat import ChatFormat, encode_replies
    from trailnotes.policies.hf.adapters import (
        add_adapters,
        get_trained_parameters,
        load_adapter_config,
        load_adapters,
        suppress_future_warnings,
    )
    from trailnotes.policies.hf.decoder import MAX_TOKENS, make_decoder
    from trailnotes.policies.hf.engine import Engine
    from trailnotes.policies.hf.hub import is_cache_only
    from trailnotes.policies.hf.network import Network
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"{missing.name} is not installed: {format_install_command('train')}") from missing


UNLIMITED = 1 << 30  # context of a model that states none


class HFPolicy:
    """A model and its tokenizer behind the `Policy` protocol.

    The learner may change the weights of the same model between two calls; it must then call `weights_changed`.
    `template_options` go to the tokenizer's chat template.
    """

    probes: Sequence[Completion] = ()

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "",
        deterministic: bool = True,
        shared_prompts: bool = True,
        max_context_tokens: int | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or str(getattr(model.config, "name_or_path", "") or type(model).__name__)
        self.version = 0
        self.context_length = min(_compute_context_length(model.config), max_context_tokens or UNLIMITED)
        self.format = ChatFormat(tokenizer, template_options)
        self.append_only = self.format.append_only
        _validate_vocabulary(model, tokenizer)
        end_ids = self.format.end_ids | _generation_end_ids(model)
        decoder = make_decoder(model, self.context_length, shared_prompts=shared_prompts)
        opening = self.format.opening
        self.engine = Engine(decoder, self.format.decode, end_ids, deterministic=deterministic, opening=opening)

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        """Token ids of the conversation, ready for the assistant to speak next."""
        return self.format.encode(messages)

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` alone."""
        return self.format.count_tokens(text)

    def open_episode(self, episode: str) -> None:
        """Announce a live episode."""
        self.engine.open(episode)

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Sample the next assistant turn.

        Raises:
            PolicyError: prompt and completion exceed the context, the episode is not open, or the engine failed.
        """
        prompt_ids = self.encode(messages)
        if len(prompt_ids) + sampling.max_tokens > self.context_length:
            raise PolicyError(
                f"a prompt of {len(prompt_ids)} tokens and {sampling.max_tokens} new ones exceed the context of "
                f"{self.context_length} tokens"
            )
        return await self.engine.generate(prompt_ids, sampling, episode)

    async def score(self, messages: Sequence[Message], replies: Sequence[str | TokenIds]) -> list[float]:
        """Mean log-probability of the tokens of each reply, at temperature 1: exp of it is a geometric mean.

        Args:
            messages: a conversation that the assistant answers.
            replies: what it might say: a text, which counts with the end of the turn, or the ids as they were sampled.
                Not empty.

        Raises:
            PolicyError: prompt and longest reply exceed the context.
        """
        prompt, rows = encode_replies(self.format, messages, replies, self.context_length)
        width = len(prompt) + max(map(len, rows), default=0)
        size = max(1, MAX_TOKENS // width)
        parts = (self._network.score_replies(prompt, rows[i : i + size]) for i in range(0, len(rows), size))
        return [math.fsum(row) / len(row) for part in parts for row in part]

    @cached_property
    def _network(self) -> Network:
        return Network(self.model)

    def close_episode(self, episode: str) -> None:
        """Free the episode's cache."""
        self.engine.close(episode)

    def close(self) -> None:
        """There is nothing to close."""

    async def sleep(self) -> None:
        """It shares its device with nobody."""

    async def wake(self) -> None:
        """It never sleeps."""

    def report(self) -> dict[str, float]:
        """There is nothing to say."""
        return {}

    def bump_version(self) -> None:
        """Count a new version, and forget all that was computed with the old one.

        Raises:
            PolicyError: a completion is under way, of which half would be of either version.
        """
        self.reset_cache()
        self.version += 1

    async def load(self, weights: Mapping[str, Tensor], version: int, said: Sequence[Sequence[float]] = ()) -> float:  # noqa: ARG002
        """Take over weights of a learner whose model is another one.

        Args:
            weights: by the names of the model's files: all of a whole model, of adapters theirs alone.
            version: of the weights.
            said: nothing, since there are no probes: what is copied within a process arrives.

        Returns:
            0.

        Raises:
            PolicyError: as `weights_changed`; or they are another model's.
        """
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
        """Forget all that was computed with the weights as they were.

        Raises:
            PolicyError: as `weights_changed`.
        """
        if self.engine.num_unfinished:
            raise PolicyError(f"the weights changed while {self.engine.num_unfinished} completions were under way")
        self.engine.decoder.reset_cache()


def load_model(config: ModelConfig) -> tuple[Any, Any]:
    """Model and tokenizer of a directory or hub name, on its device, with adapters if these are to be trained.

    Where `model.path` holds adapters, the model is their base with the adapters on it; with `model.lora.enabled` they
    are trained further. A directory never causes network traffic, and no code that a model brings along is run.

    Raises:
        ConfigError: `model.path`, `model.base` or `model.device` cannot be used.
        PolicyError: the files are there, but do not load.
    """
    path, is_local = _resolve_path(config.path)
    device = resolve_device(config.device)
    transformers.utils.logging.disable_progress_bar()  # two bars on one terminal garble each other; ours is of the run
    try:
        adapters = load_adapter_config(path, is_local)
        base, base_is_local = _resolve_base(config, adapters) if adapters else (path, is_local)
        tokenizer = load_tokenizer(config)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            base, dtype=getattr(torch, config.dtype), local_files_only=base_is_local, trust_remote_code=False
        )
        base = str(Path(base).resolve()) if base_is_local else base
        if config.gradient_checkpointing:
            with suppress_future_warnings():
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if adapters:
            model = load_adapters(model, path, adapters, config.lora, base)
    except ConfigError:
        raise
    except Exception as error:  # the boundary: damaged files raise whatever their readers do
        line = " ".join(str(error).split())
        raise PolicyError(f"model.path = {config.path!r} does not load: {line}") from error
    if config.lora.enabled and not adapters:
        model = add_adapters(model, config.lora, base)
    return model.to(device).eval(), tokenizer


def load_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer of `load_model` alone; adapters that bring none speak by that of their base.

    Raises:
        ConfigError: `model.path` or `model.base` cannot be used.
        PolicyError: the files are there, but do not load.
    """
    path, is_local = _resolve_path(config.path)
    try:
        if (adapters := load_adapter_config(path, is_local)) and not (Path(path) / "tokenizer_config.json").is_file():
            path, is_local = _resolve_base(config, adapters)
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=is_local, trust_remote_code=False)
    except ConfigError:
        raise
    except Exception as error:  # the boundary, as in `load_model`
        line = " ".join(str(error).split())
        raise PolicyError(f"the tokenizer of model.path = {config.path!r} does not load: {line}") from error


def get_context_length(config: ModelConfig) -> int:
    """Tokens that the model of `load_model` can hold, found without loading its weights.

    Raises:
        ConfigError: `model.path`, `model.base` or `model.device` cannot be used.
        PolicyError: the model's own config does not load.
    """
    resolve_device(config.device)
    return _compute_context_length(load_architecture(config))


def load_architecture(config: ModelConfig, *, download: bool = True) -> Any:
    """The config by which transformers builds the model; of adapters that of their base.

    Args:
        config: names the model.
        download: fetch it from the hub where it is not on this machine.

    Raises:
        ConfigError: `model.path` or `model.base` cannot be used.
        PolicyError: it does not load.
    """
    try:
        path, is_local, _ = resolve_base_model(config, download=download)
        return transformers.AutoConfig.from_pretrained(path, local_files_only=is_local, trust_remote_code=False)
    except (ConfigError, PolicyError):
        raise
    except Exception as error:  # the boundary, as in `load_model`
        line = " ".join(str(error).split())
        raise PolicyError(f"model.path = {config.path!r} does not load: {line}") from error


def resolve_base_model(config: ModelConfig, *, download: bool = True) -> tuple[str, bool, Any | None]:
    """Where the whole model is, which of adapters is their base.

    Returns:
        Its directory or name, whether it is read from this machine alone, and the adapters' settings as peft reads
        them, None where there are none.

    Raises:
        ConfigError: `model.path` or `model.base` cannot be used.
    """
    path, is_local = _resolve_path(config.path, download=download)
    adapters = load_adapter_config(path, is_local)
    return (*_resolve_base(config, adapters, download=download), adapters) if adapters else (path, is_local, None)


def is_downloaded(config: ModelConfig) -> bool:
    """Whether the weights are on this machine, so that `load_model` downloads nothing."""
    path, _ = _resolve_path(config.path, download=False)
    if adapters := load_adapter_config(path, is_local=True):
        path, _ = _resolve_base(config, adapters, download=False)
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    return Path(path).is_dir() or any(isinstance(try_to_load_from_cache(path, name), str) for name in names)


def require_trainable(config: ModelConfig) -> None:
    """Refuse to train all weights of what is a base and its adapters.

    Raises:
        ConfigError: `model.path` holds adapters, and `model.lora.enabled` is off.
    """
    if not config.lora.enabled and load_adapter_config(*_resolve_path(config.path)):
        raise ConfigError(
            f"model.path = {config.path!r} holds adapters: set model.lora.enabled = true to train them further, or "
            f"merge them first: trailnotes export {config.path} --merge --out DIR"
        )


def _resolve_base(config: ModelConfig, adapters: Any, *, download: bool = True) -> tuple[str, bool]:
    """Where the base of the adapters at `model.path` is, and whether it is read from this machine alone."""
    named = config.base or adapters.base_model_name_or_path
    try:
        return _resolve_path(named or "", download=download)
    except ConfigError as error:
        raise ConfigError(
            f"the adapters at model.path = {config.path!r} belong to the model {named!r}, which is not there: set "
            "model.base to where it is"
        ) from error


def _resolve_path(path: str, *, download: bool = True) -> tuple[str, bool]:
    """Where the model is, and whether it is read from this machine alone; without `download` the hub is not asked."""
    if not path:
        raise ConfigError(NO_MODEL_MESSAGE)
    local = Path(path).expanduser()
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
    """The device that a config names; auto takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"model.device = {name!r} is not a device: write auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"model.device = {name!r}, but torch finds no GPU: write auto or cpu")
    return device


def require_context_length(config: ModelConfig, wanted: int) -> None:
    """Refuse episodes of `wanted` tokens where the model holds fewer.

    Raises:
        ConfigError: it holds fewer; and as `get_context_length`.
        PolicyError: as `get_context_length`.
    """
    room, positions = get_context_length(config), _get_max_positions(load_architecture(config))
    if wanted > room:
        reason = " before longrope takes other factors for all of them" if room < positions else ""
        raise ConfigError(
            f"rollout.max_context_tokens = {wanted}, but the model at model.path holds {room} tokens{reason}: set "
            f"rollout.max_context_tokens to {room} or less"
        )


def _compute_context_length(config: Any) -> int:
    """Tokens that a model can hold with one set of position factors, cached or not, whatever else is in the batch.

    Where a batch has a token beyond `original_max_position_embeddings`, longrope computes all of it by its long
    factors, while keys that are cached already keep the short ones. vLLM takes the short ones alone up to there. Those
    of a dynamic rope change beyond `max_position_embeddings`.
    """
    rope = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = [each for each in (rope, *rope.values()) if isinstance(each, dict)]  # of all layers, or of a kind of them
    short = [each["original_max_position_embeddings"] for each in kinds if each.get("rope_type") == "longrope"]
    return min([_get_max_positions(config), *map(int, short)])


def _get_max_positions(config: Any) -> int:
    return int(getattr(config.get_text_config(decoder=True), "max_position_embeddings", None) or UNLIMITED)


def _generation_end_ids(model: Any) -> frozenset[int]:
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if eos is None:
        return frozenset()
    return frozenset(eos) if isinstance(eos, list) else frozenset({int(eos)})


def _validate_vocabulary(model: Any, tokenizer: Any) -> None:
    num_embeddings = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > num_embeddings:
        raise PolicyError(
            f"the tokenizer has {len(tokenizer)} tokens but the model embeds only {num_embeddings}: "
            "they do not belong together, or the embeddings were never resized"
        )
