"""Checks of a training's settings, in order, before anything is built, downloaded or written."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trailnotes.config.methods import resolve_method
from trailnotes.config.schema import Config
from trailnotes.config.unused import warn_unused
from trailnotes.envs.tasks import load_training_tasks, validate_splits
from trailnotes.errors import ConfigError
from trailnotes.runs.dependencies import require_dependencies
from trailnotes.training.rehearsal import validate_rehearsal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trailnotes.types import Tip


def _validate_model(config: Config) -> None:
    from trailnotes.policies.hf.policy import require_context_length, require_trainable  # take the extra `train`

    require_trainable(config.model)
    require_context_length(config.model, config.rollout.max_context_tokens)


class Check(NamedTuple):
    """A check of the settings, which may also look at packages and model files."""

    run: Callable[[Config], object]
    of_machine: bool = False


CHECKS = (
    Check(Config.validate_training),
    Check(require_dependencies, of_machine=True),
    Check(validate_splits),
    Check(validate_rehearsal),
    Check(_validate_model, of_machine=True),
    Check(warn_unused, of_machine=True),
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
    for check in CHECKS:
        if machine or not check.of_machine:
            check.run(config)
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
