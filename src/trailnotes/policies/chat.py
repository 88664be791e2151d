"""From messages to token ids, by any chat template, so that a context only ever grows at its end.

A template is rendered once with marks in place of the contents, and cut into the text between them. From then on a
conversation is the concatenation of pieces, each tokenised on its own: what was sampled enters with its sampled ids,
and everything else is tokenised once and remembered. That the pieces give what the template gives is checked at
construction; a template that rewrites earlier turns is found there, and `append_only` says so.

Some templates rewrite thinking alone: they drop it from all turns but the newest. Each conversation that holds some is
rendered by such a template anew, with marks in place of the words and the tags left for it to read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, groupby
from typing import Any, NamedTuple

from trailnotes.errors import PolicyError
from trailnotes.policies.marks import (
    MARK,
    TAG,
    ContentPart,
    TemplateLayout,
    find_open_tag,
    join_parts,
    make_mark,
    mark_words,
)
from trailnotes.policies.template import NO_HEAD, SYSTEM_HEAD, TURN, RoleSequence, Template, alternate_roles, pair_roles
from trailnotes.types import THINK, Message, TokenIds, replace_surrogates

logger = logging.getLogger(__name__)

CACHE_SIZE = 16384  # texts and layouts remembered
WORD_START = "\u2581"  # how tokens of sentencepiece's kind spell one


class Segment(NamedTuple):
    """A run of tokens from one hand."""

    token_ids: TokenIds
    spoken: bool  # by the assistant, end token included


class ChatFormat:
    """Encodes conversations of (system,) user, assistant, user, ... with a tokenizer's chat template, or a plain one.

    `append_only` says whether the encoding of a longer conversation always starts with that of the shorter one and
    the sampled ids. `end_ids` are the tokens that end the assistant's turn. `opening` is the tag of thinking that the
    prompt of a turn ends with, "" for none: it belongs to the content of the turn, and is no part of its sampled ids.

    Args:
        tokenizer: of transformers.
        options: what the template is told besides the messages (`model.template_options`).
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self._template = Template(tokenizer, options or {})
        self.append_only = self._template.rules is not None and not self._template.reads_thinking
        self._layout = lru_cache(CACHE_SIZE)(self._find_layout)
        self._marked = lru_cache(CACHE_SIZE)(self._template.render)
        self._line_break = self._find_line_break()
        self._piece = lru_cache(CACHE_SIZE)(self._encode_piece)
        self._content = lru_cache(CACHE_SIZE)(self._encode_content)
        self._control = self._compile_control_pattern()
        added = tokenizer.added_tokens_decoder.items()
        self._special_tags = {index for index, token in added if token.special and token.content in THINK}
        self.end_ids = self._find_end_ids()
        self.opening = find_open_tag(self._template.prompt)
        self._warn_about_template(options or {})

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        """Token ids of the conversation; after a user's message, ready for the assistant to speak.

        Raises:
            ValueError: the conversation is empty, or its roles do not alternate.
        """
        return tuple(chain.from_iterable(ids for ids, _ in self._iter_segments(messages)))

    def encode_segments(self, messages: Sequence[Message]) -> list[Segment]:
        """The same tokens as `encode`, cut where the speaker changes: what fine-tuning trains is what is `spoken`."""
        return [segment for segment in self._iter_segments(messages) if segment.token_ids]

    def encode_with_mask(self, messages: Sequence[Message], turns: Container[int]) -> tuple[list[int], list[int]]:
        """Token ids of a conversation and the mask of what is learned of it.

        Args:
            messages: the conversation. Sampled ids enter as they are, unless they are another tokenizer's.
            turns: indices of the assistant's messages that are learned, with their end tokens.
        """
        messages = [self._drop_foreign_ids(message) for message in messages]
        _, parts = self._find_parts(messages)
        ids: list[int] = []
        mask: list[int] = []
        for index, segment in enumerate(
            self._iter_segments(messages)
        ):  # each part stands behind a piece of the template
            learned = segment.spoken and parts[index // 2].message in turns
            ids += segment.token_ids
            mask += [int(learned)] * len(segment.token_ids)
        return ids, mask

    def encode_reply(self, messages: Sequence[Message], text: str) -> TokenIds:
        """Ids of the assistant's next turn that says `text`, with its end; () for nothing."""
        last = self.encode_segments([*messages, Message("assistant", text)])
        return next(segment.token_ids for segment in reversed(last) if segment.spoken) if text.strip() else ()

    def _drop_foreign_ids(self, message: Message) -> Message:
        """The message without its ids where this tokenizer reads other text in them."""
        if message.token_ids is None:
            return message
        try:
            text = self.opening + self.decode(message.token_ids)
        except (IndexError, OverflowError, TypeError, ValueError):  # ids that it does not know, in its own words
            return replace(message, token_ids=None)
        said = message.content  # up to a stop string, which its ids may hold
        known = text.startswith(said) if said else not text.strip()
        return message if known else replace(message, token_ids=None)

    def decode(self, token_ids: TokenIds) -> str:
        """Text without special tokens; tags of thinking stay, which some tokenizers count among them."""
        return "".join(
            self.tokenizer.decode(list(run), skip_special_tokens=not tags, clean_up_tokenization_spaces=False)
            for tags, run in groupby(token_ids, self._special_tags.__contains__)
        )

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` as the content of a message."""
        return len(self._content(text))

    def _iter_segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        pieces, parts = self._find_parts(messages)
        spoken: TokenIds = ()
        for text, after, part in zip(pieces[:-1], pieces[1:], parts, strict=True):
            message = messages[part.message]
            is_spoken = message.role == "assistant"
            blanks = "" if is_spoken else text[len(text.rstrip(" ")) :]  # are the beginning of a word
            yield Segment(_strip_overlap(spoken, self._piece(text.removesuffix(blanks))), spoken=False)
            spoken = self._encode_turn(message, part.texts, after) if is_spoken else ()
            yield Segment(
                spoken if is_spoken else self._content(blanks + self._trim_content(message)), spoken=is_spoken
            )
        yield Segment(_strip_overlap(spoken, self._piece(pieces[-1])), spoken=False)

    def _find_parts(self, messages: Sequence[Message]) -> tuple[tuple[str, ...], list[ContentPart]]:
        """Template texts, and what stands between them."""
        roles = tuple(message.role for message in messages)
        if self._template.reads_thinking and any(map(_has_thinking, messages)):
            return self._find_parts_with_thinking(roles, messages)
        pieces, order = self._layout(roles)
        return pieces, [ContentPart(index) for index in order]

    def _find_layout(self, roles: RoleSequence) -> TemplateLayout:
        """By the rules of the template, or as it renders the conversation where there are none."""
        _validate_roles(roles)
        rules = self._template.rules
        if rules is None:
            return self._template.render_layout(roles)
        return TemplateLayout(tuple(rules[pair] for pair in pair_roles(roles)), tuple(range(len(roles))))

    def _find_parts_with_thinking(
        self, roles: RoleSequence, messages: Sequence[Message]
    ) -> tuple[tuple[str, ...], list[ContentPart]]:
        """The same where the template looks into contents: what it leaves as it was enters whole, with its ids."""
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
        return join_parts(
            self._template.split_rendered(text, [roles[index] for index, _ in words]), words, self._template.prompt
        )

    def _encode_turn(self, message: Message, texts: Sequence[str], after: str) -> TokenIds:
        if texts:
            ids = [(self._piece if i % 2 else self._content)(text) for i, text in enumerate(texts)]
            size = len(self._end_mark)
            return tuple(chain(*ids, self._end_mark if self._piece(after)[:size] == self._end_mark else ()))
        if message.token_ids is None:
            left, right = self._template.blanks
            return self._encode_assistant_text(left + self._trim_content(message) + right) + self._end_mark
        opened = self.opening if message.content.startswith(self.opening) else ""
        return self._piece(opened) + message.token_ids

    def _trim_content(self, message: Message) -> str:
        left, right = self._template.trims[message.role]
        text = message.content.lstrip() if left else message.content
        return text.rstrip() if right else text

    # The template as tokens

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
        """What stands before a text that is tokenised, lest it begin with a blank that nobody wrote; () for nothing.

        Tokenizers of sentencepiece's kind give the first word of a text the blank that words have within it.
        """
        first, inner = self.tokenizer.tokenize("x"), self.tokenizer.tokenize("\nx")
        if not first[0].startswith(WORD_START) or inner[-1].startswith(WORD_START):
            return ()
        return tuple(self.tokenizer.encode("\n", add_special_tokens=False))

    def _encode_content(self, text: str) -> TokenIds:
        """Tokens of data: a control token that is spelt out in it is cut apart, so that it stays text."""
        cuts = [match.start() + 1 for match in self._control.finditer(text)]
        bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
        return tuple(chain.from_iterable(self._encode_piece(text[start:stop]) for start, stop in bounds))

    def _encode_assistant_text(self, text: str) -> TokenIds:
        """Tokens of what the assistant says: tags of thinking are its own, everything else is data."""
        parts = TAG.split(text) if self._has_tags else [text]
        return tuple(chain.from_iterable((self._piece if part in THINK else self._content)(part) for part in parts))

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
        closing = self._piece(pieces[order.index(1) + 1])[:1] if 1 in order else ()
        control = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        self._end_mark = closing if set(closing) <= control else ()
        eos = self.tokenizer.eos_token_id
        return frozenset(self._end_mark) | (frozenset() if eos is None else frozenset({int(eos)}))

    def _warn_about_template(self, options: Mapping[str, Any]) -> None:
        """Say what this template costs, and which options it does not know."""
        if self._template.rules is None and self._template.learn_rules([NO_HEAD]) is not None:
            logger.warning(
                "this chat template moves what the system says from turn to turn: each step is computed and trained as "
                'a row of its own (as with optim.rows = "step"), which costs time and tokens that grow with the square '
                'of the number of turns; with rollout.system_prompt = "" it leaves earlier turns alone'
            )
        elif self._template.rules is None:
            logger.warning(
                "this chat template rewrites earlier turns: each step is rendered, computed and trained as a row of "
                'its own (as with optim.rows = "step"), which costs time and tokens that grow with the square of the '
                "number of turns"
            )
        elif self._template.reads_thinking:
            logger.warning(
                "this chat template rewrites the thinking of earlier turns: a step after one with thinking is trained "
                'as a row of its own (as with optim.rows = "step"), which costs tokens that grow with the square of '
                "the number of turns"
            )
        known = str(self.tokenizer.chat_template or "")
        if unknown := [name for name in options if name not in known]:
            logger.warning("the model's chat template knows nothing of model.template_options.%s", unknown[0])


def _has_thinking(message: Message) -> bool:
    return message.role == "assistant" and TAG.search(message.content) is not None


def encode_replies(
    chat: ChatFormat, messages: Sequence[Message], replies: Sequence[str | TokenIds], context_length: int
) -> tuple[TokenIds, list[TokenIds]]:
    """The ids of a prompt, and those of each reply to it: a text with the end of its turn, or the ids as they are.

    Raises:
        PolicyError: prompt and longest reply exceed the context.
        ValueError: a reply is empty.
    """
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
        raise ValueError(
            f"a conversation is (system,) user, assistant, user, ...: got {', '.join(roles) or 'no message'}"
        )


def _strip_overlap(spoken: TokenIds, piece: TokenIds) -> TokenIds:
    """The template's tokens after a turn, without those at their start that the turn already ends with."""
    for size in range(min(len(spoken), len(piece)), 0, -1):
        if spoken[-size:] == piece[:size]:
            return piece[size:]
    return piece
