"""Settings of training: its length, its checkpoints, and the panels that evaluate it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from trailnotes.config.section import PAPER, Section, key


class TrainConfig(Section):
    """Length of training, and how often it saves and evaluates."""

    iterations: int = key(100, "iterations at most", ge=1)
    max_env_steps: int = key(0, "stop at this many environment steps; 0 = never", ge=0)
    max_tokens: int = key(0, "stop at this many generated tokens, actions and tips; 0 = never", ge=0)
    save_every: int = key(10, "iterations between checkpoints", ge=1)
    keep_last: int = key(2, "checkpoints kept besides the best", ge=1)
    keep_optimizer: bool = key(True, "keep the optimiser's state at the end, without which training cannot go on")
    eval_every: int = key(0, "iterations between validations without memory; 0 = never", ge=0)
    split: str = key("train", "split of the training tasks")
    num_tasks: int = key(0, "how many of them, evenly spaced; 0 = all. Tips are read when a task comes again", ge=0)
    validation_split: str = key("validation", "held-out variations that choose the best checkpoint; never the test")
    eval_tips_every: int = key(0, "iterations between panels played with tips, from an empty memory; 0 = never", ge=0)
    eval_notes_trials: int = key(2, "trials with tips of these panels, after one without", ge=1)
    new_split: str = key("", "games of families never trained, played with tips beside the validation's; '' = none")

    def compute_progress(self, spent: Mapping[str, float]) -> float:
        """Compute the used share of the nearest limit, 1 and more at its end; `spent`: a checkpoint's counters."""
        limits = {"iteration": self.iterations, "env_steps": self.max_env_steps, "tokens_generated": self.max_tokens}
        return max(spent.get(name, 0) / most for name, most in limits.items() if most)


class EvalConfig(Section):
    """A fixed panel of tasks."""

    split: str = key("test", "split of the panel; '' = none, where no game is held back from training")
    num_tasks: int = key(0, "tasks of the panel; 0 = all of the split", ge=0)
    num_samples: int = key(1, "episodes for each task, each with its own sampling seed", ge=1)
    temperature: float = key(0.4, "sampling temperature", PAPER, ge=0)
    memory: bool = key(False, "act with the run's memory")
    show_tips: Literal["own", "other", "empty"] = key("own", "algorithm.show_tips for panels with tips or with plans")
    meet_split: str = key(
        "", "empo2-tips: before trial 0 games of this split are played and written about, whose tips memory.scope may "
        "find; '' = none")  # fmt: skip
    meet_tasks: int = key(0, "how many of them, evenly spaced; 0 = all of the split", ge=0)
    trials: int = key(10, "adapt: trials after trial 0, which acts without memory", PAPER, ge=0)
    metric: Literal["success", "return"] = key("success", "what tables and curves show")
    confidence: float = key(0.95, "level of the intervals", gt=0, lt=1)
