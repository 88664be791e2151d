"""Warns of settings without effect, because the switch that they need is off.

What a key or a section needs is written so::

    model.lora.enabled                 that setting is on: neither false, zero, empty nor none
    algorithm.intrinsic = tips|states  it is one of these, or holds one; * is any text
    learner.world_size > 1             it is above
    A or B                             either
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from trailnotes.config.methods import find_method, list_names
from trailnotes.config.schema import Config
from trailnotes.config.toml import collect_fields, diff_configs, flatten_config, is_within

logger = logging.getLogger(__name__)
_VLLM_KEYS = "replicas urls python devices device_memory max_concurrent start_timeout timeout".split()  # noqa: SIM905
_TINKER_KEYS = "url reduction anchor_by price_prefill price_sample price_train max_tokens_total".split()  # noqa: SIM905
REQUIREMENTS = {
    "model.lora": "model.lora.enabled or learner.name = tinker",
    "endpoint": "model.path = openai:* or memory.embedder = openai:* or algorithm.author = openai:*",
    "engine.shared_prompts": "engine.name = hf",
    **{f"engine.{name}": "engine.name = vllm" for name in _VLLM_KEYS},
    "learner.offload": "learner.world_size > 1",
    "learner.timeout": "learner.world_size > 1 or learner.name = tinker",
    **{f"learner.{name}": "learner.name = tinker" for name in _TINKER_KEYS},
    "cluster": "cluster.address",
    "memory.shared_split": "memory.scope = family|env|all",
    "memory.exact_below": "memory.index = auto",
    "memory.candidates": "memory.index = auto",
    "memory.ucb": "memory.order = ucb",
    "algorithm.beta": "algorithm.intrinsic = tips|states|counts|rnd",
    "algorithm.novelty_threshold": "algorithm.intrinsic = states",
    "algorithm.anchor_tips": "algorithm.author = policy|start",
    "algorithm.author_age": "algorithm.author_credit",
    "algorithm.author_share": "algorithm.author_credit",
    **{f"rehearsal.{name}": "rehearsal.split" for name in ("options", "num_tasks")},
    **{f"rehearsal.{name}": "rehearsal.split or rehearsal.path" for name in ("rows", "hold", "imitate")},
    "archive": "archive.share",
    "loss.mask_unit": "loss.mask_logprob",
    "loss.mismatch": "engine.name = vllm or learner.name = tinker",
    "loss.mismatch_unit": "loss.mismatch = truncate|mask",
    "loss.mismatch_cap": "loss.mismatch = truncate|mask",
    "loss.constant_length": "loss.aggregation = constant",
    "train.validation_split": "train.eval_every",
    "eval.meet_tasks": "eval.meet_split",
}
"""Shared key or section -> what it needs to have any effect; keys of methods say so themselves (`key`)."""


def warn_unused(config: Config, told: Config | None = None, model: str = "") -> None:
    """Warn in one line of settings without effect, and name what each of them needs.

    `told` are settings of a run that was warned already (None: the defaults); `model` replaces `model.path`.
    """
    values = flatten_config(config) | ({"model.path": model} if model else {})
    requirements = REQUIREMENTS | _list_method_requirements(config)
    unused: dict[str, list[str]] = {}
    for name in diff_configs(told or Config(), config):
        needed = [
            need
            for key, need in requirements.items()
            if is_within(name, [key]) and not any(_is_met(part, values) for part in need.split(" or "))
        ]
        if needed:
            unused.setdefault(needed[0], []).append(name)
    if unused:
        texts = {n: n.replace("*:*", "module:NAME").replace(":*", ":NAME").replace("|", " or ") for n in unused}
        said = "; ".join(f"{', '.join(names)} (needs {texts[need]})" for need, names in unused.items())
        logger.warning("settings without effect: %s", said)


def _list_method_requirements(config: Config) -> dict[str, str]:
    """List what the sections of methods and their keys need: a method that has them, and what `key` says."""
    needed = {}
    for section in type(config).model_fields.keys() - Config.model_fields.keys():
        owners = [name for name in list_names() if section in find_method(name).sections]
        needed[section] = f"algorithm.name = {'|'.join([*owners, '*:*'])}"
    for name, field in collect_fields(type(config)).items():
        if isinstance(field.json_schema_extra, dict) and "needs" in field.json_schema_extra:
            needed[name] = str(field.json_schema_extra["needs"])
    return needed


def _is_met(part: str, values: Mapping[str, Any]) -> bool:
    name, sign, wanted = part.partition(" = ")
    if sign:
        value = values[name]
        held = value if isinstance(value, tuple) else (value,)
        return any(fnmatchcase(str(each), pattern) for each in held for pattern in wanted.split("|"))
    name, sign, limit = part.partition(" > ")
    return bool(values[name] > float(limit)) if sign else bool(values[name])
