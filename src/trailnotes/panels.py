"""Playing a fixed panel of tasks, and the seeds of everything that is drawn. No torch here: any player will do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from trailnotes.config import Config
from trailnotes.rollout import Pool, run_groups
from trailnotes.types import Mode, Task, Trajectory


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from anything printable: the same in every process, unlike `hash`."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


async def play_panel(
    policy: Any, pool: Pool, tasks: Sequence[Task], config: Config, *, memory: Any = None, seed: int = 0
) -> list[Trajectory]:
    """Play each task `eval.num_samples` times at the evaluation temperature, with or without memory.

    Returns the episodes in task order. Episodes that failed for good are left out (and were logged).
    """
    rollout = config.rollout.model_copy(update={"temperature": config.eval.temperature})
    mode: Mode = "plain" if memory is None else "on_policy_tips"
    groups = await run_groups(
        policy,
        pool,
        tasks,
        [[mode] * config.eval.num_samples for _ in tasks],
        memory,
        config.model_copy(update={"rollout": rollout}),
        seed=derive_seed(seed, "panel"),
    )
    return [trajectory for group in groups for trajectory in group.trajectories]
