"""The sections of the settings that say what computes: the model, the engine that samples, the learner, the cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from trailnotes.config.section import Section, Table, Text, key, require_secret_free_url
from trailnotes.errors import ConfigError

OPENAI_PREFIX = "openai:"  # before a model's name, as `model.path`: the model of that name at the endpoint
EMBEDDER_NAME = re.compile(rf"{OPENAI_PREFIX}(?P<model>.+?)(@(?P<url>https?://.*))?", re.DOTALL)
ENGINE_KEY_VARIABLE = "VLLM_API_KEY"  # vLLM's own, for --api-key
TINKER_KEY_VARIABLE = "TINKER_API_KEY"
NO_MODEL_MESSAGE = (
    "model.path is empty: name a model by --model.path, such as Qwen/Qwen2.5-0.5B-Instruct from the hub or a directory "
    "(trailnotes warmstart makes a small one)"
)
VLLM = "engine.name = vllm"  # what keys need to have an effect
TINKER = "learner.name = tinker"
HF = "engine.name = hf and learner.name = torch"
Attention = Literal["", "sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"]
RUNS_PREFIX = "runs/"
LOCAL_PREFIXES = (".", "/", "~", RUNS_PREFIX, "models/")  # a `model.path` that begins so is no name on the hub
RESERVED_TEMPLATE_OPTIONS = (  # arguments of transformers' `apply_chat_template` that are no option of a template
    "add_generation_prompt", "continue_final_message", "conversation", "max_length", "messages", "padding",
    "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "truncation",
)  # fmt: skip
RESERVED_REQUEST_FIELDS = (  # fields that other settings write, and those that a single whole answer needs
    "chat_template_kwargs", "max_completion_tokens", "max_tokens", "messages", "model", "n", "seed", "stop", "stream",
    "temperature", "top_p",
)  # fmt: skip


class LoraConfig(Section):
    """Low-rank adapters through peft."""

    enabled: bool = key(False, "train adapters instead of all weights")
    rank: int = key(16, "rank of the adapters", ge=1)
    alpha: float = key(32.0, "scale of the adapters is alpha / rank", gt=0)
    target_modules: tuple[Text, ...] | None = key(None, "module names; none means all linear layers but the head")


class ModelConfig(Section):
    """The language model that acts and learns."""

    path: str = key(
        "", "directory or hub name of a causal LM of transformers; builtin:waymarks-start is that of the package; "
        "openai:NAME is the model NAME of the [endpoint]; random plays without any model")  # fmt: skip
    base: str = key("", "base model of the adapters in model.path, if it is not where they name it")
    device: str = key("auto", "cpu, cuda, cuda:0, ...; auto takes a GPU where there is one")
    dtype: Literal["float32", "bfloat16"] = key(
        "float32", "type of weights and activations; a CPU without instructions for bfloat16 computes in float32"
    )
    attn_implementation: Attention = key(
        "", "how it attends; '' = as transformers chooses. flash and flex need a GPU, flash the dtype bfloat16 as well"
    )
    load_in_4bit: bool = key(
        False, "keep the linear layers in 4 bits (NF4, extra quantize); only model.lora trains on them, as in QLoRA",
        "QLoRA, arXiv 2305.14314")  # fmt: skip
    tf32: bool = key(False, "let a GPU multiply float32 matrices in TF32: faster, with 10 bits of mantissa")
    liger: bool = key(False, "on a GPU, compute norms, rotations and MLPs by the kernels of the package liger-kernel")
    gradient_checkpointing: bool = key(False, "recompute activations in the backward pass: less memory, more time")
    template_options: Table = key(
        dict, "variables of the chat template, such as { enable_thinking = false }; an endpoint gets it as "
        "chat_template_kwargs")  # fmt: skip
    lora: LoraConfig = key(LoraConfig, "low-rank adapters", needs="model.lora.enabled or learner.name = tinker")

    @model_validator(mode="after")
    def validate_model(self) -> Self:
        require_model_name(self.path)
        if taken := sorted(self.template_options.keys() & set(RESERVED_TEMPLATE_OPTIONS)):
            raise ValueError(f"template_options.{taken[0]} is not the template's to know: leave it out")
        return self


def require_model_name(path: str) -> None:
    """Refuse a `model.path` of an endpoint that names no model."""
    if path.startswith(OPENAI_PREFIX) and not path.removeprefix(OPENAI_PREFIX).strip():
        raise ConfigError(f"{path!r} names no model: write openai:NAME, as the server calls it")


def normalize_embedder_name(name: str) -> str:
    """Return the name by which memory files know the embedder `name`: openai:NAME@URL without its address."""
    named = EMBEDDER_NAME.fullmatch(name)
    return f"{OPENAI_PREFIX}{named['model']}" if named else name


def require_model_directory(path: str) -> None:
    """Refuse a `model.path` whose directory is missing."""
    is_local = path.startswith(LOCAL_PREFIXES) or path.count("/") > 1  # no name on the hub
    if is_local and not path.startswith(OPENAI_PREFIX) and not Path(path).expanduser().exists():
        is_start = path.startswith(RUNS_PREFIX)
        fix = f"; a start model is made first: trailnotes warmstart CONFIG --out {path}" if is_start else ""
        raise ConfigError(f"model.path = {path!r}: there is no such directory{fix}")


def _add_scheme(url: str) -> str:
    """Add a scheme where there is none, so that credentials stand where the check looks."""
    return url if "://" in url else "tcp://" + url.lstrip("/\\")


class EndpointConfig(Section):
    """An OpenAI-compatible server, for `model.path = "openai:NAME"`. The key comes from the environment alone."""

    max_retries: ClassVar[int] = 6  # tries after the first, on 429, 5xx, timeouts and broken answers

    base_url: str = key("https://api.openai.com/v1", "address of the API, up to and including its version")
    api_key_env: str = key("OPENAI_API_KEY", "environment variable that holds the key; local servers need none")
    concurrency: int = key(8, "requests under way at a time", ge=1)
    timeout: float = key(120.0, "seconds that one request may take", gt=0)
    context_tokens: int = key(32768, "tokens that prompt and completion may have together", ge=8)
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = key(
        "max_tokens", "what the server calls its limit; newer OpenAI models want max_completion_tokens")  # fmt: skip
    omit: tuple[Literal["temperature", "top_p", "stop", "seed"], ...] = key(
        (), "parameters not sent; answers are cut at stops"
    )
    extra: Table = key(dict, "further fields of each request that the server takes, such as { top_k = 20 }")
    price_input: float = key(0.0, "price of a million prompt tokens, in your currency", ge=0)
    price_output: float = key(0.0, "price of a million completion tokens", ge=0)
    max_cost: float = key(
        0.0, "stop cleanly before the spending of a run, without memory.embedder, passes this; 0 = no limit", ge=0
    )
    max_tokens_total: int = key(
        0, "stop cleanly before prompt and completion tokens, without memory.embedder, pass this; 0 = no limit", ge=0
    )

    @model_validator(mode="after")
    def validate_extra_fields(self) -> Self:
        require_secret_free_url("endpoint.base_url", _add_scheme(self.base_url), self.api_key_env)
        if taken := sorted(self.extra.keys() & set(RESERVED_REQUEST_FIELDS)):
            raise ValueError(f"endpoint.extra.{taken[0]} is sent, or left out, by other settings: leave it out")
        return self


class EngineConfig(Section):
    """What samples: the engine of this package, or vLLM."""

    timeout: ClassVar[float] = 300.0  # seconds without any token, after which an engine counts as hung

    name: Literal["hf", "vllm"] = key("hf", "hf: embedded, any model of transformers; vllm: the extra of that name")
    shared_prompts: bool = key(
        True, "hf: what the prompts of a group begin with goes through the model once, which changes last bits of "
        "log-probabilities", needs=HF)  # fmt: skip
    burst: int = key(
        0, "hf: tokens that are sampled before the host reads them; 0 = 8 on a GPU, 1 on a CPU", ge=0, needs=HF
    )
    fold_adapters: bool = key(
        False, "hf: act with the adapters added to a copy of the weights, where that fits in memory: faster, and in "
        "bfloat16 with more rounding", needs=HF)  # fmt: skip
    graphs: bool = key(
        False, "hf, experimental, never run on a GPU: decode over tensors that stay in place, on a GPU by CUDA graphs",
        needs=HF)  # fmt: skip
    replicas: int = key(
        1, "engines, each with all weights; an episode stays with the one it began with", ge=1, needs=VLLM
    )
    urls: tuple[Text, ...] = key(
        (), "addresses of running servers (trailnotes engine serve); none = start here", needs=VLLM
    )
    python: str = key("", "the Python that it is installed in; '' = this one, or what `make vllm` built", needs=VLLM)
    devices: tuple[Text, ...] = key((), 'GPUs of each engine, such as ["1", "2,3"]; none = the first', needs=VLLM)
    device_memory: float = key(0.0, "share of the device's memory; 0 = what the learner leaves", ge=0, le=1, needs=VLLM)
    shared_card: bool = key(False, "sleep during updates, read the learner's memory; never run on a GPU", needs=VLLM)
    max_concurrent: int = key(64, "completions that one engine decodes at a time", ge=1, needs=VLLM)
    start_timeout: float = key(600.0, "seconds that an engine may take to start", gt=0, needs=VLLM)
    max_logprob_mismatch: float = key(
        0.05, "vllm, and a Tinker server: nats by which the engine's log-probabilities may differ from the learner's, "
        "on average over the tokens of an iteration, or of the probes; more stops the run", gt=0,
        needs=f"{VLLM} or {TINKER}")  # fmt: skip

    @model_validator(mode="after")
    def validate_devices(self) -> Self:
        for url in self.urls:
            require_secret_free_url("engine.urls", _add_scheme(url), ENGINE_KEY_VARIABLE)
        return self


class LearnerConfig(Section):
    """Where the update runs."""

    name: Literal["torch", "tinker"] = key(
        "torch", "torch: here, by PyTorch; tinker: adapters, on a server of the Tinker API, which samples as well (the "
        "extra of that name)")  # fmt: skip
    url: str = key(
        "", f"address of the server; '' = the hosted service. {TINKER_KEY_VARIABLE} holds the key", needs=TINKER
    )
    anchor_by: Literal["distribution", "samples"] = key(
        "distribution", "samples anchors rows by the likelihood of what the reference model samples there, since "
        "the API gives no whole distributions", needs=TINKER)  # fmt: skip
    price_prefill: float = key(
        0.0, "price of a million tokens that are only read, in your currency", ge=0, needs=TINKER
    )
    price_sample: float = key(0.0, "price of a million sampled tokens", ge=0, needs=TINKER)
    price_train: float = key(0.0, "price of a million tokens of forward and backward passes", ge=0, needs=TINKER)
    max_tokens_total: int = key(
        0, "stop cleanly before all tokens of a run, read, sampled and trained, pass this; 0 = no limit",
        ge=0, needs=TINKER)  # fmt: skip
    world_size: int = key(1, "processes that share the update by FSDP2, a device each", ge=1)
    offload: bool = key(
        False, "keep weights, gradients and moments in the host's memory, where there is more than one process",
        needs="learner.world_size > 1")  # fmt: skip
    packed: Literal["auto", "always", "never", "shared"] = key(
        "auto", "join rows into one without padding: auto does where the attention skips what is not its row's; "
        "shared: compute common prefixes of rows once; needs sdpa attention")  # fmt: skip
    timeout: float = key(
        600.0, "seconds that one process, or the server, may let another wait before the run stops",
        gt=0, needs="learner.world_size > 1 or learner.name = tinker")  # fmt: skip

    @model_validator(mode="after")
    def validate_hosted(self) -> Self:
        require_secret_free_url("learner.url", _add_scheme(self.url), TINKER_KEY_VARIABLE)
        return self


class ClusterConfig(Section):
    """Several machines, by Ray."""

    env_cpus: ClassVar[float] = 1.0  # CPUs that Ray reserves for each of env.num_workers

    address: str = key(
        "", "of a Ray cluster: auto = the one that this machine is part of; HOST:PORT; ray://HOST:PORT; '' = none, "
        "everything runs here")  # fmt: skip
    timeout: float = key(120.0, "seconds for Ray to place an actor before the run stops", gt=0)
