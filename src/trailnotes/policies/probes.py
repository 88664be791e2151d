"""Fixed texts that a learner scores whenever it hands over its weights, and that its policy must score alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trailnotes.types import Completion, Message

if TYPE_CHECKING:
    from trailnotes.policies.chat import ChatFormat

PROBE_TOKENS: Final = 16  # of each probe: enough that a wrong layer shows, and a moment's work
PROBES: Final = (  # what might be said in an episode
    ("You are in a hall. A door leads north.", "I go north through the door, and look around."),
    ("You see a key. Your task is to open the chest.", "First I take the key, then I open the chest with it."),
    ("It is dark here. What do you do next?", "Let me think. I need a lamp, and the lamp is in the kitchen."),
)


def make_probes(chat: ChatFormat, context_length: int) -> list[Completion]:
    """Encode the probes as conversations of this format, cut to a context."""
    probes = []
    for asked, said in PROBES:
        messages = [Message("user", asked)]
        prompt = chat.encode(messages)
        ids = chat.encode_reply(messages, said)[: min(PROBE_TOKENS, max(1, context_length - len(prompt)))]
        probes.append(Completion(prompt, ids, (0.0,) * len(ids), said))
    return probes
