"""A catalogue is whole or none, opened by many, and says when it is not what was written. Ours is the same always."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from trailnotes_worlds.webshop.catalogue import Catalogue, write_catalogue
from trailnotes_worlds.webshop.goals import iter_goals
from trailnotes_worlds.webshop.products import GoalKind, Product
from trailnotes_worlds.webshop.reward import judge_purchase
from trailnotes_worlds.webshop.shop import ShopState
from trailnotes_worlds.webshop.synthetic import make_products, open_catalogue, open_synthetic

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


def test_the_name_is_the_content(folder: Path, tmp_path: Path, products: list[Product]) -> None:
    name = Catalogue.open(folder).name
    assert Catalogue.open(write_catalogue(tmp_path / "again", products).folder).name == name
    assert write_catalogue(tmp_path / "other", products[:-1]).name != name


def _opened(cache: Path) -> list[str]:
    os.environ["TRAILNOTES_CACHE"] = str(cache)
    return open_synthetic(50, 1).search("soft socks")


@pytest.mark.long
def test_ours_is_made_once_by_any_number_of_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    together = context.Barrier(3, timeout=120).wait
    with ProcessPoolExecutor(3, mp_context=context, initializer=together) as pool:
        opened = list(pool.map(_opened, [tmp_path] * 3))
    assert opened[0] == opened[1] == opened[2] != []
    assert len(list((tmp_path / "webshop").iterdir())) == 1


def test_the_synthetic_catalogue() -> None:
    ours = open_catalogue("synthetic")
    assert ours.name == NAME_OF_OURS, "another catalogue wants another RELEASE, or results are not comparable"
    kinds: tuple[GoalKind, ...] = ("human", "synthetic")
    goals = [goal for product in ours for kind in kinds for goal, _ in iter_goals(product, kind, 0)]
    full = 0
    for goal in goals:
        visit = ShopState("done", asin=goal.asin, options=goal.options)
        full += judge_purchase(ours, goal, visit, 0).total == 1
    assert (len(goals), full) == (GOALS_OF_OURS, FULL_OF_OURS)
