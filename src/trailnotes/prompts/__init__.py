"""Words every prompt, and reads the actions that come back. Nothing else in the package does either."""

from __future__ import annotations

from trailnotes.prompts.conversation import (
    NOTES_HEADER,
    Conversation,
    forget_turn,
    fresh_tips,
    instruction_of,
    listed_actions,
    memory_keys,
    memory_query,
    reflection_messages,
    replay,
    system_prompt,
)
from trailnotes.prompts.plans import introduce_plans, plan_lines, plan_messages
from trailnotes.prompts.text import (
    CUT,
    MAX_ACTION_CHARS,
    NO_OP,
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
    "NO_OP",
    "Conversation",
    "CountTokens",
    "ParsedAction",
    "forget_turn",
    "fresh_tips",
    "instruction_of",
    "introduce_plans",
    "listed_actions",
    "memory_keys",
    "memory_query",
    "parse_action",
    "plan_lines",
    "plan_messages",
    "quoted",
    "reflection_messages",
    "replay",
    "system_prompt",
    "truncate",
]
