"""Build the wheels and source distributions of all packages into dist/, then use them as a stranger does (make wheels).

Every Python from 3.11 to 3.14 on the path, and those in PYTHONS, gets an empty virtual environment, an empty home and
an empty folder. pip takes its options (index, cache, constraints) from the environment.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
FOLDERS = (ROOT, ROOT / "packages/worlds", ROOT / "packages/lab")
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
MAX_SOURCE_BYTES = 4 * 10**6


def main() -> int:
    """Build, check and try (not with --build-only); return 1 if any Python failed."""
    with tempfile.TemporaryDirectory() as scratch:
        build(Path(scratch))
        if "--build-only" in sys.argv:
            return 0
        rows = [try_wheels(python, Path(scratch) / f"try{number}") for number, python in enumerate(find_pythons())]
    print(f"\n| Python | {' | '.join(list_steps())} |\n|---|{'---:|' * len(list_steps())}")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return int(not rows or any("failed" in row for row in rows))


def build(scratch: Path) -> None:
    """Build sources, wheels from these, and wheels from the tree, which must be the same bytes."""
    shutil.rmtree(DIST, ignore_errors=True)
    tool = make_venv(sys.executable, scratch / "build") / "python"
    run([tool, "-m", "pip", "install", "-q", "build"])
    for folder in FOLDERS:
        run([tool, "-m", "build", "--outdir", DIST, folder])
        run([tool, "-m", "build", "--wheel", "--outdir", scratch / "direct", folder])
    for wheel in sorted(DIST.glob("*.whl")):
        assert filecmp.cmp(wheel, scratch / "direct" / wheel.name, shallow=False), f"{wheel.name}: unlike its source"
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        package = wheel.name.partition("-")[0]
        source = next(folder / "src" for folder in FOLDERS if (folder / "src" / package).is_dir())
        files = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file()}
        unlike = {name for name in files.symmetric_difference(names) if not re.search(r"\.dist-info/|\.pyc$", name)}
        assert not unlike, f"{wheel.name} and {source} differ: {unlike}"
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {len(names)} files")
    for source in sorted(DIST.glob("*.tar.gz")):
        with tarfile.open(source) as archive:
            names = archive.getnames()
        assert source.stat().st_size <= MAX_SOURCE_BYTES, f"{source.name} has {source.stat().st_size:,} bytes"
        assert not [name for name in names if "/records/" in name], f"{source.name} holds records of results"
        print(f"{source.name}: {source.stat().st_size:,} bytes, {len(names)} files")


def list_steps() -> dict[str, list[str]]:
    """Return the commands of a stranger by their titles, README's among them."""
    core, lab, worlds = (str(wheel) for wheel in sorted(DIST.glob("*.whl")))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    return {
        "install": ["pip", "install", "-q", f"{core}[train]"],
        "`--version`": ["trailnotes", "--version"],
        "`config list`": ["trailnotes", "config", "list"],
        "`demo --small`": ["trailnotes", "demo", "--small", "--out", "small"],
        "`init`": ["trailnotes", "init", "own"],
        "its environment": ["python", "own/own_env.py"],
        "README in Python": ["python", "-c", "\n".join(blocks)],
        "install worlds, lab": ["pip", "install", "-q", worlds, lab],
        "`rollout` of worlds": ["trailnotes", "rollout", "puzzles/sokoban-smoke"],
        "`compare` of lab": ["trailnotes", "compare", "run", "compare/small", "--dry-run"],
    }


def find_pythons() -> list[str]:
    """Return one interpreter for each version that there is."""
    found: dict[str, str] = {}
    for name in [*os.environ.get("PYTHONS", "").split(), *(f"python{version}" for version in VERSIONS)]:
        asked = "import sys, venv, ensurepip; print('{}.{}'.format(*sys.version_info))"
        if shutil.which(name):
            done = subprocess.run([name, "-c", asked], capture_output=True, text=True, check=False)
            if done.returncode == 0:  # else pyenv has no such version, or Debian's python3-venv is missing
                found.setdefault(done.stdout.strip(), name)
    return list(found.values())


def try_wheels(python: str, folder: Path) -> list[str]:
    """Install the wheels for one Python and take all steps; return the row of the table."""
    home, work = folder / "home", folder / "work"
    for place in (home, work):
        place.mkdir(parents=True)
    scripts = make_venv(python, folder / "venv")
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    env |= {"HOME": str(home), "PATH": f"{scripts}:{os.environ['PATH']}"}
    row = [subprocess.run([scripts / "python", "-V"], capture_output=True, text=True, check=True).stdout.split()[1]]
    for title, command in list_steps().items():
        print(f"[{row[0]}] {title}", flush=True)
        started = time.monotonic()
        done = subprocess.run(command, cwd=work, env=env, check=False)
        row.append("failed" if done.returncode else f"{time.monotonic() - started:.1f} s")
    shutil.rmtree(folder)
    return row


def make_venv(python: str, folder: Path) -> Path:
    """Make a virtual environment; return the folder of its programs."""
    run([python, "-m", "venv", folder])
    return folder / "bin"


def run(command: list[str | Path]) -> None:
    """Run a command, and fail with it."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
