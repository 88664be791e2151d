"""Simulator of Waymarks: the same games without compiling, for 100,000s of warm-start episodes.

Answers equal those of the compiled games for every action string; a test compares both. Both environments apply
`parse_command` (env.py) first.
"""

from __future__ import annotations

from dataclasses import dataclass

from trailnotes.envs.waymarks import spec as ws
from trailnotes.envs.waymarks.spec import GameSpec

NO_WAY = "you can't go that way."

_DIRECTIONS = (*ws.DIRECTIONS, "northeast", "northwest", "southeast", "southwest", "up", "down", "in", "out")
_SHORT_DIRECTIONS = ("n", "e", "s", "w", "ne", "nw", "se", "sw", "u", "d")
_DIRECTION_WORDS = {
    **{direction: direction for direction in _DIRECTIONS},
    **dict(zip(_SHORT_DIRECTIONS, _DIRECTIONS, strict=False)),
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
    return _say(scene, _answer_unchanged(scene, verb, rest))


def list_admissible(scene: Scene) -> tuple[str, ...]:
    """List every action that does something here, sorted."""
    if scene.spec.kind == "route":
        return tuple(sorted({*ws.DIRECTIONS}))  # three exits onward, and back or the archive
    locked = [box for box in scene.spec.boxes if box not in scene.unlocked]
    return tuple(sorted([ws.ARCHIVE_DIRECTION, *(ws.format_unlock(box, gem) for box in locked for gem in ws.GEMS)]))


def _say(scene: Scene, text: str) -> Scene:
    return Scene(scene.spec, text, scene.junction, scene.unlocked, scene.won, scene.lost)


def _look(scene: Scene) -> Scene:
    spec, at = scene.spec, scene.junction
    description = ws.junction_description(spec, at) if spec.kind == "route" else ws.vault_description(spec)
    return _say(scene, ws.room_text(spec.rooms[at], description))


def _go(scene: Scene, direction: str) -> Scene:
    spec, at = scene.spec, scene.junction
    if at == 0 and direction == ws.ARCHIVE_DIRECTION:
        text = ws.room_text(ws.ARCHIVE, ws.archive_description(spec))
        return Scene(spec, text, at, scene.unlocked, lost=True)
    if spec.kind == "keys" or direction not in ws.OPPOSITE:
        return _say(scene, NO_WAY)
    if at and direction == ws.OPPOSITE[spec.rule[at - 1]]:
        return _look(Scene(spec, "", at - 1))
    if direction == spec.rule[at]:
        if at + 1 < spec.size:
            return _look(Scene(spec, "", at + 1))
        return Scene(spec, ws.room_text(spec.rooms[spec.size], ws.END_DESCRIPTION), at, won=True)
    back = ws.OPPOSITE[spec.rule[at - 1]] if at else ws.ARCHIVE_DIRECTION
    wrong = [word for word in ws.DIRECTIONS if word not in (back, spec.rule[at])]
    nook = spec.rooms[spec.size + 1 + 2 * at + wrong.index(direction)]  # junction by junction, as `DIRECTIONS`
    return Scene(spec, ws.room_text(nook, ws.NOOK_DESCRIPTION), at, lost=True)


def _parse_direction(words: list[str]) -> str:
    """Parse the direction that all of `words` name, as the parser reads "north n"; "" when there is none."""
    named = {_DIRECTION_WORDS.get(word, "") for word in words}
    return named.pop() if len(named) == 1 else ""


def _find_thing(scene: Scene, words: list[str]) -> str:
    spec = scene.spec
    in_sight = {spec.furniture[scene.junction]} | ({*spec.boxes, *ws.GEMS} if spec.kind == "keys" else set())
    return words[0] if len(set(words)) == 1 and words[0] in in_sight else ""


def _answer_unchanged(scene: Scene, verb: str, rest: list[str]) -> str:
    if verb in {"examine", "x"}:
        if _parse_direction(rest):
            return "you see nothing unexpected in that direction."
        thing = _find_thing(scene, rest)
        return ws.thing_description(thing) if thing else ws.NOT_UNDERSTOOD
    if not rest and verb in {"inventory", "i"}:
        return ws.inventory_text(scene.spec)
    if not rest and verb == "goal":
        return ws.instruction_text(scene.spec)
    return "time passes." if not rest and verb in {"wait", "z"} else ws.NOT_UNDERSTOOD


def _unlock(scene: Scene, words: list[str]) -> Scene:
    at = words.index("with") if words.count("with") == 1 else 0
    box, gem = (_find_thing(scene, noun) or _parse_direction(noun) for noun in (words[:at], words[at + 1 :]))
    fault = _explain_lock(scene, box, gem)
    if fault:
        return _say(scene, fault)
    unlocked = scene.unlocked | {box}
    return Scene(scene.spec, f"you unlock the {box}.", unlocked=unlocked, won=len(unlocked) == scene.spec.size)


def _explain_lock(scene: Scene, box: str, gem: str) -> str:
    """Explain why `gem` does not open `box`, in the order in which Inform looks; "" when it does."""
    key = dict(zip(scene.spec.boxes, scene.spec.rule, strict=False)).get(box, "")
    faults = {
        ws.NOT_UNDERSTOOD: not box or not gem,
        "you must name something more substantial.": bool({box, gem} & set(_DIRECTIONS)),
        f"the {gem} is fixed in place.": gem not in ws.GEMS,
        "that doesn't seem to be something you can unlock.": not key,
        "that's unlocked at the moment.": box in scene.unlocked,
        "that doesn't seem to fit the lock.": gem != key,
    }
    return next((text for text, applies in faults.items() if applies), "")
