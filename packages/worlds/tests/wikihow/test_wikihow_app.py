"""The app: what each page shows line by line, what an action does, and what the log says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small_wikihow
from trailnotes_worlds.wikihow.app import Action, AppState, AppTransition, WikiHowApp, list_actions, parse_action
from trailnotes_worlds.wikihow.library import Library
from trailnotes_worlds.wikihow.pages import BUTTON, IMAGE, INPUT, PLAIN_VIEW, TEXT, Leaf, View, render_lines


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    library = small_wikihow.small_library(tmp_path_factory.mktemp("libraries") / "small")
    yield library
    library.close()


@pytest.fixture(scope="module")
def app(library: Library) -> WikiHowApp:
    return WikiHowApp(library)


def went(app: WikiHowApp, *actions: str) -> AppTransition:
    """What the last of some actions has led to."""
    turn = AppTransition(AppState())
    for action in actions:
        turn = app.step(turn.state, parse_action(action))
    return turn


def tap(app: WikiHowApp, state: AppState, text: str) -> AppTransition:
    """A tap on the first view with a text."""
    place = next(place for place, leaf in enumerate(app.leaves(state)) if text in (leaf.view.text, leaf.view.described))
    return app.step(state, parse_action(f"CLICK({place})"))


def lines(app: WikiHowApp, state: AppState) -> list[str]:
    return render_lines(app.leaves(state))


SEARCH = "INPUT(2, boil an egg)"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("CLICK(3)", Action("CLICK", 3)),
        (" click( 3 ) ", Action("CLICK", 3)),
        ("INPUT(2, boil, an (egg))", Action("INPUT", 2, "boil, an (egg)")),
        ("SCROLL(down)", Action("SCROLL", direction="DOWN")),
        ("GOBACK", Action("GOBACK")),
        ("GOBACK()", Action("NOTHING")),
        *((text, Action("NOTHING")) for text in (
            "", "CLICK", "CLICK(x)", "CLICK(-1)", "CLICK(1, 2)", "INPUT(2)", "SCROLL(AWAY)", "SCROLL", "look",
            "CLICK(3) -> 1.0", "CLICK(" + "9" * 20 + ")", "CLICK(\u0663)",
        )),
    ],
)  # fmt: skip
def test_actions_are_read_and_the_rest_is_nothing(said: str, meant: Action) -> None:
    assert parse_action(said) == meant


def test_a_leaf_is_a_line_of_html() -> None:
    leaves = [
        Leaf(View(BUTTON, "A & <B>", "go_now", 'Say "hi"'), clickable=True),
        Leaf(View(TEXT, "two\nlines\r"), clickable=True),
        Leaf(View(IMAGE, "Ann", described="Face"), clickable=False),
        Leaf(View(INPUT, 'it\'s "so"'), clickable=False),
        Leaf(View(PLAIN_VIEW), clickable=False),
    ]
    assert render_lines(leaves) == [
        '<button class="go now" alt=\'Say "hi"\' id="0" clickable="true">A &amp; &lt;B&gt;</button>',
        '<p id="1" clickable="true">two&#10;lines&#13;</p>',
        '<img alt="Face: Ann" id="2" clickable="false">',
        '<input value="it\'s &quot;so&quot;" type="text" id="3" clickable="false">',
        '<div id="4" clickable="false"></div>',
    ]


def test_a_search_shows_what_it_finds_and_says_so_in_the_log(app: WikiHowApp) -> None:
    turn = went(app, SEARCH)
    assert [*turn.log] == ["mUrl is: https://www.wikihow.com/wikiHowTo?search=boil+an+egg+&wh_an=1"]
    assert lines(app, turn.state)[:11] == [
        '<button alt="Open navigation drawer" id="0" clickable="true"></button>',
        '<input class="search src text" value="boil an egg " type="text" id="1" clickable="true">',
        '<img class="search close btn" alt="Clear query" id="2" clickable="true">',
        '<div id="3" clickable="true">How to Boil an Egg</div>',
        '<div id="4" clickable="true">• </div>',
        '<p id="5" clickable="true">1,234 views</p>',
        '<div id="6" clickable="true">• </div>',
        '<p id="7" clickable="true">Updated</p>',
        '<p id="8" clickable="true">1 year ago</p>',
        '<div id="9" clickable="true">• </div>',
        '<p id="10" clickable="true">Expert Co-Authored</p>',
    ]


def test_an_article_shows_its_head_first(app: WikiHowApp) -> None:
    turn = went(app, SEARCH, "CLICK(3)")
    assert [*turn.log] == ["mUrl is: https://www.wikihow.com/Boil-an-Egg?wh_an=1&amp=1"]
    assert [re.sub(' id="\\d+"', "", line) for line in lines(app, turn.state)][1:20] == [
        '<img class="search button" alt="Search" clickable="true">',
        '<img alt="More options" clickable="true">',
        '<p clickable="true">Learn why people </p>',
        '<p clickable="true">trust wikiHow</p>',
        '<p clickable="true">FOOD</p>',
        '<p clickable="false"> »</p>',
        '<p clickable="true">EGGS</p>',
        '<p clickable="true">How to Boil an Egg</p>',
        '<p clickable="false">Co-authored by</p>',
        '<p clickable="false"> </p>',
        '<p clickable="true">Ann Lee, PhD</p>',
        '<p clickable="false"> and </p>',
        '<p clickable="true">Bo Ek</p>',
        '<button clickable="true">Last Updated: June 2, 2021</button>',
        '<p clickable="true">References</p>',
        '<p clickable="false"> </p>',
        '<button clickable="true">Tested</button>',
        f'<div clickable="false">{small_wikihow.BOIL.intro}</div>',
        '<div clickable="false">Method 1 Method 1 of 2: Heating</div>',
    ]


@pytest.mark.parametrize(
    ("text", "log", "seen"),
    [
        ("trust wikiHow", "mUrl is: https://www.wikihow.com/wikiHow:Delivering-a-Trustworthy-Experience?wh_an=1&amp=1",
         "Information You Can Trust"),
        ("Ann Lee, PhD", "mUrl is: https://www.wikihow.com/Author/Ann-Lee-PhD?wh_an=1&amp=1", "Cook"),
        ("EGGS", "mUrl is: https://www.wikihow.com/Category:Eggs?wh_an=1&amp=1", "Featured Articles"),
        ("FOOD", "mUrl is: https://www.wikihow.com/Category:Food?wh_an=1&amp=1", "Featured Topics"),
        ("References", "url is: https://www.wikihow.com/Boil-an-Egg?wh_an=1&amp=1#References", "A book on eggs"),
    ],
)  # fmt: skip
def test_an_article_leads_to_the_pages_of_tasks(app: WikiHowApp, text: str, log: str, seen: str) -> None:
    turn = tap(app, went(app, SEARCH, "CLICK(3)").state, text)
    assert [*turn.log] == [log]
    assert seen in [leaf.view.text for leaf in app.leaves(turn.state)]


def test_going_back_and_scrolling(app: WikiHowApp) -> None:
    article = went(app, SEARCH, "CLICK(3)").state
    down = app.step(article, parse_action("SCROLL(DOWN)")).state
    assert lines(app, down) != lines(app, article)
    assert app.step(down, parse_action("SCROLL(UP)")).state == article
    back = app.step(down, parse_action("GOBACK"))
    assert [*back.log] == ["mUrl is: https://www.wikihow.com/wikiHowTo?search=boil+an+egg+&wh_an=1"]
    assert back.state == went(app, SEARCH).state
    home = app.step(back.state, parse_action("GOBACK"))
    assert (home.state, [*home.log]) == (AppState(), ["mUrl is: https://www.wikihow.com/?wh_an=1&amp=1"])


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["SCROLL(DOWN)", "SCROLL(UP)", "GOBACK", "INPUT(1, egg)", "INPUT(2, paint)"])
                | st.integers(0, 60).map("CLICK({})".format) | st.text(max_size=8), max_size=12))  # fmt: skip
def test_wherever_one_goes_the_screen_is_whole(app: WikiHowApp, actions: list[str]) -> None:
    state = AppState()
    for action in actions:
        state = app.step(state, parse_action(action)).state
        assert app.leaves(state)[-1].view.name == "statusBarBackground"
        for offer in list_actions(app, state, "egg"):
            assert not app.step(state, parse_action(offer)).refused
