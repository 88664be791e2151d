"""A tokenizer and random models, built in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from families import CHATML, train_byte_level

SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|endoftext|>", "<pad>",
]  # fmt: skip


def make_tokenizer(chat_template: str | None = CHATML, eos: str = "<|im_end|>") -> PreTrainedTokenizerFast:
    """A byte-level BPE of some 350 tokens."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=train_byte_level(SPECIAL), eos_token=eos, pad_token="<pad>", bos_token="<|begin_of_text|>",
        additional_special_tokens=SPECIAL[:6],
    )  # fmt: skip
    fast.chat_template = chat_template
    return fast


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[..., PreTrainedTokenizerFast]:
    return make_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


def make_model(kind: str = "qwen2", positions: int = 256, **options: Any) -> Any:
    """A random model with logits far from uniform."""
    torch.manual_seed(0)
    size = len(make_tokenizer())
    ends = {"vocab_size": size, "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": 1}
    heads = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": positions, "pad_token_id": None,
    }  # fmt: skip
    own = {
        "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "bos_token_id": 0, "eos_token_id": 0},
        "gpt2": {"n_positions": positions, "n_embd": 32, "n_layer": 2, "n_head": 4},
        "qwen2": heads | {"tie_word_embeddings": True},
        "gemma2": heads | {"head_dim": 8},
    }.get(kind, heads)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **ends | own | options)).eval()


@pytest.fixture(scope="session")
def model_of() -> Callable[..., Any]:
    return make_model


@pytest.fixture(scope="session")
def model() -> Any:
    return make_model()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
