"""All seeding: every draw is a pure function of who draws and what for, the same in every process."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from anything printable: the same in every process and on every platform, unlike `hash`.

    Different parts give different seeds, wherever one ends and the next begins: ("a", "bc") is not ("ab", "c").
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
