"""Seeds: every draw is a pure function of its purpose, the same in every process."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """Derive a 63-bit seed from printable parts: the same on every platform, unlike `hash`.

    Parts are kept apart: ("a", "bc") gives another seed than ("ab", "c").
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
