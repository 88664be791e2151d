"""Builds the prompts that methods share, and parses actions from the answers."""

from trailnotes.prompts.conversation import (
    CUT_MARK,
    MAX_ACTION_CHARS,
    NOTES_HEADER,
    Conversation,
    CountTokens,
    FormatTips,
    ParsedAction,
    build_memory_keys,
    build_memory_query,
    build_opening_messages,
    build_reflection_messages,
    drop_oldest_turn,
    get_instruction,
    parse_action,
    parse_listed_actions,
    quoted,
    replay_conversation,
    select_unseen_tips,
    truncate,
)

__all__ = [
    "CUT_MARK", "MAX_ACTION_CHARS", "NOTES_HEADER", "Conversation", "CountTokens", "FormatTips", "ParsedAction",
    "build_memory_keys", "build_memory_query", "build_opening_messages", "build_reflection_messages",
    "drop_oldest_turn", "get_instruction", "parse_action", "parse_listed_actions", "quoted",
    "replay_conversation", "select_unseen_tips", "truncate",
]  # fmt: skip
