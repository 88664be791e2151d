"""Policies: what acts. The table names each class without importing it."""

from __future__ import annotations

POLICIES: dict[str, str] = {
    "hf": "trailnotes.policies.hf:HFPolicy",
    "openai": "trailnotes.policies.openai:OpenAIPolicy",
    "scripted": "trailnotes.policies.scripted:ScriptedPolicy",
}
