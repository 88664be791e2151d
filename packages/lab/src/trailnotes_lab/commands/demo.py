"""`trailnotes demo`: compare EMPO2 with GRPO on games where tips matter, and tell how a tip helped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from trailnotes.commands import demo
from trailnotes.config.builtin import find_config
from trailnotes.errors import ConfigError
from trailnotes.types import StrPath

if TYPE_CHECKING:
    from trailnotes_lab.compare.summary import Summary

CONFIG = "demo"
SEEDS = (3, 4, 5)  # its settings were chosen on seeds 0 and 1


def run_demo(
    out: Path,
    *,
    config_path: StrPath = CONFIG,
    seeds: Sequence[int] = SEEDS,
    trials: int = 3,
    new_trials: int = 4,
    settings: Sequence[str] = (),
) -> Summary:
    """Train both methods, evaluate them on unseen games, and write table, picture and story to `out`.

    The same command resumes a demo that was interrupted, and runs nothing again that is finished.
    Only the method and the seed differ between training runs. `trials` and `new_trials` are those with tips on the
    games of the trained and of new families, `settings` are further ``--section.key value`` overrides of all runs.

    Raises:
        ConfigError: a setting that cannot work.
        RunError: a run failed, or `out` holds a demo of other settings.
    """
    from trailnotes.reporting.terminal import format_duration
    from trailnotes_lab.compare.comparison import run_comparison_spec
    from trailnotes_lab.compare.page import print_brief
    from trailnotes_lab.compare.spec import parse_spec

    started = time.monotonic()
    path = find_config(config_path)
    text = build_demo_spec(path, seeds, (trials, new_trials), settings)
    plan = parse_spec(text, path)
    print(f"{2 * len(seeds)} training runs of {plan.budget.env_steps:,} environment steps each, in {out}", flush=True)
    summary = run_comparison_spec(plan, path, out, text=text, at_once=None)
    summary.require_all_results()
    print((out / "story.txt").read_text(encoding="utf-8"))
    print_brief(summary)
    files = "  ".join(str(out / name) for name in ("curves.png", "table.json", "story.txt"))
    print(f"\n{files}   ({format_duration(time.monotonic() - started)})")
    return summary


def build_demo_spec(path: Path, seeds: Sequence[int], trials: tuple[int, int], settings: Sequence[str]) -> str:
    """Write the demo as a comparison: start model and both methods on unseen games, with tips, and on new families."""
    from trailnotes.config.toml import format_toml_value, load_config, parse_overrides

    budget = load_config(path, settings).train.max_env_steps
    if not budget:
        raise ConfigError("the methods of a demo get the same number of environment steps: set train.max_env_steps")
    values = {"settings": parse_overrides(settings), "env_steps": budget, "config": path.name, "seeds": seeds,
              "trials": trials[0], "new_trials": trials[1]}  # fmt: skip
    template = Template(Path(__file__).with_name("demo.toml").read_text(encoding="utf-8"))
    return template.substitute({name: format_toml_value(value) for name, value in values.items()})


DEMO = replace(demo.DEMO, run=partial(demo.run, run_whole=run_demo))
