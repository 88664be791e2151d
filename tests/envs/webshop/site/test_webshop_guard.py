"""Who may send forms, and by which names the site is reached."""

from __future__ import annotations

import pytest

from trailnotes.envs.webshop.site.guard import from_elsewhere, name_of


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:8000", "127.0.0.1"), ("localhost", "localhost"), ("LocalHost:1", "localhost"), ("[::1]", "[::1]"),
        ("[::1]:80", "[::1]"), ("evil.example:8000", "evil.example"), ("", ""), (":80", ""), ("a]b:c", "a]b"),
    ],
)  # fmt: skip
def test_the_name_of_a_host(host: str, name: str) -> None:
    assert name_of(host) == name


@pytest.mark.parametrize(
    ("origin", "site", "elsewhere"),
    [
        ("http://127.0.0.1:8000", "same-origin", False),
        ("https://127.0.0.1:8000", None, False),
        ("http://127.0.0.1:8001", None, True),  # another server of this machine
        ("http://localhost:8000", None, True),
        ("http://evil.example", "cross-site", True),
        ("null", None, True),  # a sandboxed frame, a file
        ("", None, True),
        (None, None, False),  # no browser
        (None, "none", False),  # typed by hand
        (None, "same-origin", False),
        (None, "same-site", True),
        (None, "cross-site", True),
    ],
)
def test_where_a_form_comes_from(origin: str | None, site: str | None, elsewhere: bool) -> None:
    assert from_elsewhere("127.0.0.1:8000", origin, site) is elsewhere
