"""Conversations as token ids, by any chat template, so that a context only ever grows at its end.

A template is rendered once with marks in place of the contents, and cut into the text between them. A conversation is
then the concatenation of pieces, each tokenized on its own: sampled turns enter with their sampled ids, and everything
else is tokenized once and cached. `Template` checks that the pieces give what the template gives; where a template
rewrites earlier turns, `append_only` is False.

Some templates drop the thinking from all turns but the newest. Conversations with thinking are rendered by such a
template anew, with marks in place of the words.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple

from trailnotes.errors import PolicyError
from trailnotes.policies.template import (
    MARK,
    SYSTEM_HEAD,
    TAG,
    TURN,
    RoleSequence,
    Template,
    TemplateLayout,
    alternate_roles,
    make_mark,
)
from trailnotes.types import THINK, Message, TokenIds, replace_surrogates

logger = logging.getLogger(__name__)
CACHE_SIZE = 1024  # layouts remembered
MAX_CACHED_TEXT = 32_768  # characters of a text whose ids are remembered
MAX_CACHED_CHARS = 2**24  # characters of all texts remembered
WORD_START = "\u2581"  # how tokens of sentencepiece's kind spell one


class ContentPart(NamedTuple):
    """Content of one message, or what the template makes of a content with thinking."""

    message: int  # its index
    texts: tuple[str, ...] = ()  # words, template text, words, ..., words; () for the content as it is


def mark_words(text: str, first: int) -> tuple[str, list[str]]:
    """Replace the words of `text` by marks numbered from `first`, and return them; tags and blanks at them stay."""
    content, words = "", list[str]()
    for part in TAG.split(text):
        word = "" if part in THINK else part.strip()
        content += part.replace(word, make_mark(first + len(words)), 1) if word else part
        words += [word] if word else []
    return content, words


def join_parts(
    layout: TemplateLayout, words: Sequence[tuple[int, str]], prompt: str
) -> tuple[tuple[str, ...], list[ContentPart]]:
    """Join the parts that belong to one message, those behind `prompt` included."""
    pieces, parts = [layout.pieces[0]], list[ContentPart]()
    for number, after in zip(layout.order, layout.pieces[1:], strict=True):
        index, word = words[number]
        if parts and parts[-1].message == index:
            parts[-1] = ContentPart(index, (*parts[-1].texts, pieces.pop(), word))
        elif word and pieces[-1].startswith(prompt):
            parts.append(ContentPart(index, ("", pieces[-1].removeprefix(prompt), word)))
            pieces[-1] = prompt
        else:
            parts.append(ContentPart(index, (word,) if word else ()))
        pieces.append(after)
    return tuple(pieces), parts


def cache_ids(encode: Callable[[str], TokenIds]) -> Callable[[str], TokenIds]:
    """Remember the ids of texts by their total length; long texts are encoded anew each time."""
    known: dict[str, TokenIds] = {}
    num_chars = 0

    def encode_cached(text: str) -> TokenIds:
        nonlocal num_chars
        ids = known.get(text)
        if ids is None:
            ids = encode(text)
            if len(text) <= MAX_CACHED_TEXT:
                if (num_chars := num_chars + len(text) + 64) > MAX_CACHED_CHARS:
                    known.clear()
                    num_chars = len(text) + 64
                known[text] = ids
        return ids

    return encode_cached


class ChatFormat:
    """Encoder of conversations (system,) user, assistant, user, ... with a tokenizer's chat template, or a plain one.

    `append_only` says whether the encoding of a longer conversation always starts with that of the shorter one and the
    sampled ids. `end_ids` end the assistant's turn. `opening` is the tag of thinking at the end of every prompt, "" for
    none: it belongs to the content of the turn, but not to its sampled ids. Arguments as for `Template`.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self._template = Template(tokenizer, options or {})
        self.append_only = self._template.rules is not None and not self._template.reads_thinking
        self._layout = lru_cache(CACHE_SIZE)(self._find_layout)
        self._marked = lru_cache(CACHE_SIZE)(self._template.render)
        self.describe_tools = self._template.describe_tools
        self._line_break = self._find_line_break()
        self._piece = cache_ids(self._encode_piece)
        self._content = cache_ids(self._encode_content)
        self._control = self._compile_control_pattern()
        added = tokenizer.added_tokens_decoder.items()
        self._special_tags = {index for index, token in added if token.special and token.content in THINK}
        self.end_ids = self._find_end_ids()
        opened, closed = map(self._template.prompt.rfind, THINK)
        self.opening = self._template.prompt[opened:] if opened > closed else ""
        self._warn_about_template(options or {})

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        """Encode the conversation up to where the assistant speaks; roles must alternate."""
        return tuple(chain.from_iterable(ids for ids, _ in self._iter_segments(messages)))

    def encode_with_mask(self, messages: Sequence[Message], turns: Container[int]) -> tuple[list[int], list[int]]:
        """Encode a conversation, and mask the tokens of the assistant's messages whose indices are in `turns`.

        Sampled ids enter as they are, unless they are another tokenizer's.
        """
        messages = [self._drop_foreign_ids(message) for message in messages]
        _, parts = self._find_parts(messages)
        ids, mask = list[int](), list[int]()
        for index, (run, spoken) in enumerate(self._iter_segments(messages)):  # each part follows a template's piece
            ids += run
            mask += [int(spoken and parts[index // 2].message in turns)] * len(run)
        return ids, mask

    def encode_reply(self, messages: Sequence[Message], text: str) -> TokenIds:
        """Encode `text` as the assistant's next turn, with its end; () where nothing of it stays in the turn."""
        ids, mask = self.encode_with_mask([*messages, Message("assistant", text)], {len(messages)})
        return tuple(token for token, spoken in zip(ids, mask, strict=True) if spoken) if text.strip() else ()

    def _drop_foreign_ids(self, message: Message) -> Message:
        if message.token_ids is None:
            return message
        try:
            text = self.opening + self.decode(message.token_ids)
        except (IndexError, OverflowError, TypeError, ValueError):  # ids that it does not know, in its own words
            return replace(message, token_ids=None)
        content = message.content  # up to a stop string, which its ids may hold
        known = text.startswith(content) if content else not text.strip()
        return message if known else replace(message, token_ids=None)

    def decode(self, token_ids: TokenIds) -> str:
        """Decode ids without special tokens; tags of thinking stay, which some tokenizers count among them."""
        return "".join(
            self.tokenizer.decode(list(run), skip_special_tokens=not tags, clean_up_tokenization_spaces=False)
            for tags, run in groupby(token_ids, self._special_tags.__contains__)
        )

    def count_tokens(self, text: str) -> int:
        return len(self._content(text))

    def _iter_segments(self, messages: Sequence[Message]) -> Iterator[tuple[TokenIds, bool]]:
        """Yield runs of tokens by one author, and whether the assistant spoke them, end token included."""
        pieces, parts = self._find_parts(messages)
        spoken: TokenIds = ()
        for (text, after), part in zip(pairwise(pieces), parts, strict=True):
            message = messages[part.message]
            is_spoken = message.role == "assistant"
            blanks = "" if is_spoken else text[len(text.rstrip(" ")) :]  # are the beginning of a word
            yield _strip_overlap(spoken, self._piece(text.removesuffix(blanks))), False
            spoken = self._encode_turn(message, part.texts, after) if is_spoken else ()
            yield spoken if is_spoken else self._content(blanks + self._trim_content(message)), is_spoken
        yield _strip_overlap(spoken, self._piece(pieces[-1])), False

    def _find_parts(self, messages: Sequence[Message]) -> tuple[tuple[str, ...], list[ContentPart]]:
        roles = tuple(message.role for message in messages)
        if self._template.reads_thinking and any(map(_has_thinking, messages)):
            return self._find_parts_with_thinking(roles, messages)
        pieces, order = self._layout(roles)
        return pieces, [ContentPart(index) for index in order]

    def _find_layout(self, roles: RoleSequence) -> TemplateLayout:
        _validate_roles(roles)
        rules = self._template.rules
        if rules is None:
            return self._template.render_layout(roles)
        return TemplateLayout(tuple(rules[pair] for pair in pairwise((None, *roles, None))), tuple(range(len(roles))))

    def _find_parts_with_thinking(
        self, roles: RoleSequence, messages: Sequence[Message]
    ) -> tuple[tuple[str, ...], list[ContentPart]]:
        """Lay out a conversation by rendering it: a message that the template leaves as it is keeps its ids."""
        _validate_roles(roles)
        contents: list[str] = []
        words: list[tuple[int, str]] = []  # by mark: index of the message, and what is marked ("" = all of it)
        for index, message in enumerate(messages):
            content, marked = make_mark(len(words)), [""]
            if _has_thinking(message):
                content, marked = mark_words(self._trim_content(message), len(words))
            contents.append(content)
            words += [(index, each) for each in marked]
        text = self._marked(roles, tuple(contents))
        end = self.tokenizer.decode(list(self._end_mark), skip_special_tokens=False)
        for index, content in enumerate(contents):
            if _has_thinking(messages[index]) and MARK.search(content) and content + end in text:
                text = text.replace(content, make_mark(len(words)))
                words.append((index, ""))
        layout = self._template.split_rendered(text, [roles[index] for index, _ in words])
        return join_parts(layout, words, self._template.prompt)

    def _encode_turn(self, message: Message, texts: Sequence[str], after: str) -> TokenIds:
        end = self._end_mark
        if texts:
            ids = [(self._piece if i % 2 else self._content)(text) for i, text in enumerate(texts)]
            return tuple(chain(*ids, end if self._piece(after)[: len(end)] == end else ()))
        if message.token_ids is None:
            left, right = self._template.blanks
            said = left + self._trim_content(message) + right  # tags of thinking are its own, everything else is data
            parts = TAG.split(said) if self._has_tags else [said]
            return tuple(chain(*((self._piece if part in THINK else self._content)(part) for part in parts))) + end
        opened = self.opening if message.content.startswith(self.opening) else ""
        return self._piece(opened) + message.token_ids

    def _trim_content(self, message: Message) -> str:
        left, right = self._template.trims[message.role]
        text = message.content.lstrip() if left else message.content
        return text.rstrip() if right else text

    def _encode_piece(self, text: str) -> TokenIds:
        """Tokens of a text that continues another; half of a surrogate pair, which no tokenizer takes, becomes "?"."""
        if not text:
            return ()
        text = replace_surrogates(text)
        before = self._line_break
        ids = self.tokenizer.encode("\n" + text, add_special_tokens=False) if before else []
        if before and tuple(ids[: len(before)]) == before:
            return tuple(ids[len(before) :])
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _find_line_break(self) -> TokenIds:
        """Find the ids of the line break to put before a text, lest it begin with a blank; () if none is needed."""
        first, inner = self.tokenizer.tokenize("x"), self.tokenizer.tokenize("\nx")
        if not first[0].startswith(WORD_START) or inner[-1].startswith(WORD_START):
            return ()
        return tuple(self.tokenizer.encode("\n", add_special_tokens=False))

    def _encode_content(self, text: str) -> TokenIds:
        """Tokens of data: a control token that is spelt out in it is cut apart, so that it stays text."""
        cuts = [match.start() + 1 for match in self._control.finditer(text)]
        bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
        return tuple(chain.from_iterable(self._encode_piece(text[start:stop]) for start, stop in bounds))

    def _compile_control_pattern(self) -> re.Pattern[str]:
        """Where a control token begins. Tokens of one character are ordinary text to the people who write it."""
        added = self.tokenizer.added_tokens_decoder.values()
        literals = {str(token.content) for token in added if token.special} | set(self.tokenizer.all_special_tokens)
        template = "".join(self._template.render_layout(alternate_roles(3)).pieces)
        tags = {str(token.content) for token in added} & set(THINK)
        self._has_tags = bool(tags)
        literals |= tags | {str(token.content) for token in added if str(token.content) in template}
        spelt = sorted(re.escape(literal) for literal in literals if len(literal) > 1)
        return re.compile(f"(?=(?:{'|'.join(spelt)}))" if spelt else r"(?!)")

    def _find_end_ids(self) -> frozenset[int]:
        """The tokenizer's end token, and the control token that the template closes the assistant's turn with."""
        pieces, order = self._template.render_layout(alternate_roles(3))
        before, prompt = pieces[order.index(1)] if 1 in order else "", self._template.prompt
        added = before.removeprefix(prompt) if before.startswith(prompt) else ""
        if self._control.search(TAG.sub("", added)):
            raise PolicyError(
                f"the model's chat template puts {added!r} before an answer, and not at the end of a prompt: the model "
                "writes answers in parts, which only a server separates. Serve it, and set model.path = openai:NAME"
            )
        closing = self._piece(pieces[order.index(1) + 1])[:1] if 1 in order else ()
        control = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        self._end_mark = closing if set(closing) <= control else ()
        eos = self.tokenizer.eos_token_id
        return frozenset(self._end_mark) | (frozenset() if eos is None else frozenset({int(eos)}))

    def _warn_about_template(self, options: Mapping[str, Any]) -> None:
        if not self.append_only:
            logger.warning(
                "this chat template rewrites %s: each step is computed and trained as a row of its own (as with "
                'optim.rows = "step"), which costs time and tokens that grow with the square of the number of turns; '
                'where it moves the system message, rollout.system_prompt = "" helps',
                "earlier turns" if self._template.rules is None else "the thinking of earlier turns",
            )
        if unknown := [name for name in options if name not in str(self.tokenizer.chat_template or "")]:
            logger.warning("the model's chat template knows nothing of model.template_options.%s", unknown[0])


def _has_thinking(message: Message) -> bool:
    return message.role == "assistant" and TAG.search(message.content) is not None


def encode_replies(
    chat: ChatFormat, messages: Sequence[Message], replies: Sequence[str | TokenIds], context_length: int
) -> tuple[TokenIds, list[TokenIds]]:
    """Encode a prompt, and each reply to it: a text with the end of its turn, or ids as they are."""
    prompt = chat.encode(messages)
    rows = [chat.encode_reply(messages, reply) if isinstance(reply, str) else reply for reply in replies]
    if not all(rows):
        raise ValueError("an empty reply has no log-probability")
    width = len(prompt) + max(map(len, rows), default=0)
    if width > context_length:
        raise PolicyError(f"a prompt and reply of {width} tokens exceed the context of {context_length}")
    return prompt, rows


def _validate_roles(roles: RoleSequence) -> None:
    turns = roles[1:] if roles[:1] == SYSTEM_HEAD else roles
    if not turns or turns != (TURN * len(turns))[: len(turns)]:
        raise ValueError(f"a conversation is (system,) user, assistant, user, ...: got {list(roles)}")


def _strip_overlap(spoken: TokenIds, piece: TokenIds) -> TokenIds:
    """The template's tokens after a turn, without those at their start that the turn already ends with."""
    for size in range(min(len(spoken), len(piece)), 0, -1):
        if spoken[-size:] == piece[:size]:
            return piece[size:]
    return piece
