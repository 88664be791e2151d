"""The commands that play and learn. Each imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

    from trailnotes.config.schema import Config

_CONFIG = argument("config", type=Path, metavar="CONFIG", help="settings, a TOML file")
_SUBJECT = argument(
    "subject",
    metavar="MODEL_OR_RUN",
    help="a run directory (its last checkpoint), a model directory, a hub name, openai:NAME, or random",
)
_OTHER_CONFIG = argument(
    "--config", type=Path, metavar="CONFIG", help="settings, a TOML file; by default those of the run directory"
)


def _train(args: Namespace) -> None:
    from trailnotes.config.toml import load_config

    config = load_config(args.config, args.settings)
    if args.dry_run:
        from trailnotes.commands.dry_run import dry_run

        print(dry_run(config), end="")
        return
    from trailnotes.commands.training import train

    print(f"last model: {train(config, args.run_dir, allow_change=args.allow_change)}")


def _eval(args: Namespace) -> None:
    from trailnotes.commands.evaluation import evaluate
    from trailnotes.runs.panels import markdown_table

    config = _config_of(args.subject, args.config, args.settings)
    print(markdown_table([evaluate(config, args.subject, memory=args.memory, out=args.out)]), end="")
    _say_where(args.out)


def _adapt(args: Namespace) -> None:
    from trailnotes.commands.adapting import adapt
    from trailnotes.runs.console import Bar

    config = _config_of(args.subject, args.config, args.settings)
    with Bar(1.0, "adapt") as bar:
        adapt(
            config,
            args.subject,
            out=args.out,
            method=args.method,
            trials=args.trials,
            allow_change=args.allow_change,
            progress=bar,
        )
    print((args.out / "table.md").read_text(encoding="utf-8"), end="")
    _say_where(args.out)


def _rollout(args: Namespace) -> None:
    from trailnotes.commands.evaluation import rollout
    from trailnotes.reporting.episodes import render_episode

    config = _config_of(args.model, args.config, args.settings)
    for episode in rollout(config, args.model, out=args.out):
        print(render_episode(episode))
    _say_where(args.out)


def _warmstart(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.runs.console import Bar
    from trailnotes.warmstart.training import warmstart

    config = load_config(args.config, args.settings)
    with Bar(config.warmstart.steps, "warmstart") as bar:

        def progress(state: Mapping[str, float]) -> None:
            bar.update(state["step"], {"loss": state["loss"], "lr": state["lr"]})

        out = warmstart(config, args.out, progress=progress)
    print(f"model: {out}")


def _diagnose(args: Namespace) -> None:
    from trailnotes.commands.diagnosis import diagnose

    print(diagnose(args.run_dir))


def _demo(args: Namespace) -> None:
    from trailnotes.commands.demo import demo

    demo(args.out)


def _config_show(args: Namespace) -> None:
    from trailnotes.config.toml import resolve, show

    resolved = resolve(args.config, args.settings)
    print(show(resolved.config, resolved.origins), end="")


def _config_of(subject: str | None, path: Path | None, settings: list[str]) -> Config:
    """The settings of the file given, or else of the run directory given."""
    from trailnotes.config.toml import load_config

    own = Path(subject) / "config.toml" if subject else None
    if path is None and own is not None and own.is_file():
        path = own
    if path is None:
        raise ConfigError(f"{subject} is no run directory, which would bring its settings: add --config CONFIG")
    return load_config(path, settings)


def _say_where(out: Path | None) -> None:
    if out is not None:
        print(f"written to {out}")


TRAIN = Command(
    name="train",
    summary="train a model in an environment",
    about="Train a model by the method that the config names, in a run directory of its own. The same command on a "
    "directory that holds a run goes on where its last checkpoint stands. Ctrl-C finishes the iteration and saves; "
    "a second one stops at once.",
    example="trailnotes train configs/smoke.toml --run-dir runs/smoke --dry-run",
    run=_train,
    arguments=(
        _CONFIG,
        argument("--run-dir", type=Path, metavar="DIR", required=True, help="directory of the run, made if absent"),
        argument("--allow-change", metavar="KEY", action="append", default=[],
                 help="a key, or a section, that may differ from the run that is resumed; may be repeated"),
        argument("--dry-run", action="store_true", help="check everything, estimate time, memory and disk, and stop"),
    ),
    settings=True,
)  # fmt: skip

EVAL = Command(
    name="eval",
    summary="success on a fixed panel of games",
    about="Play the fixed panel of games of the config's [eval], and print the mean with its interval. Acts without "
    "memory unless asked.",
    example="trailnotes eval runs/smoke --out runs/smoke/eval --eval.num_tasks 4",
    run=_eval,
    arguments=(
        _SUBJECT,
        _OTHER_CONFIG,
        argument("--memory", action="store_true", default=None, help="act with the run's memory"),
        argument("--out", type=Path, metavar="DIR", help="write table.json, table.md and the episodes here"),
    ),
    settings=True,
)

ADAPT = Command(
    name="adapt",
    summary="get better at new games, trial after trial, without training",
    about="Play the panel of the config's [eval] again and again by a method that changes no weights: notes of every "
    "episode (empo2-tips), plans after failures (reflexion), and others; docs/algorithms has a page for each. DIR is a "
    "run directory of its own, with the figures, the curve, and the last trial as `trailnotes eval` writes it. The "
    "same command goes on wherever it stopped: nothing that has ended is played, asked or paid for again.",
    example="trailnotes adapt runs/smoke --method reflexion --out runs/smoke/adapt --trials 2 --eval.num_tasks 2",
    run=_adapt,
    arguments=(
        _SUBJECT,
        _OTHER_CONFIG,
        argument("--method", metavar="METHOD", help="empo2-tips (default), reflexion, rememberer, retrospex, or naive"),
        argument("--trials", type=int, metavar="K", help="trials after trial 0; eval.trials by default"),
        argument("--out", type=Path, metavar="DIR", required=True, help="directory of the run, made if absent"),
        argument("--allow-change", metavar="KEY", action="append", default=[],
                 help="a key, or a section, that may differ from the run that goes on; may be repeated"),
    ),
    settings=True,
)  # fmt: skip

ROLLOUT = Command(
    name="rollout",
    summary="play a few episodes and read them",
    about="Play rollout.num_tasks games of the training split once each, and print who said what, which notes were "
    "shown, and what it earned.",
    example="trailnotes rollout configs/smoke.toml --rollout.num_tasks 2 --out runs/episodes.jsonl",
    run=_rollout,
    arguments=(
        _CONFIG,
        argument("--model", metavar="MODEL_OR_RUN", help="who plays; model.path by default"),
        argument("--out", type=Path, metavar="FILE", help="write the episodes as JSONL, too"),
    ),
    settings=True,
)

WARMSTART = Command(
    name="warmstart",
    summary="make a small start model, or fine-tune one on demonstrations",
    about="With model.path empty: train a tokenizer on the environment's text and a small model on its scripted "
    "episodes, without any download. With model.path set: plain supervised fine-tuning of that model, for example on "
    "the JSONL file that warmstart.demonstrations names.",
    example="trailnotes warmstart configs/demo-warmstart.toml --out runs/start --warmstart.steps 20",
    run=_warmstart,
    arguments=(
        _CONFIG,
        argument(
            "--out", type=Path, metavar="DIR", required=True, help="where the model goes, as Hugging Face saves it"
        ),
    ),
    settings=True,
)

DIAGNOSE = Command(
    name="diagnose",
    summary="find the weak link of a run",
    about="Follow a run link by link: are its notes right, are they found, are they followed, do groups differ within, "
    "does the model learn to do without them?",
    example="trailnotes diagnose runs/smoke",
    run=_diagnose,
    arguments=(argument("run_dir", type=Path, metavar="RUN", help="a run directory"),),
)

DEMO = Command(
    name="demo",
    summary="EMPO2 against GRPO, end to end, in half an hour",
    about="Train the same small model by both methods on games where notes matter, then print the table, draw the "
    "curves, and show one episode before and after. May be interrupted, and goes on where it was.",
    example="trailnotes demo",
    run=_demo,
    arguments=(
        argument("--out", type=Path, metavar="DIR", default=Path("runs/demo"), help="where it all goes (runs/demo)"),
    ),
)

CONFIG_SHOW = Command(
    name="config show",
    summary="all settings, resolved",
    about="Print every setting with its value, its meaning, its source, and where the value was set. The output is a "
    "config file itself.",
    example="trailnotes config show --preset paper-scienceworld --optim.lr 1e-5",
    run=_config_show,
    arguments=(
        argument("config", type=Path, metavar="CONFIG", nargs="?", help="a TOML file; without one, the defaults"),
    ),
    settings=True,
)
