"""The event engine: what each source notices, what slots make of it, and in which order."""

from __future__ import annotations

import pytest

import howto
from trailnotes.errors import ConfigError, EnvError
from trailnotes_worlds.wikihow.events import EventEngine, LogLine, StepOutcome, StepSignals
from trailnotes_worlds.wikihow.matching import Selector, locate_views
from trailnotes_worlds.wikihow.taskfile import parse_task
from trailnotes_worlds.wikihow.views import BUTTON, IMAGE, PLAIN_VIEW, TEXT, Box, View


def engine(events: str, sources: str = "", **options: bool) -> EventEngine:
    """Sources 1, 2 and 3 notice a, b and c in the log; `events` are listeners, beside an end that never is."""
    letters = "".join(
        f'event_sources {{ id: {number} log_event {{ filters: "t:D" pattern: "{letter}(\\\\d*)" }} }}\n'
        for number, letter in enumerate("abc", start=1)
    )
    end = "" if "episode_end_listener" in events else "episode_end_listener { events { event { } } }"
    return EventEngine(
        parse_task(f'command: "go" {letters} {sources} event_slots {{ {events} {end} }}', "f"), **options
    )


def logged(*texts: str, tag: str = "t", level: str = "D") -> StepSignals:
    return StepSignals([LogLine(tag, level, text) for text in texts])


def rewards(engine: EventEngine, *steps: StepSignals) -> list[float]:
    return [engine.step(step).reward for step in steps]


A, B, C, NONE = logged("a"), logged("b"), logged("c"), StepSignals()


def slot(kind: str, *ids: int, more: str = "", worth: str = "1") -> str:
    inputs = " ".join(f"events {{ id: {each} }}" for each in ids)
    return f'reward_listener {{ type: {kind} {inputs} transformation: "y = {worth}" {more} }}'


def test_single_or_and_and() -> None:
    assert rewards(engine(slot("SINGLE", 1)), A, B) == [1, 0]
    assert rewards(engine(slot("OR", 1, 2)), B, C, logged("a1", "b1")) == [1, 0, 2]  # each input has a value
    both = engine(slot("AND", 1, 2))
    assert rewards(both, A, B, logged("a1", "b1")) == [0, 0, 1]  # within one step


@pytest.mark.parametrize(
    ("repeats", "expected"), [("NONE", [1, 0, 0, 0]), ("LAST", [1, 0, 0, 1]), ("UNLIMITED", [1, 1, 0, 1])]
)
def test_how_often_a_slot_counts(repeats: str, expected: list[float]) -> None:
    steps = (logged("a1"), logged("a2"), NONE, logged("a3"))
    assert rewards(engine(slot("SINGLE", 1, more=f"repeatability: {repeats}")), *steps) == expected


@pytest.mark.parametrize(
    ("repeats", "expected"), [("NONE", [1, 0, 0, 0]), ("LAST", [1, 0, 0, 1]), ("UNLIMITED", [1, 1, 0, 1])]
)
def test_how_often_the_same_line_counts(repeats: str, expected: list[float]) -> None:
    source = f'event_sources {{ id: 9 repeatability: {repeats} log_event {{ filters: "t:D" pattern: "x|y" }} }}'
    same = engine(slot("SINGLE", 9), source)
    assert rewards(same, logged("x"), logged("x"), logged("z"), logged("x")) == expected


def test_a_prerequisite_must_ever_have_been() -> None:
    after = engine(slot("SINGLE", 1, more="prerequisite: 2"))
    assert rewards(after, logged("a1"), B, logged("a2"), logged("a3")) == [0, 0, 1, 1]
    assert rewards(engine(slot("SINGLE", 1, more="prerequisite: [2, 3]")), logged("a1", "b"), logged("a2", "c")) == [
        0,
        1,
    ]


def test_what_waits_stays_set_until_the_others_are() -> None:
    def waiting(until: int) -> str:
        return (
            'reward_listener { type: AND transformation: "y = 1" '
            f"events {{ event {{ id: 8 events {{ id: 1 }} cache_until: {until} }} }} "
            "events { event { id: 9 events { id: 2 } } } }"
        )

    assert rewards(engine(waiting(9)), A, NONE, B, logged("b1")) == [0, 0, 1, 0]
    assert rewards(engine(waiting(-1)), A, B, logged("b1")) == [0, 1, 1]
    assert rewards(engine(waiting(9).replace("cache_until: 9", "")), A, B) == [0, 0]


def test_a_score_pays_what_it_has_grown_by() -> None:
    scored = engine('score_listener { events { id: 1 } transformation: "y = x[0]" }')
    assert rewards(scored, logged("a3"), NONE, logged("a5", "a7"), logged("a2")) == [3, 0, 4, -5]


def test_rewards_add_up_and_instructions_follow_each_other() -> None:
    both = engine(
        'reward_listener { type: OR events { event { events { id: 1 } transformation: "y = 2" } }'
        ' events { event { events { id: 2 } transformation: "y = 0.5" } } }'
        "instruction_listener { type: OR events { event { events { id: 1 } transformation: \"y = ['one', 'two']\" } }"
        " events { event { events { id: 2 } transformation: \"y = 'three'\" } } }"
    )
    assert both.step(logged("a", "b")) == StepOutcome(2.5, is_over=False, instructions=("one", "two", "three"))


def test_the_end_is_told_once_it_is_reached() -> None:
    ending = engine("episode_end_listener { type: AND events { id: 1 } events { event { id: 7 events { id: 2 } } } }")
    assert [ending.step(step).is_over for step in (A, B, logged("a1", "b1"))] == [False, False, True]


@pytest.mark.parametrize(
    ("given", "is_over", "has_failed"), [("True", True, False), ("False", True, True), ("None", False, False)]
)
def test_an_end_may_be_a_failure_or_none(given: str, is_over: bool, has_failed: bool) -> None:
    ending = engine(f'episode_end_listener {{ events {{ id: 1 }} transformation: "y = {given}" }}')
    assert ending.step(A) == StepOutcome(0, is_over, has_failed)


def test_an_empty_listener_asks_nobody() -> None:
    """A slot that is asked has been triggered, and one that counts once would be used up."""
    once = "reward_listener { prerequisite: 2 events { event { id: 9 events { id: 1 } repeatability: NONE } } }"
    empty = "instruction_listener { prerequisite: 9 }"
    assert rewards(engine(once.replace("} } }", '} } transformation: "y = 1" }') + empty), A, logged("a1", "b")) == [
        0,
        1,
    ]


def test_an_event_may_be_named_before_it_is_there() -> None:
    early = engine(
        "episode_end_listener { events { id: 50 } }"
        'reward_listener { type: OR events { event { id: 50 events { id: 1 } transformation: "y = 1" } } }'
    )
    assert early.step(A) == StepOutcome(1, is_over=True)


@pytest.mark.parametrize(
    ("tag", "level", "heard"), [("t", "D", 1.0), ("t", "E", 1.0), ("t", "V", 0.0), ("u", "D", 0.0)]
)
def test_filters_let_a_tag_and_a_level_through(tag: str, level: str, heard: float) -> None:
    assert rewards(engine(slot("SINGLE", 1)), logged("a", tag=tag, level=level)) == [heard]


@pytest.mark.parametrize("worth", ["'much'", "x[5]", "[1, 2]", "1e999", "'nan'"])
def test_a_reward_that_is_none_costs_the_episode_alone(worth: str) -> None:
    with pytest.raises(EnvError, match=r"no number|no such part"):
        engine(slot("SINGLE", 1, worth=worth)).step(A)


SCREEN = View("F", children=(
    View("android.view.View", name="section_0", box=Box(0, 300, 1080, 500), children=(
        View(PLAIN_VIEW, box=Box(0, 300, 1080, 400), children=(View(TEXT, "How to Boil", box=Box(0, 300, 1080, 400)),)),
    )),
    View(BUTTON, "Press", name="a:id/press_me", described="Do it", clickable=True, box=Box(0, 500, 1080, 600)),
    View(IMAGE, "Ann", box=Box(540, 600, 1080, 960)),
))  # fmt: skip


@pytest.mark.parametrize(
    ("selector", "texts"),
    [
        ('."android.view.View"#"section_0" .$"TextView"', ["How to Boil"]),
        ('#"section_0">.$"TextView"', []),
        ('#"section_0">.$"View">.$"TextView"', ["How to Boil"]),
        ('#$"press_me"', ["Press"]),
        ('.^"android.widget"[text="Ann"]', ["Ann"]),
        ('@1, [clickable=true], [content-desc*="it"]', ["Press"]),
        ('$"com.wikihow.wikihowapp"[text$=s]', ["Press"]),
        ("*", ["", "", "", "How to Boil", "Press", "Ann"]),
    ],
)
def test_selectors_mean_what_mobile_env_means(selector: str, texts: list[str]) -> None:
    assert [each.view.text for each in Selector([selector], "f").select(locate_views(SCREEN))] == texts


@pytest.mark.parametrize(
    "selector", ["", ":first-child", "div", "a > > b", '#"x" >', '#"x', ".$View", "[a~=b]", '#"x",']
)
def test_other_selectors_are_refused(selector: str) -> None:
    with pytest.raises(ConfigError, match="is no selector"):
        Selector([selector], "f:1")


@pytest.mark.parametrize(
    ("properties", "heard"),
    [
        ('property_name: "text" pattern: "Ann$"', 1.0),
        ('property_name: "text" pattern: "Bo"', 0.0),
        ('property_name: "top" sign: EQ floating: 0.3125', 1.0),
        ('property_name: "bottom" sign: LE floating: 0.4', 1.0),  # 0.4 <= 0.5: the file's number comes first
        ('property_name: "left" sign: GT integer: 1', 1.0),
        ('property_name: "text" sign: NE integer: 1', 1.0),
        ('property_name: "text" sign: EQ integer: 1', 0.0),
        ('property_name: "text"', 1.0),
    ],
)
def test_properties_of_views(properties: str, heard: float) -> None:
    source = (
        f'event_sources {{ id: 9 view_hierarchy_event {{ selector: ".$\\"Image\\"" properties {{ {properties} }} }} }}'
    )
    assert rewards(engine(slot("SINGLE", 9), source), StepSignals(screen=SCREEN)) == [heard]


def test_texts_are_read_in_their_region_and_only_where_somebody_reads() -> None:
    def reading(kind: str, expect: str, **options: bool) -> list[float]:
        region = "rect { y0: 0.14 x1: 1 y1: 0.3 }"
        source = f'event_sources {{ id: 9 {kind} {{ expect: "{expect}" {region} }} }}'
        return rewards(engine(slot("SINGLE", 9), source, **options), StepSignals(screen=SCREEN))

    assert reading("text_detect", "^How to Boil$", reads_screen=True) == [1]
    assert reading("text_detect", "Ann", reads_screen=True) == [0]
    assert reading("text_recognize", "^How to Boil Press$", reads_screen=True) == [1]
    assert reading("text_detect", "How", reads_screen=False) == [0]


@pytest.mark.parametrize(
    ("mode", "threshold", "text", "heard"),
    [
        ("REGEX", 0, "an egg", 1.0),
        ("DIFFLIB", 0.8, "eg", 1.0),
        ("DIFFLIB", 0.9, "eg", 0.0),
        ("FUZZ", 80, "eg", 1.0),
        ("FUZZ", 90, "eg", 0.0),
    ],
)
def test_responses_are_compared(mode: str, threshold: float, text: str, heard: float) -> None:
    if mode == "FUZZ":
        pytest.importorskip("rapidfuzz", reason="the extra webshop is not installed")
    pattern = f'pattern: "egg" mode: {mode} threshold: {threshold}'
    source = f"event_sources {{ id: 9 response_event {{ {pattern} }} }}"
    assert rewards(engine(slot("SINGLE", 9), source), StepSignals(responses=[text])) == [heard]


def test_icons_are_never_found() -> None:
    source = 'event_sources { id: 9 icon_match { path: "a.png" } }'
    assert rewards(engine(slot("SINGLE", 9), source), StepSignals(screen=SCREEN)) == [0]


def test_a_file_like_the_public_ones_pays_each_page_once() -> None:
    host = "mUrl is: https://www.wikihow.com"
    following = EventEngine(parse_task(howto.TASK, "boil-4.textproto"))
    search = [LogLine("jd", "D", f"{host}/wikiHowTo?search=boil+an+egg+&wh_an=1")]
    article = [LogLine("jd", "D", f"{host}/Boil-an-Egg?wh_an=1&amp=1")]
    page = View("F", children=(View(PLAIN_VIEW, name="authors_container", children=(View(IMAGE, "Ann Lee, PhD"),)),))
    told = ['Access the article "How to Boil an Egg"', "Check the author page of Ann Lee, PhD."]
    assert following.step(StepSignals(search)) == StepOutcome(1, is_over=False, instructions=(told[0],))
    assert following.step(StepSignals(search)) == StepOutcome()
    assert following.step(StepSignals(article)) == StepOutcome(1, is_over=False, instructions=(told[1],))
    assert following.step(StepSignals(screen=page)) == StepOutcome(1, is_over=True)
