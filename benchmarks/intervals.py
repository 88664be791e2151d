"""How often the intervals of a comparison hold what they are of, where that is known because the results are simulated.

A panel is seeds x families x games. A family has a rate of its own, drawn from a Beta distribution: with a small
concentration it is learned or not, with a large one all families are alike. Games differ a little within a family.
A seed has luck of its own, and in a share of the families it learns something else than the other seeds. Beside ours
stands the nested percentile bootstrap that this package used before: seeds, families anew in each seed, then games.
A second table is of seeds that differ more than that, among them lucky ones and such as fail, and of a baseline whose
seeds are all alike.

    python benchmarks/intervals.py --json intervals.json
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shared import console, finish, make_parser, print_table

from trailnotes.reporting.crossed import (
    CONFIDENCE,
    CrossedMoments,
    compute_difference_limits,
    compute_moments,
    compute_panel_limits,
    compute_population_limits,
)
from trailnotes.reporting.intervals import RATE_BOUNDS

Floats = NDArray[np.float64]
FLOOR = 0.92
RATES = (0.05, 0.2, 0.5, 0.95)
PAIRS = ((0.5, 0.5), (0.95, 0.95), (0.6, 0.4), (0.95, 0.05))
WORLDS = ((0.6, 0.0, 0.0), (0.6, 0.3, 0.3), (4.0, 0.3, 0.0), (50.0, 0.3, 0.3))  # concentration, interaction, luck
SD = tuple(NormalDist().inv_cdf((i + 0.5) / 20) for i in range(20))  # of 0.98
UNRULY = {  # what is added to the logits of a seed: one of these, all as likely
    "SD of 1 logit": SD,
    "SD of 2 logits": tuple(2 * shift for shift in SD),
    "one in four lucky, +2 logits": (0.0, 0.0, 0.0, 2.0),
    "one in four wins nothing": (0.0, 0.0, 0.0, -np.inf),
    "one in twenty wins nothing": (0.0,) * 19 + (-np.inf,),
}
CONCENTRATIONS = (0.6, 4.0)  # of the families' rates where seeds are unruly
SHARED = 0.5  # of the families are as hard for one method as for the other
PAST_ITS_ENDS = 1e-9


@dataclass(frozen=True)
class World:
    """What the results of a method are drawn from."""

    seeds: int
    families: int
    games: int  # of a family
    concentration: float  # of the families' rates: below 1 they are learned or not
    interaction: float  # share of the families that a seed learns in its own way
    luck: float  # weight of the seed's own rate
    shifts: tuple[float, ...] = (0.0,)  # of a seed's logits, one of them; only of two seeds or more


@dataclass(frozen=True)
class Played:
    """Results of many panels (n, seeds, families * games), and the two truths (n,) that their mean estimates."""

    values: Floats
    on_panel: Floats
    beyond: Floats


def play(world: World, rate: float, hard: Floats, rng: np.random.Generator) -> Played:
    """Panels of one method that solves a share `rate` of all games there could be.

    Args:
        world: of the results.
        rate: over families and seeds, before these are shifted.
        hard: (n, families) uniform on 0 to 1, how easy each family is.
        rng: of everything else.
    """
    num, quantiles = len(hard), _quantiles(rate, world.concentration)
    family = quantiles[(hard * len(quantiles)).astype(int)]
    spread = (family * (1 - family))[..., None]
    game = family[..., None] + rng.uniform(-1, 1, (*hard.shape, world.games)) * spread  # (n, F, G), for all seeds
    luck = _beta(rate, 4.0, (num, world.seeds), rng)
    other = rng.random((num, world.seeds, world.families)) < world.interaction
    own = _beta(rate, world.concentration, other.shape, rng)
    chance = np.where(other[..., None], own[..., None], game[:, None])
    chance = _shifted(chance, rng.choice(world.shifts, (num, world.seeds, 1, 1)))
    chance = (1 - world.luck) * chance + world.luck * luck[..., None, None]
    values = (rng.random(chance.shape) < chance).astype(np.float64).reshape(num, world.seeds, -1)
    here = np.mean([_shifted(game, shift).mean(axis=(1, 2)) for shift in world.shifts], axis=0)
    anywhere = np.mean([_shifted(_games(quantiles[5::10]), shift).mean() for shift in world.shifts])
    seen = (1 - world.interaction) * here + world.interaction * anywhere
    lucky = luck[:, 0] if world.seeds == 1 else np.full(num, rate)  # one seed: other families, but this very run
    return Played(values, (1 - world.luck) * seen + world.luck * rate, (1 - world.luck) * anywhere + world.luck * lucky)


def _shifted(chance: Floats, shift: Floats | float) -> Floats:
    """Chances with `shift` added to their logits."""
    if not np.any(shift):
        return chance
    inside = np.clip(chance, PAST_ITS_ENDS, 1 - PAST_ITS_ENDS)
    found: Floats = 1 / (1 + (1 / inside - 1) * np.exp(-shift))
    return found


def _games(family: Floats) -> Floats:
    """(families, 20) evenly spaced chances of the games that families of such rates may have."""
    found: Floats = family[:, None] + (np.arange(20) + 0.5 - 10) / 10 * (family * (1 - family))[:, None]
    return found


def _beta(rate: float, concentration: float, size: tuple[int, ...], rng: np.random.Generator) -> Floats:
    return rng.beta(rate * concentration, (1 - rate) * concentration, size)


def _quantiles(rate: float, concentration: float) -> Floats:
    """Of the Beta distribution, evenly spaced, so that two methods can share how hard a family is."""
    from scipy.special import betaincinv

    places = (np.arange(4000) + 0.5) / 4000
    found: Floats = betaincinv(rate * concentration, (1 - rate) * concentration, places)
    return found


def shares_of(world: World) -> Floats:
    """(families, families * games)."""
    return np.kron(np.eye(world.families), np.full((1, world.games), 1 / world.games))


def covered(limits: tuple[Floats, Floats], truth: Floats) -> Floats:
    """(n,) whether the truth lies between the limits."""
    low, high = limits
    return (low - PAST_ITS_ENDS <= truth) & (truth <= high + PAST_ITS_ENDS)


def of_mean(world: World, rate: float, num: int, rng: np.random.Generator) -> dict[str, float]:
    """Coverage and width of both intervals of a mean; that on the panel only of panels that have one."""
    played = play(world, rate, rng.random((num, world.families)), rng)
    found = compute_moments(played.values, shares_of(world))
    beyond = compute_population_limits(found, RATE_BOUNDS)
    record = _record("beyond", beyond, played.beyond, np.ones(num, dtype=bool))
    return record | _on_panel(found, RATE_BOUNDS, played.on_panel)


def of_difference(
    world: World, rates: tuple[float, float], num: int, rng: np.random.Generator, *, alike: bool = False
) -> dict[str, float]:
    """The same of a difference between two methods; `alike`: to one that plays each game alike with every seed."""
    hard = rng.random((num, world.families))
    shared = rng.random(hard.shape) < SHARED
    first = play(world, rates[0], hard, rng)
    other_hard = np.where(shared, hard, rng.random(hard.shape))
    if alike:
        second = play(World(1, world.families, world.games, world.concentration, 0.0, 0.0), rates[1], other_hard, rng)
        second = replace(second, values=second.values.repeat(world.seeds, 1), on_panel=second.values.mean(axis=(1, 2)))
    else:
        second = play(world, rates[1], other_hard, rng)
    shares = shares_of(world)
    one, other, both = (compute_moments(v, shares) for v in (first.values, second.values, first.values - second.values))
    beyond = compute_difference_limits(one, other, both, CONFIDENCE)
    record = _record("beyond", beyond, first.beyond - second.beyond, np.ones(num, dtype=bool))
    return record | _on_panel(both, (-1.0, 1.0), first.on_panel - second.on_panel)


def _on_panel(found: CrossedMoments, bounds: tuple[float, float], truth: Floats) -> dict[str, float]:
    has_one = found.num_seeds > 1
    return (
        _record("on_panel", compute_panel_limits(found.mean, found.seeds, bounds), truth, has_one)
        if has_one.any()
        else {}
    )


def _record(name: str, limits: tuple[Floats, Floats], truth: Floats, given: NDArray[np.bool_]) -> dict[str, float]:
    width = np.minimum(limits[1], 1.0) - np.maximum(limits[0], -1.0)
    return {
        name: float(covered(limits, truth)[given].mean()),
        f"{name}_width": float(width[given].mean()),
        f"{name}_given": float(given.mean()),
    }


def nested(world: World, rate: float, num: int, rng: np.random.Generator) -> float:
    """Coverage, beyond the panel, of the bootstrap that draws families anew within each seed."""
    played = play(world, rate, rng.random((num, world.families)), rng)
    inside = []
    for values, truth in zip(played.values, played.beyond, strict=True):
        table = values.reshape(world.seeds, world.families, world.games)
        shape = (400, *table.shape)
        seeds = rng.integers(shape[1], size=(400, shape[1], 1, 1))
        families = rng.integers(shape[2], size=(*shape[:3], 1))
        means = table[seeds, families, rng.integers(shape[3], size=shape)].mean(axis=(1, 2, 3))
        low, high = np.quantile(means, [0.025, 0.975])
        inside.append(low <= truth <= high)
    return float(np.mean(inside))


def measure(num: int, num_nested: int, families: tuple[int, ...], games: int = 2) -> dict[str, Any]:
    """All scenarios; of each number of seeds and families the least coverage, and the mean width."""
    rows = []
    for seeds, number in product((1, 2, 3, 5), families):
        rng = np.random.default_rng((seeds, number))
        worlds = [World(seeds, number, games, *kind) for kind in WORLDS]
        means = [of_mean(world, rate, num, rng) for world, rate in product(worlds, RATES)]
        gaps = [of_difference(world, pair, num, rng) for world, pair in product(worlds, PAIRS)]
        rows.append(
            {"seeds": seeds, "families": number, "nested": nested(worlds[0], 0.5, num_nested, rng)}
            | {f"mean_{name}": value for name, value in _least(means).items()}
            | {f"difference_{name}": value for name, value in _least(gaps).items()}
        )
    return {"rows": rows, "num": num, "num_nested": num_nested, "world": asdict(World(0, 0, games, *WORLDS[0]))}


def _least(records: list[dict[str, float]]) -> dict[str, float]:
    found = {}
    for name in ("beyond", "on_panel"):
        known = [record for record in records if name in record and record[f"{name}_given"] * 4 > 1]
        if known:
            found[name] = min(record[name] for record in known)
            found[f"{name}_width"] = float(np.mean([record[f"{name}_width"] for record in known]))
    return found


def measure_unruly(num: int, seeds: tuple[int, ...], families: tuple[int, ...], games: int = 2) -> list[dict[str, Any]]:
    """Of each number of seeds and each way in which they differ the least coverage over families, worlds and rates."""
    rows = []
    for (name, shifts), number in product(UNRULY.items(), seeds):
        rng = np.random.default_rng((number, len(name)))
        cases = list(product(families, CONCENTRATIONS))
        worlds = [World(number, count, games, kind, 0.0, 0.0, shifts) for count, kind in cases]
        found = {
            "mean": [of_mean(world, rate, num, rng) for world, rate in product(worlds, RATES)],
            "difference": [of_difference(world, pair, num, rng) for world, pair in product(worlds, PAIRS)],
            "alike": [of_difference(world, pair, num, rng, alike=True) for world, pair in product(worlds, PAIRS)],
        }
        least = {f"{what}_{key}": value for what, records in found.items() for key, value in _least(records).items()}
        rows.append({"seeds": number, "differ": name, "unseen": (shifts.count(0.0) / len(shifts)) ** number} | least)
    return rows


def report(result: dict[str, Any]) -> None:
    """The tables of docs/comparing.md."""
    _report_rows(result["rows"])
    ways = product(("beyond", "on_panel"), ("mean", "difference", "alike"))
    names = [f"{what}_{kind}" for kind, what in ways]
    rows = [
        [
            row["differ"],
            str(row["seeds"]),
            f"{row['unseen']:.0%}" if row["unseen"] else "-",
            *_cells(row, names),
            f"{row['mean_beyond_width']:.2f}",
        ]
        for row in result["unruly"]
    ]
    whats = ("mean", "difference", "to alike")
    heads = [f"{kind}:\n{what}" for kind in ("beyond", "on panel") for what in whats]
    head = ["how seeds differ", "seeds", "none of\nthese", *heads, "width of\nbeyond"]
    print_table("Coverage where seeds differ much, the least of all scenarios", head, rows, left=(0,))
    console.print("None of these: how often no seed of a method is lucky, or fails. To alike: difference to a baseline "
                  "whose seeds are all alike.")  # fmt: skip


def _cells(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [f"{row[name]:.0%}" if name in row else "-" for name in names]


def _report_rows(found: Sequence[dict[str, Any]]) -> None:
    names = ("nested", "mean_beyond", "difference_beyond", "mean_on_panel", "difference_on_panel")
    rows = [
        [str(row["seeds"]), str(row["families"]), *_cells(row, names), f"{row['mean_beyond_width']:.2f}"]
        for row in found
    ]
    head = ["seeds", "families", "before:\nnested", "beyond:\nmean", "beyond:\ndifference", "on panel:\nmean",
            "on panel:\ndifference", "width of\nbeyond"]  # fmt: skip
    print_table("Coverage of intervals of 95 %, the least of all scenarios", head, rows, left=())
    console.print(f"At least {FLOOR:.0%} is claimed from the number of families on for which there is an interval.")


def main() -> None:
    """See the module's text."""
    arguments = make_parser(__doc__, "fewer panels and families").parse_args()
    result = measure(200, 20, (10,)) if arguments.quick else measure(2000, 300, (4, 10, 16, 24))
    unruly = measure_unruly(200, (3,), (10,)) if arguments.quick else measure_unruly(2000, (2, 3, 5, 10), (10, 24))
    finish(result | {"unruly": unruly}, report, arguments.json)


if __name__ == "__main__":
    main()
