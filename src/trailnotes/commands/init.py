"""`trailnotes init`: files to start from, an environment of one's own with its test and config, and the notebook."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from pathlib import Path

from trailnotes.commands.command import Command, argument
from trailnotes.config.builtin import BUILTIN, find_config
from trailnotes.errors import ConfigError

CONFIG, SCHEMA = "own.toml", "config.schema.json"
NEXT_STEPS = """
cd {folder}
python own_env.py                                      # the environment keeps the contract
python test_own_env.py                                 # and its tests pass; pytest runs them, too
trailnotes rollout own.toml --model builtin:waymarks-start --rollout.num_tasks 1    # plumbing: a toy plays
trailnotes train own.toml --model Qwen/Qwen2.5-0.5B-Instruct --dry-run   # what training will take
"""


def create_project(folder: Path) -> list[Path]:
    """Write the files of a first project into `folder`, and return their paths. No file is overwritten.

    Raises:
        ConfigError: a file of the project is there already.
    """
    from trailnotes.config.json_schema import render_json_schema

    if folder.suffix == ".py":
        raise ConfigError(f"{folder} is to be a directory, into which own_env.py goes: trailnotes init {folder.stem}")
    project = BUILTIN / "project"
    files = {file.name: file.read_text(encoding="utf-8") for file in sorted(project.iterdir()) if file.is_file()}
    before, env, after = find_config("own-model").read_text(encoding="utf-8").partition("[env]\n")
    _, name, after = after.partition('name = "waymarks"\n')
    before = before.replace("own-model", "own").replace("train own ", f"train {CONFIG} ")
    files[CONFIG] = f'#:schema ./{SCHEMA}\n{before}{env}name = "own_env:Lock"\n{after}'
    files[SCHEMA] = render_json_schema()
    if taken := [name for name in files if os.path.lexists(folder / name)]:
        raise ConfigError(f"{folder / taken[0]} exists: name another directory")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _run(args: Namespace) -> None:
    for path in create_project(args.dir):
        print(path)
    print(NEXT_STEPS.format(folder=shlex.quote(str(args.dir))), end="")


INIT = Command(
    name="init", summary="write an environment of your own, its test and its config to start from",
    about="Write a project into a directory: own_env.py, a small environment to replace by yours; test_own_env.py, "
    "which checks that it keeps the contract; own.toml, the config `own-model` for it, with the JSON Schema by which "
    "editors complete it; and notebook.ipynb, a tour of the Python API. Then print what to run next.",
    example="trailnotes init runs/first", run=_run,
    arguments=(argument("dir", type=Path, metavar="DIR", help="directory, created if missing"),),
)  # fmt: skip
