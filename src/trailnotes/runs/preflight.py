"""Checks of a start's settings and packages, in order, before anything is built, downloaded or written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from trailnotes.config.methods import TIPS_ONLY_METHOD, resolve_method
from trailnotes.config.model_schema import OPENAI_PREFIX
from trailnotes.config.schema import Config
from trailnotes.config.unused import warn_unused
from trailnotes.envs import get_extra
from trailnotes.envs.tasks import load_panel, load_training_tasks, validate_splits
from trailnotes.errors import ConfigError, EnvError, MissingExtraError, find_missing_module, format_install_command
from trailnotes.runs.directory import load_trackers
from trailnotes.runs.load_policy import RANDOM
from trailnotes.types import Tip
from trailnotes.web.wire import load_api_key, require_prices

logger = logging.getLogger(__name__)
ADAPTERS_LR = 1e-5  # a rate below is hardly of adapters


def _validate_hosted(config: Config) -> None:
    lora = config.model.lora
    by_distribution = config.has_anchor_rows and config.learner.anchor_by == "distribution"
    has_adapters = (Path(config.model.path) / "adapter_config.json").is_file()
    refused = {  # setting -> whether the server cannot follow it, and what to set
        "model.path": (has_adapters, "name a base model, which a server begins with, not adapters"),
        "rollout.temperature": (config.rollout.temperature != 1.0, "the API scores at temperature 1: set it to 1.0"),
        "model.lora.alpha": (lora.alpha != 32.0, "the API's adapters have alpha 32: set it to 32"),
        "model.lora.target_modules": (lora.target_modules is not None, "it adapts all linear layers: leave it out"),
        "model.load_in_4bit": (config.model.load_in_4bit, "the server keeps the base: leave it out"),
        "engine.name": (config.engine.name != "hf", "the server samples: leave it out"),
        "cluster.address": (config.cluster.address != "", "the server computes: leave it out"),
        "learner.anchor_by": (by_distribution, 'the API gives no distributions: set it to "samples"'),
    }
    if not lora.enabled and config.optim.lr < ADAPTERS_LR:
        logger.warning("optim.lr = %g is a rate for all weights, and the server trains adapters: they want about ten "
                       "times as much", config.optim.lr)  # fmt: skip
    if names := [f"{name} ({reason})" for name, (is_refused, reason) in refused.items() if is_refused]:
        raise ConfigError(f'learner.name = "tinker" does not go with {", ".join(names)}')


def run_preflight(config: Config, tips: Sequence[Tip] | None = None, *, machine: bool = True) -> None:
    """Run all checks of a training's settings; with `machine` also of the packages and model files that are here."""
    from trailnotes.runs.rehearsal import validate_rehearsal

    config.validate_training()
    if machine:
        require_dependencies(config)
    validate_splits(config)
    if config.eval.split:  # an environment need not have it, but an evaluation afterwards would fail
        try:
            load_panel(config)
        except (ConfigError, EnvError) as error:
            logger.warning("eval.split = %r has no games to evaluate: %s", config.eval.split, error)
    validate_rehearsal(config)
    if config.is_hosted:
        _validate_hosted(config)
    if machine:
        from trailnotes.policies.hf.policy import require_context_length, require_trainable  # take the extra `train`
        from trailnotes.runs.estimate.footprint import warn_of_memory

        if not config.is_hosted:
            require_trainable(config.model)
            require_context_length(config.model, config.rollout.max_context_tokens)
        warn_unused(config)
        warn_of_memory(config)
    if tips is None:
        return
    if not resolve_method(config.algorithm.name).memory:
        raise ConfigError(f"{config.algorithm.name} trains without a memory: leave out --memory")
    played = [task.id for task in load_training_tasks(config)]
    if not {tip.namespace for tip in tips} & {*played}:
        example = f" (but of {tips[0].namespace}, for example)" if tips else ""
        raise ConfigError(f"--memory: none of its {len(tips)} tips is of a task of this run{example}, which plays "
                          f"{played[0]} and {len(played) - 1} others: name a file with tips of these")  # fmt: skip


# -- packages


def require_dependencies(
    config: Config, model: str | None = None, *, plays_only: bool = False, memory: bool = True
) -> None:
    """Require the packages, engines and keys that the settings need; `model` acts, by default `config.model.path`."""
    if config.run.trackers:
        load_trackers()
    path = config.model.path if model is None else model
    is_spread = config.cluster.address and not plays_only and resolve_method(config.algorithm.name).trains
    missing = {}
    for extra, setting in _collect_extras(config, path, memory, bool(is_spread)).items():
        if package := find_missing_module(extra):
            missing[extra] = f"{setting} needs the package {package}"
    if missing:
        raise MissingExtraError(f"{'; '.join(missing.values())}: {format_install_command(*missing)}")
    has_weights = path != RANDOM and not path.startswith(OPENAI_PREFIX)
    author = config.algorithm.author if _writes_tips(config) and not plays_only else ""
    if path.startswith(OPENAI_PREFIX) or author.startswith(OPENAI_PREFIX):
        load_api_key(config.endpoint)
        require_prices(config.endpoint)
    if config.is_hosted and has_weights:
        from trailnotes.web.tinker import load_tinker_key

        load_tinker_key(config.learner)
    elsewhere = is_spread and not config.engine.urls  # Ray tells
    if config.engine.name == "vllm" and has_weights and not elsewhere:
        from trailnotes.policies.vllm.server import validate_engine_settings

        validate_engine_settings(config.engine)


def _writes_tips(config: Config) -> bool:
    name = config.algorithm.name
    return resolve_method(name).writes_tips or name == TIPS_ONLY_METHOD


def _collect_extras(config: Config, path: str, memory: bool, is_spread: bool) -> dict[str, str]:
    wanted = {}
    if extra := get_extra(config.env.name):
        wanted[extra] = f"env.name = {config.env.name!r}"
    if path.startswith(OPENAI_PREFIX):
        wanted["openai"] = f"model.path = {path!r}"
    elif path != RANDOM:
        wanted["train"] = f"model.path = {path!r}"
        if config.is_hosted:
            wanted["tinker"] = 'learner.name = "tinker"'
    if is_spread:
        wanted["ray"] = f"cluster.address = {config.cluster.address!r}"
    embedder, writes = config.memory.embedder, _writes_tips(config)
    if writes and config.algorithm.author.startswith(OPENAI_PREFIX):
        wanted["openai"] = f"algorithm.author = {config.algorithm.author!r}"
    if embedder != "hashing" and (writes or config.algorithm.intrinsic != "none"):
        if embedder.startswith(OPENAI_PREFIX):
            wanted["openai"] = f"memory.embedder = {embedder!r}"
        elif memory:
            wanted["embed"] = f"memory.embedder = {embedder!r}"
    return wanted
