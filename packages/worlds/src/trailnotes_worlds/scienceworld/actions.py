"""Correction of an agent's words into an action of ScienceWorld.

The simulator requires every word to fit: a full stop at the end makes an action unknown, which costs a step of the
episode but no time in the game. Three modes repair more or less of that; see `correct_action`.

All admissible actions of the simulator's thirty tasks are words of lower-case letters and digits with one blank
between, so cleaning never spoils one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from trailnotes.envs.base import require_choice, strip_intent

MODES = ("exact", "jaccard", "ordered")
MIN_SIMILARITY = 0.6  # ordered: least similarity of a replacement
_MIN_SPELLING_SIMILARITY = 0.75  # ordered: least similarity of letters of a misspelling
_ARTICLES = frozenset(("a", "an", "the"))
_OPENING_QUOTES = "\"'`\u2018\u201c\u00ab"
_QUESTION = "Ambiguous request:"
_ANSWER = re.compile(r"^(\d+):\s*(.+?)\s*$", re.MULTILINE)
_PLACE = re.compile(r"\s*\([^()]*\)")


@dataclass(frozen=True, slots=True)
class CorrectedAction:
    action: str
    changed: bool  # by more than cleaning


def correct_action(
    text: str, mode: str, valid: Callable[[], Sequence[str]], answers: Sequence[str] = ()
) -> CorrectedAction:
    """Correct the agent's words into an action for the simulator.

    After a question of the simulator ("enter the number"), every mode accepts the number or the text of an answer,
    "jaccard" takes 0 for anything else (as the release does, whose list then holds nothing but numbers), and "ordered"
    takes the closest answer. Other text goes to the simulator, which drops the question, answers "Unknown action" and
    counts a move; it does the same for an empty line, although its question promises that this is free.
    """
    require_choice("action_correction", mode, MODES)
    cleaned = normalize_action(text)
    if answers:
        chosen = _resolve_answer(cleaned, mode, answers)
    elif mode == "jaccard":
        chosen = match_by_jaccard(text, valid())
    elif mode == "ordered":
        chosen = match_in_order(cleaned, valid())
    else:
        chosen = cleaned
    return CorrectedAction(chosen, chosen != cleaned)


def normalize_action(text: str) -> str:
    """Clean an action: lower case, single blanks, no quote or "I will" before it, a letter or digit at its end.

    Unprintable characters (line breaks, control characters, lone surrogates) count as blanks.
    """
    printable = "".join(char if char.isprintable() else " " for char in text)
    words = strip_intent(" ".join(printable.split()).lstrip(_OPENING_QUOTES + " ")).lower()
    end = len(words)
    while end and not words[end - 1].isalnum():
        end -= 1
    return words[:end]


def parse_question(text: str) -> tuple[str, ...]:
    """Parse the numbered answers to the question in an observation; () without one."""
    if not text.startswith(_QUESTION):
        return ()
    answers = {int(number): answer for number, answer in _ANSWER.findall(text)}
    return tuple(answers[number] for number in range(len(answers))) if set(answers) == set(range(len(answers))) else ()


def _resolve_answer(cleaned: str, mode: str, answers: Sequence[str]) -> str:
    numbers = [str(number) for number in range(len(answers))]
    if cleaned in numbers:
        return cleaned
    full = [normalize_action(answer) for answer in answers]
    short = [normalize_action(_PLACE.sub("", answer)) for answer in answers]  # without "(in seed jar, in kitchen)"
    numbered = [f"{number}: {answer}" for number, answer in zip(numbers, full, strict=True)]
    for texts in (full, numbered, short):
        if cleaned in texts:
            return numbers[texts.index(cleaned)]  # equal answers: the first
    if mode == "jaccard":
        return numbers[0]
    closest = match_in_order(cleaned, short) if mode == "ordered" else ""
    return numbers[short.index(closest)] if closest in short else cleaned


def match_by_jaccard(text: str, valid: Sequence[str]) -> str:
    """Find the first admissible action with the greatest |A and B| / |A or B| of words with `text`.

    EMPO2's release does this (commit 0b40cb72), with two defects, kept because its figures contain them:

    - It should leave an admissible action alone, but looks for a text in a list of dicts, so it never does.
    - Sets have no order and no repetition: "connect A to B" may become "connect B to A", whichever comes first.

    An action without a word in common with any becomes the first of the list.
    """
    words = set(text.lower().split())
    best, best_score = text, -1.0
    for action in valid:
        other = set(action.lower().split())
        score = len(words & other) / max(len(words | other), 1)
        if score > best_score:
            best, best_score = action, score
    return best


def match_in_order(text: str, valid: Sequence[str]) -> str:
    """Find the closest admissible action by word order; return `text` itself if none is close.

    The agent's verb stays: "examine cup" must not become "eat cup", and the simulator may understand it. Closeness is
    2 C / (A + B): A and B weigh the words of both, C those of the heaviest common subsequence. A word weighs
    log(1 + n / m) if m of the n actions with this verb have it (m = 1/2 for an unknown word): objects count for more
    than "to", and "focus on lamp" stays unknown rather than becoming "focus on agent", which might end the episode. An
    unknown word may stand for a known one of similar spelling. Articles count only where an action has them.

    An admissible action never changes, the least closeness is `MIN_SIMILARITY`, and the first of the list wins a tie.
    """
    if text in valid:
        return text
    words = text.split()
    verbs = {action.split(maxsplit=1)[0] for action in valid if action}
    verb = _find_closest_word(words[0], verbs) if words else ""
    actions = {action: action.split() for action in valid if action == verb or action.startswith(f"{verb} ")}
    if not verb or not actions:
        return text
    holders = Counter(word for other in actions.values() for word in set(other))
    spelt = {word: _find_closest_word(word, holders) for word in set(words)}
    read = [verb, *(spelt[word] or word for word in words[1:] if word in holders or word not in _ARTICLES)]
    weights = {word: math.log1p(len(actions) / holders.get(word, 0.5)) for word in {*read, *holders}}
    return _find_closest_action(read, actions, weights) or text


def _find_closest_action(
    words: Sequence[str], actions: Mapping[str, Sequence[str]], weights: Mapping[str, float]
) -> str:
    # An upper bound from the words alone rules most actions out.
    own, counts = sum(weights[word] for word in words), Counter(words)
    bounds = []
    for place, (action, other) in enumerate(actions.items()):
        left, shared, total = dict(counts), 0.0, own
        for word in other:
            weight = weights[word]
            total += weight
            if left.get(word, 0):
                left[word] -= 1
                shared += weight
        if 2 * shared >= MIN_SIMILARITY * total:
            bounds.append((-2 * shared / total, place, action, total))
    best, best_place, best_score = "", len(actions), MIN_SIMILARITY
    for bound, place, action, total in sorted(bounds):
        if -bound < best_score:
            break
        score = 2 * _weigh_common_subsequence(words, actions[action], weights) / total
        if score > best_score or (score == best_score and place < best_place):
            best, best_place, best_score = action, place, score
    return best


def _weigh_common_subsequence(first: Sequence[str], second: Sequence[str], weights: Mapping[str, float]) -> float:
    above = [0.0] * (len(second) + 1)
    for word in first:
        row = [0.0]
        for index, other in enumerate(second):
            row.append(above[index] + weights[word] if word == other else max(above[index + 1], row[index]))
        above = row
    return above[-1]


def _find_closest_word(word: str, known: Collection[str]) -> str:
    if word in known:
        return word
    best, best_score = "", _MIN_SPELLING_SIMILARITY
    for other in sorted(known):
        if abs(len(word) - len(other)) > 1 or min(len(word), len(other)) < 3:  # "activate" is not "deactivate"
            continue
        matcher = SequenceMatcher(None, word, other, autojunk=False)
        if matcher.quick_ratio() >= best_score and (score := matcher.ratio()) > best_score:
            best, best_score = other, score
    return best
