"""`trailnotes rehearsal`: conversations to rehearse, recorded by the start model or scripted."""

from __future__ import annotations

import itertools
from argparse import Namespace
from pathlib import Path

from trailnotes.commands.arguments import CONFIG
from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError

USAGE_HINT = "`rehearsal.path` of a training takes the file; `rehearsal.rows`, `hold` and `imitate` set its weights."


def _record(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.reporting.terminal import ProgressBar
    from trailnotes.runs.preflight import require_dependencies
    from trailnotes.runs.rehearsal import build_recording_config, read_recording_usage, record_rehearsal

    config = load_config(args.config, args.settings)
    require_dependencies(build_recording_config(config), plays_only=True)
    with ProgressBar(1.0, "rehearsal") as bar:
        path = record_rehearsal(config, args.out, bar)
    spent = read_recording_usage(args.out)
    with path.open("rb") as file:
        print(f"{sum(1 for _ in file):,} conversations, which took {spent['env_steps']:,} environment steps and "
              f"{spent['tokens_generated']:,} generated tokens")  # fmt: skip
    print(f"written to {path}")


def _write_script(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.policies.chat import ChatFormat
    from trailnotes.policies.hf.policy import load_tokenizer
    from trailnotes.storage.demonstrations import write_demonstrations
    from trailnotes.warmstart.demonstrations import iter_held_out_demonstrations

    if args.out.exists() or args.num < 1:
        raise ConfigError(f"{args.out} exists, or --num {args.num} is below 1: name a new file and 1 or more")
    config = load_config(args.config, args.settings)
    chat = ChatFormat(load_tokenizer(config.model), config.model.template_options)
    demonstrations = iter_held_out_demonstrations(config, chat.count_tokens, config.run.seed)
    written = [*itertools.islice(demonstrations, args.num)]
    write_demonstrations(written, args.out)
    print(f"{len(written):,} conversations\nwritten to {args.out}")


COMMANDS = (
    Command(
        name="rehearsal record", summary="record episodes of the initial model, which training rehearses",
        about="Play the games of rehearsal.split with the model at model.path, as `trailnotes adapt` would: without "
        "tips, then with its own, and a tip after each episode. The conversations go to DIR/rehearsal.jsonl. A "
        "training on other games anchors the model to them, so that it keeps writing and reading tips as before. "
        f"{USAGE_HINT} A training with rehearsal.split records by itself and counts the usage; this command records "
        "once for several trainings, which do not count it. It refuses games that the config trains on or evaluates. "
        "The same command resumes an interrupted recording.",
        example="trailnotes rehearsal record demo --out runs/rehearsed --rehearsal.split spare",
        run=_record,
        arguments=(
            CONFIG,
            argument("--out", type=Path, metavar="DIR", required=True, help="directory of the recording"),
        ),
        settings=True,
    ),
    Command(
        name="rehearsal script", summary="write scripted episodes of games outside training and evaluation",
        about="Write scripted episodes, as `trailnotes warmstart` learns them, as conversations that anchor a training "
        "on other games. Waymarks draws fresh hidden rules for families outside training and evaluation (those of the "
        "split spare); ScienceWorld plays training variations of the tasks that rehearsal.options names, of which the "
        f"config trains on and evaluates none. The command refuses environments without such games. {USAGE_HINT}",
        example="trailnotes rehearsal script demo --out runs/rehearsal.jsonl --num 500", run=_write_script,
        arguments=(
            CONFIG,
            argument("--out", type=Path, metavar="FILE", required=True, help="the JSONL file, which must not exist"),
            argument("--num", type=int, metavar="N", default=500, help="conversations (500)"),
        ),
        settings=True,
    ),
)  # fmt: skip
