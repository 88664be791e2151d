"""Chat templates that behave as those of families of models do, in our own words, with tokenizers that fit them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

# Llama 3.1 and later: there is always a system turn, which names a date; contents are trimmed.
LLAMA3 = (
    "{{ bos_token }}{% set told = messages[0].content | trim if messages[0].role == 'system' else '' %}"
    "<|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ date_string | default('26 Jul 2024') }}\n\n"
    "{{ told }}<|eot_id|>{% for m in messages %}{% if m.role != 'system' %}"
    "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Qwen2.5 and SmolLM2: ChatML, and a system turn of their own where there is none.
QWEN25 = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}" + CHATML
# Qwen3: a thought is kept behind the user's last message alone; without thinking, an empty one opens each new turn.
QWEN3 = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}"
    "{% set thought, said = '', m.content %}"
    "{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.last %}<think>\n{{ thought.strip('\n') }}\n</think>\n\n{% endif %}{{ said }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# Thinking stays as it is, and every turn begins with some.
KEEPS_OPEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
_GEMMA_TURNS = (
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ told if loop.first }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# Gemma 1 and 2 refuse a system message.
GEMMA2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% set turns, told = messages, '' %}" + _GEMMA_TURNS
)
# Gemma 3 puts it before the first message of the user.
GEMMA3 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set told, turns = messages[0].content + '\n\n', messages[1:] %}"
    "{% else %}{% set told, turns = '', messages %}{% endif %}" + _GEMMA_TURNS
)
# Mistral 0.1: no system role, and turns in brackets that are no control tokens, each in blanks.
MISTRAL1 = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
# Mistral 0.3: the brackets are control tokens, a blank begins an answer that is history, and what the system says
# stands before the newest message of the user.
MISTRAL3 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set told, turns = messages[0].content, messages[1:] %}"
    "{% else %}{% set told, turns = '', messages %}{% endif %}"
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ told ~ '\n\n' if loop.last and told }}{{ m.content }}[/INST]"
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
# Llama 2: as Mistral 0.1, with a blank on both sides of an answer, a start token in each turn, and a system part.
LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set told, turns = messages[0].content, messages[1:] %}"
    "{% else %}{% set told, turns = '', messages %}{% endif %}"
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token }}[INST] "
    "{{ '<<SYS>>\n' ~ told ~ '\n<</SYS>>\n\n' if loop.first and told }}{{ m.content | trim }} [/INST]"
    "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Family:
    """A template, the control tokens that its tokenizer knows, and the kind of that tokenizer."""

    template: str
    control: tuple[str, ...]
    bos: str | None
    eos: str  # of the tokenizer
    end: str  # of a turn
    kind: Literal["bytes", "pieces"] = "bytes"


_IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>")
_TURNS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
_SPM = ("<s>", "</s>")
FAMILIES = {
    "llama3": Family(LLAMA3, _HEADERS, "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
    "qwen2.5": Family(QWEN25, _IM, None, "<|im_end|>", "<|im_end|>"),
    "qwen3": Family(QWEN3, (*_IM, "<think>", "</think>"), None, "<|im_end|>", "<|im_end|>"),
    "smollm2": Family(QWEN25, _IM, "<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "gemma2": Family(GEMMA2, _TURNS, "<bos>", "<eos>", "<end_of_turn>", "pieces"),
    "gemma3": Family(GEMMA3, _TURNS, "<bos>", "<eos>", "<end_of_turn>", "pieces"),
    "mistral1": Family(MISTRAL1, _SPM, "<s>", "</s>", "</s>", "pieces"),
    "mistral3": Family(MISTRAL3, (*_SPM, "[INST]", "[/INST]"), "<s>", "</s>", "</s>", "pieces"),
    "llama2": Family(LLAMA2, _SPM, "<s>", "</s>", "</s>", "pieces"),
}
TEXTS = (
    "You are in a hall. A door leads north, another one south. You see a key.",
    "go north\ntake key\nopen door\ngo south\nlook\nread note\nsystem user assistant model",
    "The door is locked; you need a key. You take the key. It is dark here.",
)


def family_tokenizer(name: str) -> Any:
    """A small tokenizer of the family's kind, with its template and control tokens.

    "bytes" is byte-level BPE. "pieces" is what sentencepiece makes: a blank is part of the word behind it, the first
    word of a text gets one (not Gemma's), and what is unknown falls back to bytes.
    """
    family = FAMILIES[name]
    backend = train_byte_level() if family.kind == "bytes" else _pieces(adds_blank=family.eos == "</s>")
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.control])
    names = {"bos_token": family.bos, "eos_token": family.eos, "pad_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, **{key: value for key, value in names.items() if value})
    fast.chat_template = family.template
    return fast


def train_byte_level(special_tokens: Sequence[str] = ("<pad>",)) -> Tokenizer:
    """A byte-level BPE of some 350 tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=350, special_tokens=list(special_tokens), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def _pieces(*, adds_blank: bool) -> Tokenizer:
    blank = "\u2581"
    learning = Tokenizer(models.BPE())
    learning.pre_tokenizer = pre_tokenizers.Metaspace(blank, prepend_scheme="first")
    fallback = ["<unk>", "<pad>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learning.train_from_iterator(
        [line for text in TEXTS for line in text.splitlines()],
        trainers.BpeTrainer(vocab_size=380, special_tokens=fallback, show_progress=False),
    )
    learnt = json.loads(learning.to_str())["model"]
    merges = [tuple(pair) for pair in learnt["merges"]]
    backend = Tokenizer(models.BPE(learnt["vocab"], merges, unk_token="<unk>", byte_fallback=True))
    scheme: Literal["first", "never"] = "first" if adds_blank else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(blank, prepend_scheme=scheme, split=False)
    steps = [decoders.Replace(blank, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if adds_blank else [])])
    return backend
