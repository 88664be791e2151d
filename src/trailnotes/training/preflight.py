"""Checks of a training's settings, in order, before anything is built, downloaded or written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trailnotes.config.methods import resolve_method
from trailnotes.config.schema import Config
from trailnotes.config.unused import warn_unused
from trailnotes.envs.tasks import load_training_tasks, validate_splits
from trailnotes.errors import ConfigError
from trailnotes.runs.dependencies import require_dependencies
from trailnotes.training.rehearsal import validate_rehearsal

if TYPE_CHECKING:
    from trailnotes.types import Tip


def _validate_model(config: Config) -> None:
    from trailnotes.policies.hf.policy import require_context_length, require_trainable  # take the extra `train`

    require_trainable(config.model)
    require_context_length(config.model, config.rollout.max_context_tokens)


# In order: each check, and whether it also looks at packages and model files of this machine.
CHECKS: tuple[tuple[Callable[[Config], object], bool], ...] = (
    (Config.validate_training, False),
    (require_dependencies, True),
    (validate_splits, False),
    (validate_rehearsal, False),
    (_validate_model, True),
    (warn_unused, True),
)


def run_preflight(config: Config, tips: Sequence[Tip] | None = None, *, machine: bool = True) -> None:
    """Run all checks of a training's settings, in order.

    Args:
        config: of the training.
        tips: to begin with; None without `--memory`.
        machine: whether packages and model files must be on this machine.

    Raises:
        ConfigError: a setting that cannot work.
        MissingExtraError: a package that the settings need is not installed.
    """
    for check, of_machine in CHECKS:
        if machine or not of_machine:
            check(config)
    if tips is not None:
        _validate_tips(config, tips)


def _validate_tips(config: Config, tips: Sequence[Tip]) -> None:
    if not resolve_method(config.algorithm.name).memory:
        raise ConfigError(f"{config.algorithm.name} trains without a memory: leave out --memory")
    played = [task.id for task in load_training_tasks(config)]
    if not {tip.namespace for tip in tips} & {*played}:
        found = f"they are of {tips[0].namespace}, for example; " if tips else ""
        raise ConfigError(f"--memory: none of its {len(tips)} tips is of a task of this run: {found}this run plays "
                          f"{played[0]} and {len(played) - 1} others, and shows a tip in its own task only: "
                          "name a file with tips of these")  # fmt: skip
