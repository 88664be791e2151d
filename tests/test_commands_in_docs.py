"""Every command line in README and docs is one that works: it runs here, or it is read as the program would read it."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import io
import pkgutil
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import create_autospec

import pytest

import trailnotes_lab.commands.demo
from trailnotes.commands import TABLE, main
from trailnotes.commands.command import Group, parse_command_line
from trailnotes.config.builtin import BUILTIN, find_config
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs.tasks import load_tasks
from trailnotes.errors import ConfigError
from trailnotes_lab.compare.expand import expand_runs
from trailnotes_lab.compare.spec import load_spec

ROOT = Path(__file__).parents[1]
GENERATED = {ROOT / "docs/cli.md", ROOT / "docs/config.md", ROOT / "docs/metrics.md"}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({*(ROOT / "docs").rglob("*.md")} - GENERATED),
         *sorted(BUILTIN.rglob("*.md")), *sorted((ROOT / "packages").glob("*/README.md"))]  # fmt: skip
CONFIGS = sorted((BUILTIN / "configs").rglob("*.toml"))
COMMANDS = {c.name: c for entry in TABLE for c in (entry.commands if isinstance(entry, Group) else (entry,))}

NOT_CHECKED = ("apt-get", "git", "export", "transformers", "ray")  # programs of their own
NOT_RUN = (  # they serve until they are interrupted, ask a server, need files that are not ours, or play for long
    "demo", "view", "memory serve", "engine serve", "models", "gateway", "envs serve", "webshop import",
    "wikihow import", "compare run", "compare table",
)  # fmt: skip
PLACES = {"CONFIG": "demo", "RUN": "runs/any", "DIR": "runs/any", "FILE": "runs/any.jsonl",
          "own_method:OWN": "grpo", "--own.hard": "--run.seed"}  # fmt: skip
"""What a page leaves to the reader, and what stands there when the line is read here."""
SMALL = shlex.split(
    "--env.name waymarks-simulator --env.num_workers 0 --rollout.num_tasks 10 --rollout.group_size 4 "
    "--optim.epochs 1 --train.iterations 1 --warmstart.steps 1 --rehearsal.num_tasks 2 --rehearsal.trials 1"
)
SHRUNK = ("train", "rollout", "warmstart", "rehearsal record")  # the others play what GIVEN holds, which is small
GIVEN = {"runs/smoke": [], "runs/lora": ["--model.lora.enabled", "true"]}
"""Runs that the examples of `--help` take for granted, and their settings beside the config `smoke` and `SMALL`."""


# -- finding them


def joined(text: str) -> Iterator[str]:
    """Lines, those that end in a backslash with the next one, and those inside a quotation with its end."""
    pending = ""
    for line in text.replace("\\\n", " ").splitlines():
        pending = f"{pending}\n{line}" if pending else line
        try:
            shlex.split(pending, comments=True)
        except ValueError:
            continue
        yield pending.strip()
        pending = ""
    assert not pending, f"a quotation without end: {pending}"


def first_word(line: str) -> str:
    """The program, without the folder that make installs it in."""
    return line.partition(" ")[0].removeprefix(".venv/bin/")


def is_command(line: str) -> bool:
    return first_word(line) in {*READERS, *NOT_CHECKED}


@functools.cache
def lines_of(page: Path) -> list[str]:
    """All command lines of a page. A block that begins with one holds nothing else, so that none is overlooked."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".toml":
        comments = "\n".join(re.findall(r"^#  +(.*?)(?: +\(.*)?$", text, re.MULTILINE))
        return [line for line in joined(comments) if is_command(line)]
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language in {"", "sh", "bash", "console"} and is_command(block):
            found += [line for line in joined(block) if line and not line.startswith("#")]
    return found


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"page", "line"} <= {*metafunc.fixturenames}:
        found = [(page, line) for page in [*PAGES, *CONFIGS] for line in lines_of(page)]
        metafunc.parametrize(("page", "line"), found, ids=[f"{named(page)}: {line[:60]}" for page, line in found])


# -- reading them


def filled(word: str) -> str:
    """A word of a command line, with something in the places that are the reader's."""
    head, slash, rest = word.partition("/")
    return f"{PLACES.get(head, head)}{slash}{rest}"


def read_trailnotes(words: list[str]) -> None:
    args = parse_command_line(TABLE, [filled(word) for word in words])
    settings = load_config(getattr(args, "config", None), args.settings)
    if args.command.name == "compare run":
        read_plan(find_config(args.plan))
    elif args.command.name == "train":
        settings.validate_training()
        refuse_without_tasks(settings, settings.train.split)
    elif args.command.name in {"eval", "adapt"} and args.config:  # without one, the settings are those of a run
        refuse_without_tasks(settings, settings.eval.split)


@functools.cache
def read_plan(path: Path) -> None:
    assert expand_runs(load_spec(path), path, Path("runs/any"))


def refuse_without_tasks(config: Config, split: str) -> None:
    if config.env.name.startswith(("scienceworld", "my_env:", "lock:", "gateway")):  # the simulator's; the reader's own
        return
    try:
        assert load_tasks(config, split)
    except ConfigError as error:  # raised after the names of the options were checked
        if "runs/shop is no webshop catalogue" not in str(error):
            raise


def read_python(words: list[str]) -> None:
    match words:
        case ["-c", code]:
            read_code(code)
        case ["-m", module, *_]:
            assert importlib.util.find_spec(module), f"there is no module {module}"
        case [script, *rest]:
            text = help_of(ROOT / script)
            assert not [word for word in rest if word.startswith("--") and word not in text]


def read_code(code: str) -> None:
    """Imports lead somewhere, and the demo takes what it is given."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                pkgutil.resolve_name(f"{node.module}:{name.name}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trailnotes_lab.commands.demo.run_demo", create_autospec(trailnotes_lab.commands.demo.run_demo))
        exec(compile(code, "python -c", "exec"), {})


@functools.cache
def help_of(script: Path) -> str:
    """What a script says of itself; it has options only if it says so."""
    text = script.read_text(encoding="utf-8")
    if "argparse" not in text and "make_parser" not in text:
        return text
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(sys, "argv", [str(script), "--help"])
        patch.syspath_prepend(str(script.parent))
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path(str(script), run_name="__main__")
    return said.getvalue()


def read_make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*words} <= {*targets}


def read_pip(words: list[str]) -> None:
    """The extras are ours, and what is installed is the clone: Trailnotes is on no index."""
    assert words[0] == "install"
    for package, wanted in re.findall(r"([\w./-]+)\[([\w,-]+)\]", " ".join(words)):
        if package != "transformers":
            folder = ROOT if package.endswith(".whl") else ROOT / package
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            assert {*wanted.split(",")} <= {*project["optional-dependencies"]}


READERS = {"trailnotes": read_trailnotes, "python": read_python, "make": read_make, "pip": read_pip}


@functools.cache  # pages repeat one another
def read(line: str) -> None:
    program = first_word(line)
    words = shlex.split(line, comments=True)[1:]
    if ">" in words:
        words = words[: words.index(">")]
    if program in READERS:
        READERS[program](words)


def test_a_command_line_can_be_read(page: Path, line: str) -> None:
    assert is_command(line), f"{named(page)}: {line!r} is no command: end the block before it, or add it to NOT_CHECKED"
    read(line)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_configs_named_in_prose_exist(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    groups = {entry.name for entry in TABLE if isinstance(entry, Group)}
    for code in re.findall(r"`trailnotes ([a-z][^`]*)`", prose):
        words, count = code.split(), 1 + (code.split()[0] in groups)
        name = " ".join(words[:count])
        if name in groups:
            continue
        assert name in COMMANDS, f"{named(page)}: there is no `trailnotes {name}`"
        if not words[count:] or words[count].startswith(("--", "...")):  # not the whole command
            known = {name for item in COMMANDS[name].arguments for name in item.names}
            options = {word.rstrip(",") for word in words if re.fullmatch(r"--[a-z-]+,?", word)}
            assert options - {"--help", "--debug", "--preset"} <= known, f"{named(page)}: `trailnotes {code}`"
        else:
            read(f"trailnotes {code}")
    root = BUILTIN / "configs"
    folders = "|".join(path.name for path in root.iterdir() if path.is_dir())
    for name in re.findall(rf"`((?:{folders})/[a-z0-9./*-]+)`", prose):
        assert (root / name).is_dir() or [*root.glob(f"{name}.toml")], f"{named(page)}: there is no config {name}"


# -- running them


@pytest.mark.usefixtures("same_threads")
def test_the_example_of_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the table, in which one may need what those before it made; each has something to say."""
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS.values():
        if command.name in NOT_RUN:
            continue
        words = shlex.split(command.example)[1:]
        for run, more in GIVEN.items():
            if run in words and "--run-dir" not in words and not (tmp_path / run).exists():
                assert main(["train", "smoke", "--run-dir", run, *SMALL, *more]) == 0
        capsys.readouterr()
        status = main([*words, *(SMALL if command.name in SHRUNK else [])])
        said = capsys.readouterr()
        assert status == 0, f"{command.example}: {said.err}"
        assert said.out.strip(), f"{command.example} prints nothing"
