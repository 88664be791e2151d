"""Prints a generated page of the site, as `make docs` does: ``python docs/pages.py cli``, ``config`` or ``metrics``."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterable
from html import escape
from importlib import resources

from trailnotes.commands import TABLE
from trailnotes.commands.command import ABOUT, SETTINGS, CommandTable, add_command, list_commands
from trailnotes.config.methods import is_known, load_methods
from trailnotes.config.schema import full_config_type
from trailnotes.config.section import Section
from trailnotes.config.toml import collect_fields, explain_key, flatten_config, format_toml_value

CLI_PAGE = f"""\
# The command line

{ABOUT} {SETTINGS}

A command exits with 0 on success, and with 2 and one line on standard error if its input is wrong. If a signal stops \
it, it exits with 128 plus the signal's number: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, which a closing \
terminal sends (not under nohup). `--debug` prints the traceback of an error.
"""
INTRODUCTION = """\
# Settings

Set a key in the TOML file of a run, or on the command line as `--section.key VALUE` (TOML; plain words need no quotes).
The command line overrides the file, the file overrides `preset`, and that the defaults below. Unknown keys are refused.
`trailnotes config show CONFIG` prints the settings of a file, each with its meaning and where it was set."""
GUIDES = {
    "model": "extending.md#a-model-of-your-own",
    "endpoint": "endpoints.md",
    "engine": "scaling.md#engines",
    "learner": "scaling.md#learner",
    "cluster": "scaling.md#cluster",
    "env": "envs/README.md",
    "memory": "memory.md",
    "algorithm": "algorithms/empo2.md",
    "loss": "algorithms/losses.md",
    "rehearsal": "algorithms/empo2.md#anchor-losses-and-rehearsal",
    "notebook": "algorithms/memories.md",
}
"""Section -> the page that says when to change its keys; that of one method is on the method's page."""


def render_config_page() -> str:
    """Render every key with its default, meaning and allowed values as a page, one table for each section."""
    lines = [INTRODUCTION]
    defaults, section = flatten_config(full_config_type()()), None
    for name in collect_fields(full_config_type()):
        head = name.rpartition(".")[0]
        if head != section:
            section = head
            lines += [*_open_section(head), "", "| key | default | meaning |", "|---|---|---|"]
        meaning, values = explain_key(name)
        text = escape(meaning, quote=False) + (f"; {values}" if values else "")
        lines.append(f"| `{name}` | `{format_toml_value(defaults[name])}` | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _open_section(head: str) -> list[str]:
    if not head:
        return []
    kind: type[Section] = full_config_type()
    for part in head.split("."):
        kind = type(getattr(kind(), part))
    about = (kind.__doc__ or "").partition("\n")[0]
    page = GUIDES.get(head, f"algorithms/{head}.md" if is_known(head) else "")
    guide = [f"[When to change them]({page})."] if page else []
    return ["", f"## `{head}`", "", about, *guide]


def render_cli_page(table: CommandTable) -> str:
    """Render the page of the site that documents the table of commands: the help of each."""
    commands = list_commands(table)
    index = [f"- [`trailnotes {c.name}`](#trailnotes-{c.name.replace(' ', '-')}): {c.summary}" for c in commands]
    parts = [CLI_PAGE + "\n" + "\n".join(index)]
    for command in commands:
        prefix = " ".join(["trailnotes", *command.name.split()[:-1]])
        parser = add_command(argparse.ArgumentParser().add_subparsers(prog=prefix), command)
        parts.append(f"## `trailnotes {command.name}`\n\n```\n{parser.format_help().rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def render_metrics_page() -> str:
    """Render `metrics.toml` as a page, a table a section, then one for each method with metrics of its own."""
    source = resources.files("trailnotes.runs").joinpath("metrics.toml").read_text(encoding="utf-8")
    page = tomllib.loads(source)
    parts = [page["introduction"]]
    for section in page["section"]:
        parts += [f"## {section['title']}", section["text"], *_render_table(section.get("rows", ()))]
    for method in load_methods().values():
        if method.metrics:
            parts += [f"## {method.label}", *_render_table(method.metrics)]
    return "\n\n".join(parts) + "\n"


def _render_table(rows: Iterable[Iterable[str]]) -> list[str]:
    lines = [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in rows]
    return ["\n".join(["| metric | unit | what it is | healthy |", "|---|---|---|---|", *lines])] if lines else []


PAGES = {"cli": lambda: render_cli_page(TABLE), "config": render_config_page, "metrics": render_metrics_page}

if __name__ == "__main__":
    print(PAGES[sys.argv[1]](), end="")
