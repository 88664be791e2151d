"""Generator of games from ALFWorld's floor plans: furniture, things in it, and a possible task.

A plan lists the pieces of furniture and the kinds of things in a room; the generator draws the places of the things.
Constants (what fits where, what is coolable) and goals are the package's own.
"""

from __future__ import annotations

import importlib
import json
import random
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from trailnotes.errors import ConfigError, MissingExtraError, format_install_command
from trailnotes.types import derive_seed

EXTRA: Final = "alfworld"
VERSION: Final = 2  # of the generator: another version makes other games of the same seeds

# Kind of task -> its rooms in the package.
TASK_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "pick_and_place_simple": ("Kitchen", "LivingRoom", "Bedroom", "Bathroom"),
    "look_at_obj_in_light": ("LivingRoom", "Bedroom"),
    "pick_clean_then_place_in_recep": ("Kitchen", "Bathroom"),
    "pick_heat_then_place_in_recep": ("Kitchen",),
    "pick_cool_then_place_in_recep": ("Kitchen",),
    "pick_two_obj_and_place": ("Kitchen", "LivingRoom", "Bedroom", "Bathroom"),
}
ROOM_OFFSETS: Final = {"Kitchen": 0, "LivingRoom": 200, "Bedroom": 300, "Bathroom": 400}  # number before plan 1
# Floor plans of each kind of room, from its first one on. The test plans are the package's own.
FLOOR_PLANS: Final[dict[str, range]] = {"test": range(1, 7), "validation": range(7, 11), "train": range(11, 31)}
# Bedrooms without a lamp that a goal may name.
_PLANS_WITHOUT_LAMP: Final = frozenset((310, 311, 312, 313, 321, 322, 325, 326, 329, 330))
_APPLIANCES: Final = {  # kind of task -> property of the thing, furniture, verb
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin", "clean"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave", "heat"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge", "cool"),
}
_MAX_PER_KIND: Final = 3  # things, as in the package
_NUM_BURNERS: Final = 4
_PDDL_ESCAPES: Final = (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_"), (",", "_comma_"))


@dataclass(frozen=True, slots=True)
class FurnishedRoom:
    furniture: tuple[tuple[str, str], ...]  # name, and kind
    things: tuple[tuple[str, str, str], ...]  # name, kind, and the name of the furniture around it


@dataclass(frozen=True, slots=True)
class HouseholdGoal:
    """Goal of a game, by kinds of things."""

    type: str
    thing: str
    place: str = ""  # kind of furniture
    lamp: str = ""  # kind of lamp


def import_alfworld_module(module: str) -> ModuleType:
    """Import a module of the package. Raises `MissingExtraError` if it is not installed."""
    if find_spec("alfworld") is None or find_spec("fast_downward") is None:
        raise MissingExtraError(
            f"ALFWorld needs the packages alfworld and fast_downward: {format_install_command(EXTRA)}", name="alfworld"
        )
    return importlib.import_module(f"alfworld.{module}")


def list_floor_plans(split: str, task_type: str) -> list[int]:
    """List floor plans in the order in which games take them: each kind of room in turn."""
    plans = [ROOM_OFFSETS[room] + number for number in FLOOR_PLANS[split] for room in TASK_TYPES[task_type]]
    return [plan for plan in plans if task_type != "look_at_obj_in_light" or plan not in _PLANS_WITHOUT_LAMP]


@dataclass(frozen=True, slots=True)
class GeneratedGame:
    problem: str  # in PDDL
    task: str  # in words
    plan: tuple[tuple[str, ...], ...]  # of an expert: templates of commands, and the names for them


def generate_game(plan: int, task_type: str, seed: int) -> GeneratedGame:
    """Generate the game of these arguments, the same in every process."""
    rng = random.Random(derive_seed("alfworld", plan, task_type, seed))
    for _ in range(100):
        room = furnish_room(plan, rng)
        if goals := list_goals(room, task_type):
            goal = rng.choice(goals)
            wording = rng.choice(_load_goal_library(task_type)["templates"])
            words = wording.format(obj=goal.thing.lower(), recep=goal.place.lower(), toggle=goal.lamp.lower())
            return GeneratedGame(format_pddl_problem(room, goal), str(words), build_expert_plan(room, goal))
    raise ConfigError(f"floor plan {plan} allows no task of the kind {task_type}: leave one of them out")


def furnish_room(plan: int, rng: random.Random) -> FurnishedRoom:
    """Furnish a floor plan, always in the same way, and place one to three things of each kind in it."""
    fits = import_alfworld_module("gen.constants").VAL_RECEPTACLE_OBJECTS
    furniture, kinds = _load_floor_plan(plan)
    placed: list[tuple[str, str, str]] = []
    for kind in kinds:
        fitting = _LAMPS.get(kind, ())
        places = [name for name, piece in furniture if kind in fits[piece] or piece in fitting]
        num = 1 if fitting else rng.randint(1, _MAX_PER_KIND)
        placed += [(f"{kind}|{number}", kind, rng.choice(places)) for number in range(num) if places]
    return FurnishedRoom(furniture, tuple(placed))


# Furniture for lamps, which the package's tables leave out, since agents do not move lamps.
_LAMPS: Final = {
    "DeskLamp": ("Desk", "SideTable", "Dresser", "Shelf"),
    "FloorLamp": ("SideTable", "CoffeeTable", "Desk", "Dresser", "ArmChair"),
}


@cache
def _load_floor_plan(number: int) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    # Furniture as (name, kind), and kinds of things.
    constants = import_alfworld_module("gen.constants")
    assert constants.__file__
    folder = Path(constants.__file__).parent / "layouts"
    kinds = json.loads((folder / f"FloorPlan{number}-objects.json").read_text(encoding="utf-8"))
    listed = json.loads((folder / f"FloorPlan{number}-openable.json").read_text(encoding="utf-8"))

    def parse_kind(name: str) -> str:  # Cabinet|-01|+01|-02 is a Cabinet, Sink|-01|+01|-02|SinkBasin a SinkBasin
        last = name.rsplit("|", 1)[-1]
        return last if last.endswith("Basin") else name.split("|", 1)[0]

    holds = set(constants.VAL_RECEPTACLE_OBJECTS) - set(constants.MOVABLE_RECEPTACLES)
    furniture = [(name, kind) for name in sorted(listed) if (kind := parse_kind(name)) in holds]
    for kind in sorted(holds & set(kinds) - {kind for _, kind in furniture}):
        basin = kind.removesuffix("Basin")
        form = f"{kind}|{{}}" if basin == kind else f"{basin}|{{}}|{kind}"  # as the package names them
        furniture += [(form.format(place), kind) for place in range(_NUM_BURNERS if kind == "StoveBurner" else 1)]
    small = {thing for things in constants.VAL_RECEPTACLE_OBJECTS.values() for thing in things} | set(_LAMPS)
    return tuple(furniture), tuple(sorted(set(kinds) & small))


def list_goals(room: FurnishedRoom, task_type: str) -> list[HouseholdGoal]:
    """List the tasks of this kind that a room allows and that are not done yet."""
    constants = import_alfworld_module("gen.constants")
    kinds, pieces = {kind for _, kind, _ in room.things}, {kind for _, kind in room.furniture}
    pickable = sorted(kinds - set(_LAMPS))
    if task_type == "look_at_obj_in_light":
        lamps = sorted(kinds & set(_LAMPS))
        return [HouseholdGoal(task_type, thing, lamp=lamp) for thing in pickable for lamp in lamps]
    fit, needs, _ = _APPLIANCES.get(task_type, ("", "", ""))
    if needs and needs not in pieces:
        return []
    own = dict(room.furniture)
    num = 2 if task_type == "pick_two_obj_and_place" else 1
    goals = []
    for thing in pickable:
        where = [own[place] for _, kind, place in room.things if kind == thing]
        if len(where) < num or (fit and thing not in constants.VAL_ACTION_OBJECTS[fit]):
            continue
        goals += [
            HouseholdGoal(task_type, thing, piece)
            for piece in sorted(pieces - {needs})
            if thing in constants.VAL_RECEPTACLE_OBJECTS[piece] and (fit or piece not in where)
        ]
    return goals


def format_pddl_problem(room: FurnishedRoom, goal: HouseholdGoal) -> str:
    """Format a room and a goal as a problem of the package's PDDL domain; each piece of furniture is a location."""
    place = {name: f"loc_bar_{number}" for number, (name, _) in enumerate(room.furniture, 1)}
    kinds, pieces = {kind for _, kind, _ in room.things}, {kind for _, kind in room.furniture}
    objects = {
        "agent": ["agent1"],
        "location": ["loc_bar_0", *place.values()],
        "receptacle": [escape_pddl_name(name) for name in place],
        "object": [escape_pddl_name(name) for name, _, _ in room.things],
        # The domain names these for every room.
        "rtype": sorted(f"{kind}Type" for kind in pieces | {"SinkBasin", "Microwave", "Fridge"}),
        "otype": sorted(f"{kind}Type" for kind in kinds | {"Knife", "ButterKnife"}),
    }
    listed = "\n".join(f"{name} - {type_}" for type_, names in objects.items() for name in names)
    known = [*_iter_furniture_facts(room, place, kinds), *_iter_thing_facts(room, place)]
    facts = "\n".join(f"({fact})" for fact in known)
    return (
        f"(define (problem made)\n(:domain alfred)\n(:objects\n{listed}\n)\n"
        f"(:init\n(= (total-cost) 0)\n(atLocation agent1 loc_bar_0)\n{facts}\n)\n"
        f"{_format_pddl_goal(goal)}\n(:metric minimize (total-cost))\n)\n"
    )


def _iter_furniture_facts(room: FurnishedRoom, place: Mapping[str, str], kinds: Collection[str]) -> Iterator[str]:
    constants = import_alfworld_module("gen.constants")
    for name, kind in room.furniture:
        yield f"receptacleType {escape_pddl_name(name)} {kind}Type"
        yield f"receptacleAtLocation {escape_pddl_name(name)} {place[name]}"
        if kind in constants.OPENABLE_CLASS_SET:
            yield f"openable {escape_pddl_name(name)}"
    for piece in sorted({kind for _, kind in room.furniture}):
        for kind in sorted(constants.VAL_RECEPTACLE_OBJECTS[piece].intersection(kinds)):
            yield f"canContain {piece}Type {kind}Type"


def _iter_thing_facts(room: FurnishedRoom, place: Mapping[str, str]) -> Iterator[str]:
    constants = import_alfworld_module("gen.constants")
    for name, kind, where in room.things:
        thing = escape_pddl_name(name)
        yield f"objectType {thing} {kind}Type"
        yield f"inReceptacle {thing} {escape_pddl_name(where)}"
        yield f"objectAtLocation {thing} {place[where]}"
        yield f"{'toggleable' if kind in _LAMPS else 'pickupable'} {thing}"
        if kind in constants.MOVABLE_RECEPTACLES:
            yield f"isReceptacleObject {thing}"
        for able in ("Cleanable", "Heatable", "Coolable", "Sliceable"):
            if kind in constants.VAL_ACTION_OBJECTS[able]:
                yield f"{able.lower()} {thing}"


def build_expert_plan(room: FurnishedRoom, goal: HouseholdGoal) -> tuple[tuple[str, ...], ...]:
    """Build the plan of an expert who knows the place of everything."""
    openable = import_alfworld_module("gen.constants").OPENABLE_CLASS_SET
    kinds, opened = dict(room.furniture), set[str]()
    things = [(name, where) for name, kind, where in room.things if kind == goal.thing]
    plan: list[tuple[str, ...]] = []
    here = ""

    def go(place: str, *, inside: bool) -> None:
        nonlocal here
        if place != here:
            plan.append(("go to {}", place))
        here = place
        if inside and kinds[place] in openable and place not in opened:
            plan.append(("open {}", place))
            opened.add(place)

    target = next((name for name, kind in room.furniture if kind == goal.place), "")
    for thing, where in things[: 2 if goal.type == "pick_two_obj_and_place" else 1]:
        go(where, inside=True)
        plan.append(("take {} from {}", thing, where))
        if goal.lamp:
            lamp, stand = next((name, where) for name, kind, where in room.things if kind == goal.lamp)
            go(stand, inside=False)
            plan.append(("use {}", lamp))
            continue
        if goal.type in _APPLIANCES:
            _, appliance, verb = _APPLIANCES[goal.type]
            device = next(name for name, kind in room.furniture if kind == appliance)
            go(device, inside=False)
            plan.append((f"{verb} {{}} with {{}}", thing, device))
        go(target, inside=True)
        plan.append(("move {} to {}", thing, target))
    return tuple(plan)


def escape_pddl_name(name: str) -> str:
    """Escape a name for PDDL; the package reverses it."""
    for char, word in _PDDL_ESCAPES:
        name = name.replace(char, word)
    return name


def _format_pddl_goal(goal: HouseholdGoal) -> str:
    # The package's text has ``#`` for ``-``, and superfluous closing brackets.
    template = _load_goal_library(goal.type)["pddl"]
    text = template.format(obj=goal.thing, recep=goal.place, toggle=goal.lamp).replace("#", "-")
    depth = 0
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return str(text[: match.end()]).strip()
    raise AssertionError(f"the package's goal of {goal.type} never ends")


def _load_goal_library(task_type: str) -> dict[str, str]:
    goals: dict[str, dict[str, str]] = import_alfworld_module("gen.goal_library").gdict
    return goals[task_type]
