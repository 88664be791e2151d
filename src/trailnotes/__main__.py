"""``python -m trailnotes`` is the command ``trailnotes``."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> int:
    """Run the command line; on a system without POSIX file locks, say in one line that there is none."""
    if find_spec("fcntl") is None:
        lacking = f"this system ({sys.platform}) has no fcntl, which locks files"
        print(f"trailnotes: Trailnotes runs on Linux; other POSIX systems may work; {lacking}", file=sys.stderr)
        return 2
    from trailnotes.commands import main as run_command_line

    return run_command_line()


if __name__ == "__main__":
    sys.exit(main())
