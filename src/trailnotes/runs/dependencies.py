"""Dependencies of a start, checked before anything is compiled, loaded or written."""

from __future__ import annotations

from trailnotes.config.methods import TIPS_ONLY_METHOD, resolve_method
from trailnotes.config.model_schema import OPENAI_PREFIX
from trailnotes.config.schema import Config
from trailnotes.envs import extra_for
from trailnotes.errors import MissingExtraError, find_missing_module, format_install_command
from trailnotes.runs.directory import load_trackers
from trailnotes.runs.load_policy import RANDOM


def require_dependencies(
    config: Config, model: str | None = None, *, plays_only: bool = False, memory: bool = True
) -> None:
    """Require the optional packages and the engines of the settings.

    `model` plays, by default `config.model.path`. `plays_only`: nothing is trained. `memory`: tips may be retrieved.
    """
    if config.run.trackers:
        load_trackers()
    path = config.model.path if model is None else model
    missing = {}
    for extra, setting in _collect_extras(config, path, memory).items():
        if package := find_missing_module(extra):
            missing[extra] = f"{setting} needs the package {package}"
    if missing:
        raise MissingExtraError(f"{'; '.join(missing.values())}: {format_install_command(*missing)}")
    elsewhere = config.cluster.address and not config.engine.urls and not plays_only  # Ray tells
    if config.engine.name == "vllm" and path != RANDOM and not path.startswith(OPENAI_PREFIX) and not elsewhere:
        from trailnotes.policies.vllm.building import validate_engine_settings

        validate_engine_settings(config.engine)


def _collect_extras(config: Config, path: str, memory: bool = True) -> dict[str, str]:
    """Map each extra to the setting that asks for it."""
    wanted = {}
    if extra := extra_for(config.env.name):
        wanted[extra] = f"env.name = {config.env.name!r}"
    if path.startswith(OPENAI_PREFIX):
        wanted["openai"] = f"model.path = {path!r}"
    elif path != RANDOM:
        wanted["train"] = f"model.path = {path!r}"
        if config.is_hosted:
            wanted["tinker"] = 'learner.name = "tinker"'
    if config.cluster.address:
        wanted["ray"] = f"cluster.address = {config.cluster.address!r}"
    name, embedder = config.algorithm.name, config.memory.embedder
    writes = resolve_method(name).writes_tips or name == TIPS_ONLY_METHOD
    if writes and config.algorithm.author.startswith(OPENAI_PREFIX):
        wanted["openai"] = f"algorithm.author = {config.algorithm.author!r}"
    if embedder != "hashing" and (writes or config.algorithm.intrinsic != "none"):
        if embedder.startswith(OPENAI_PREFIX):
            wanted["openai"] = f"memory.embedder = {embedder!r}"
        elif memory:
            wanted["embed"] = f"memory.embedder = {embedder!r}"
    return wanted
