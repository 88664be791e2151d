"""A small library: a few articles made by hand, and a task file of our own in Mobile-Env's format."""

from __future__ import annotations

from pathlib import Path

from trailnotes_worlds.wikihow.articles import Article, Author, Category
from trailnotes_worlds.wikihow.library import Library, write_library

BOIL = Article(
    "Boil an Egg", categories=("Food", "Eggs"), authors=("Ann Lee, PhD", "Bo Ek"), updated="2021-06-02", views=1234,
    verified="Expert Co-Authored", approved="Tested", intro="An egg wants water. " * 11 + "That is all.",
    methods=(("Heating", ("Heat the water.", "Put the egg in.")), ("Cooling", ("Wait.",))),
    references=("A book on eggs", "Another one"), related=("Fry-an-Egg",),
)  # fmt: skip
FRY = Article("Fry an Egg", categories=("Food", "Eggs"), authors=("Ann Lee, PhD",), intro="A pan is enough.")
FRY_TWO = Article("Fry an Egg Twice", categories=("Food", "Eggs"), intro="Why not?")
MORE = tuple(
    Article(f"Paint {number} Eggs", categories=("Food", "Eggs"), intro="With a brush.") for number in range(40)
)
ANN = Author("Ann Lee, PhD", "Cook", "Ann has cooked for years. " * 8, (BOIL.path, FRY.path))
EGGS = Category(
    "Eggs", "Food", (("All about ", ""), ("How to Fry an Egg", FRY.path), (", and more.", "")),
    featured=(FRY.path,), articles=(BOIL.path, FRY.path, FRY_TWO.path),
)  # fmt: skip
FOOD = Category("Food", topics=("Eggs",), articles=(BOIL.path,))
PAGES = (BOIL, FRY, FRY_TWO, *MORE, ANN, EGGS, FOOD)


def small_library(folder: Path) -> Library:
    """The pages above, in a folder that is not there yet."""
    return write_library(folder, PAGES)


TASK = r"""
# As Mobile-Env writes them: three sources of which any will do, for each page.
id: "search_boil-author"
setup_steps: { adb_call: { install_apk: { filesystem: { path: "../app.apk" } } } }
event_sources: {
  text_detect: { expect: "\\b(boil|egg)\\b" rect: { x0: 0.1 y0: 0.03 x1: 0.9 y1: 0.12 } }
  id: 1
}
event_sources: {
  view_hierarchy_event: {
    properties: { property_name: "text" pattern: "\\begg\\b" }
    properties: { property_name: "clickable" pattern: "true" }
    selector: "#$\"search_plate\">#$\"search_src_text\""
  }
  id: 2
}
event_sources: {
  log_event: { filters: "jd:D" pattern: "\\bmUrl is: https://www\\.wikihow\\.com/wikiHowTo\\?search=.*(boil|egg).*" }
  id: 3
}
event_sources: {
  log_event: { filters: "jd:D" pattern: "\\bmUrl is: https://www\\.wikihow\\.com/Boil-an-Egg" }
  id: 5
}
event_sources: {
  view_hierarchy_event: {
    properties: { property_name: "text" pattern: "Ann Lee, PhD" }
    selector: ".$\"View\"#\"authors_container\">.$\"Image\""
  }
  id: 7
}
event_sources: {
  log_event: { filters: "jd:D" pattern: "\\bmUrl is: https://www\\.wikihow\\.com/Author/Ann-Lee-PhD" }
  id: 9
}
event_slots: {
  score_listener: { type: OR events: { event: { } } }
  reward_listener: {
    type: OR
    events: { event: { type: OR id: 4 events: { id: 1 } events: { id: 2 } events: { id: 3 }
                       transformation: "y = 1" repeatability: NONE } }
    events: { event: { type: SINGLE id: 6 events: { id: 5 } transformation: "y = 1" repeatability: NONE } }
    events: { event: { type: OR id: 8 events: { id: 7 } events: { id: 9 }
                       transformation: "y = 1" repeatability: NONE } }
  }
  episode_end_listener: { events: { id: 8 } transformation: "y = True" }
  instruction_listener: {
    type: OR
    events: { event: { events: { id: 4 } transformation: "y = [\'Access the article \"How to Boil an Egg\"\']" } }
    events: { event: { events: { id: 6 } transformation: "y = [\'Check the author page of Ann Lee, PhD.\']" } }
    events: { event: { } }
  }
}
command: "Search an article to learn how to boil an egg."
vocabulary: "boil"
"""
