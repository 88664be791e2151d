"""A chat template as text: rendered with marks in place of what it stands around, and cut at them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from trailnotes.types import THINK

TAG = re.compile(f"({'|'.join(THINK)})")
MARK = re.compile(r"Zq(\d+)qZ")


class TemplateLayout(NamedTuple):
    """Texts around the contents of a conversation: piece, content, piece, ..., content, piece."""

    pieces: tuple[str, ...]  # n + 1 template texts
    order: tuple[int, ...]  # n indices of messages


class ContentPart(NamedTuple):
    """What stands in the place of a content: the message's own, or what the template makes of one with thinking."""

    message: int  # its index
    texts: tuple[str, ...] = ()  # words, template text, words, ..., words; () for the content as it is


def make_mark(index: int) -> str:
    """A text that no template contains, in place of the content of message `index`."""
    return f"Zq{index}qZ"


def split_at_marks(text: str) -> TemplateLayout:
    """Cut a rendered text at its marks."""
    parts = MARK.split(text)
    return TemplateLayout(tuple(parts[::2]), tuple(int(index) for index in parts[1::2]))


def mark_words(text: str, first: int) -> tuple[str, list[str]]:
    """`text` with marks from number `first` on in place of its words, and these: tags and the blanks at them stay."""
    content, words = "", list[str]()
    for part in TAG.split(text):
        word = "" if part in THINK else part.strip()
        content += part.replace(word, make_mark(first + len(words)), 1) if word else part
        words += [word] if word else []
    return content, words


def join_parts(
    layout: TemplateLayout, words: Sequence[tuple[int, str]], prompt: str
) -> tuple[tuple[str, ...], list[ContentPart]]:
    """Template texts and parts, where what belongs to one message is one part: what stands behind `prompt`, too."""
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


def find_open_tag(prompt: str) -> str:
    """The end of a prompt from a tag of thinking on that it leaves open, "" if it does not."""
    opened, closed = map(prompt.rfind, THINK)
    return prompt[opened:] if opened > closed else ""
