"""The short view: what small models read of a page."""

from __future__ import annotations

from shelves import DOZEN
from trailnotes_worlds.webshop.shop import Shop, ShopRules, ShopState
from trailnotes_worlds.webshop.views import render_short

SHOP = Shop(DOZEN, ShopRules(products_per_page=2))


def page(*actions: str) -> str:
    """What is shown after these actions."""
    state = ShopState()
    for action in actions:
        state, refused = SHOP.step(state, action)
        assert not refused
    return render_short(SHOP.list_elements(state))


def test_results_are_told_in_one_line() -> None:
    assert page() == "webshop"
    found = page("search[desk number]")
    assert found.startswith(
        "page 1 (total results: 26) ; next > ; b0lamp0001 brass desk lamp $30.00 to $50.00 ; b0cup00000 cup number 0 "
    )
    assert "back" not in found
    assert "next >" not in page("search[desk]")


def test_a_product_is_told_with_its_options_and_what_was_chosen() -> None:
    item = "color , blue{} , rectangular ; size , small , large ; blue stoneware mug, 12 ounce ; price: $12.50 ; rating"
    opened = ("search[blue]", "click[b0mug00001]")
    assert page(*opened).startswith(item.format(""))
    assert page(*opened, "click[blue]").startswith(item.format(" *"))
    assert page(*opened, "click[features]") == "dishwasher safe ; made of clay"
