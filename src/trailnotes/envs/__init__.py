"""Environments: their contract, the registry of names, and the check. Importing this package loads none of them."""

from trailnotes.envs.base import (
    ENTRY_POINTS,
    ENVS,
    Env,
    get_env_identity,
    get_extra,
    list_env_tasks,
    load_env_class,
    make_env,
    validate_options,
)
from trailnotes.envs.check import check_env

__all__ = [
    "ENTRY_POINTS", "ENVS", "Env", "check_env", "get_env_identity", "get_extra", "list_env_tasks", "load_env_class",
    "make_env", "validate_options",
]  # fmt: skip
