"""A small model of our own making: a tokenizer trained on the environment's text, and a Qwen2 of any width.

Both are saved as an ordinary Hugging Face directory that `from_pretrained` loads anywhere.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trailnotes.config.schema import WarmstartConfig

END = "<|end|>"
PAD = "<|pad|>"
ROLES = ("system", "user", "assistant")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.role == 'assistant' %}" + END + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024, *, exact: bool = False) -> Any:
    """A Qwen2 tokenizer with a vocabulary of its own: byte-level, so any text can be encoded.

    Every word and every digit gets a leading blank, so a frequent word is one token wherever it stands, and decoding
    puts a blank before it. Fine for words, wrong for code or poems, and for names such as b07xyz: with
    `lossless_vocab` decoding gives the very text, and a word is another token behind a bracket than behind a blank.
    """
    from tokenizers import pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    settings = {"add_prefix_space": not exact, "pad_token": PAD, "eos_token": END, "unk_token": PAD}
    backend = Qwen2Tokenizer(**settings).backend_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    learnt = json.loads(backend.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=[tuple(pair) for pair in learnt["merges"]],
        extra_special_tokens=special[2:],
        **settings,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Any, config: WarmstartConfig, max_tokens: int) -> Any:
    """A Qwen2 of random weights: tied embeddings, as many KV heads as heads, room for `max_tokens` tokens.

    With `config.copying` two of its heads copy from the start.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=4 * config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_heads,
            max_position_embeddings=max_tokens,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    if config.copying:
        from trailnotes.warmstart.copying import initialize_copy_heads

        initialize_copy_heads(model)
    return model
