"""Combinations of settings that would only fail, or mislead, later: when one is refused, and what to set instead.

`c` is a `Config`, whose module imports this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trailnotes.config.methods import Method
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.model_schema import NO_MODEL_MESSAGE, OPENAI_PREFIX
from trailnotes.errors import ConfigError

Refusals = Iterator[tuple[object, str]]  # (condition, message): the message is raised where it holds
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


def refuse_places(c: Any) -> Refusals:
    """Yield combinations of where and how a run is computed and tracked."""
    yield (any(name not in TRACKERS and ":" not in name for name in c.run.trackers),
           f"run.trackers = {[*c.run.trackers]}: choose of {', '.join(TRACKERS)}, or name module:Class")  # fmt: skip
    yield len({*c.run.trackers}) < len(c.run.trackers), "run.trackers names one twice: name each once"
    yield (c.engine.devices and (c.engine.urls or len(c.engine.devices) != c.engine.replicas),
           "engine.devices names the GPUs of each engine: set engine.replicas to their number, and engine.urls = []"
           )  # fmt: skip
    takes_turns = c.has_shared_gpu and c.learner.world_size == 1 and not c.rollout.max_async_iterations
    yield (c.engine.shared_card and c.engine.name == "vllm" and not takes_turns,
           ("engine.shared_card is for engines that take turns with a learner of one process: leave out engine.urls, "
           "engine.devices, cluster.address, learner.world_size and rollout.max_async_iterations"))  # fmt: skip
    yield (c.model.load_in_4bit and (c.engine.name == "vllm" or c.learner.world_size > 1),
           'model.load_in_4bit keeps its base in this process: set engine.name = "hf" and learner.world_size = 1'
           )  # fmt: skip
    yield (c.is_hosted and (c.learner.world_size > 1 or c.learner.offload or c.learner.packed != "auto"),
           "the server has the update: leave out learner.world_size, learner.offload and learner.packed")  # fmt: skip
    # Ray would take other words as a request to start a cluster.
    yield (not re.fullmatch(r"|auto|(ray://)?[^/\s]+:\d+", c.cluster.address),
           f"cluster.address = {c.cluster.address!r} is none: name auto, HOST:PORT, or ray://HOST:PORT")  # fmt: skip


def refuse_combinations(c: Any) -> Refusals:
    """Yield combinations of what is played and learned."""
    rollout, rehearsal, warmstart = c.rollout, c.rehearsal, c.warmstart
    yield (rollout.group_size < 2 and c.algorithm.normalize_std,
           "rollout.group_size = 1 has no group to be relative to: set rollout.group_size >= 2")  # fmt: skip
    yield (rollout.max_action_tokens >= rollout.max_context_tokens,
           "rollout.max_action_tokens must be smaller than rollout.max_context_tokens")  # fmt: skip
    yield (rollout.action_format == "react" and any("\n" in text for text in rollout.stop),
           "rollout.stop ends an answer after its thought, before its action: set rollout.stop = []")  # fmt: skip
    yield (rollout.example_turns and (rehearsal.path or rehearsal.split),
           "rehearsal imitates whole conversations, rollout.example_turns too: set these to []")  # fmt: skip
    yield rehearsal.path and rehearsal.split, "rehearsal.path stands for what rehearsal.split records: set one to ''"
    yield ((rehearsal.path or rehearsal.split) and not rehearsal.hold + rehearsal.imitate,
           "rehearsal is neither held nor imitated: raise rehearsal.hold or rehearsal.imitate")  # fmt: skip
    yield 0 < c.loss.dual_clip <= 1, "loss.dual_clip up to 1 flattens every negative advantage: set it above 1, or to 0"
    yield (c.algorithm.dynamic_sampling and c.algorithm.intrinsic != "none",
           ("groups of equal returns teach something with a novelty reward: set algorithm.dynamic_sampling = 0 or "
           'algorithm.intrinsic = "none"'))  # fmt: skip
    yield (c.train.split == c.train.validation_split and c.train.eval_every,
           "train.validation_split must differ from train.split, or training games choose the best")  # fmt: skip
    yield warmstart.advice + warmstart.write > 1, "warmstart.advice and warmstart.write are shares: sum up to 1 at most"
    yield (warmstart.copying and warmstart.num_layers == 1,
           "warmstart.copying takes two layers: set warmstart.num_layers to 2 or more")  # fmt: skip


def require_own_tips(c: Any) -> None:
    """Require `eval.show_tips = "own"` of a method without tips; raises `ConfigError`."""
    if c.eval.show_tips != "own":
        raise ConfigError(f'{c.algorithm.name} shows no tips: set eval.show_tips = "own"')


def refuse_by_method(c: Any, method: Method, empo2: Empo2Config) -> Refusals:
    """Yield what the method of a config cannot follow."""
    algorithm = c.algorithm
    mixed = method.shows_tips and empo2.mode_unit == "trajectory"
    yield (mixed and algorithm.intrinsic == "tips",
           ('algorithm.intrinsic = "tips" pays only members that act with tips, which biases mixed groups: set '
           'algorithm.intrinsic = "states", or empo2.mode_unit = "iteration"'))  # fmt: skip
    yield (algorithm.dynamic_sampling and algorithm.name in ("opid", "opsd", "ucob"),
           f"groups of equal returns teach {algorithm.name} something: set algorithm.dynamic_sampling = 0"
           )  # fmt: skip
    yield (algorithm.name == "ucob" and empo2.mode_unit == "iteration",
           'ucob compares members of one group with tips and without: set empo2.mode_unit = "trajectory"')  # fmt: skip
    yield (method.shows_tips and empo2.author_credit and (algorithm.author, algorithm.show_tips) != ("policy", "own"),
           ("empo2.author_credit trains the policy as the author of the tips that it reads: set algorithm.author = "
           '"policy" and algorithm.show_tips = "own", or empo2.author_credit = 0'))  # fmt: skip
    size, readers = c.rollout.group_size, round(empo2.p_memory * c.rollout.group_size)
    rounds = f"empo2.p_memory = {empo2.p_memory:g} of rollout.group_size = {size} rounds to"
    yield mixed and empo2.p_memory and not readers, f"{rounds} no member with tips: raise either"
    yield (mixed and empo2.author_credit and readers == size,
           (f"{rounds} no member without tips, with whom empo2.author_credit compares: lower empo2.p_memory, or raise "
           "rollout.group_size"))  # fmt: skip
    yield (method.trains and not method.shows_tips and algorithm.intrinsic == "tips",
           f'{algorithm.name} retrieves no tips: set algorithm.intrinsic = "states" or "none"')  # fmt: skip
    yield (method.trains and not method.memory and algorithm.show_tips != "own",
           (f'{algorithm.name} shows no tips of a memory while it trains: set algorithm.show_tips = "own" (panels that '
           "are played with tips have eval.show_tips)"))  # fmt: skip


def refuse_training(c: Any, method: Method, empo2: Empo2Config) -> Refusals:
    """Yield settings that are fine for acting but wrong for training."""
    name, retire = c.algorithm.name, c.memory.retire
    by_readers = [f"memory.order = {order}" for order in ("ucb", "worth") if order in c.memory.order]
    by_readers += [f"memory.retire = {retire}"] if retire != "oldest" else []
    yield not method.trains, f"{name} changes no weights: use `trailnotes adapt --method {name}`"
    yield (method.plain and by_readers,
           (f"{name} lets no member read tips, and {' and '.join(by_readers)} goes by readers: leave it out, and name "
           "it where tips are read (trailnotes adapt, [panels.NAME])"))  # fmt: skip
    yield (empo2.distilled_context == "release" and c.optim.rows != "step",
           'empo2.distilled_context = "release" gives each turn its own context: set optim.rows = "step"')  # fmt: skip
    yield (empo2.distilled_context == "release" and c.memory.distilled,
           ('memory.distilled compares with a context without tips, and empo2.distilled_context = "release" keeps '
           "those of the newest turn: set memory.distilled to 0"))  # fmt: skip
    yield (method.shows_tips and empo2.author_credit and c.memory.scope != "task",
           'empo2.author_credit pays for tips about the same task: set memory.scope = "task", or it to 0')  # fmt: skip
    yield c.engine.urls and c.engine.replicas > 1, "engine.urls names all engines: leave out engine.replicas"
    yield (method.writes_tips and c.memory.entries == "final" and c.memory.duplicates == "count",
           ('memory.entries = "final" would count one tip as often as its episode has steps: set '
           'memory.duplicates = "exact" (release) or "reject"'))  # fmt: skip
    yield (c.memory.distilled and not c.distils_tips,
           ("memory.distilled is measured where empo2 trains without the tips that it acted on: set it to 0, or "
           "algorithm.name = empo2 with p_memory and q_off_policy above 0"))  # fmt: skip
    yield (c.model.path == "random" or c.model.path.startswith(OPENAI_PREFIX),
           f"model.path = {c.model.path!r} cannot be trained: name a model directory or hub name, or `trailnotes adapt`"
           )  # fmt: skip
    yield c.rollout.group_size < 2, "training compares the members of a group: set rollout.group_size to 2 or more"
    yield (c.memory.write_temperature != c.rollout.temperature
           and (name == "lamer" or (empo2.author_credit and method.shows_tips)),
           ("lamer and empo2.author_credit train tips as they were sampled: set memory.write_temperature to "
           f"rollout.temperature = {c.rollout.temperature:g}"))  # fmt: skip
    yield not c.model.path, NO_MODEL_MESSAGE
