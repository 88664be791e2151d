"""`trailnotes critic`: a critic trained from finished runs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trailnotes.commands.command import Command, argument


def _run(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes_lab.methods.retrospex.critic import train_critic

    critic = train_critic(load_config(args.config, args.settings), args.runs, args.out)
    about, figures = critic.about, critic.figures
    print(
        f"{about['transitions']:,} steps of {about['episodes']:,} episodes, {about['episodes_won']:,} of them won\n"
        f"held out: {len(about['held_out_tasks'])} tasks, {figures['held_out_steps']:,} steps of "
        f"{figures['held_out_episodes']:,} episodes, {figures['held_out_steps_won']:,} of the steps in won ones"
    )
    for name, words in {"auc_q": "Q(s, a)", "auc_advantage": "Q(s, a) - V(s)"}.items():
        print(f"steps of won episodes ranked above those of lost ones by {words}: {_format_auc(figures[name])}; "
              f"within a task {_format_auc(figures[f'{name}_same_task'])}")  # fmt: skip
    print(f"written to {args.out}")


def _format_auc(auc: Mapping[str, Any] | None) -> str:
    if auc is None:
        return "not known, since won or lost steps are missing"
    return f"AUC {auc['mean']:.3f} [{auc['low']:.3f}, {auc['high']:.3f}]"


CRITIC = Command(
    name="critic", summary="train a critic from the episodes of finished runs",
    about="Learn offline, by implicit Q-learning, what actions are worth, from the episodes of any runs: trainings, "
    "adaptations, evaluations. `retrospex` in the config has the settings. Whole tasks are held out, and the figures "
    "say how often a step of a won episode ranks above one of a lost episode there, with an interval from resampled "
    "episodes. The same command continues after an interruption. `trailnotes adapt --method retrospex` acts with it.",
    example="trailnotes critic runs/smoke --out runs/critic --retrospex.epochs 2", run=_run,
    arguments=(
        argument("runs", metavar="RUN", nargs="+", help="a run directory, or a JSONL file of episodes"),
        argument("--config", type=Path, metavar="CONFIG", help="settings, a TOML file; the defaults without one"),
        argument("--out", type=Path, metavar="DIR", required=True, help="where the critic and critic.json go"),
    ),
    settings=True,
)  # fmt: skip
