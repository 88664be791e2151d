"""Models that think before they answer: templates that drop their thinking, and what becomes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from families import KEEPS_OPEN, QWEN3
from puppet import OneTip, ask, ids_of, led, play, rendered, talk, text_of
from trailnotes.learner.samples import build_samples
from trailnotes.memory import clean_tip
from trailnotes.policies.chat import ChatFormat
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.rollout.advice import ValuedAction, parse_advice
from trailnotes.rollout.conversation import parse_action
from trailnotes.types import NO_OP, THINK, Completion, Sampling, TrajectoryGroup, strip_thinking

# As DeepSeek-R1's: every turn begins with a thought, and none stays.
OPENS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]<think>\n{% endif %}"
)
# Thinking stays, in one form.
TIDIES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if '</think>' in m.content %}{% set parts = m.content.split('</think>') %}"
    "<think>{{ parts[0].replace('<think>', '') | trim }}</think>\n{{ parts[1] | trim }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {"drops": QWEN3, "opens": OPENS, "tidies": TIDIES, "keeps open": KEEPS_OPEN}
OFF = {"enable_thinking": False}


def thinking_tokenizer(make: Callable[..., Any], template: str) -> Any:
    """The tags are tokens of their own, as with all models that think."""
    tokenizer = make(template)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


# -- templates


CONTENTS = st.lists(
    st.sampled_from(["<think>", "</think>", "\n", "\n\n", " ", "go north", "a key", "<|im_end|>", "é🙂", "<thin"]),
    max_size=7,
).map("".join)
PLAIN = st.text(alphabet="abc \n<>é🙂", max_size=8).map(lambda text: f"x{text}x")


@pytest.fixture(scope="module")
def formats(tokenizer_of):
    """By template and options."""
    return {
        (name, bool(options)): ChatFormat(thinking_tokenizer(tokenizer_of, template), options)
        for name, template in TEMPLATES.items()
        for options in ({}, OFF)
    }


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.sampled_from([(name, off) for name in TEMPLATES for off in (False, True)]),
    turns=st.lists(st.tuples(PLAIN, CONTENTS, st.booleans()), max_size=3),
    last=PLAIN,
    system=st.none() | PLAIN,
)
def test_the_context_is_what_the_template_makes_of_the_conversation(formats, which, turns, last, system) -> None:
    chat = formats[which]
    tokenizer = chat.tokenizer
    contents: list[Any] = []
    for observation, content, sampled in turns:
        # What was sampled behind an open tag begins with it, and a template that trims has nothing to trim.
        said = (chat.opening + content).strip() if which[0] in {"opens", "tidies"} else chat.opening + content
        ids = ids_of(tokenizer, said.removeprefix(chat.opening) + "<|im_end|>")
        contents += [observation, (said, ids) if sampled and "<|im_end|>" not in said else said]
    messages = talk(*contents, last, system=system)
    assert text_of(tokenizer, chat.encode(messages)) == rendered(tokenizer, messages, **(OFF if which[1] else {}))


def test_thinking_tags_are_tokens_of_the_assistant_alone(tokenizer_of) -> None:
    tokenizer = thinking_tokenizer(tokenizer_of, KEEPS_OPEN.replace("<think>\n", ""))
    chat = ChatFormat(tokenizer)
    assert chat.append_only
    tags = set(tokenizer.convert_tokens_to_ids(["<think>", "</think>"]))
    assert not tags & set(chat.encode(talk("<think>obey</think>")))
    assert tags <= set(chat.encode(talk("A hall.", "<think>A key.</think>take key", "Taken.")))


def test_options_reach_the_template_and_unknown_ones_are_named(tokenizer_of, caplog) -> None:
    tokenizer = thinking_tokenizer(tokenizer_of, QWEN3)
    with caplog.at_level(logging.WARNING):
        chat = ChatFormat(tokenizer, OFF | {"budget": 3})
    assert text_of(tokenizer, chat.encode(talk("A hall."))).endswith("assistant\n<think>\n\n</think>\n\n")
    assert "model.template_options.budget" in caplog.text


# -- what is sampled


def say(policy: HFPolicy, **sampling: Any) -> Completion:
    return ask(policy, Sampling(max_tokens=40, **sampling))[0]


@pytest.fixture(scope="module")
def thinker(tokenizer_of, model_of):
    """The tokenizer and the model of one that thinks, by template."""

    def make(template: str) -> tuple[Any, Any]:
        tokenizer = thinking_tokenizer(tokenizer_of, template)
        return tokenizer, model_of("qwen2", positions=512, vocab_size=len(tokenizer))

    return make


ANSWERS = (
    "<think>\nA hall.\nA door?\n</think>\n\ngo north<|im_end|>",
    "<think>\nDark.\n</think>\n\ntake key<|im_end|>",
    "look<|im_end|>",
)


def test_a_reply_of_tags_alone_is_empty(formats) -> None:
    for earlier in (talk("A hall."), talk("A hall.", "go north", "Dark.")):
        assert formats["drops", False].encode_reply(earlier, "<think></think>") == ()


@pytest.mark.parametrize("options", [{}, OFF])
def test_turns_act_and_train_in_the_template_s_context(thinker, options: dict[str, Any]) -> None:
    tokenizer, model = thinker(QWEN3)
    done, actions = play(led(tokenizer, model, *ANSWERS, template_options=options))
    assert actions == ["go north", "take key", "look"]
    assert [step.completion.text for step in done.steps] == [a.removesuffix("<|im_end|>") for a in ANSWERS]
    seen = ["leave\na hall", "after go north", "after take key"]
    said = [step.completion.text for step in done.steps]
    for turn, step in enumerate(done.steps):
        before = talk(*[text for pair in zip(seen, said, strict=True) for text in pair][: 2 * turn + 1])
        assert text_of(tokenizer, step.completion.prompt_ids) == rendered(tokenizer, before, **options)
    rows = build_samples([TrajectoryGroup(done.task, (done,))], [[1.0]])
    contexts = [step.completion.prompt_ids + step.completion.token_ids for step in done.steps]
    assert [row.token_ids for row in rows] == contexts
    for row, step in zip(rows, done.steps, strict=True):
        assert sum(row.loss_mask) == len(step.completion.token_ids)


def test_the_context_without_tips_drops_earlier_thinking_too(thinker) -> None:
    tokenizer, model = thinker(QWEN3)
    done, _ = play(led(tokenizer, model, *ANSWERS), "off_policy", OneTip())
    last = done.steps[-1]
    assert text_of(tokenizer, last.plain_prompt_ids) == rendered(
        tokenizer, talk("leave\na hall", "go north", "after go north", "take key", "after take key")
    )
    assert "the key is north" in text_of(tokenizer, last.completion.prompt_ids)
    assert "think>" not in text_of(tokenizer, last.completion.prompt_ids)


def test_a_template_that_keeps_thinking_makes_one_row(thinker) -> None:
    tokenizer, model = thinker(KEEPS_OPEN)
    answers = [answer.removeprefix("<think>\n") for answer in ANSWERS[:2]]
    done, actions = play(led(tokenizer, model, *answers, "A key.\n</think>\n\nlook<|im_end|>"))
    assert actions == ["go north", "take key", "look"]
    assert len(build_samples([TrajectoryGroup(done.task, (done,))], [[1.0]])) == 1


def test_a_stop_ends_the_answer_and_not_the_thinking(thinker) -> None:
    done = say(led(*thinker(QWEN3), "<think>\nA hall.\n</think>\n\ngo north\ntake key<|im_end|>"), stop=("\n",))
    assert (done.text, done.finish_reason) == ("<think>\nA hall.\n</think>\n\ngo north", "stop")


@pytest.mark.parametrize("template", [QWEN3, OPENS])
def test_thinking_that_does_not_end_is_no_action(thinker, template: str) -> None:
    thought = "A hall.\nA door?" + " look" * 40
    text = thought if template == OPENS else f"<think>\n{thought}"
    done = say(led(*thinker(template), text), stop=("\n",))
    assert done.finish_reason == "length"
    assert done.text.startswith("<think>\nA hall.")
    assert not parse_action(done.text, "line")


# -- what is made of it


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>\ngo south\n</think>\n\ngo north", "go north"),
        ("go south\n</think>\n\ngo north", "go north"),  # the tag that opened it was in the prompt
        ("<think>a</think>go south<think>b</think> go north\nlook", "go north"),
        ("<think>\ngo south", NO_OP),
        ("<think>go south</think>", NO_OP),
        ("go north\n<think>or", NO_OP),
        ("<thinker> north", "<thinker> north"),
    ],
)
def test_thinking_is_no_action(text: str, action: str) -> None:
    assert parse_action(text, "line") == action
    tagged = text.replace("go south", "<action>go south</action>").replace("go north", "<action>go north</action>")
    if action == "go north":
        assert parse_action(tagged, "tags") == action
    elif action == NO_OP:
        assert parse_action(tagged, "tags") == parse_action("", "tags")


def test_thinking_is_no_tip_and_no_advice() -> None:
    assert clean_tip("<think>\nWhat did I learn?\n</think>\n\n- The key is north.") == "The key is north."
    assert clean_tip("<think>\nWhat did I learn? " + "Hm. " * 9000 + "</think>The key is north.") == "The key is north."
    assert not clean_tip("<think>\nWhat did I learn?")
    assert parse_advice("<think>go south -> 1.0</think>\ngo north -> 0.5") == [ValuedAction("go north", 0.5)]


@given(CONTENTS)
def test_the_answer_is_the_end_of_the_text_without_a_tag(text: str) -> None:
    answer = strip_thinking(text)
    assert text.endswith(answer)
    assert not any(tag in answer for tag in THINK)
