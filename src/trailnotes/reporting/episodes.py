"""Episodes as readable text, and the tracebacks of those that failed."""

from __future__ import annotations

import logging
import textwrap

from trailnotes.types import Trajectory

logger = logging.getLogger(__name__)
WIDTH = 100
_logged: set[tuple[str, ...]] = set()  # places of errors


def log_traceback(trajectory: Trajectory) -> None:
    """Log the traceback of a failed episode's environment, each place once in this process."""
    text = str(trajectory.final_observation.info.get("traceback", ""))
    place = tuple(line for line in text.splitlines() if line.startswith("  File "))
    if place and place not in _logged:
        _logged.add(place)
        logger.error("%s\n%s", trajectory.error, text.rstrip())


def render_episode(trajectory: Trajectory) -> str:
    """Render a whole episode as text; nothing is cut."""
    ending = trajectory.error or trajectory.outcome
    result = "success" if trajectory.success else "no success"
    lines = [f"== {trajectory.task.id}  [{trajectory.mode}]"]
    if trajectory.steps and trajectory.steps[0].observation.instruction:
        lines.append(_format_block("   goal: ", trajectory.steps[0].observation.instruction))
    for number, step in enumerate(trajectory.steps, 1):
        lines.append(_format_block(f"{number:>3} sees: ", step.observation.text))
        lines += [_format_block("    tip: ", f"{tip.text}  ({tip.score:g}/{tip.max_score:g})") for tip in step.tips]
        earned = [f"reward {step.reward:+g}"] if step.reward else []
        earned += [f"novelty {step.reward_intrinsic:+g}"] if step.reward_intrinsic else []
        lines.append(_format_block("   does: ", step.action + (f"   [{', '.join(earned)}]" if earned else "")))
    lines.append(_format_block("    end: ", trajectory.final_observation.text))
    score = f"{trajectory.score:g}/{trajectory.max_score:g}"
    lines.append(f"== {result}, score {score}, return {trajectory.episode_return:g}, {ending}")
    return "\n".join(lines) + "\n"


def _format_block(label: str, text: str) -> str:
    indent = " " * len(label)
    width, lines = WIDTH - len(label), text.strip().splitlines() or [""]
    wrapped = [part for line in lines for part in textwrap.wrap(line, width) or [""]]
    return "\n".join(line.rstrip() for line in [label + wrapped[0], *(indent + part for part in wrapped[1:])])
