"""Waymarks as real TextWorld games: a spec becomes Inform 7 source, a ``.z8`` and its ``.json``.

Three things that TextWorld's source does are undone, since each would tell the hidden rule outside the archive or
make answers depend on earlier ones: opening a locked box names its key, ``print_state`` lists which key matches what,
and an incomplete command ("unlock chest") asks a question whose answer is the next command.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.envs.waymarks import spec as ws
from trailnotes.envs.waymarks.spec import GameSpec

if TYPE_CHECKING:
    from textworld import GameMaker

BUILDER_VERSION = 1  # raise it whenever a compiled game would differ
_KEPT_VERBS = {"route": (), "keys": ("unlock",)}

# Every command verb of TextWorld's games; each is taken away, and those of `_build_grammar` are given back.
_VERBS = """
    adjust answer ask attach attack awake awaken break brief burn buy carry check chop clean clear climb close consult
    cover crack cross cut describe destroy disable discard display disrobe doff don drag drink drop dust eat embrace
    enable enter examine exit fasten feed feel fight get give go hear help hit hold hop hug i insert inv inventory
    jump kill kiss l leave light listen lock long look move murder nap no normal notify nouns offer open out pay pick
    polish present press print_state pronouns prune pull punch purchase push put q quit read remove restart restore
    restrict rotate rub run save say scale score screw script scrub search set shed shift shine short shout show shut
    sip sit skip sleep slice smash smell sniff sorry speak squash squeeze stand superbrief swallow sweep swing switch
    take taste tell think throw thump tie torture touch transcript turn tw-extra-infos tw-print tw-trace-actions
    twist uncover unlock unscrew unwrap verbose verify version wait wake walk watch wave wear wipe wreck x y yes z
"""


def build_game(spec: GameSpec, path: Path) -> None:
    """Compile `spec` to `path` (``.z8``), its ``.json`` beside it; takes about a second."""
    from textworld.generator import compile_inform7_game, generate_inform7_source

    maker = _make_route_game(spec) if spec.kind == "route" else _make_keys_game(spec)
    game = maker.build()
    game.objective = ws.instruction_text(spec)  # the generated one would spell the solution out
    game.save(str(path.with_suffix(".json")))
    compile_inform7_game(_remove_leaks(generate_inform7_source(game)) + _build_grammar(spec), str(path))
    path.with_suffix(".ni").unlink(missing_ok=True)


def _make_game_maker() -> Any:
    from textworld import GameMaker, GameOptions
    from textworld.generator.data import KnowledgeBase

    options: Any = GameOptions()
    options.kb = KnowledgeBase.default()
    return GameMaker(options)


def _make_route_game(spec: GameSpec) -> GameMaker:
    maker = _make_game_maker()
    junctions = [maker.new_room(spec.rooms[i], ws.junction_description(spec, i)) for i in range(spec.size)]
    end = maker.new_room(spec.rooms[spec.size], ws.END_DESCRIPTION)
    nook_names = iter(spec.rooms[spec.size + 1 :])
    fatal = [_add_archive(maker, spec, junctions[0])]
    back = ws.ARCHIVE_DIRECTION
    for room, onward, right in zip(junctions, [*junctions[1:], end], spec.rule, strict=True):
        for direction in ws.DIRECTIONS:
            if direction == back:
                continue
            target = onward if direction == right else maker.new_room(next(nook_names), ws.NOOK_DESCRIPTION)
            if target is not onward:
                fatal.append(target)
            maker.connect(room.exits[direction], target.exits[ws.OPPOSITE[direction]])
        back = ws.OPPOSITE[right]
    for room, name in zip(junctions, spec.furniture, strict=True):
        _add_furniture(maker, room, name)
    maker.set_player(junctions[0])
    _set_quest(maker, {maker.new_fact("at", maker.player, end)}, fatal)
    return maker


def _make_keys_game(spec: GameSpec) -> GameMaker:
    maker = _make_game_maker()
    vault = maker.new_room(spec.rooms[0], ws.vault_description(spec))
    archive = _add_archive(maker, spec, vault)
    boxes = {name: maker.new("c", name, ws.thing_description(name)) for name in spec.boxes}
    gems = {name: maker.new("k", name, ws.thing_description(name)) for name in spec.listing[spec.size :]}
    for name, gem in zip(spec.boxes, spec.rule, strict=True):
        boxes[name].add_property("locked")
        maker.add_fact("match", gems[gem], boxes[name])
        vault.add(boxes[name])
    maker.inventory.add(*gems.values())
    _add_furniture(maker, vault, spec.furniture[0])
    maker.set_player(vault)
    _set_quest(maker, {maker.new_fact("closed", box) for box in boxes.values()}, [archive])
    return maker


def _add_archive(maker: Any, spec: GameSpec, start: Any) -> Any:
    archive = maker.new_room(ws.ARCHIVE, f"{ws.note_text(spec.rule)}.")
    maker.connect(start.exits[ws.ARCHIVE_DIRECTION], archive.exits[ws.OPPOSITE[ws.ARCHIVE_DIRECTION]])
    return archive


def _add_furniture(maker: Any, room: Any, name: str) -> None:
    if name:
        room.add(maker.new("s", name, ws.thing_description(name)))


def _set_quest(maker: Any, won: set[Any], fatal_rooms: list[Any]) -> None:
    from textworld.generator.game import Event, Quest

    lost = [Event(conditions={maker.new_fact("at", maker.player, room)}) for room in fatal_rooms]
    maker.quests = [Quest(win_events=[Event(conditions=won)], fail_events=lost, reward=1)]


def _remove_leaks(source: str) -> str:
    """Remove the answers that name a matching key, and the debugging commands."""
    source, opened = re.subn(r"Before opening a locked (?:door|container).*?stop\.\n\n", "", source, flags=re.DOTALL)
    commands = r"print_state|enable print state option|disable print state option|help|restrict commands|tw-[^\"]*"
    source, debug = re.subn(rf'Understand "(?:{commands})" as [^\n]*\n', "", source)
    if opened != 2 or debug < 5:
        raise RuntimeError("this version of textworld words its source differently; Waymarks knows 1.7.0")
    return source


def _build_grammar(spec: GameSpec) -> str:
    verbs = ("go", "examine", *_KEPT_VERBS[spec.kind])
    lines = [f'Understand the command "{verb}" as something new.' for verb in _VERBS.split()]
    lines += [
        "Use undo prevention.", f'Rule for printing a parser error: say "{ws.NOT_UNDERSTOOD}".',
        f'Muddling is an action applying to nothing. Carry out muddling: say "{ws.NOT_UNDERSTOOD}".',
        f'Garbling is an action applying to one topic. Carry out garbling: say "{ws.NOT_UNDERSTOOD}".',
        'Understand "go [direction]" as going.', 'Understand "examine [something]" as examining.',
        'Understand "look" as looking. Understand the command "l" as "look".',
        'Understand "inventory" as taking inventory. Understand the command "i" as "inventory".',
        'Understand "wait" as waiting. Understand the command "z" as "wait".',
    ]  # fmt: skip
    if "unlock" in verbs:
        lines.append('Understand "unlock [something] with [something]" as unlocking it with.')
        lines.append(  # without a gem the parser would guess one, or ask
            "After reading a command: if the player's command includes \"unlock\" and the player's command does not "
            'include "with [something]", replace the player\'s command with "muddle".'
        )
    lines += [f'Understand "{verb}" as muddling. Understand "{verb} [text]" as garbling.' for verb in verbs]
    lines.append('Understand the command "x" as "examine".')
    return "\n" + "\n".join(lines) + "\n"
