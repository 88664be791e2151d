"""The socket behind every site of ours."""

from __future__ import annotations

import socket

from trailnotes.web.serving import listening


def test_the_second_part_of_an_answer_does_not_wait_for_word_of_the_first() -> None:
    with listening("127.0.0.1", 0) as door, socket.create_connection(door.getsockname()):
        visitor, _ = door.accept()
        with visitor:
            assert visitor.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
