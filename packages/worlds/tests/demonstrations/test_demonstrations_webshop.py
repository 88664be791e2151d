"""WebShop's demonstrations: tips are read back, tips are followed, and no product of an evaluation goal is shown."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shop_tips import parse_tip_actions, unspace_brackets

from trailnotes.config.methods_schema import RehearsalConfig
from trailnotes.config.schema import Config, EnvConfig, MemoryConfig, RolloutConfig, WarmstartConfig
from trailnotes.envs import list_env_tasks
from trailnotes.rollout.conversation import quoted
from trailnotes.warmstart.demonstrations import load_demonstrator
from trailnotes_worlds.demonstrations.webshop import WebShopDemonstrator
from trailnotes_worlds.demonstrations.webshop_buyers import (
    Fault,
    FaultKind,
    Listing,
    ShopPage,
    ShoppingGoal,
    find_faults,
    format_english_tip,
    format_terse_tip,
)
from trailnotes_worlds.webshop.catalogue import write_catalogue
from trailnotes_worlds.webshop.products import Instruction, Product, format_price

INSTRUCTION = "Find me a washable wool rug with color: red, and size: big, and price lower than 40.00 dollars"
TITLES = [
    " ".join(pair) for pair in itertools.product(("wool", "felt", "linen", "jute", "silk"), ("rug", "cap", "bag"))
]
ITEM = ShopPage((), "wool rug", (("color", ("blue", "red")), ("size", ("big", "small"))), 25.0)
STYLES = pytest.mark.parametrize("style", ["terse", "full"])
PHRASES = st.from_regex(r"[a-z0-9]+( [a-z0-9.]*[a-z0-9]){0,4}", fullmatch=True)


@given(
    query=PHRASES,
    clicked=st.lists(PHRASES, max_size=5),
    kinds=st.lists(st.sampled_from(get_args(FaultKind)), max_size=3, unique=True),
    seed=st.integers(0, 2**32),
)
def test_every_wording_can_be_parsed(query: str, clicked: list[str], kinds: list[FaultKind], seed: int) -> None:
    way = (f"search[{query}]", *(f"click[{what}]" for what in clicked))
    faults = [Fault(kind, "size") for kind in kinds]
    for text in (format_terse_tip(way, faults), format_english_tip(way, faults, 0.25, random.Random(seed))):
        assert parse_tip_actions(text) == way, text
        assert parse_tip_actions(quoted(text)) == way, "as a prompt shows it"


@pytest.mark.parametrize(
    ("clicks", "page", "faults"),
    [
        ("red big buy", ITEM, [Fault("other")]),
        ("big buy", ITEM, [Fault("value", "red")]),
        ("buy", ITEM, [Fault("value", "red"), Fault("value", "big")]),
        ("red big buy", replace(ITEM, price=45.0), [Fault("price", "40")]),
        ("red big buy", replace(ITEM, title="oak desk"), [Fault("other")]),
        ("red big buy", replace(ITEM, options=(*ITEM.options, ("edge", ("plain",)))), [Fault("option", "edge")]),
        ("red big", ITEM, [Fault("unbought")]),
    ],
)
def test_faults_are_what_a_buyer_can_see(clicks: str, page: ShopPage, faults: list[Fault]) -> None:
    way = [f"click[{'buy now' if click == 'buy' else click}]" for click in clicks.split()]
    listed = ShopPage((Listing("b00x", "wool rug", 20.0), Listing("b00y", "oak desk", 20.0)))
    assert list(find_faults(way, page, listed, ShoppingGoal.parse(INSTRUCTION))) == faults


def product(number: int, title: str) -> Product:
    prices = (15.0 + number,)
    return Product(
        asin=f"B00T{number:03}", title=title, description=f"The {title} is washable.", bullets=("soft",),
        attributes=("washable",), options=ITEM.options, prices=prices, tag=format_price(prices), category="garden",
        categories=("Home", title.split()[1]), query=title.split()[1], nouns=tuple(title.split()),
        instructions=(Instruction("synthetic", f"Find me a washable {title}", ("washable",)),),
    )  # fmt: skip


def twin_of(asin: str) -> str:
    """The product of the same title, which a search finds first: ties go by asin."""
    return asin.translate(str.maketrans("Bb", "Aa"))


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products of different titles, and so on different sides of by-product; each has a twin without goals."""
    wanted = [product(number, title) for number, title in enumerate(TITLES)]
    twins = [replace(each, asin=twin_of(each.asin), title=each.title.title(), instructions=()) for each in wanted]
    folder = tmp_path_factory.mktemp("webshop") / "shop"
    write_catalogue(folder, [*wanted, *twins])
    return folder


Make = Callable[..., WebShopDemonstrator]


@pytest.fixture
def make(catalogue: Path) -> Make:
    def demonstrator(style: str = "terse", *, apart: bool = False, **shares: float) -> WebShopDemonstrator:
        config = Config(
            env=EnvConfig(name="webshop", options={"catalogue": str(catalogue), "products_per_page": 3}),
            rollout=RolloutConfig(style=style, max_steps=12),
            memory=MemoryConfig(top_k=3),
            warmstart=WarmstartConfig(**shares),
            rehearsal=RehearsalConfig(options={"dataset_seed": 1}),
        )
        cls = load_demonstrator("webshop", config.rollout.style)
        made = (cls.build_held_out if apart else cls)(config, lambda text: len(text.split()), 0)
        assert isinstance(made, WebShopDemonstrator)
        return made

    return demonstrator


def list_asins(catalogue: Path, split: str) -> set[str]:
    tasks = list_env_tasks("webshop", split, {"catalogue": str(catalogue)})
    return {task.options["asin"].lower() for task in tasks}


@STYLES
def test_no_product_of_an_evaluation_goal_occurs(make: Make, catalogue: Path, style: str) -> None:
    demos = itertools.islice(make(style, advice=0.2, write=0.1), 250)
    text = "\n".join(message.content for demo in demos for message in demo.messages)
    shown, trained = set(re.findall(r"[ab]00t\d{3}", text.lower())), list_asins(catalogue, "train")
    assert list_asins(catalogue, "test")
    assert shown <= trained | {*map(twin_of, trained)}
    assert shown - trained
    assert len(shown) > len(trained)


@STYLES
def test_obedient_rows_do_what_the_tip_with_the_full_score_tells(make: Make, style: str) -> None:
    num_obedient = 0
    for demo in itertools.islice(make(style, p_follow_tip=1.0), 60):
        first = next(m.content for m in demo.messages if m.role == "user")
        tips = re.findall(r'^- "(.*)"(?: \(score 1 of 1\)| 1 / 1)$', first, re.MULTILINE)
        if tips and len(demo.taught) > 1:
            actions = tuple(unspace_brackets(m.content) for i, m in enumerate(demo.messages) if i in demo.taught)
            assert [parse_tip_actions(tip.strip()) for tip in tips] == [actions]
            num_obedient += 1
    assert num_obedient > 20
