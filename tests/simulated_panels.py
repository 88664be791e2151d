"""Panels of results drawn from known truths, and how often the intervals of a comparison hold these.

A panel is seeds x families x games. A family has a rate of its own, drawn from a Beta distribution: with a small
concentration it is learned or not, with a large one all families are alike. Games differ a little within a family.
A seed has luck of its own, and in a share of the families it learns something else than the other seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trailnotes.reporting.intervals import (
    RATE_BOUNDS,
    CrossedMoments,
    compute_difference_limits,
    compute_moments,
    compute_panel_limits,
    compute_population_limits,
)

Floats = NDArray[np.float64]
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
    anywhere = quantiles[5::10].mean()
    seen = (1 - world.interaction) * game.mean(axis=(1, 2)) + world.interaction * anywhere
    lucky = luck[:, 0] if world.seeds == 1 else np.full(num, rate)  # one seed: other families, but this very run
    return Played(values, (1 - world.luck) * seen + world.luck * rate, (1 - world.luck) * anywhere + world.luck * lucky)


def _beta(rate: float, concentration: float, size: tuple[int, ...], rng: np.random.Generator) -> Floats:
    return rng.beta(rate * concentration, (1 - rate) * concentration, size)


def _quantiles(rate: float, concentration: float) -> Floats:
    """Of the Beta distribution, evenly spaced, so that two methods can share how hard a family is."""
    from scipy.special import betaincinv

    places = (np.arange(4000) + 0.5) / 4000
    quantiles: Floats = betaincinv(rate * concentration, (1 - rate) * concentration, places)
    return quantiles


def shares_of(world: World) -> Floats:
    """(families, families * games)."""
    return np.kron(np.eye(world.families), np.full((1, world.games), 1 / world.games))


def covered(limits: tuple[Floats, Floats], truth: Floats) -> Floats:
    """(n,) whether the truth lies between the limits."""
    low, high = limits
    return (low - PAST_ITS_ENDS <= truth) & (truth <= high + PAST_ITS_ENDS)


def of_mean(world: World, rate: float, num: int, rng: np.random.Generator) -> dict[str, float]:
    """Coverage of both intervals of a mean; that on the panel only of panels that have one."""
    played = play(world, rate, rng.random((num, world.families)), rng)
    moments = compute_moments(played.values, shares_of(world))
    beyond = compute_population_limits(moments, RATE_BOUNDS)
    record = _record("beyond", beyond, played.beyond, np.ones(num, dtype=bool))
    return record | _on_panel(moments, RATE_BOUNDS, played.on_panel)


def of_difference(world: World, rates: tuple[float, float], num: int, rng: np.random.Generator) -> dict[str, float]:
    """The same of a difference between two methods."""
    hard = rng.random((num, world.families))
    shared = rng.random(hard.shape) < SHARED
    first = play(world, rates[0], hard, rng)
    second = play(world, rates[1], np.where(shared, hard, rng.random(hard.shape)), rng)
    shares = shares_of(world)
    one, other, both = (compute_moments(v, shares) for v in (first.values, second.values, first.values - second.values))
    beyond = compute_difference_limits(one, other, both)
    record = _record("beyond", beyond, first.beyond - second.beyond, np.ones(num, dtype=bool))
    return record | _on_panel(both, (-1.0, 1.0), first.on_panel - second.on_panel)


def _on_panel(moments: CrossedMoments, bounds: tuple[float, float], truth: Floats) -> dict[str, float]:
    has_one = moments.num_seeds > 1
    return (
        _record("on_panel", compute_panel_limits(moments.mean, moments.seeds, bounds), truth, has_one)
        if has_one.any()
        else {}
    )


def _record(name: str, limits: tuple[Floats, Floats], truth: Floats, given: NDArray[np.bool_]) -> dict[str, float]:
    return {name: float(covered(limits, truth)[given].mean()), f"{name}_given": float(given.mean())}
