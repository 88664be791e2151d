"""Module paths of earlier releases, and where their contents live now.

Importing one of them still works, with a `DeprecationWarning` that names the new path. The table goes with 0.3.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

MOVED = {
    "trailnotes.logs": ("trailnotes.runs.directory", "trailnotes.runs.console"),
    "trailnotes.samples": ("trailnotes.learner.samples",),
    "trailnotes.tasks": ("trailnotes.envs.tasks",),
    "trailnotes.training": ("trailnotes.commands.train", "trailnotes.runs.opening", "trailnotes.runs.training"),
}


class _Moved:
    """Finds the old paths, and answers every name from the first of the new ones that has it.

    Finder and loader by their methods alone: `importlib.abc` would cost every start a tenth of its time.
    """

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of an old path, None of any other."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        """An ordinary module is right."""

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and let the new modules answer."""
        homes = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {' and '.join(homes)}", DeprecationWarning, stacklevel=2)

        def answer(name: str) -> Any:
            for home in map(importlib.import_module, homes):
                if hasattr(home, name):
                    return getattr(home, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__getattr__ = answer  # type: ignore[method-assign]


def install() -> None:
    """Let the old paths be imported. Twice is fine."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
