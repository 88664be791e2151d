"""A small model from scratch: a tokenizer trained on the environment's text, and a Qwen2 of any width.

Its copy heads repeat names that it has never seen: a head that hands on the previous token, and one in a later layer
that looks for it (Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv 2209.11895). Training finds both
late, since neither is of use alone. Here they are put into the random weights, as in mimetic initialization (Trockman
and Kolter 2023, arXiv 2305.09828), and trained like all others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import torch

from trailnotes.config.schema import WarmstartConfig

END = "<|end|>"
PAD = "<|pad|>"
ROLES = ("system", "user", "assistant")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.role == 'assistant' %}" + END + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NUM_INDUCTION_HEADS: Final = 2  # of the second layer that look for the token
EMBEDDING_STD: Final = 0.1  # standard deviation: small steps of Adam do not wipe out which token is which
MAX_SLOW_ROTATION: Final = 0.009  # radians a token: pairs of numbers that turn no faster compare what is far apart
_BIAS, _MATCH, _PREVIOUS_SCALE, _COPY_SCALE = 6.4, 2.8, 0.2, 0.8  # strengths, tried on random tokens at a width of 96


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024, *, exact: bool = False) -> Any:
    """Train a byte-level Qwen2 tokenizer with a vocabulary of its own.

    Every word and every digit gets a leading blank, so a frequent word is one token everywhere, and decoding puts a
    blank before it. Wrong for code, poems and names such as b07xyz: with `exact` decoding returns the very text, and a
    word is another token behind a bracket than behind a blank.
    """
    from tokenizers import pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    settings = {"add_prefix_space": not exact, "pad_token": PAD, "eos_token": END, "unk_token": PAD}
    backend = Qwen2Tokenizer(**settings).backend_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    learnt = json.loads(backend.to_str())["model"]
    merges = [tuple(pair) for pair in learnt["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=learnt["vocab"], merges=merges, extra_special_tokens=special[2:], **settings)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Any, config: WarmstartConfig, max_tokens: int) -> Any:
    """Build a Qwen2 of random weights with tied embeddings and room for `max_tokens` tokens.

    With `config.copying` two of its heads copy from the start.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=config.hidden_size, intermediate_size=4 * config.hidden_size,
            num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_heads, max_position_embeddings=max_tokens, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    if config.copying:
        initialize_copy_heads(model)
    return model


def initialize_copy_heads(model: Any) -> None:
    """Put copy heads into the first two layers of a random Qwen2, drawn from torch's generator.

    The model has two layers or more, and as many heads for keys as for queries.
    """
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    width = first.head_dim
    turns = model.config.rope_parameters["rope_theta"] ** (-torch.arange(0, width, 2) / width)  # radians a token
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings.normal_(0, EMBEDDING_STD)
        read, place = _draw_projection(width, embeddings.shape[1]), _draw_projection(width, embeddings.shape[1])
        # The first head attends to the previous token, by biases that the rotary positions align.
        first.q_proj.weight[:width] = first.k_proj.weight[:width] = 0
        first.k_proj.bias[:width] = _BIAS * torch.cat([torch.ones_like(turns), torch.zeros_like(turns)])
        first.q_proj.bias[:width] = _BIAS * torch.cat([turns.cos(), -turns.sin()])
        first.v_proj.weight[:width] = read
        first.o_proj.weight[:, :width] = _PREVIOUS_SCALE * place.T
        slow = (turns <= max(MAX_SLOW_ROTATION, float(turns[-1]))).nonzero().flatten()
        for head in range(min(NUM_INDUCTION_HEADS, model.config.num_attention_heads)):
            rows = slice(head * width, (head + 1) * width)
            compared = torch.zeros(width, width)
            compared[torch.cat([slow, slow + width // 2])] = _draw_projection(2 * len(slow), width)
            second.q_proj.weight[rows] = _MATCH * compared @ read  # the present token
            second.k_proj.weight[rows] = _MATCH * compared @ place  # the one before each
            copied = _draw_projection(width, embeddings.shape[1])
            second.v_proj.weight[rows] = copied
            second.o_proj.weight[:, rows] = _COPY_SCALE * copied.T


def _draw_projection(rows: int, columns: int) -> torch.Tensor:
    drawn: torch.Tensor = torch.nn.init.orthogonal_(torch.empty(rows, columns))
    return drawn
