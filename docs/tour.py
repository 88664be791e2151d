"""Fill the line numbers of docs/one-iteration.md, whose stops read ``[FILE:LINE `NAME`](LINK)``.

python docs/tour.py            # writes them
python docs/tour.py --check    # exit status 1 if one is out of date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "one-iteration.md"
STOP = re.compile(r"\[([\w/]+\.py):\d+ `(\w+)`\]\([^)]*\)")
REPOSITORY = "https://github.com/trailnotes/trailnotes/blob/main"


def fill_stop(match: re.Match[str]) -> str:
    """Give a stop the line at which its function or class begins, and the link to it."""
    file, name = match.groups()
    lines = (ROOT / "src" / "trailnotes" / file).read_text(encoding="utf-8").splitlines()
    numbers = [i for i, line in enumerate(lines, 1) if re.match(rf"\s*(async def|def|class) {name}\b", line)]
    if not numbers:
        sys.exit(f"{PAGE.name}: {file} has no {name}")
    return f"[{file}:{numbers[0]} `{name}`]({REPOSITORY}/src/trailnotes/{file}#L{numbers[0]})"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    filled = STOP.sub(fill_stop, text)
    if "--check" not in sys.argv:
        PAGE.write_text(filled, encoding="utf-8")
    elif filled != text:
        sys.exit(f"{PAGE.name} has old line numbers: run python docs/tour.py")
