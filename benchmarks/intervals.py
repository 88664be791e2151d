"""How often the intervals of a comparison hold what they are of, where that is known because the results are simulated.

A panel is seeds x families x games. A family has a rate of its own, drawn from a Beta distribution: with a small
concentration it is learned or not, with a large one all families are alike. Games differ a little within a family.
A seed has luck of its own, and in a share of the families it learns something else than the other seeds. Beside ours
stands the nested percentile bootstrap that this package used before: seeds, families anew in each seed, then games.

    python benchmarks/intervals.py --json intervals.json
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shared import console, finish, make_parser, print_table

from trailnotes.reporting.crossed import (
    CONFIDENCE,
    Crossed,
    beyond_limits,
    beyond_limits_of_difference,
    crossed,
    panel_limits,
)
from trailnotes.reporting.intervals import RATE

Floats = NDArray[np.float64]
FLOOR = 0.92
RATES = (0.05, 0.2, 0.5, 0.95)
PAIRS = ((0.5, 0.5), (0.95, 0.95), (0.6, 0.4), (0.95, 0.05))
WORLDS = ((0.6, 0.0, 0.0), (0.6, 0.3, 0.3), (4.0, 0.3, 0.0), (50.0, 0.3, 0.3))  # concentration, interaction, luck
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
        rate: over families and seeds.
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
    chance = (1 - world.luck) * chance + world.luck * luck[..., None, None]
    values = (rng.random(chance.shape) < chance).astype(np.float64).reshape(num, world.seeds, -1)
    seen = (1 - world.interaction) * game.mean(axis=(1, 2)) + world.interaction * rate
    lucky = luck[:, 0] if world.seeds == 1 else np.full(num, rate)  # one seed: other families, but this very run
    return Played(values, (1 - world.luck) * seen + world.luck * rate, (1 - world.luck) * rate + world.luck * lucky)


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
    found = crossed(played.values, shares_of(world))
    beyond = beyond_limits(found.mean, found.both, world.families, RATE)
    record = _record("beyond", beyond, played.beyond, np.ones(num, dtype=bool))
    return record | _on_panel(found, RATE, played.on_panel)


def of_difference(world: World, rates: tuple[float, float], num: int, rng: np.random.Generator) -> dict[str, float]:
    """The same of a difference between two methods."""
    hard = rng.random((num, world.families))
    shared = rng.random(hard.shape) < SHARED
    first = play(world, rates[0], hard, rng)
    second = play(world, rates[1], np.where(shared, hard, rng.random(hard.shape)), rng)
    shares = shares_of(world)
    one, other, both = (crossed(v, shares) for v in (first.values, second.values, first.values - second.values))
    beyond = beyond_limits_of_difference(one, other, both, CONFIDENCE)
    record = _record("beyond", beyond, first.beyond - second.beyond, np.ones(num, dtype=bool))
    return record | _on_panel(both, (-1.0, 1.0), first.on_panel - second.on_panel)


def _on_panel(found: Crossed, bounds: tuple[float, float], truth: Floats) -> dict[str, float]:
    has_one = found.num_seeds > 1
    return _record("on_panel", panel_limits(found.mean, found.seeds, bounds), truth, has_one) if has_one.any() else {}


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


def report(result: dict[str, Any]) -> None:
    """The table of docs/comparing.md."""
    names = ("nested", "mean_beyond", "difference_beyond", "mean_on_panel", "difference_on_panel")
    rows = []
    for row in result["rows"]:
        cells = [f"{row[name]:.0%}" if name in row else "-" for name in names]
        rows.append([str(row["seeds"]), str(row["families"]), *cells, f"{row['mean_beyond_width']:.2f}"])
    head = ["seeds", "families", "before:\nnested", "beyond:\nmean", "beyond:\ndifference", "on panel:\nmean",
            "on panel:\ndifference", "width of\nbeyond"]  # fmt: skip
    print_table("Coverage of intervals of 95 %, the least of all scenarios", head, rows, left=())
    console.print(f"At least {FLOOR:.0%} is claimed from the number of families on for which there is an interval.")


def main() -> None:
    """See the module's text."""
    arguments = make_parser(__doc__, "fewer panels and families").parse_args()
    result = measure(200, 20, (10,)) if arguments.quick else measure(2000, 300, (4, 10, 16, 24))
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()
