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
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, groupby, pairwise, product
from typing import Any, Final, NamedTuple

from trailnotes.errors import PolicyError, format_error
from trailnotes.types import THINK, Message, Role, TokenIds, replace_surrogates

logger = logging.getLogger(__name__)
CACHE_SIZE = 1024  # layouts remembered
MAX_CACHED_TEXT = 32_768  # characters of a text whose ids are remembered
MAX_CACHED_CHARS = 2**24  # characters of all texts remembered
WORD_START = "\u2581"  # how tokens of sentencepiece's kind spell one
TAG = re.compile(f"({'|'.join(THINK)})")
MARK = re.compile(r"Zq(\d+)qZ")
NOW = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
TODAY: Final = datetime(2024, 7, 26, tzinfo=UTC)  # to templates: a run is the same each day. Llama's own default


class TemplateLayout(NamedTuple):
    """Template texts and contents of a conversation in turn: piece, content, piece, ..., content, piece."""

    pieces: tuple[str, ...]  # n + 1 template texts
    order: tuple[int, ...]  # n indices of messages


class ContentPart(NamedTuple):
    """Content of one message, or what the template makes of a content with thinking."""

    message: int  # its index
    texts: tuple[str, ...] = ()  # words, template text, words, ..., words; () for the content as it is


def make_mark(index: int) -> str:
    return f"Zq{index}qZ"  # takes the place of content `index`; no template contains it


def split_at_marks(text: str) -> TemplateLayout:
    parts = MARK.split(text)
    return TemplateLayout(tuple(parts[::2]), tuple(int(index) for index in parts[1::2]))


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


PLAIN_TEMPLATE = (
    "{{ prefix }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}\n\n"
    "{% elif message.role == 'user' %}User:\n{{ message.content }}\n"
    "{% else %}Assistant:\n{{ message.content }}{{ suffix }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)

RoleSequence = tuple[Role, ...]
LayoutRules = dict[tuple[Role | None, Role | None], str]  # text between two neighbouring roles (None: the ends)

TURN: RoleSequence = ("user", "assistant")
SYSTEM_HEAD: RoleSequence = ("system",)
HEADS: tuple[RoleSequence, ...] = ((), SYSTEM_HEAD)
PROBED_TURNS = (1, 2, 3, 4, 20)  # of the user, in the conversations that a template is tried on


class Template:
    """Chat template of a tokenizer, or a plain one, with the facts that rendering it shows.

    `rules` give the layout of every conversation, or are None where earlier turns are rewritten. `reads_thinking` says
    whether thinking is changed. `prompt` is the text between a user's message and the assistant's turn. `trims` says
    for each role whether the left and the right end of its contents are stripped. `blanks` surround an answer in the
    history alone, and so belong to its words. A system message that the template has no place for opens the first user
    message. `options` are variables of the template (`model.template_options`).
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        plain: dict[str, Any] = {}
        if tokenizer.chat_template is None:
            first = tokenizer("x").input_ids[:1]
            has_prefix = bool(first) and tokenizer.bos_token_id is not None and first[0] == tokenizer.bos_token_id
            plain = {"chat_template": PLAIN_TEMPLATE, "prefix": tokenizer.bos_token if has_prefix else ""}
            plain["suffix"] = tokenizer.eos_token or ""
        elif isinstance(tokenizer.chat_template, str):  # transformers gives a template no functions but its own
            plain["chat_template"] = NOW.sub(lambda call: repr(TODAY.strftime(call[2])), tokenizer.chat_template)
        self._options = {**plain, **options}
        self._reason = ""  # why the template refused a conversation, the last time that it did
        self._folds = False
        text = self._render_marks(SYSTEM_HEAD + TURN[:1])
        refused = text is None or make_mark(0) not in text  # a system message, or left out without a word
        self._folds = refused and self._render_marks(TURN[:1]) is not None
        for roles in (TURN[:1], TURN, SYSTEM_HEAD + TURN[:1]):
            self._require_contents(roles)
        self.blanks = self._find_blanks()
        self.trims = {role: self._find_trimming(role) for role in SYSTEM_HEAD + TURN}
        self.rules = self.learn_rules()
        self.reads_thinking = self._find_thinking()
        self.prompt = self.render_layout(TURN[:1]).pieces[-1]

    def render(self, roles: RoleSequence, contents: Sequence[str]) -> str:
        """Render a conversation; raises `PolicyError` where the template refuses these roles."""
        text = self._try_render(roles, contents)
        if text is None:
            raise PolicyError(f"the model's chat template refuses a conversation of {', '.join(roles)}: {self._reason}")
        return text

    def split_rendered(self, text: str, roles: Sequence[Role]) -> TemplateLayout:
        """Cut `text` at its marks, whose roles are given; the `blanks` of an answer are no part of the template."""
        pieces, order = split_at_marks(text)
        parts, (left, right) = list(pieces), self.blanks
        for place, index in enumerate(order):
            if roles[index] == "assistant":
                parts[place] = parts[place].removesuffix(left)
                parts[place + 1] = parts[place + 1].removeprefix(right)
        return TemplateLayout(tuple(parts), order)

    def render_layout(self, roles: RoleSequence) -> TemplateLayout:
        """Render and cut a conversation with marks as its contents; raises `PolicyError` as `render`."""
        return self.split_rendered(self.render(roles, [make_mark(index) for index in range(len(roles))]), roles)

    def describe_tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Word functions as the template does in a system message; "" where it has no form like Hermes's and Qwen's."""
        roles, marks = SYSTEM_HEAD + TURN[:1], [make_mark(0), make_mark(1)]
        before, mark, after = (self._try_render(roles, marks) or "").partition(make_mark(0))
        text = self._try_render(roles, marks, tools=tools) or ""
        added = text.removeprefix(before + mark).removesuffix(after)
        whole = before + mark + added + after == text and not self._folds
        return added.strip("\n") if whole and "<tool_call>" in added else ""

    def learn_rules(self) -> LayoutRules | None:
        """Learn the text between neighbouring roles; None where that depends on more than the two."""
        rules: LayoutRules = {}
        for turns, head in product(PROBED_TURNS, HEADS):
            roles: RoleSequence = (*head, *alternate_roles(2 * turns - 1))
            text = self._render_marks(roles)
            if text is None and head:
                continue
            pieces, order = self.split_rendered(text or "", roles)
            if order != tuple(range(len(roles))):
                return None
            for pair, piece in zip(pairwise((None, *roles, None)), pieces, strict=True):
                if rules.setdefault(pair, piece) != piece:
                    return None
        if rules["user", "assistant"] != rules["user", None]:  # what prompts the assistant is not what stays
            return None
        rules["assistant", None] = self.split_rendered(self._render_marks(TURN) or "", TURN).pieces[-1]
        return rules

    def _render_marks(self, roles: RoleSequence) -> str | None:
        return self._try_render(roles, [make_mark(index) for index in range(len(roles))])

    def _try_render(self, roles: RoleSequence, contents: Sequence[str], **options: Any) -> str | None:
        if self._folds and roles[0] == "system":
            roles, contents = roles[1:], ["\n\n".join(contents[:2]), *contents[2:]]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=roles[-1] != "assistant", **self._options, **options
            )
        except Exception as error:  # noqa: BLE001 (the boundary: a template is a program that may fail in any way)
            self._reason = format_error(error)
            return None
        return text

    def _require_contents(self, roles: RoleSequence) -> None:
        """Refuse a template that changes or drops a content, as one does that knows only lists of parts."""
        text = self._render_marks(roles)
        for index, role in enumerate(roles if text is not None else ()):
            mark = make_mark(index)
            if mark not in str(text):
                act = "changes" if mark.casefold() in str(text).casefold() else "drops"
                raise PolicyError(
                    f"the model's chat template {act} the content of {role} messages: save the tokenizer with a "
                    "template that has each content once, as it is"
                )

    def _find_blanks(self) -> tuple[str, str]:
        """Blanks before and after an answer in the history that the prompt for it, and the end of it, do not have."""
        prompt, history = (split_at_marks(self._render_marks(alternate_roles(num)) or "") for num in (1, 3))
        before, pieces = prompt.pieces[-1], history.pieces
        _, given, after, *_ = (*pieces, "", "", "")
        left = given.removeprefix(before) if given.startswith(before) else ""
        right = after[: len(after) - len(after.lstrip(" "))]
        closes = after[len(right) :].startswith(tuple(self._tokenizer.all_special_tokens) or ("\0",))
        return left if not left.strip(" ") else "", right if closes else ""

    def _find_thinking(self) -> bool:
        opened, closed = THINK
        thought, answer = make_mark(0), make_mark(1)
        for content in (
            f"{opened}\n{thought}\n{closed}\n\n{answer}", f"{opened}{thought}{closed}{answer}",
            f"{opened}\n{thought}", f"{thought}\n{closed}\n\n{answer}",
        ):  # fmt: skip
            for head, num in product(HEADS, (2, 3, 5)):
                roles: RoleSequence = (*head, *alternate_roles(num))
                text = self._try_render(roles, [content if role == "assistant" else "x" for role in roles])
                if text is not None and text.count(content) != roles.count("assistant"):
                    return True
        return False

    def _find_trimming(self, role: Role) -> tuple[bool, bool]:
        roles = (SYSTEM_HEAD if role == "system" else ()) + alternate_roles(3)
        text = self._try_render(roles, [f" {make_mark(0)} " if each == role else "x" for each in roles])
        if text is None or make_mark(0) not in text:
            return False, False
        return f" {make_mark(0)}" not in text, f"{make_mark(0)} " not in text


def alternate_roles(num: int) -> RoleSequence:
    return (TURN * num)[:num]


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
        """Encode `text` as the assistant's next turn, with its end; () for an empty text."""
        segments = self._iter_segments([*messages, Message("assistant", text)])
        return [ids for ids, spoken in segments if spoken and ids][-1] if text.strip() else ()

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
