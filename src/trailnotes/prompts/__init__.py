"""Words every prompt but those that one method alone knows, and reads the actions that come back."""

from __future__ import annotations

from trailnotes.prompts.conversation import (
    NOTES_HEADER,
    Conversation,
    Introduce,
    forget_turn,
    fresh_tips,
    instruction_of,
    listed_actions,
    memory_keys,
    memory_query,
    opening_messages,
    reflection_messages,
    replay,
    system_prompt,
)
from trailnotes.prompts.text import (
    CUT,
    MAX_ACTION_CHARS,
    CountTokens,
    ParsedAction,
    parse_action,
    quoted,
    truncate,
)

__all__ = [
    "CUT",
    "MAX_ACTION_CHARS",
    "NOTES_HEADER",
    "Conversation",
    "CountTokens",
    "Introduce",
    "ParsedAction",
    "forget_turn",
    "fresh_tips",
    "instruction_of",
    "listed_actions",
    "memory_keys",
    "memory_query",
    "opening_messages",
    "parse_action",
    "quoted",
    "reflection_messages",
    "replay",
    "system_prompt",
    "truncate",
]
