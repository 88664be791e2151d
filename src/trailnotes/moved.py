"""Module paths that releases before the rooms had names for, and where what they held lives now.

Importing one of them still works, with a `DeprecationWarning` that names the new path. The table goes with 0.3.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

MOVED = {
    "trailnotes.logs": "trailnotes.runs.directory",
    "trailnotes.samples": "trailnotes.learner.samples",
    "trailnotes.tasks": "trailnotes.envs.tasks",
    "trailnotes.training": "trailnotes.commands.training",
}


class _Moved(MetaPathFinder, Loader):
    """Finds the old paths, and answers every name with that of the new one."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of an old path, None of any other."""
        return spec_from_loader(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and let the new module answer."""
        home = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {home}", DeprecationWarning, stacklevel=2)
        new = importlib.import_module(home)
        module.__getattr__ = lambda name: getattr(new, name)  # type: ignore[method-assign]


def install() -> None:
    """Let the old paths be imported. Twice is fine."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
