"""Who may send forms, by which names a site is reached, and where it listens."""

from __future__ import annotations

import socket

import pytest

from trailnotes.errors import ConfigError
from trailnotes.web.guard import is_cross_site, parse_host_name
from trailnotes.web.loopback import is_loopback
from trailnotes.web.serving import format_url, open_listener


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:8000", "127.0.0.1"), ("localhost", "localhost"), ("LocalHost:1", "localhost"), ("[::1]", "[::1]"),
        ("[::1]:80", "[::1]"), ("evil.example:8000", "evil.example"), ("", ""), (":80", ""), ("a]b:c", "a]b"),
    ],
)  # fmt: skip
def test_the_name_of_a_host(host: str, name: str) -> None:
    assert parse_host_name(host) == name


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
    assert is_cross_site("127.0.0.1:8000", origin, site) is elsewhere


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True), ("LOCALHOST", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True),
        ("[::1]", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("x.org", False), ("", False),
        ("127.evil.example", False), ("127.1", False), ("localhost.evil.example", False),
    ],
)  # fmt: skip
def test_which_addresses_are_of_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_listening() -> None:
    with open_listener("127.0.0.1", 0) as door:
        assert format_url(door).startswith("http://127.0.0.1:")
        with pytest.raises(ConfigError, match="name another --port"):
            open_listener("127.0.0.1", door.getsockname()[1])
    for port in (-1, 65_536):
        with pytest.raises(ConfigError, match="--port must be 0 to 65535"):
            open_listener("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0 is open to others"):
        open_listener("0.0.0.0", 0, refusal="is open to others")


def test_the_second_part_of_an_answer_does_not_wait_for_word_of_the_first() -> None:
    with open_listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        visitor, _ = listener.accept()
        with visitor:
            assert visitor.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
