"""`trailnotes demo --small`: in about a minute, what tips win, and how much of it training keeps without them.

`trailnotes-lab` replaces this command by one that also runs the whole demo, a comparison of three seeds.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument
from trailnotes.errors import MissingExtraError, find_missing_module, format_install_command, format_sibling_command

if TYPE_CHECKING:
    from trailnotes.runs.panels import PanelResult

CONFIG = "demo-small"
LABELS = {"grpo": "GRPO", "empo2": "EMPO²"}
BARS = "▁▂▃▄▅▆▇█"


def run_small_demo(out: Path, settings: Sequence[str] = ()) -> dict[str, PanelResult]:
    """Play with tips, train GRPO and EMPO2 without a compiler or a GPU, and print a table, the curves and a tip."""
    from trailnotes.config.schema import LossConfig
    from trailnotes.config.toml import load_config
    from trailnotes.reporting.terminal import ProgressBar, format_duration
    from trailnotes.runs.adapt import adapt
    from trailnotes.runs.evaluate import evaluate
    from trailnotes.runs.train import train

    started = time.monotonic()
    # GRPO masks no tokens, and a setting without effect is warned of unless it is the default.
    words = {"grpo": [f"--loss.mask_logprob={LossConfig().mask_logprob}"], "empo2": []}
    configs = {name: load_config(CONFIG, ["--algorithm.name", name, *words[name], *settings]) for name in LABELS}
    config = configs["empo2"]
    print(f"1/3  The initial model plays {config.eval.num_tasks} games, and writes a tip after each ...", flush=True)
    with ProgressBar(1.0, "play") as bar:
        trials = adapt(config, config.model.path, out=out / "tips", progress=bar)
    rows = {"initial model, without tips": trials[0], f"initial model, own tips, trial {len(trials) - 1}": trials[-1]}
    for step, (name, label) in enumerate(LABELS.items(), 2):
        print(f"{step}/3  {label} trains on other games for {config.train.max_env_steps:,} steps ...", flush=True)
        train(configs[name], out / name)
        rows[f"trained by {label}, without tips"] = evaluate(configs[name], out / name)
    _report(rows, out)
    print(f"\n{out / 'table.md'}   ({format_duration(time.monotonic() - started)})")
    return rows


def _report(rows: Mapping[str, PanelResult], out: Path) -> None:
    from trailnotes.memory.tipfile import read_tips
    from trailnotes.reporting.tables import format_table, print_table, print_text
    from trailnotes.storage.files import read_jsonl, write_text_atomic

    first = next(iter(rows.values()))
    head = ["agent", f"{first.metric} on {first.num_tasks} unseen games"]
    table = head, [[name, str(row)] for name, row in rows.items()]
    print()
    print_table("", table)
    print_text(
        ["Brackets: 95 % intervals on these games. One seed and two families show the effect; they rank nothing."]
    )
    write_text_atomic(out / "table.md", "\n".join(format_table(*table)) + "\n")
    print("\nSuccess without tips on training games, at the temperature of training, first iteration to last:")
    for name, label in LABELS.items():
        curve = [record["rollout/success/plain"] for record in read_jsonl(out / name / "metrics.jsonl")]
        print(f"  {label:<6}{''.join(BARS[round(value * (len(BARS) - 1))] for value in curve)}  {curve[-1]:.2f}")
    best = max(read_tips(out / "tips"), key=lambda tip: (tip.score, tip.support))
    print(f'\nA tip that the agent wrote about {best.namespace}:\n  "{best.text}"')


def run(args: Namespace, run_whole: Callable[[Path], object] | None = None) -> None:
    """Run the small or the real demo, or `run_whole`, which trailnotes-lab has; say what it lacks before it begins."""
    wanted = ("train", "plot") if args.real else ("train",) if args.small else ("train", "textworld")
    lacking = [extra for extra in wanted if find_missing_module(extra)]
    fixes = [format_install_command(*lacking)] if lacking else []
    if not (args.small or args.real) and run_whole is None:
        fixes.append(format_sibling_command("trailnotes-lab"))
    if fixes:
        offer = "" if args.small else "; `trailnotes demo --small` takes a minute and the extra train alone"
        raise MissingExtraError(f"the demo needs more packages: {' && '.join(fixes)}{offer}")
    if args.real:
        from trailnotes.commands.demo.real import CONFIG as REAL_CONFIG
        from trailnotes.commands.demo.real import SMALL_CONFIG, run_real_demo

        name = "demo-real-small" if args.small else "demo-real"
        run_real_demo(args.out or Path("runs") / name, config_name=SMALL_CONFIG if args.small else REAL_CONFIG)
    elif run_whole is None or args.small:
        run_small_demo(args.out or Path("runs/demo-small"))
    else:
        run_whole(args.out or Path("runs/demo"))


DEMO = Command(
    name="demo",
    summary="see in a minute that tips win games, and that training keeps the gain",
    about="With --small, play simulated Waymarks games with and without tips, then train GRPO and EMPO2 on other games "
    "of the same two families, and print a table, the curves and a tip: about a minute on one core. Without it, the "
    "whole demo of the package trailnotes-lab. With --real, train Qwen2.5-Coder-0.5B-Instruct on a task of "
    "ScienceWorld on two cores, and evaluate it on unseen games before and after; with --real "
    "--small, two small iterations of that, to see that it runs. After an interruption the same command "
    "resumes.",
    example="trailnotes demo --small",
    run=run,
    arguments=(
        argument("--small", action="store_true", help="one seed and two families, without a compiler: about a minute"),
        argument("--real", action="store_true", help="a pretrained model (trailnotes-worlds, extra scienceworld)"),
        argument("--out", type=Path, metavar="DIR", help="its directory (runs/demo, runs/demo-small, ...)"),
    ),
)
