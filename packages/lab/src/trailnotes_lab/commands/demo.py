"""`trailnotes demo`: EMPO2 against GRPO on games where tips matter: a comparison with a story."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from trailnotes_lab.compare.summary import Summary

CONFIG = Path("configs/demo.toml")
SEEDS = (3, 4, 5)  # its settings were chosen on seeds 0 and 1


def run_demo(
    out: Path,
    *,
    config_path: Path = CONFIG,
    seeds: Sequence[int] = SEEDS,
    trials: int = 3,
    new_trials: int = 4,
    jobs_at_once: int = 2,
    settings: Sequence[str] = (),
) -> Summary:
    """Train both methods, examine them on unseen games, and write table, picture and story to `out`.

    The same command resumes a demo that was interrupted, and runs nothing again that is finished.

    Args:
        out: directory of everything, as `run_comparison` fills it.
        config_path: the common config; the method and the seed are all that differs between training runs.
        seeds: one run of each method for each of them.
        trials: trials with tips on the games of the trained families.
        new_trials: likewise on those of new families.
        jobs_at_once: processes side by side.
        settings: further ``--section.key value`` overrides for every run.

    Raises:
        ConfigError: a setting that cannot work.
        RunError: a run failed, or `out` holds a demo of other settings.
    """
    from trailnotes.runs.console import format_duration
    from trailnotes_lab.compare.comparison import run_comparison_spec
    from trailnotes_lab.compare.page import print_brief
    from trailnotes_lab.compare.spec import parse_spec

    started = time.monotonic()
    text = build_demo_spec(config_path, seeds, (trials, new_trials), settings)
    plan = parse_spec(text, config_path)
    print(f"{2 * len(seeds)} training runs of {plan.budget.env_steps:,} environment steps each, in {out}", flush=True)
    summary = run_comparison_spec(plan, config_path, out, text=text, at_once=jobs_at_once)
    summary.require_all_results()
    print((out / "story.txt").read_text(encoding="utf-8"))
    print_brief(summary)
    print(
        f"\n{out / 'curves.png'}  {out / 'table.json'}  {out / 'story.txt'}   ({format_duration(time.monotonic() - started)})"
    )
    return summary


def build_demo_spec(path: Path, seeds: Sequence[int], trials: tuple[int, int], settings: Sequence[str]) -> str:
    """Write the demo as a comparison: start model and both methods on unseen games, with tips, and on new families.

    GRPO, which keeps no tips, is not asked for them on the trained families. On the further panels tips are ordered by
    what their readers earned: one that misled goes down.
    """
    from trailnotes.config.toml import format_toml_value, load_config, parse_overrides

    budget = load_config(path, settings).train.max_env_steps
    if not budget:
        raise ConfigError("the methods of a demo get the same number of environment steps: set train.max_env_steps")
    return f"""\
settings = {format_toml_value(parse_overrides(settings))}
budget.env_steps = {budget}

[compare]
name = "demo"
config = {format_toml_value(path.name)}
seeds = {format_toml_value(seeds)}
baseline = "grpo"

[methods.start]
algorithm = "naive"
label = "start model"

[methods.grpo]

[methods.empo2]

[panels."with tips"]
label = "trained families, with tips"
trials = {trials[0]}
methods = ["start", "empo2"]
"memory.order" = ["ucb"]
"memory.ucb" = 0.1

[panels.new]
label = "new families"
trials = {trials[1]}
"eval.split" = "new"
"memory.order" = ["ucb"]
"memory.ucb" = 0.1
"""


def find_demo_config() -> tuple[Path, list[str]]:
    """The demo's config, and the settings that let it run anywhere: the start model is in the same clone.

    Raises:
        ConfigError: the package was installed without its clone.
    """
    from trailnotes.config.toml import load_config

    if CONFIG.is_file():
        return CONFIG, []
    clone = Path(__file__).resolve().parents[5]
    if not (clone / CONFIG).is_file():
        raise ConfigError(f"{CONFIG} and its start model are in a clone of Trailnotes, not in the installed package: "
                          "run `trailnotes demo` in a clone")  # fmt: skip
    return clone / CONFIG, ["--model.path", str(clone / load_config(clone / CONFIG).model.path)]


def _run(args: Namespace) -> None:
    config, settings = find_demo_config()
    run_demo(args.out, config_path=config, settings=settings)


DEMO = Command(
    name="demo",
    summary="train EMPO2 and GRPO on Waymarks, end to end, on two cores",
    about="Train the same small model by both methods on games where tips matter, then print the table, draw the "
    "curves, and show one episode before and after. It may be interrupted; the same command resumes it.",
    example="trailnotes demo",
    run=_run,
    arguments=(
        argument("--out", type=Path, metavar="DIR", default=Path("runs/demo"), help="where it all goes (runs/demo)"),
    ),
)
