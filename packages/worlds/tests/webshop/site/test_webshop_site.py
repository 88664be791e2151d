"""The site: whole purchases by its forms, what it refuses, and that no text of a product leaves its place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from starlette.testclient import TestClient

from shelves import Shelves
from shopfloor import FRONT, HOSTILE, tasks
from trailnotes.errors import ConfigError, RunError
from trailnotes.types import Task
from trailnotes.web.guard import LOOPBACK_NAMES, build_security_headers
from trailnotes_worlds.webshop.shop import Shop, ShopRules, ShopState
from trailnotes_worlds.webshop.site import visits
from trailnotes_worlds.webshop.site.app import (
    EXPIRED_NOTICE,
    MAX_FORM_BYTES,
    MAX_QUERY_CHARS,
    STALE_FORM_NOTICE,
    UNRECORDED_NOTICE,
    SiteSettings,
    make_app,
)
from trailnotes_worlds.webshop.site.drawing import render_template
from trailnotes_worlds.webshop.site.pages import build_site_page
from trailnotes_worlds.webshop.site.visits import VISIT_OVER, ShopService

HERE = "http://127.0.0.1:8000"


@dataclass
class Seen(HTMLParser):
    """What a browser would make of a page: tags, texts, and the buttons of each form."""

    html: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    fields: dict[str, dict[str, str]] = field(default_factory=dict)  # by the form's address
    buttons: list[tuple[str, str, str]] = field(default_factory=list)  # address, action, label
    pressed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._form, self._button = "", None
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag == "form":
            self._form = values["action"] or ""
        if tag == "input" and values.get("type") == "hidden":
            self.fields.setdefault(self._form, {})[values["name"] or ""] = values["value"] or ""
        if tag == "button":
            self._button = values.get("value") or ""
            self.buttons.append((self._form, self._button, ""))
            self.pressed += [self._button] if values.get("aria-pressed") == "true" else []

    def handle_endtag(self, tag: str) -> None:
        if tag == "button":
            self._button = None

    def handle_data(self, data: str) -> None:
        if text := " ".join(data.split()):
            self.texts.append(text)
            if self._button is not None:
                form, action, label = self.buttons[-1]
                self.buttons[-1] = form, action, f"{label} {text}".strip()

    @property
    def actions(self) -> set[str]:
        return {action for _, action, _ in self.buttons if action}


class Person:
    """Goes by what is on the page."""

    def __init__(self, app: Any) -> None:
        self.client = TestClient(app, base_url=HERE, raise_server_exceptions=False)
        self.headers = {"origin": HERE}

    def post(self, path: str, **fields: str) -> Any:
        return self.client.post(path, data=fields, headers=self.headers)

    def begin(self, **fields: str) -> Seen:
        return Seen(self.post("/begin", **fields).text)

    def see(self, path: str = "/shop") -> Seen:
        return Seen(self.client.get(path).text)

    def search(self, query: str) -> Seen:
        return Seen(self.post("/act", **self.see().fields["/act"], query=query).text)

    def press(self, label: str) -> Seen:
        page = self.see()
        (action,) = {action for _, action, text in page.buttons if text == label or action == f"click[{label.lower()}]"}
        return Seen(self.post("/act", **page.fields["/act"], action=action).text)


class Keeping:
    """A recorder that remembers, or fails. It keeps nobody else waiting: it is not asked by the event loop."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault, self.lines = fault, list[Mapping[str, Any]]()

    def line(self, task: Task, actions: Sequence[str]) -> Mapping[str, Any]:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return {"task": task.id, "actions": [*actions]}

    def write(self, line: Mapping[str, Any]) -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        if self.fault:
            raise self.fault
        self.lines.append(line)


def floor(**rules: Any) -> ShopService:
    return ShopService(Shop(FRONT, ShopRules(**rules)), tasks())


@pytest.fixture
def person() -> Person:
    return Person(make_app(floor(), SiteSettings(names=LOOPBACK_NAMES)))


# -- whole purchases


def test_a_purchase_from_the_entrance_to_the_score(person: Person) -> None:
    assert "Find it, and buy it" in person.see("/").texts
    page = person.begin(goal="0")
    assert tasks()[0].options["instruction"] in page.texts
    assert person.search("green mug").texts.count("Green mug") == 1
    person.press("B000000001")
    assert person.press("large").pressed == ["click[large]"]
    assert person.press("matt").pressed == ["click[large]", "click[matt]"]
    assert "About Green mug." in person.press("Description").texts
    assert person.press("< Prev").pressed == ["click[large]", "click[matt]"]
    done = person.press("Buy Now")
    assert "Thank you for shopping with us!" in done.texts
    assert not {"1.00", "Just what was wanted"} & {*done.texts}  # the score has a page of its own
    score = person.see("/score")
    assert {"1.00", "Just what was wanted", "1 of 1", "$1.00"} <= {*score.texts}


def test_what_was_missed_is_told(person: Person) -> None:
    person.begin(goal="0")
    person.search("oat biscuits")
    person.press("B000000003")
    person.press("Buy Now")
    texts = person.see("/score").texts
    assert {"0.00", "Something else", "0 of 1", "$100.00"} <= {*texts}
    assert any("(1 + 0 + 0) / (1 + 1 + 1)" in text for text in texts)


def test_the_original_tells_the_score_on_its_last_page() -> None:
    person = Person(make_app(floor(compat="original")))
    person.begin(goal="1")
    person.search("blue mug")
    person.press("B000000002")
    person.press("small")
    assert "1.0" in person.press("Buy Now").texts
    assert "/act" not in {form for form, action, _ in person.see().buttons if action}


@pytest.mark.parametrize("compat", ["fixed", "original"])
def test_every_page_offers_just_what_the_page_machine_does(compat: Any) -> None:
    """All states within five steps of a search: the buttons of the drawn page are `Shop.offers`."""
    shop = Shop(FRONT, ShopRules(compat=compat, show_attributes=True, products_per_page=2))
    found, ends = set[ShopState](), [shop.step(ShopState(), f"search[{query}]").state for query in ("green alert", "x")]
    for _ in range(5):
        found |= {*ends}
        ends = [shop.step(state, offer).state for state in ends for offer in shop.list_actions(state)]
        ends = [*dict.fromkeys(state for state in ends if state not in found)]
    for state in found:
        values = {"instruction": "", "step": 0, "notice": "", "longest": MAX_QUERY_CHARS, "version": ""}
        page = Seen(render_template("shop", page=build_site_page(shop, state, 0.5), **values))
        assert page.actions == {*shop.list_actions(state)}
        bar = [tag for tag, values in page.tags if values.get("name") == "query"]
        assert bool(bar) == (shop.can_search(state) and state.page != "done")
        if compat == "fixed":
            chosen = [f"click[{part.target}]" for part in shop.list_elements(state) if part.option and part.clicked]
            assert page.pressed == chosen
    pages = {"search", "results", "item", "description", "features", "reviews", "attributes", "done"}
    assert {state.page for state in found} == pages


# -- hostile text


def test_no_text_of_a_product_or_goal_leaves_its_place() -> None:
    person = Person(make_app(floor(show_attributes=True)))
    pages = [person.begin(goal="3"), person.search("mug alert"), person.press("B000000004")]
    for label in ("Description", "Features", "Reviews", "Attributes"):
        pages += [person.press(label), person.press("< Prev")]
    pages += [person.press("Buy Now"), person.see("/score")]
    for page in pages:
        tags = {tag for tag, _ in page.tags}
        assert not tags & {"script", "img", "iframe", "style", "object"}
        assert not [values for _, values in page.tags if {"onerror", "style", "onclick"} & {*values}]
        assert "54439" not in page.html  # of {{ 7777 * 7 }}
        assert not {"\x07", "\u202e"} & {*page.html}
    assert any('<script>alert("x")</script>' in text for page in pages for text in page.texts)


def test_what_was_searched_comes_back_as_text() -> None:
    person = Person(make_app(floor(compat="original")))
    person.begin(goal="0")
    page = person.search(HOSTILE.replace("[SEP]", ""))  # the last bracket of an action counts there
    (bar,) = [values for tag, values in page.tags if values.get("name") == "query"]
    assert '<script>alert("x")</script>' in (bar["value"] or "")
    assert not {"script", "img"} & {tag for tag, _ in page.tags}


def test_every_answer_tells_the_browser_what_it_may_do(person: Person) -> None:
    for path in ("/", "/shop", "/shop.css", "/icon.svg", "/nowhere"):
        answer = person.client.get(path)
        assert build_security_headers().items() <= answer.headers.items()
    answer = person.post("/begin")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


def test_pages_name_no_other_server(person: Person) -> None:
    person.begin(goal="0")
    for page in (person.see("/"), person.search("mug")):
        links = [v for _, values in page.tags for name, v in values.items() if name in ("href", "src", "action")]
        assert links
        assert all((link or "").startswith("/") and not (link or "").startswith("//") for link in links)


# -- cookies and forms


def test_the_cookie_is_for_this_site_alone(person: Person) -> None:
    answer = person.client.post("/begin", headers=person.headers, follow_redirects=False)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie


@pytest.mark.parametrize("forged", ["", "x", "a" * 43, "a" * 5000, "../../etc/passwd", "%00"])
def test_a_forged_cookie_is_nobody(forged: str) -> None:
    app = make_app(floor())
    owner, thief = Person(app), Person(app)
    owner.begin(goal="0")
    thief.client.cookies.set("trailnotes-shop", forged)
    assert thief.client.get("/shop", follow_redirects=False).headers["location"] == "/"
    assert thief.client.get("/score", follow_redirects=False).headers["location"] == "/"
    answer = thief.post("/act", at="0", query="mug")
    assert answer.status_code == 403
    assert EXPIRED_NOTICE in Seen(answer.text).texts
    assert owner.see().fields["/act"] == {"at": "0"}


def test_two_visitors_do_not_meet() -> None:
    app = make_app(floor())
    one, other = Person(app), Person(app)
    one.begin(goal="0")
    other.begin(goal="1")
    one.search("green mug")
    assert tasks()[1].options["instruction"] in other.see().texts
    assert other.see().fields["/act"] == {"at": "0"}
    assert one.see().fields["/act"] == {"at": "1"}


def test_a_visit_ends_when_nothing_happens_for_long() -> None:
    now = [0.0]
    person = Person(make_app(floor(), SiteSettings(idle_s=60.0, clock=lambda: now[0])))
    person.begin(goal="0")
    now[0] = 59.0
    assert person.see().fields["/act"] == {"at": "0"}
    now[0] = 119.0
    assert person.client.get("/shop", follow_redirects=False).headers["location"] == "/"


def test_more_visitors_than_room_send_away_the_quietest() -> None:
    app = make_app(floor(), SiteSettings(most_visits=2))
    people = [Person(app) for _ in range(3)]
    for each in people:
        each.begin(goal="0")
    gone = [each.client.get("/shop", follow_redirects=False).status_code for each in people]
    assert gone == [303, 200, 200]


def test_looking_around_takes_no_room(person: Person) -> None:
    for path in ("/", "/shop", "/score", "/nowhere"):
        assert "set-cookie" not in person.client.get(path).headers


def test_a_form_of_another_site_does_nothing(person: Person) -> None:
    person.begin(goal="0")
    for headers in (
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:9"},
        {"sec-fetch-site": "cross-site"},
    ):  # fmt: skip
        answer = person.client.post("/act", data={"at": "0", "query": "mug"}, headers=headers)
        assert answer.status_code == 403
        assert "Not from here" in answer.text
    assert person.see().fields["/act"] == {"at": "0"}


def test_by_another_name_the_shop_is_not_there(person: Person) -> None:
    for host in ("evil.example", "evil.example:8000", "", "127.0.0.1.evil.example"):
        assert person.client.get("/", headers={"host": host}).status_code == 421
    assert person.client.get("/", headers={"host": "localhost:1234"}).status_code == 200


def test_a_button_of_an_old_page_does_nothing(person: Person) -> None:
    person.begin(goal="0")
    person.search("mug")
    for at in ("0", "2", "-1", "", "x", "\u0661", "9" * 100):
        page = Seen(person.post("/act", at=at, action="click[back to search]").text)
        assert STALE_FORM_NOTICE in page.texts
        assert page.fields["/act"] == {"at": "1"}
    assert STALE_FORM_NOTICE not in person.see().texts  # told once


def test_what_cannot_be_done_is_said_and_changes_nothing(person: Person) -> None:
    person.begin(goal="0")
    for fields in (
        {"query": ""}, {"action": "click[buy now]"}, {"action": ""}, {}, {"action": "\0\x1b[2J"},
        {"action": "click[" + "[" * 500 + "]"}, {"query": "x" * 2100},
    ):  # fmt: skip
        page = Seen(person.post("/act", at="0", **fields).text)
        assert [text for text in page.texts if text.startswith("Nothing was done: ")]
        assert page.fields["/act"] == {"at": "0"}
    person.search("mug")
    assert person.see().fields["/act"] == {"at": "1"}


def test_after_the_purchase_nothing_more_is_done(person: Person) -> None:
    person.begin(goal="0")
    assert person.client.get("/score", follow_redirects=False).headers["location"] == "/shop"
    for action in ("search[mug]", "click[b000000001]", "click[buy now: glaze]", "click[buy now]"):
        fields = {"query": "mug"} if action.startswith("search") else {"action": action}
        at = person.see().fields["/act"]["at"]
        person.post("/act", at=at, **fields)
    before = person.see("/score").texts
    assert VISIT_OVER in Seen(person.post("/act", at="3", query="scarf").text).texts
    assert person.see("/score").texts == before


def test_a_visit_has_an_end(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "MAX_VISIT_STEPS", 4)
    person.begin(goal="0")
    person.search("mug")
    person.press("B000000001")
    for _ in range(2):
        person.press("large")
    assert visits.VISIT_FULL in person.press("Buy Now").texts
    assert person.see().fields["/act"] == {"at": "4"}


# -- bad requests


def test_a_query_of_100_kb(person: Person) -> None:
    person.begin(goal="0")
    answer = person.post("/act", at="0", query="mug " * 25_000)
    assert answer.status_code == 413
    assert f"{MAX_FORM_BYTES:,} bytes" in answer.text
    assert person.see().fields["/act"] == {"at": "0"}
    (bar,) = [values for tag, values in person.see().tags if values.get("name") == "query"]
    assert bar["maxlength"] == str(MAX_QUERY_CHARS)


@pytest.mark.parametrize(
    "body", [b"\xff\xfe\x00", b"at=0&query=%ff%fe", b"query=a&query=%00", b"=&=&", b"%", b"at=0&&;"]
)
def test_any_bytes(person: Person, body: bytes) -> None:
    person.begin(goal="0")
    kind = {"content-type": "application/x-www-form-urlencoded"}
    answer = person.client.post("/act", content=body, headers={**person.headers, **kind})
    assert answer.status_code == 200
    assert "What to find" in Seen(answer.text).texts


def test_forms_of_another_kind(person: Person) -> None:
    person.begin(goal="0")
    many = "&".join(f"a{i}=1" for i in range(20))
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert person.client.post("/act", content=many, headers={**person.headers, **kind}).status_code == 400


@pytest.mark.parametrize(
    "path", ["/nowhere", "/shop/", "/..%2f..%2fetc/passwd", "/templates/base.html", "/%00", "//shop"]
)
def test_an_unknown_path(person: Person, path: str) -> None:
    answer = person.client.get(HERE + path)
    assert answer.status_code == 404
    assert "No such page" in answer.text


def test_the_wrong_method(person: Person) -> None:
    for method, path in (("GET", "/act"), ("GET", "/begin"), ("POST", "/shop"), ("DELETE", "/"), ("TRACE", "/shop")):
        answer = person.client.request(method, path)
        assert answer.status_code == 405
        assert "Not that way" in answer.text
        assert answer.headers["allow"]


def test_head_is_get_without_the_page(person: Person) -> None:
    for path in ("/", "/shop.css"):
        answer = person.client.head(path)
        assert answer.status_code == 200
        assert answer.headers["content-length"] == person.client.get(path).headers["content-length"]


@pytest.mark.parametrize("goal", ["4", "-1", "x", "", "1e3", "9" * 30])
def test_a_goal_that_is_none(person: Person, goal: str) -> None:
    answer = person.post("/begin", goal=goal)
    assert answer.status_code == 400
    assert "Goals have numbers from 0 to 3." in Seen(answer.text).texts


def test_one_goal_for_all() -> None:
    person = Person(make_app(floor(), SiteSettings(only=2)))
    assert not [values for _, values in person.see("/").tags if values.get("name") == "goal"]
    assert tasks()[2].options["instruction"] in person.begin(goal="0").texts


@pytest.mark.parametrize(
    ("place", "name", "error", "status", "said"),
    [
        (ShopService, "act", LookupError("a secret of the shop"), 500, "Something went wrong"),
        (Shelves, "search", ConfigError("/a secret/products.jsonl was replaced"), 503, "cannot be read any more"),
    ],
)
def test_what_goes_wrong_inside_is_a_page_that_tells_nothing(
    person: Person, monkeypatch: pytest.MonkeyPatch, place: type, name: str, error: Exception, status: int, said: str
) -> None:
    person.begin(goal="0")

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(place, name, fails)
        answer = person.post("/act", at="0", query="green mug")
    assert answer.status_code == status
    assert said in answer.text
    assert "secret" not in answer.text
    assert tasks()[0].options["instruction"] in person.see().texts  # the visit is still there


# -- recording


def bought(person: Person) -> Iterator[Seen]:
    person.begin(goal="0")
    person.search("green mug")
    yield person.press("B000000001")
    yield person.press("Buy Now")


def test_each_purchase_is_recorded_once() -> None:
    recorder = Keeping()
    person = Person(make_app(floor(), recorder=recorder))
    assert any("is recorded" in text for text in person.see("/").texts)
    for _ in range(2):
        list(bought(person))
        person.post("/act", at="2", action="click[buy now]")
        person.post("/act", at="3", action="click[buy now]")
    actions = ["search[green mug]", "click[b000000001]", "click[buy now]"]
    assert recorder.lines == [{"task": tasks()[0].id, "actions": actions}] * 2


def test_a_notice_that_nobody_has_read_keeps_no_purchase_from_being_recorded() -> None:
    recorder = Keeping()
    person = Person(make_app(floor(), recorder=recorder))
    page, *_ = bought(person)
    person.client.post("/act", data={"at": "0"}, headers=person.headers, follow_redirects=False)
    person.post("/act", **page.fields["/act"], action="click[buy now]")
    assert len(recorder.lines) == 1


def test_a_purchase_that_cannot_be_recorded_counts_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    fault = RunError("cannot write FILE (No space left on device): free space")
    person = Person(make_app(floor(), recorder=Keeping(fault)))
    *_, done = bought(person)
    assert UNRECORDED_NOTICE in done.texts
    assert "No space left on device" in caplog.text
    assert "See your score" in done.texts


def test_a_mistake_while_recording_does_not_hide_the_purchase() -> None:
    person = Person(make_app(floor(), recorder=Keeping(LookupError("a secret"))))
    *_, answer = bought(person)
    assert "Something went wrong" in answer.texts
    assert not [text for text in answer.texts if "Nothing was bought" in text or "a secret" in text]
    done = person.see()
    assert {UNRECORDED_NOTICE, "See your score"} <= {*done.texts}


@pytest.mark.parametrize(("compat", "said"), [("fixed", "a (big) mug"), ("original", "a [big] mug")])
def test_an_instruction_reads_as_in_the_environment(compat: str, said: str) -> None:
    task = tasks()[0]
    task = replace(task, options={**task.options, "instruction": "a [big] mug"})
    assert ShopService(Shop(FRONT, ShopRules(compat=compat)), [task]).start_visit(0).instruction == said  # type: ignore[arg-type]
