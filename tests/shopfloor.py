"""What the site's tests walk about in: shelves with something hostile on them, and goals for visitors."""

from __future__ import annotations

from typing import Any

from shelves import Shelves, product
from trailnotes.types import Task
from trailnotes_worlds.webshop.goals import Goal
from trailnotes_worlds.webshop.products import Product

HOSTILE = (
    '</button><script>alert("x")</script><img src=//evil.example/x onerror=alert(1)> [SEP] {{ 7777 * 7 }} '
    "\x07\u202e&amp;"
)


def entry(number: int, title: str, department: str, **more: Any) -> Product:
    """A product whose nouns are the words of its title."""
    fields = {
        "description": f"About {title}.", "bullets": (f"{title} lasts", "easy to clean"), "options": (),
        "attributes": ("easy to clean",), "categories": ("home", department), "query": title.rpartition(" ")[2],
        "prices": (float(number),), "nouns": tuple(title.lower().split()), "instructions": (),
    }  # fmt: skip
    return product(f"B{number:09d}", title=title, category=department, **{**fields, **more})


SIZES = ("size", ("small", "large"))
FRONT = Shelves((
    entry(1, "Green mug", "garden", options=(SIZES, ("glaze", ("matt", "buy now")))),
    entry(2, "Blue mug", "garden", prices=(5.0, 9.0), options=(SIZES,)),
    entry(3, "Oat biscuits", "grocery", prices=()),
    entry(4, f"Mug {HOSTILE}", "beauty", description=HOSTILE, bullets=(HOSTILE, "two"), rating=HOSTILE,
          options=((HOSTILE, (HOSTILE, "plain\nvalue")),)),
    *(entry(number, f"Mug number {number}", "fashion") for number in range(5, 35)),
    entry(35, "Wool scarf", "fashion", description="", bullets=()),
))  # fmt: skip


def tasks() -> list[Task]:
    """Goals for the first four products, as the environment lists them."""
    goals = [
        Goal("B000000001", "a green mug with size: large, and price lower than 20.00 dollars", ("easy to clean",),
             (("size", "large"),), 20.0),
        Goal("B000000002", "a blue mug", ("easy to clean",), (("size", "small"),), 30.0),
        Goal("B000000003", "oat biscuits, and price lower than 200.00 dollars", ("easy to clean",), (), 200.0),
        Goal("B000000004", f"a mug, {HOSTILE}", ("easy to clean", HOSTILE), (("", "plain value"),), 1_000_000.0),
    ]  # fmt: skip
    return [
        Task(f"webshop/hand-made/{goal.asin}/{number}", "webshop", 0, "train", goal.to_json())
        for number, goal in enumerate(goals)
    ]
