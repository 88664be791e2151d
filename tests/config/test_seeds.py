from __future__ import annotations

from trailnotes.types import derive_seed


def test_seeds_are_fixed_forever_and_depend_on_every_part() -> None:
    base = (1, "t", 2, 3)
    assert derive_seed(*base) == 2565924715832434521
    others = [(0, "t", 2, 3), (1, "u", 2, 3), (1, "t", 0, 3), (1, "t", 2, 4), (1, "t", 23, ""), (12, "t", 2, 3)]
    seeds = [derive_seed(*parts) for parts in others]
    assert len({derive_seed(*base), *seeds}) == 7
    assert all(0 <= seed < 2**63 for seed in seeds)
