"""What a chat template writes around the contents of a conversation, learned by rendering marks in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise, product
from typing import Any, Final, NamedTuple

from trailnotes.errors import PolicyError, format_error
from trailnotes.types import THINK, Role

TAG = re.compile(f"({'|'.join(THINK)})")
MARK = re.compile(r"Zq(\d+)qZ")
JSON_CALL = re.compile(r"""<tool_call>\s*\{\s*["']""")  # GLM's braces hold a function's name, Qwen3-Coder has tags
NOW = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
TODAY: Final = datetime(2024, 7, 26, tzinfo=UTC)  # to templates: a run is the same each day. Llama's own default

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


class TemplateLayout(NamedTuple):
    """Template texts and contents of a conversation in turn: piece, content, piece, ..., content, piece."""

    pieces: tuple[str, ...]  # n + 1 template texts
    order: tuple[int, ...]  # n indices of messages


def make_mark(index: int) -> str:
    return f"Zq{index}qZ"  # takes the place of content `index`; no template contains it


def split_at_marks(text: str) -> TemplateLayout:
    parts = MARK.split(text)
    return TemplateLayout(tuple(parts[::2]), tuple(int(index) for index in parts[1::2]))


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
        return added.strip("\n") if whole and JSON_CALL.search(added) else ""

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
