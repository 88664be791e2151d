"""Plays episodes in groups, builds their prompts, has tips written afterwards, and measures both."""
