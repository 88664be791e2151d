"""A catalogue is whole or none, opened by many, and says when it is not what was written. Ours is the same always."""

from __future__ import annotations

import errno
import gc
import json
import math
import multiprocessing
import os
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trailnotes.errors import ConfigError, RunError
from trailnotes_worlds.webshop.catalogue import Catalogue
from trailnotes_worlds.webshop.goals import iter_goals
from trailnotes_worlds.webshop.products import CATEGORIES, GoalKind, Product, from_record
from trailnotes_worlds.webshop.reward import judge_purchase
from trailnotes_worlds.webshop.shop import ShopState
from trailnotes_worlds.webshop.synthetic import NUM_PRODUCTS, make_products, open_catalogue, open_synthetic
from trailnotes_worlds.webshop.writing import write_catalogue

NAME_OF_OURS = "29fe89b53f9f5fec"
GOALS_OF_OURS, FULL_OF_OURS = 4085, 3960  # goals, and those that their own purchase earns in full: docs/envs/webshop.md


@pytest.fixture(scope="module")
def products() -> list[Product]:
    return make_products(60, seed=3)


@pytest.fixture
def folder(tmp_path: Path, products: list[Product]) -> Path:
    write_catalogue(tmp_path / "shop", products).close()
    return tmp_path / "shop"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path / "cache"))


def test_what_goes_in_comes_out(folder: Path, products: list[Product]) -> None:
    catalogue = Catalogue.open(folder)
    assert len(catalogue) == 60
    assert list(catalogue) == products
    assert [catalogue.at(place) for place in range(60)] == products
    assert [catalogue[product.asin] for product in products] == products
    assert products[7].asin in catalogue
    for absent in ("B000000000", "", "é", "\ud800", "zzzzzzzzzzzz", 7):
        assert absent not in catalogue
    for asin in ("B000000000", "é"):
        with pytest.raises(KeyError):
            catalogue[asin]
    for place in (-1, 60):
        with pytest.raises(IndexError):
            catalogue.at(place)


def test_a_product_is_found_by_its_own_words(folder: Path, products: list[Product]) -> None:
    catalogue = Catalogue.open(folder)
    for product in products[:10]:
        assert product.asin in catalogue.search(product.title, 5)
    assert catalogue.search("") == []
    assert len(catalogue.search("for the of easy soft our", 3)) <= 3


def test_only_what_is_asked_for_is_decoded(
    tmp_path: Path, products: list[Product], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = replace(products[0], asin="BARE", title='"kind":"human"', query="\\", instructions=())
    catalogue = write_catalogue(tmp_path / "shop", [*products, bare])
    decoded = list[str]()

    def counting(record: dict[str, Any]) -> Product:
        decoded.append(record["asin"])
        return from_record(record)

    monkeypatch.setattr("trailnotes_worlds.webshop.catalogue.from_record", counting)
    both: list[GoalKind] = ["human", "synthetic"]
    for kinds in (both[:1], both[1:], both):
        wanted = [item for item in products if {told.kind for told in item.instructions} & {*kinds}]
        assert 10 < len(wanted) < 60
        decoded.clear()
        assert list(catalogue.iter_by_goal_kind(kinds)) == wanted
        assert decoded == [item.asin for item in wanted]
    assert list(catalogue.iter_by_goal_kind([])) == []


def test_facets_find_in_the_order_of_the_import(folder: Path, products: list[Product]) -> None:
    catalogue = Catalogue.open(folder)
    wanted = products[0]
    assert catalogue.find_by_facet("category", "garden") == [
        item.asin for item in products if item.category == "garden"
    ]
    assert catalogue.find_by_facet("query", wanted.query) == [
        item.asin for item in products if item.query == wanted.query
    ]
    attribute = wanted.attributes[0]
    assert catalogue.find_by_facet("attribute", attribute) == [
        item.asin for item in products if attribute in item.attributes
    ]
    assert catalogue.find_by_facet("attribute", "garden") == catalogue.find_by_facet("query", "\ud800") == []


def test_the_name_is_the_content(folder: Path, tmp_path: Path, products: list[Product]) -> None:
    name = Catalogue.open(folder).name
    assert Catalogue.open(write_catalogue(tmp_path / "again", products).folder).name == name
    assert write_catalogue(tmp_path / "other", products[:-1]).name != name


def test_a_catalogue_is_never_written_over(folder: Path, products: list[Product]) -> None:
    with pytest.raises(ConfigError, match="is there already"):
        write_catalogue(folder, products)


def test_an_asin_twice_is_refused(tmp_path: Path, products: list[Product]) -> None:
    with pytest.raises(ConfigError, match=f"asin {products[0].asin}"):
        write_catalogue(tmp_path / "shop", [*products, products[0]])
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path, products: list[Product], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match="free space"):
        write_catalogue(tmp_path / "shop", products)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["products.jsonl", "asins.npy", "search/docs.npy", "facets/ids.npy"])
def test_a_file_that_was_cut_is_named(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1])
    with pytest.raises(ConfigError, match=name):
        Catalogue.open(folder)


def test_another_version_is_named(folder: Path) -> None:
    meta = folder / "meta.json"
    meta.write_text(meta.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ConfigError, match="a webshop catalogue of version 2"):
        Catalogue.open(folder)
    with pytest.raises(ConfigError, match="is no webshop catalogue"):
        Catalogue.open(folder / "search")
    with pytest.raises(ConfigError, match="is no webshop catalogue"):
        Catalogue.open(folder / "nowhere")


@pytest.mark.parametrize("name", ["name", "products", "bytes"])
@pytest.mark.parametrize("value", [None, []])
def test_a_meta_that_does_not_tell_all_is_named(folder: Path, name: str, value: object) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    del meta[name]
    (folder / "meta.json").write_text(json.dumps(meta if value is None else meta | {name: value}))
    with pytest.raises(ConfigError, match=rf"meta\.json is damaged, it does not tell '{name}'"):
        Catalogue.open(folder)


def test_the_meta_counts_what_is_in_it(folder: Path, products: list[Product]) -> None:
    counts = Catalogue.open(folder).meta["counts"]
    kinds = Counter(f"{item.kind} instructions" for product in products for item in product.instructions)
    assert counts == Counter(product.category for product in products) + kinds


def test_files_are_closed_with_the_last_reference(folder: Path) -> None:
    gc.collect()
    before = sum(1 for _ in Path("/dev/fd").iterdir())
    for _ in range(3):
        Catalogue.open(folder).search("soft socks")
    gc.collect()
    assert sum(1 for _ in Path("/dev/fd").iterdir()) == before


def _opened(cache: Path) -> list[str]:
    os.environ["TRAILNOTES_CACHE"] = str(cache)
    return open_synthetic(50, 1).search("soft socks")


def test_ours_is_made_once_by_any_number_of_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    together = context.Barrier(3, timeout=120).wait
    with ProcessPoolExecutor(3, mp_context=context, initializer=together) as pool:
        found = list(pool.map(_opened, [tmp_path] * 3))
    assert found[0] == found[1] == found[2] != []
    assert len(list((tmp_path / "webshop").iterdir())) == 1


def test_ours_is_always_the_same_and_has_what_makes_a_shop_hard() -> None:
    made = make_products()
    assert len(made) == NUM_PRODUCTS >= 1000
    assert [item.title for item in make_products(100)] == [item.title for item in made[:100]]
    assert make_products(100, seed=1) != make_products(100)
    assert Counter(item.category for item in made).keys() == set(CATEGORIES)
    assert min(Counter(item.category for item in made).values()) > 200
    lengths = Counter(len(item.prices) for item in made)
    assert min(lengths[0], lengths[2]) > 60  # without a price, and with a range
    assert {len(item.options) for item in made} == {0, 1, 2}
    assert len({item.asin for item in made}) == len(made)
    assert all(re.fullmatch("[A-Z]{10}", item.asin) for item in made)
    neighbours = [(made[i].asin, made[i + 1].asin) for i in range(NUM_PRODUCTS - 1)]
    assert all(a[:4] != b[:4] and a[4:7] != b[4:7] and a[7:] != b[7:] for a, b in neighbours)
    titles = Counter(item.title for item in made)
    assert sum(count - 1 for count in titles.values()) > 100  # near-duplicates share their title
    misleading = [item for item in made if any(other in item.title for other in (" for ", "Goes With", "Makers of"))]
    assert len(misleading) > 40
    human = [item for product in made for item in product.instructions if item.kind == "human"]
    assert sorted(item.order for item in human if item.order is not None) == list(range(len(human)))
    combinations = sum(
        math.prod(len(values) for _, values in product.options)
        for product in made
        for item in product.instructions
        if item.kind == "synthetic"
    )
    assert len(human) > 300
    assert combinations > 2000


def test_every_wish_can_be_met_by_its_own_product() -> None:
    for product in make_products(300):
        offered = {value for _, values in product.options for value in values}
        for item in product.instructions:
            assert set(item.attributes) <= set(product.attributes)
            assert set(item.options) <= offered
            assert all(attribute in item.text for attribute in item.attributes)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path / "file"))
    with pytest.raises(RunError, match="set TRAILNOTES_CACHE to another folder"):
        open_catalogue("synthetic")


def test_a_catalogue_is_opened_by_its_folder_or_as_ours(folder: Path) -> None:
    assert len(open_catalogue(folder)) == 60
    ours = open_catalogue("synthetic")
    assert len(ours) == NUM_PRODUCTS
    assert ours.name == NAME_OF_OURS, "another catalogue wants another RELEASE, or results are not comparable"


def test_how_many_goals_of_ours_can_be_had_in_full() -> None:
    ours = open_catalogue("synthetic")
    kinds: tuple[GoalKind, ...] = ("human", "synthetic")
    goals = [goal for product in ours for kind in kinds for goal, _ in iter_goals(product, kind, 0)]
    full = 0
    for goal in goals:
        visit = ShopState("done", asin=goal.asin, options=goal.options)
        full += judge_purchase(ours, goal, visit, 0).total == 1
    assert (len(goals), full) == (GOALS_OF_OURS, FULL_OF_OURS)
