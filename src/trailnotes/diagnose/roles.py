"""Exchange of roles: the damage of training to each role of an adaptation.

An adaptation by tips has three roles: the explorer plays trial 0 without tips, the author writes all tips, the reader
plays the trials with tips. Each row of the exchange assigns the trained model to some of them, and the initial model to
the rest; it is a run directory of the method `empo2-tips`. All rows play the same games by the same seeds, so rows
that share a role in trial 0 share its episodes and tips.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from trailnotes.config.methods import TIPS_ONLY_METHOD, find_method, resolve_method
from trailnotes.config.toml import RUNTIME_KEYS, diff_configs, is_within
from trailnotes.envs.tasks import describe_training_overlap, load_panel
from trailnotes.errors import ConfigError, RunError, TrailnotesError
from trailnotes.gateway.pool import open_pool
from trailnotes.reporting.crossed import CONFIDENCE, MIN_FAMILIES, estimate, estimate_difference
from trailnotes.reporting.intervals import RATE_BOUNDS, Estimate, Interval
from trailnotes.reporting.tables import MISSING_CELL, Table
from trailnotes.runs.adaptation import AdaptationRun, Roles, build_adaptation_config
from trailnotes.runs.dependencies import require_dependencies
from trailnotes.runs.directory import RunDir, has_begun, load_run_config
from trailnotes.runs.load_policy import EvaluatedModel, open_evaluated_model, open_policy
from trailnotes.runs.loop import run_to_end
from trailnotes.runs.panels import get_family, get_metric_value
from trailnotes.runs.signals import explain_interrupt
from trailnotes.storage.files import read_jsonl, write_bytes_atomic, write_text_atomic
from trailnotes.storage.records import trajectory_from_json

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.policies.base import Policy
    from trailnotes.runs.console import ProgressBar
    from trailnotes.types import StrPath

logger = logging.getLogger(__name__)
DEFAULT_TRIALS = 2  # after trial 0: by then a link that is weak shows, and one that heals itself, too
CHANGEABLE_KEYS = (*RUNTIME_KEYS, "eval.trials", "run.trackers")
"""What may differ when an exchange is resumed."""
MakeBar = Callable[[str], AbstractContextManager["ProgressBar | None"]]
ROLE_NAMES = ("author", "explorer", "reader")
ROLES_BY_ROW: dict[str, tuple[str, ...]] = {"none": (), **{role: (role,) for role in ROLE_NAMES}, "all": ROLE_NAMES}
"""Row -> the roles that the trained model plays in it; the start model plays the others."""
REMEDIES = {
    "author": "algorithm.anchor_tips holds the tips that it writes to the start model; rehearsal.split adds those on "
    "other games",
    "explorer": "rehearsal.split, on games outside all panels, adds first trials in families that it does not know",
    "reader": "rehearsal.split adds episodes with tips on other games; algorithm.anchor_reading holds those on the "
    "trained ones",
}
"""What usually mends a role, the surest first."""
Games = Mapping[str, float]  # game -> mean of its episodes


@dataclass(frozen=True, slots=True)
class RoleCost:
    """Loss over the trials with tips where the trained model plays the roles of a row."""

    row: str
    mean: float  # the start model's, less that of the row, paired by game
    interval: Interval | None  # of these families: games are the sample; None: too few, or nothing varied
    beyond: Interval | None  # of other families too; None: too few of them

    @property
    def is_sure(self) -> bool:
        """Tell whether the loss is significant on games of these families."""
        return self.interval is not None and self.interval.low > 0

    def __str__(self) -> str:
        return str(self.interval) if self.interval else f"{self.mean:.2f} (no interval)"


@dataclass(frozen=True, slots=True)
class RoleAnalysis:
    """All figures of an exchange of roles."""

    metric: str
    means: Mapping[str, Sequence[float]]  # row -> of trial 0, 1, ...
    intervals: Mapping[str, Sequence[Interval | None]]
    costs: Mapping[str, RoleCost]  # row -> what it costs; none of "none"
    num_games: int  # that every row has played in every trial
    num_families: int
    confidence: float  # of each interval of a cost, so that those of the links together have `CONFIDENCE`

    @property
    def links(self) -> list[RoleCost]:
        """Return the costs of the three roles, the largest first."""
        return sorted((self.costs[role] for role in ROLE_NAMES), key=lambda cost: -cost.mean)

    @property
    def weak_roles(self) -> list[RoleCost]:
        """Return the weak roles, the weakest first."""
        return [cost for cost in self.links if cost.is_sure]

    def verdict(self) -> list[str]:
        """Name each weak role, and the usual remedy, in a sentence."""
        last = len(self.means["none"]) - 1
        over = "trial 1" if last == 1 else f"trials 1 to {last}"
        if not self.weak_roles:
            worst = self.links[0]
            text = f"no weak link: the largest cost in {over}, {worst} of the {worst.row}, could be chance"
            together = self.costs["all"]
            return [f"{text}; but all three together cost {together}" if together.is_sure else text]
        return [
            f"weak link: the {cost.row}. Its exchange costs {cost} of {self.metric} in {over}"
            + (f", and {cost.beyond} beyond this panel" if cost.beyond else "")
            + f"; what usually mends it: {REMEDIES[cost.row]}"
            for cost in self.weak_roles
        ]

    def explanation(self) -> str:
        """Explain what the numbers measure."""
        return (
            f"cost: {self.metric} of the row none less that of the row, mean of the trials with tips, paired over "
            f"{self.num_games} games. Its interval takes these games for the sample, of the {self.num_families} "
            f"families played; one beyond this panel takes families, from {MIN_FAMILIES} on. {self.confidence:.1%} "
            "each, so that the three links together keep the confidence asked for"
        )

    def table(self) -> Table:
        """Return the table of rows and trials, with the cost of each exchange."""
        head = ["by the trained model", *(f"trial {trial}" for trial in range(len(self.means["none"]))), "cost"]
        rows = [
            [row, *(f"{mean:.2f}" for mean in means), str(self.costs.get(row, MISSING_CELL))]
            for row, means in self.means.items()
        ]
        return head, rows


def analyse_roles(
    values: Mapping[str, Sequence[Games]], families: Mapping[str, str], metric: str, confidence: float
) -> RoleAnalysis:
    """Compare the rows on the games that all of them have played in all trials.

    `values` maps row, trial and game to a mean; `families` maps games. Games are the sample, of equal weight; with
    enough families a cost has a second interval over these. `confidence` is that of the three roles together
    (Bonferroni), since the worst is named.

    Raises:
        ConfigError: there is no such game.
    """
    games = [game for game in families if all(game in played for trials in values.values() for played in trials)]
    if not games:
        raise ConfigError("no game could be played in every trial of every row; see the log for the reason")
    single = {game: game for game in games}
    bounds = RATE_BOUNDS if metric == "success" else None
    of_each = 1 - (1 - confidence) / len(ROLE_NAMES)
    means, intervals = {}, {}
    for row, trials in values.items():
        found = [estimate({0: {g: played[g] for g in games}}, single, bounds, confidence) for played in trials]
        means[row], intervals[row] = [each.mean for each in found], [each.beyond for each in found]
    with_tips = {row: {g: fmean(played[g] for played in trials[1:]) for g in games} for row, trials in values.items()}

    def difference(row: str, clusters: Mapping[str, str]) -> Estimate:
        none, other = {0: with_tips["none"]}, {0: with_tips[row]}
        found = estimate_difference(none, other, clusters, rates=bounds is not None, confidence=of_each)
        assert found is not None, "both have played all games"
        return found

    costs = {}
    for row in (row for row in values if row != "none"):
        of_games = difference(row, single)
        costs[row] = RoleCost(row, of_games.mean, of_games.beyond, difference(row, families).beyond)
    num_families = len({families[game] for game in games})
    return RoleAnalysis(metric, means, intervals, costs, len(games), num_families, of_each)


def exchange_roles(
    config: Config,
    run_dir: StrPath,
    *,
    trials: int = DEFAULT_TRIALS,
    out: StrPath | None = None,
    start: str = "",
    make_bar: MakeBar = lambda _: nullcontext(),
) -> tuple[RoleAnalysis, Path]:
    """Play the panel with each row of `ROLES_BY_ROW`, and name the role whose exchange costs most.

    Both models are loaded once. `out` gets a run directory for each row, and ``roles.json``. The same call
    continues after a stop.

    Args:
        config: panel, sampling and environment.
        run_dir: a training run, or one of its checkpoints.
        trials: after trial 0, whatever `eval.trials` says.
        out: by default ``roles/SPLIT`` of that run.
        start: the initial model; by default `model.path` of the run.
        make_bar: the bar of a row, by its title.

    Returns:
        The analysis, and its directory.

    Raises:
        ConfigError: `run_dir` is no trained run, there are no trials with tips, or the initial model does not load.
        RunError: `out` holds an exchange of another checkpoint or with other settings, or is in use.
        Interrupted: a `KeyboardInterrupt`, which says that finished work is kept.
    """
    if trials < 1:
        raise ConfigError("the reader plays the trials after trial 0: ask for one or more of them")
    with open_evaluated_model(run_dir) as subject:
        if subject.trained is None or not find_method(subject.trained.algorithm.name).trains:
            raise ConfigError(f"{run_dir} is no run that changed weights: name the directory of a `trailnotes train`")
        models = {"start": EvaluatedModel(start or subject.trained.model.path, "start"), "trained": subject}
        place = Path(out) if out is not None else Path(subject.model).parents[2] / "roles" / config.eval.split
        configs = {
            row: build_adaptation_config(config, TIPS_ONLY_METHOD, models[_get_model_name(row)], trials)
            for row in ROLES_BY_ROW
        }
        require_dependencies(configs["none"], plays_only=True)
        for row, own in configs.items():
            _validate_row(place / row, own)
        if said := describe_training_overlap(subject.trained, config):
            logger.warning("%s", said)
        if (author := subject.trained.algorithm.author) != "policy":
            logger.warning("the tips of this run are written by algorithm.author = %r: rows with the trained author "
                           "show what its weights would write", author)  # fmt: skip
        with explain_interrupt(f"stopped; {place} keeps all finished work: the same command continues"):
            run_to_end(_play_rows(configs, models, place, make_bar))
        metric, families = config.eval.metric, {task.id: get_family(task) for task in load_panel(configs["none"])}
        values = {row: _read_task_means(place / row, trials + 1, metric) for row in ROLES_BY_ROW}
        found = analyse_roles(values, families, metric, CONFIDENCE)
        about = {name: subject.model for name, subject in models.items()} | {"verdict": found.verdict()}
        write_text_atomic(place / "roles.json", json.dumps(about | asdict(found), indent=1) + "\n")
        return found, place


def _get_model_name(row: str) -> str:
    return "trained" if ROLES_BY_ROW[row] else "start"


def _validate_row(path: Path, config: Config) -> None:
    if not has_begun(path):
        return
    if names := [name for name in diff_configs(load_run_config(path), config) if not is_within(name, CHANGEABLE_KEYS)]:
        raise RunError(
            f"{path.parent} holds an exchange with another {', '.join(names)}: choose another --out, or move it away"
        )


async def _play_rows(
    configs: Mapping[str, Config], models: Mapping[str, EvaluatedModel], out: Path, make_bar: MakeBar
) -> None:
    method = resolve_method(TIPS_ONLY_METHOD).load()
    with ExitStack() as opened, open_pool(configs["none"].env) as pool:
        policies = {name: _load_role_policy(name, configs["none"], subject, opened) for name, subject in models.items()}
        for index, (row, config) in enumerate(configs.items()):
            with (
                RunDir.open(out / row, config, allow_change=CHANGEABLE_KEYS) as directory,
                make_bar({"none": "start model", "all": "trained model"}.get(row, f"trained {row}")) as bar,
            ):
                _copy_shared_episodes(out, row, list(ROLES_BY_ROW)[:index])
                run = AdaptationRun(
                    config, directory, assign_roles(row, policies), pool, models[_get_model_name(row)], bar
                )
                await method(run)
                run.write_table()


def assign_roles(row: str, policies: Mapping[str, Policy]) -> Roles:
    """Assign the policies "start" and "trained" to the roles of a row."""
    return Roles(
        *(policies["trained" if role in ROLES_BY_ROW[row] else "start"] for role in ("explorer", "author", "reader"))
    )


def _load_role_policy(name: str, config: Config, subject: EvaluatedModel, opened: ExitStack) -> Policy:
    try:
        return opened.enter_context(open_policy(config, subject))
    except TrailnotesError as error:
        hint = ": name the model that the training began with by --start MODEL" if name == "start" else ""
        raise ConfigError(f"the {name} model cannot be loaded ({error}){hint}") from error


def _copy_shared_episodes(out: Path, row: str, earlier: Sequence[str]) -> None:
    """Copy the trial 0 of an earlier row with the same roles, which this row would play alike."""
    for name in earlier:
        apart = set(ROLES_BY_ROW[name]) ^ set(ROLES_BY_ROW[row])
        for kind, roles in (("episodes", {"explorer"}), ("notes", {"explorer", "author"})):
            theirs, ours = (out / each / "phases" / f"trial-0.{kind}.jsonl" for each in (name, row))
            if not apart & roles and theirs.exists() and not ours.exists():
                ours.parent.mkdir(exist_ok=True)
                write_bytes_atomic(ours, theirs.read_bytes())


def _read_task_means(row: Path, num_trials: int, metric: str) -> list[dict[str, float]]:
    """Read the mean of each game in each trial, without games whose episodes all failed."""
    trials: list[dict[str, list[float]]] = [{} for _ in range(num_trials)]
    for record in read_jsonl(row / "trajectories.jsonl"):
        if record["iteration"] < num_trials and record["outcome"] != "error":
            episode = trajectory_from_json(record)
            trials[record["iteration"]].setdefault(episode.task.id, []).append(get_metric_value(episode, metric))
    return [{game: fmean(own) for game, own in games.items()} for games in trials]
