"""Players that are no model: they need no torch and no weights, and show what an environment does."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trailnotes.config.schema import Config
from trailnotes.errors import PolicyError
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.prompts import listed_actions
from trailnotes.types import Message

RANDOM = "random"  # as `model.path`: draws from the actions that the turn lists


def random_player(config: Config) -> ScriptedPolicy:
    """Draws uniformly from the admissible actions of each turn; a pure function of `run.seed` and the conversation.

    It reads them where a model would: `rollout.show_actions` must be on, and the environment must offer some. Its
    tokens are bytes: the caps of `config.rollout` must leave room for the lists.
    """

    def script(messages: Sequence[Message]) -> str:
        actions = listed_actions(messages[-1].content, config.rollout.style)
        if not actions:
            raise PolicyError(
                'model.path = "random" draws from the admissible actions, and this turn lists none: set '
                "rollout.show_actions = true, and have the environment offer them (scienceworld: "
                'env.options.actions = "valid"; textworld: env.options.actions = true)'
            )
        said = "\n".join(message.content for message in messages)
        return random.Random(f"{config.run.seed} {said}").choice(actions)

    return ScriptedPolicy(script, name=RANDOM)
