"""``python -m trailnotes`` is the command ``trailnotes``."""

from __future__ import annotations

import sys

from trailnotes.commands import main

if __name__ == "__main__":
    sys.exit(main())
