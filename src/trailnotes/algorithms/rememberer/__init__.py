"""REMEMBERER: a table of (goal, observation, action) and its value, shown as examples with advice."""

from __future__ import annotations

from typing import ClassVar, Literal

from trailnotes.config.methods import Method
from trailnotes.config.section import Section, key


class RemembererConfig(Section):
    """REMEMBERER: a table of (task, observation, action) and its value, shown as examples with advice."""

    # Of the release (552cb62)
    task_weight: ClassVar[float] = 0.5  # lambda, weight of the task in the similarity
    record_capacity: ClassVar[int] = 500  # records (task, observation)
    action_capacity: ClassVar[int] = 20  # actions of a record
    examples: ClassVar[int] = 2  # records shown
    history: ClassVar[int] = 5  # last actions shown
    n_step: ClassVar[int] = 0  # rewards before the bootstrap; 0 = Monte Carlo
    gamma: ClassVar[float] = 1.0  # discount

    epochs: int = key(3, "passes over the training tasks that fill the table", "Rememberer release 552cb62", ge=0)
    num_tasks: int = key(0, "training tasks, evenly spaced in train.split; 0 = all (release: 10)", ge=0)
    group_size: int = key(1, "episodes of each training task in an epoch", ge=1)
    task_similarity: Literal["embedding", "words", "equal"] = key("embedding", "how two tasks are compared")
    observation_similarity: Literal["embedding", "words", "lines"] = key(
        "words", "how two observations are compared: embeddings, shared words, or the longest common subsequence of "
        "lines")  # fmt: skip
    max_write_tokens: int = key(100, "decoding limit of an answer", "Rememberer release 552cb62", ge=1)
    temperature: float = key(0.1, "sampling temperature", "Rememberer release 552cb62", ge=0)


METHOD = Method(
    "rememberer", "REMEMBERER", "trailnotes.algorithms.rememberer.method:rememberer", trains=False, colour="#e69f00",
    learned_from="trailnotes.algorithms.rememberer.method:load_training_tasks",
    sections={"rememberer": RemembererConfig},
)  # fmt: skip
