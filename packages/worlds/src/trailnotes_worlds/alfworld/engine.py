"""ALFWorld's engine without its repeated work, with the same texts and commands.

TextWorld's `PddlEnv` translates the PDDL of a game for playing and for planning at its load, and again at each reset,
and derives every admissible command from a grammar at each step. This engine translates a game once in a process, for
playing alone, and formats commands.

Domain and grammar are always the package's own: the grammar evaluates Python expressions, which no downloaded file may
contain.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from trailnotes.errors import EnvError
from trailnotes.storage.files import parse_json
from trailnotes_worlds.alfworld.rooms import escape_pddl_name, import_alfworld_module

_CACHE_SIZE: Final = 64  # translated games
_TASK_PATTERN: Final = re.compile(r"Your task is to: (.*?)\.?(?=\"|\\n|$)")
_UNKNOWN: Final = "UNKNOWN GOAL."
_NOTHING: Final = "Nothing happens."
_INTRO: Final = "-= Welcome to TextWorld, ALFRED! =-\n\n"


@dataclass(frozen=True, slots=True)
class TranslatedGame:
    """Game in Fast Downward's format, with the names of its parts."""

    sas: bytes
    facts: tuple[Any, ...]  # textworld's propositions, at the start
    types: dict[str, str]  # name of a thing -> its type
    infos: dict[str, Any]  # name of a thing -> textworld's EntityInfo, with its displayed name
    parameters: dict[str, tuple[tuple[str, str], ...]]  # action -> name and type of its parameters


@dataclass(frozen=True, slots=True)
class Move:
    id: int
    operator: str  # ``openobject agent1 loc_bar_3 fridge_bar_0``


def read_game(text: str) -> tuple[str, str]:
    """Read problem and task of a ``game.tw-pddl``. Raises `EnvError` for any other text."""
    try:
        facts = parse_json(text)
        problem, match = facts["pddl_problem"], _TASK_PATTERN.search(facts["grammar"])
    except (ValueError, KeyError, TypeError) as error:
        raise EnvError(f"that is no game of ALFWorld: {type(error).__name__} {error}") from error
    if not isinstance(problem, str) or not match:
        raise EnvError("that is no game of ALFWorld: it has no problem, or its grammar names no task")
    return problem, match[1]


@cache
def _load_logic() -> Any:
    from textworld.envs.pddl import logic

    info = import_alfworld_module("info")
    domain, grammar = (
        Path(path).read_text(encoding="utf-8") for path in (info.ALFRED_PDDL_PATH, info.ALFRED_TWL2_PATH)
    )
    return logic.GameLogic(domain=domain, grammar=grammar)


@lru_cache(_CACHE_SIZE)
def translate_game(problem: str) -> TranslatedGame:
    """Translate a game for the engine. Raises `EnvError` on failure."""
    import fast_downward
    from textworld.generator.game import EntityInfo
    from textworld.logic import Proposition, Type, Variable

    arguments = sys.argv  # which Fast Downward reads and changes
    try:
        task, sas = fast_downward.pddl2sas(_load_logic().domain, problem)
    except (Exception, SystemExit) as error:
        raise EnvError(f"ALFWorld's translator refuses this game: {type(error).__name__} {error}") from error
    finally:
        sys.argv = arguments
    types = {each.name: each.type_name for each in task.objects}
    for type_ in task.types:
        with suppress(ValueError):  # known from an earlier game
            _load_logic().types.add(Type(type_.name, type_.supertype_names))
    facts = tuple(
        Proposition(atom.predicate, [Variable(name, types[name]) for name in atom.args])
        for atom in task.init
        if hasattr(atom, "predicate") and atom.predicate != "="
    )
    infos = {name: EntityInfo(name, type_) for name, type_ in types.items()}
    demangler = import_alfworld_module("agents.utils.misc").Demangler(game_infos=infos)
    for name, info in infos.items():
        info.name, info.definite, info.indefinite = demangler.demangle_alfred_name(name), "the", "a"
    parameters = {
        action.name: tuple((parameter.name.strip("?"), parameter.type_name) for parameter in action.parameters)
        for action in task.actions
    }
    return TranslatedGame(str(sas).encode(), facts, types, infos, parameters)


# Unused libraries. After one is unloaded, loading another kills the process (a segmentation fault in dlopen): an engine
# that closes leaves its own to the next.
_SPARE_LIBRARIES: Final[list[Any]] = []


class AlfworldEngine:
    """Engine of one game at a time. Each has its own library, which holds one state (33 MB)."""

    def __init__(self) -> None:
        import fast_downward
        from textworld.envs.pddl import logic

        self._library: Any = _SPARE_LIBRARIES.pop() if _SPARE_LIBRARIES else fast_downward.load_lib()
        self._atom, self._operator = logic.Atom, fast_downward.Operator
        self._state: Any = None
        self._moves: dict[str, Move] = {}
        self.game: TranslatedGame | None = None

    @property
    def won(self) -> bool:
        return bool(self._library.check_goal())

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(self._moves)

    def begin(self, game: TranslatedGame, task: str) -> str:
        self.game = game
        self._library.load_sas(game.sas)
        self._state = _make_initial_state(_load_logic(), game)
        atoms = (self._atom * self._library.get_state_size())()
        self._library.get_state(atoms)
        facts = [atom.get_fact(game.types) for atom in atoms]
        self._state.downward_lib = self._library
        self._state.add_facts([fact for fact in facts if not fact.is_negation])
        self._moves = self._list_moves()
        text: str = _load_logic().grammar.derive("#intro#", self._build_context({}, {}))
        return text.removeprefix(_INTRO).replace(_UNKNOWN, f"{task}.")

    def step(self, command: str) -> str:
        move = self._moves.get(command)
        if move is None:
            return _NOTHING
        self._state.apply(SimpleNamespace(id=move.id))
        self._moves = self._list_moves()
        from textworld.logic import Placeholder, Variable

        assert self.game
        name, *arguments = move.operator.split()
        pairs = list(zip(self.game.parameters[name], arguments, strict=False))
        variables = {key: self.game.infos[argument] for (key, _), argument in pairs}
        mapping = {Placeholder(key, type_): Variable(argument, type_) for (key, type_), argument in pairs}
        rule, context = _load_logic().actions[name].feedback_rule, self._build_context(variables, mapping)
        text: str = _load_logic().grammar.derive(rule, context)
        return text

    def format_plan(self, plan: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Format the commands of the game's plan with the displayed names."""
        assert self.game
        infos = self.game.infos
        return tuple(
            form.format(*(infos[escape_pddl_name(name).lower()].name for name in names)) for form, *names in plan
        )

    def close(self) -> None:
        """Leave the library to the next engine. A second call is harmless."""
        if self._library is not None:
            _SPARE_LIBRARIES.append(self._library)
        self._library = None

    def _list_moves(self) -> dict[str, Move]:
        operators = (self._operator * self._library.get_applicable_operators_count())()
        self._library.get_applicable_operators(operators)
        self._state._operators = {operator.id: operator for operator in operators}  # noqa: SLF001 (as its own method does)
        moves: dict[str, Move] = {}
        for operator in operators:
            name = operator.name
            moves.setdefault(self._format_command(name), Move(operator.id, name))
        return dict(sorted(moves.items()))

    def _format_command(self, operator: str) -> str:
        assert self.game
        name, *arguments = operator.split()
        template = "go to {r}" if name == "gotolocation" else _load_logic().actions[name].template
        names = zip(self.game.parameters[name], arguments, strict=False)
        return str(template.format(**{key: self.game.infos[argument].name for (key, _), argument in names}))

    def _build_context(self, variables: dict[str, Any], mapping: dict[Any, Any]) -> dict[str, Any]:
        assert self.game
        return {
            "state": self._state,
            "facts": list(self._state.facts),
            "variables": variables,
            "mapping": mapping,
            "entity_infos": self.game.infos,
        }


def _make_initial_state(logic: Any, game: TranslatedGame) -> Any:
    from textworld.envs.pddl.logic import PddlState

    state: Any = PddlState.__new__(PddlState)
    state._facts, state._vars_by_name = defaultdict(set), {}  # noqa: SLF001 (as its own constructor does)
    state._vars_by_type, state._var_counts = defaultdict(set), Counter()  # noqa: SLF001
    state._logic, state.name2type = logic, game.types  # noqa: SLF001
    state.add_facts(game.facts)
    return state
