"""Waymarks, the pure part: families, hidden rules, variations, every sentence of the games, and the simulated game.

A *family* is a kind of game, a name and a hidden rule that all its variations share. A *variation* draws room names,
furniture and the order of listings. The builder compiles these sentences into TextWorld games, `advance_scene` answers
with them directly.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, cast

from trailnotes.errors import ConfigError

Kind = Literal["route", "keys"]
Rule = tuple[str, ...]

KINDS: tuple[Kind, ...] = ("route", "keys")
_ROUTE_NAMES = """
    amber birch cobalt dusk ember frost glade heron indigo juniper lichen meadow nettle ochre plume reed saffron thistle
    umber violet willow yarrow zephyr bramble
"""
_KEYS_NAMES = """
    granite hazel ivory kelp linen marble basalt copper flint ginger maple nectar olive pewter quill russet slate timber
    velvet walnut cedar clover bronze fennel
"""
FAMILY_NAMES: dict[Kind, tuple[str, ...]] = {"route": tuple(_ROUTE_NAMES.split()), "keys": tuple(_KEYS_NAMES.split())}
DIRECTIONS = ("north", "east", "south", "west")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
BOXES = ("chest", "trunk", "crate", "coffer")
GEMS = ("ruby", "opal", "jade", "pearl", "onyx", "topaz", "garnet", "agate", "beryl")
SIZES: dict[Kind, range] = {"route": range(2, 8), "keys": range(1, len(BOXES) + 1)}  # moves, or boxes
DEFAULT_SIZE: dict[Kind, int] = {kind: max(sizes) for kind, sizes in SIZES.items()}
_ROOM_NAMES = """
    attic barn cabin cellar chapel closet den dairy depot forge foyer gallery garage hall hut kitchen larder library
    loft lounge mill nursery office pantry parlor porch shed shop smithy stable study studio tower vault vestry ward
    workshop yard
"""
ROOMS = tuple(_ROOM_NAMES.split())
FURNITURE = ("barrel", "bench", "desk", "lamp", "ladder", "mirror", "rug", "shelf", "statue", "stool", "table", "urn")
ARCHIVE = "archive"  # always one step west of the start
ARCHIVE_DIRECTION = "west"


@dataclass(frozen=True, slots=True)
class GameSpec:
    """One game, complete: the same spec is the same game in every process."""

    kind: Kind
    family: str
    rule: Rule  # route: the directions; keys: the gem that opens each of the first `BOXES`, in that order
    rooms: tuple[str, ...]  # route: the junctions, the end, then two nooks for each; keys: the one room
    furniture: tuple[str, ...]  # what stands in each junction (route) or in the room (keys); "" for nothing
    listing: tuple[str, ...]  # order of words in descriptions: the directions, or the boxes and then the gems
    seed: int  # of the variation; it drew `rooms`, `furniture` and `listing`

    @property
    def size(self) -> int:
        return len(self.rule)

    @property
    def boxes(self) -> tuple[str, ...]:
        return BOXES[: self.size] if self.kind == "keys" else ()

    @property
    def max_steps(self) -> int:
        """Return the step limit: a route may turn back once, a vault allows no wrong attempt."""
        return self.size + 2 if self.kind == "route" else self.size


def make_spec(kind: Kind, family: str, rule: Sequence[str], seed: int) -> GameSpec:
    """Draw the variation `seed` of a family; the length of `rule` is the size of the game."""
    rule = validate_rule(kind, tuple(rule))
    rng = random.Random(seed)
    if kind == "route":
        rooms = tuple(rng.sample(ROOMS, 3 * len(rule) + 1))
        furniture = tuple(rng.choice(FURNITURE) if rng.random() < 1 / 3 else "" for _ in rule)
        listing = tuple(rng.sample(DIRECTIONS, 4))
    else:
        rooms = (rng.choice(ROOMS),)
        furniture = (rng.choice(FURNITURE),)
        listing = (*rng.sample(BOXES[: len(rule)], len(rule)), *rng.sample(GEMS, len(GEMS)))
    return GameSpec(kind, family, rule, rooms, furniture, listing, seed)


def validate_rule(kind: Kind, rule: Rule) -> Rule:
    """Return `rule` if a game of this kind can have it; raises `ConfigError` otherwise."""
    if kind == "route":
        backs = (ARCHIVE_DIRECTION, *(OPPOSITE.get(word, "") for word in rule[:-1]))
        ok = all(w in OPPOSITE and w != back for w, back in zip(rule, backs, strict=False))
        wanted = f"directions, the first not {ARCHIVE_DIRECTION}, none straight back"
    elif kind == "keys":
        ok = len(rule) == len(set(rule)) and set(rule) <= set(GEMS)
        wanted = f"different gems of {', '.join(GEMS)}"
    else:
        raise ConfigError(f"unknown kind of game {kind!r}; use one of {', '.join(KINDS)}")
    if not ok or len(rule) not in SIZES[kind]:
        few, many = min(SIZES[kind]), max(SIZES[kind])
        raise ConfigError(f"{' '.join(rule)!r} is not a rule for a {kind} game; it needs {few} to {many} {wanted}")
    return rule


def draw_rule(kind: Kind, rng: random.Random, size: int | None = None) -> Rule:
    """Draw a rule uniformly: by default one of 3^7 = 2187 routes, or of 9 * 8 * 7 * 6 = 3024 assignments."""
    size = size or DEFAULT_SIZE[kind]
    if kind == "keys":
        return tuple(rng.sample(GEMS, size))
    rule: list[str] = []
    back = ARCHIVE_DIRECTION
    for _ in range(size):
        rule.append(rng.choice([word for word in DIRECTIONS if word != back]))
        back = OPPOSITE[rule[-1]]
    return tuple(rule)


def count_rules(kind: Kind, size: int | None = None) -> int:
    size = size or DEFAULT_SIZE[kind]
    return 3**size if kind == "route" else math.perm(len(GEMS), size)


@lru_cache(maxsize=1024)
def draw_family_rule(kind: Kind, family: str, dataset_seed: int = 0, size: int | None = None) -> Rule:
    """Draw a family's hidden rule of a size: a pure function, without repeats within a kind if possible."""
    names = FAMILY_NAMES.get(kind, ())
    if family not in names:
        known = ", ".join(f"{k}/{name}" for k in KINDS for name in FAMILY_NAMES[k])
        raise ConfigError(f"unknown family '{kind}/{family}'; use one of {known}")
    if size is not None and size not in SIZES[kind]:
        few, many = min(SIZES[kind]), max(SIZES[kind])
        raise ConfigError(f"{kind}/{family} has no games of size {size!r}; use {few} to {many}")
    place = names.index(family)
    first = place - place % count_rules(kind, size)  # where there are fewer rules than families, they are used again
    taken = {draw_family_rule(kind, name, dataset_seed, size) for name in names[first:place]}
    parts = () if size in (None, DEFAULT_SIZE[kind]) else (size,)  # rules of the default size are older than sizes
    rng = random.Random(stable_seed(dataset_seed, "rule", kind, family, *parts))
    while (rule := draw_rule(kind, rng, size)) in taken:
        pass
    return rule


def stable_seed(*parts: object) -> int:
    """Derive a 48-bit seed from any parts; the same in every process and Python version."""
    digest = hashlib.sha256("/".join(map(str, ("waymarks", *parts))).encode()).digest()
    return int.from_bytes(digest[:6], "big")


def parse_family(family: str) -> tuple[Kind, str]:
    """Split ``"route/amber"`` into kind and name; raises `ConfigError` when there is no such family."""
    kind, _, name = family.partition("/")
    draw_family_rule(cast("Kind", kind), name)
    return cast("Kind", kind), name


def instruction_text(spec: GameSpec) -> str:
    """Word the goal: what to do, in which family, and nothing about how."""
    if spec.kind == "route":
        return f"find the way through the {spec.family} maze"
    return f"unlock the boxes of the {spec.family} vault"


def note_text(rule: Rule) -> str:
    """Word the hidden rule as the archive does; nothing else ever tells it."""
    if rule[0] in OPPOSITE:
        return "carved here: " + " ".join(rule)
    return "carved here: " + " ".join(f"{box} {gem}" for box, gem in zip(BOXES, rule, strict=False))


def junction_description(spec: GameSpec, index: int) -> str:
    """Describe junction `index` of a route game; the way back is not named."""
    back = OPPOSITE[spec.rule[index - 1]] if index else ARCHIVE_DIRECTION
    exits = " ".join(word for word in spec.listing if word != back)
    archive = f", {ARCHIVE} {ARCHIVE_DIRECTION}" if index == 0 else ""
    furniture = f" {_add_article(spec.furniture[index])}." if spec.furniture[index] else ""
    return f"exits {exits}{archive}.{furniture}"


def vault_description(spec: GameSpec) -> str:
    boxes, gems = spec.listing[: spec.size], spec.listing[spec.size :]
    things = f"you hold {' '.join(gems)}. boxes {' '.join(boxes)}."
    return f"{things} {ARCHIVE} {ARCHIVE_DIRECTION}. {_add_article(spec.furniture[0])}."


NOT_UNDERSTOOD = "that makes no sense."
NOOK_DESCRIPTION = "a dead end."
END_DESCRIPTION = "the way out."


def thing_description(name: str) -> str:
    return f"just {_add_article(name)}."


def inventory_text(spec: GameSpec) -> str:
    """Word the answer to ``inventory``, as TextWorld does, in lower case."""
    if spec.kind == "route":
        return "you are carrying nothing."
    gems = [_add_article(gem) for gem in spec.listing[spec.size :]]
    return f"you are carrying: {', '.join(gems[:-1])} and {gems[-1]}."


def _add_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def gold_actions(spec: GameSpec) -> tuple[str, ...]:
    if spec.kind == "route":
        return spec.rule
    return tuple(format_unlock(box, gem) for box, gem in zip(spec.boxes, spec.rule, strict=True))


def archive_actions(_: GameSpec) -> tuple[str, ...]:
    """List the play that reads the archive and loses by it: one step, in every game."""
    return (ARCHIVE_DIRECTION,)


def format_unlock(box: str, gem: str) -> str:
    return f"unlock {box} with {gem}"


# --- The simulated games, for 100,000s of warm-start episodes. Answers equal those of the compiled ones for every
# action string; a test compares both. Both environments apply `parse_command` (env.py) first.

NO_WAY = "you can't go that way."

_KNOWN_DIRECTIONS = (*DIRECTIONS, "northeast", "northwest", "southeast", "southwest", "up", "down", "in", "out")
_SHORT_DIRECTIONS = ("n", "e", "s", "w", "ne", "nw", "se", "sw", "u", "d")
_DIRECTION_WORDS = {
    **{direction: direction for direction in _KNOWN_DIRECTIONS},
    **dict(zip(_SHORT_DIRECTIONS, _KNOWN_DIRECTIONS, strict=False)),
    "inside": "in",
    "outside": "out",
}
_DICTIONARY_CHARS = 9  # the Z-machine's dictionary tells words apart by these


@dataclass(frozen=True, slots=True)
class Scene:
    """A moment of a game: position, unlocked boxes, the last text."""

    spec: GameSpec
    text: str
    junction: int = 0  # route: counted from 0
    unlocked: frozenset[str] = frozenset()  # keys: boxes
    won: bool = False
    lost: bool = False


def make_first_scene(spec: GameSpec) -> Scene:
    return _look(Scene(spec, ""))


def advance_scene(scene: Scene, command: str) -> Scene:
    words = [word[:_DICTIONARY_CHARS] for word in command.split()]
    verb, rest = (words[0], words[1:]) if words else ("", [])
    direction = _parse_direction(words) or (_parse_direction(rest) if verb == "go" else "")
    if direction:
        return _go(scene, direction)
    if verb == "unlock" and scene.spec.kind == "keys":
        return _unlock(scene, rest)
    if verb in {"look", "l"} and not rest:
        return _look(scene)
    return replace(scene, text=_answer_unchanged(scene, verb, rest))


def list_admissible(scene: Scene) -> tuple[str, ...]:
    """List every action that does something here, sorted."""
    if scene.spec.kind == "route":
        return tuple(sorted({*DIRECTIONS}))  # three exits onward, and back or the archive
    locked = [box for box in scene.spec.boxes if box not in scene.unlocked]
    return tuple(sorted([ARCHIVE_DIRECTION, *(format_unlock(box, gem) for box in locked for gem in GEMS)]))


def _look(scene: Scene) -> Scene:
    spec, at = scene.spec, scene.junction
    description = junction_description(spec, at) if spec.kind == "route" else vault_description(spec)
    return replace(scene, text=f"{spec.rooms[at]}. {description}")


def _go(scene: Scene, direction: str) -> Scene:
    spec, at = scene.spec, scene.junction
    if at == 0 and direction == ARCHIVE_DIRECTION:
        return Scene(spec, f"{ARCHIVE}. {note_text(spec.rule)}.", at, scene.unlocked, lost=True)
    if spec.kind == "keys" or direction not in OPPOSITE:
        return replace(scene, text=NO_WAY)
    if at and direction == OPPOSITE[spec.rule[at - 1]]:
        return _look(Scene(spec, "", at - 1))
    if direction == spec.rule[at]:
        if at + 1 < spec.size:
            return _look(Scene(spec, "", at + 1))
        return Scene(spec, f"{spec.rooms[spec.size]}. {END_DESCRIPTION}", at, won=True)
    back = OPPOSITE[spec.rule[at - 1]] if at else ARCHIVE_DIRECTION
    wrong = [word for word in DIRECTIONS if word not in (back, spec.rule[at])]
    nook = spec.rooms[spec.size + 1 + 2 * at + wrong.index(direction)]  # junction by junction, as `DIRECTIONS`
    return Scene(spec, f"{nook}. {NOOK_DESCRIPTION}", at, lost=True)


def _parse_direction(words: list[str]) -> str:
    """Parse the direction that all of `words` name, as the parser reads "north n"; "" when there is none."""
    named = {_DIRECTION_WORDS.get(word, "") for word in words}
    return named.pop() if len(named) == 1 else ""


def _find_thing(scene: Scene, words: list[str]) -> str:
    spec = scene.spec
    in_sight = {spec.furniture[scene.junction]} | ({*spec.boxes, *GEMS} if spec.kind == "keys" else set())
    return words[0] if len(set(words)) == 1 and words[0] in in_sight else ""


def _answer_unchanged(scene: Scene, verb: str, rest: list[str]) -> str:
    if verb in {"examine", "x"}:
        if _parse_direction(rest):
            return "you see nothing unexpected in that direction."
        thing = _find_thing(scene, rest)
        return thing_description(thing) if thing else NOT_UNDERSTOOD
    if not rest and verb in {"inventory", "i"}:
        return inventory_text(scene.spec)
    if not rest and verb == "goal":
        return instruction_text(scene.spec)
    return "time passes." if not rest and verb in {"wait", "z"} else NOT_UNDERSTOOD


def _unlock(scene: Scene, words: list[str]) -> Scene:
    at = words.index("with") if words.count("with") == 1 else 0
    box, gem = (_find_thing(scene, noun) or _parse_direction(noun) for noun in (words[:at], words[at + 1 :]))
    fault = _explain_lock(scene, box, gem)
    if fault:
        return replace(scene, text=fault)
    unlocked = scene.unlocked | {box}
    return Scene(scene.spec, f"you unlock the {box}.", unlocked=unlocked, won=len(unlocked) == scene.spec.size)


def _explain_lock(scene: Scene, box: str, gem: str) -> str:
    """Explain why `gem` does not open `box`, in the order in which Inform looks; "" when it does."""
    key = dict(zip(scene.spec.boxes, scene.spec.rule, strict=False)).get(box, "")
    faults = {
        NOT_UNDERSTOOD: not box or not gem,
        "you must name something more substantial.": bool({box, gem} & set(_KNOWN_DIRECTIONS)),
        f"the {gem} is fixed in place.": gem not in GEMS,
        "that doesn't seem to be something you can unlock.": not key,
        "that's unlocked at the moment.": box in scene.unlocked,
        "that doesn't seem to fit the lock.": gem != key,
    }
    return next((text for text, applies in faults.items() if applies), "")
