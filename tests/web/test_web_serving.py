"""The socket behind every site of ours."""

from __future__ import annotations

import socket

from trailnotes.web.serving import open_listener


def test_the_second_part_of_an_answer_does_not_wait_for_word_of_the_first() -> None:
    with open_listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        visitor, _ = listener.accept()
        with visitor:
            assert visitor.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
