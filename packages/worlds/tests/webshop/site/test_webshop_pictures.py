"""Pictures of products are drawn: always the same, of numbers and constants only."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes_worlds.webshop.products import CATEGORIES
from trailnotes_worlds.webshop.site.drawing import draw_picture

HOSTILE = '"><script>alert(1)</script>'


@pytest.mark.parametrize("department", [*CATEGORIES, "", HOSTILE])
def test_a_picture_is_one_svg_element_that_loads_nothing(department: str) -> None:
    drawn = draw_picture("B000000001", department)
    root = ET.fromstring(drawn)
    assert root.tag == "svg"
    assert {element.tag for element in root} == {"rect", "circle", "path"}
    assert not re.search(r"href|url|style|script|on\w+=", drawn)
    assert len(drawn) < 2000


def test_departments_and_products_look_different() -> None:
    assert len({draw_picture("B000000001", department) for department in (*CATEGORIES, "other")}) == 6
    assert len({draw_picture(f"B{number:09d}", "garden") for number in range(100)}) == 100


@given(st.text(max_size=200), st.text(max_size=40))
def test_no_text_of_a_catalogue_reaches_the_markup(asin: str, department: str) -> None:
    drawn = draw_picture(asin, department)
    assert drawn == draw_picture(asin, department)
    assert re.fullmatch(r'[\w <>/="().%-]+', drawn, re.ASCII)
    ET.fromstring(drawn)
