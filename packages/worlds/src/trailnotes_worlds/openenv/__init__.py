"""OpenEnv, environments over a WebSocket: a client of any server, and a server of any environment of Trailnotes.

The protocol is that of openenv-core 0.3.0 (BSD-3-Clause; ``openenv/core/env_server/types.py``), which openenv 0.10
keeps: each connection to ``/ws`` is a session with an environment of its own; requests and answers are JSON texts,
``{"type": "reset" | "step" | "state" | "close", "data": {...}}`` and
``{"type": "observation" | "state" | "error", "data": {...}}``, an answer to each request but ``close``.
"""
