"""Tell how a model learned: an unseen game before and after training, and between them the decisive tip."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trailnotes.reporting.episodes import WIDTH

Record = dict[str, Any]  # an episode as JSON (storage/files.py)
OBSERVATION_WIDTH, ACTION_WIDTH = 62, 30  # columns of an observation and of an action


class RunEpisodes(NamedTuple):
    """Episodes of one training run: unseen games by name, as the start model and as the trained one play them."""

    before: Mapping[str, Record]
    after: Mapping[str, Record]
    training: Callable[[], Iterable[Record]]  # its episodes, read once for each question


class DecisiveTip(NamedTuple):
    """A decisive tip: the episode that it was written after, its text, an episode that won with it."""

    author: Record | None  # None: not of this run, e.g. of an imported tip
    text: str
    reader: Record


def render_before_and_after(runs: Iterable[RunEpisodes]) -> str:
    """Render an unseen game that the start model lost and the trained agent wins without tips.

    Between them stands the training of the same family: an episode, its tip, and one that won with it.
    Episodes of an unpacked record, which has no steps, are left out.
    """
    untold = ""
    for before, after, training in runs:
        lost = {name for name, record in before.items() if not record["success"] and "steps" in record}
        won = [name for name, record in after.items() if record["success"] and name in lost and "steps" in record]
        for game in {_parse_family(name): name for name in reversed(won)}.values():  # the first of each family
            lesson = find_decisive_tip(training, _parse_family(game))
            if lesson is not None:
                return _render_story(before[game], lesson, after[game])
            untold = untold or _render_story(before[game], None, after[game])
    return untold or "No unseen game was won without tips that the start model had lost.\n"


def find_decisive_tip(training: Callable[[], Iterable[Record]], family: str) -> DecisiveTip | None:
    """Find the first episode in training games of `family` that won with a tip, and the author of this tip."""
    for record in _iter_family_episodes(training(), family):
        tip = find_followed_tip(record) if record["success"] else None
        if tip is not None:
            authors = [
                other
                for other in _iter_family_episodes(training(), family)
                if other["iteration"] == tip.get("step", 0)
                and other["task"]["id"] == tip["namespace"]
                and other["steps"]
                and other["steps"][-1]["action"] == tip.get("action", "")
            ]
            words = tip["text"].split()
            seen = [sum(word in other["final_observation"]["text"] for word in words) for other in authors]
            author = authors[seen.index(max(seen))] if authors else None  # the attempt that saw most words of the tip
            return DecisiveTip(author, tip["text"], record)
    return None


def find_followed_tip(record: Record) -> Record | None:
    """Find the tip of an episode with most words of the actions that followed; None if none has any."""
    tips = [tip for step in record["steps"] for tip in step["tips"]]
    done = " ".join(step["action"] for step in record["steps"]).split()
    agreeing = {i: sum(word in done for word in tip["text"].split()) for i, tip in enumerate(tips)}
    best = max(agreeing, key=lambda i: agreeing[i], default=None)
    return tips[best] if best is not None and agreeing[best] else None


def _render_story(before: Record, lesson: DecisiveTip | None, after: Record) -> str:
    parts = [_format_episode("BEFORE. The start model meets an unseen game.", before)]
    if lesson is not None:
        if lesson.author is not None:
            title = f"IN TRAINING, iteration {lesson.author['iteration']}. An attempt on another game of this family."
            parts.append([*_format_episode(title, lesson.author), *_wrap_labelled("tip it leaves: ", lesson.text)])
        title = f"IN TRAINING, iteration {lesson.reader['iteration']}. A later attempt reads that tip."
        parts.append(_format_episode(title, lesson.reader, lesson.text))
    parts.append(_format_episode("AFTER. The trained agent meets the same unseen game, without any tips.", after))
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _format_episode(title: str, record: Mapping[str, Any], tip: str = "") -> list[str]:
    steps = record["steps"]
    goal = steps[0]["observation"].get("instruction") if steps else None
    lines = [title, f"  {record['task']['id']}" + (f": {goal}" if goal else "")]
    if tip:
        lines += _wrap_labelled("tip it is shown: ", tip)
    for step in steps:
        seen = _truncate(step["observation"]["text"], OBSERVATION_WIDTH)
        lines.append(f"  {seen:<{OBSERVATION_WIDTH}}  > {_truncate(step['action'], ACTION_WIDTH)}")
    ending = "won" if record["success"] else "not won"
    return [*lines, f"  {_truncate(record['final_observation']['text'], WIDTH - 16)}  ({ending})"]


def _parse_family(game: str) -> str:
    return game.rpartition("/")[0]


def _iter_family_episodes(episodes: Iterable[Record], family: str) -> Iterator[Record]:
    return (record for record in episodes if record["task"]["id"].startswith(f"{family}/"))


def _truncate(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...") or "(nothing)"


def _wrap_labelled(label: str, text: str) -> list[str]:
    return textwrap.wrap(f'{label}"{text}"', WIDTH - 2, initial_indent="  ", subsequent_indent=" " * (2 + len(label)))
