"""A chat template tried out: which text it puts around the contents, and what it does to them.

It is rendered with marks in place of the contents, and cut into the text between them. What a prompt ends with must be
what stays of it, so that a turn that was sampled need not be touched again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from trailnotes.errors import PolicyError
from trailnotes.policies.marks import TemplateLayout, make_mark, split_at_marks
from trailnotes.types import THINK, Role

PLAIN_TEMPLATE = (
    "{{ prefix }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}\n\n"
    "{% elif message.role == 'user' %}User:\n{{ message.content }}\n"
    "{% else %}Assistant:\n{{ message.content }}{{ suffix }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)

RoleSequence = tuple[Role, ...]
RolePair = tuple[Role | None, Role | None]
LayoutRules = dict[RolePair, str]  # text between two neighbouring roles (None: the ends)

TURN: RoleSequence = ("user", "assistant")
NO_HEAD: RoleSequence = ()
SYSTEM_HEAD: RoleSequence = ("system",)
HEADS = (NO_HEAD, SYSTEM_HEAD)
PROBED_TURNS = (1, 2, 3, 4, 20)  # of the user, in the conversations that a template is tried on
MAX_REASON_CHARS = 300  # characters of what a template fails with


class Template:
    """The chat template of a tokenizer, or a plain one.

    `rules` give the layout of every conversation, or are None if no such rules do: then earlier turns are rewritten.
    `reads_thinking` says whether the thinking of a turn is. `prompt` is the text after a user's message, for the
    assistant to speak. `trims` says of each role whether the left and the right end of its contents are stripped.
    `blanks` are those that stand on either side of an answer in the history alone: they belong to its words, since who
    answers writes them or not. A system message that the template has no place for opens the user's first message.

    Args:
        tokenizer: of transformers.
        options: what the template is told besides the messages (`model.template_options`).

    Raises:
        PolicyError: the template refuses every conversation.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._options = {**_template_options(tokenizer), **options}
        self._reason = ""  # why the template refused a conversation, the last time that it did
        self._folds = False
        self._folds = self._has_no_system()
        self.blanks = self._find_blanks()
        self.trims = {role: self._find_trimming(role) for role in SYSTEM_HEAD + TURN}
        self.rules = self.learn_rules(HEADS)
        self.reads_thinking = self._find_thinking()
        self.prompt = self.render_layout(TURN[:1]).pieces[-1]

    def render(self, roles: RoleSequence, contents: Sequence[str]) -> str:
        """The conversation as the template gives it; raises `PolicyError` where it refuses these roles."""
        text = self._try_render(roles, contents)
        if text is None:
            raise PolicyError(f"the model's chat template refuses a conversation of {', '.join(roles)}: {self._reason}")
        return text

    def split_rendered(self, text: str, roles: Sequence[Role]) -> TemplateLayout:
        """`text` cut at its marks, whose roles are given; the `blanks` of an answer are no part of the template."""
        pieces, order = split_at_marks(text)
        parts, (left, right) = list(pieces), self.blanks
        for place, index in enumerate(order):
            if roles[index] == "assistant":
                parts[place] = parts[place].removesuffix(left)
                parts[place + 1] = parts[place + 1].removeprefix(right)
        return TemplateLayout(tuple(parts), order)

    def render_layout(self, roles: RoleSequence) -> TemplateLayout:
        """Layout of a conversation as the template itself renders it; raises `PolicyError` as `render`."""
        return self.split_rendered(self.render(roles, [make_mark(index) for index in range(len(roles))]), roles)

    def learn_rules(self, heads: Sequence[RoleSequence]) -> LayoutRules | None:
        """The rules for conversations that begin with any of `heads`, or None if there are none."""
        rules: LayoutRules = {}
        for turns, head in product(PROBED_TURNS, heads):
            roles: RoleSequence = (*head, *alternate_roles(2 * turns - 1))
            text = self._try_render(roles, [make_mark(index) for index in range(len(roles))])
            if text is None and head:
                continue
            pieces, order = self.split_rendered(text or "", roles)
            if order != tuple(range(len(roles))):
                return None
            for pair, piece in zip(pair_roles(roles), pieces, strict=True):
                if rules.setdefault(pair, piece) != piece:
                    return None
        if rules["user", "assistant"] != rules["user", None]:  # what prompts the assistant is not what stays
            return None
        closed = self._try_render(TURN, [make_mark(0), make_mark(1)])
        rules["assistant", None] = self.split_rendered(closed or "", TURN).pieces[-1]
        return rules

    def _try_render(self, roles: RoleSequence, contents: Sequence[str]) -> str | None:
        """The rendered text, or None where the template refuses these roles."""
        if self._folds and roles[0] == "system":
            roles, contents = roles[1:], ["\n\n".join(contents[:2]), *contents[2:]]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=roles[-1] != "assistant", **self._options
            )
        except Exception as error:  # noqa: BLE001 (the boundary: a template is a program that may fail in any way)
            self._reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON_CHARS]
            return None
        return text

    def _has_no_system(self) -> bool:
        """Whether a system message is refused, or left out without a word."""
        text = self._try_render(SYSTEM_HEAD + TURN[:1], [make_mark(0), make_mark(1)])
        return (text is None or make_mark(0) not in text) and self._try_render(TURN[:1], [make_mark(0)]) is not None

    def _find_blanks(self) -> tuple[str, str]:
        """Blanks before and after an answer in the history that the prompt for it, and the end of it, do not have."""
        asked, told = (self._try_render(alternate_roles(num), [make_mark(i) for i in range(num)]) for num in (1, 3))
        before, (_, given, after, *_) = (
            split_at_marks(asked or "").pieces[-1],
            (*split_at_marks(told or "").pieces, "", "", ""),
        )
        left = given.removeprefix(before) if given.startswith(before) else ""
        right = after[: len(after) - len(after.lstrip(" "))]
        closes = after[len(right) :].startswith(tuple(self._tokenizer.all_special_tokens) or ("\0",))
        return left if not left.strip(" ") else "", right if closes else ""

    def _find_thinking(self) -> bool:
        """Whether the template does anything to the thinking of a turn, be it the newest or an earlier one."""
        opened, closed = THINK
        thought, answer = make_mark(0), make_mark(1)
        for content in (
            f"{opened}\n{thought}\n{closed}\n\n{answer}",
            f"{opened}{thought}{closed}{answer}",
            f"{opened}\n{thought}",
            f"{thought}\n{closed}\n\n{answer}",
        ):
            for head, num in product(HEADS, (2, 3, 5)):
                roles: RoleSequence = (*head, *alternate_roles(num))
                text = self._try_render(roles, [content if role == "assistant" else "x" for role in roles])
                if text is not None and text.count(content) != roles.count("assistant"):
                    return True
        return False

    def _find_trimming(self, role: Role) -> tuple[bool, bool]:
        """Whether the template strips the left and the right end of such a content."""
        roles = (SYSTEM_HEAD if role == "system" else NO_HEAD) + alternate_roles(3)
        text = self._try_render(roles, [f" {make_mark(0)} " if each == role else "x" for each in roles])
        if text is None or make_mark(0) not in text:
            return False, False
        return f" {make_mark(0)}" not in text, f"{make_mark(0)} " not in text


def alternate_roles(num: int) -> RoleSequence:
    """`num` roles: user, assistant, user, ..."""
    return (TURN * num)[:num]


def pair_roles(roles: RoleSequence) -> Iterator[RolePair]:
    """Each two neighbours, the ends of the conversation included."""
    return zip((None, *roles), (*roles, None), strict=True)


def _template_options(tokenizer: Any) -> dict[str, Any]:
    """Arguments for `apply_chat_template`; a tokenizer without a template gets the plain one."""
    if tokenizer.chat_template is not None:
        return {}
    first = tokenizer("x").input_ids[:1]
    has_prefix = bool(first) and tokenizer.bos_token_id is not None and first[0] == tokenizer.bos_token_id
    prefix = tokenizer.bos_token if has_prefix else ""
    return {"chat_template": PLAIN_TEMPLATE, "prefix": prefix, "suffix": tokenizer.eos_token or ""}
