"""All seeding: every draw is a pure function of who draws and what for, the same in every process."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from anything printable: the same in every process, unlike `hash`."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def completion_seed(seed: int, task: str, member: int, step: int | str) -> int:
    """A 63-bit seed for one completion: the same in every process and on every platform."""
    text = "\x1f".join(map(str, (seed, task, member, step)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
