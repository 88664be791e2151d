"""The protocol server for the tools of a memory: over stdio, or over streamable HTTP on this machine.

Source: Model Context Protocol 2026-07-28 and the versions before it that the package `mcp` speaks.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.server import MCPServer
from starlette.responses import JSONResponse

from trailnotes import __version__
from trailnotes.memory.mcp.tools import INSTRUCTIONS, Toolbox
from trailnotes.web.guard import LOOPBACK_NAMES, BearerMiddleware, SecurityMiddleware

if TYPE_CHECKING:
    from starlette.types import ASGIApp

PATH: Final = "/mcp"
MAX_BODY_BYTES: Final = 256 * 1024  # bytes of a request: the longest state, escaped, and some more
MAX_SESSIONS: Final = 64
SESSION_IDLE_S: Final = 1800.0  # after which a session is forgotten


def make_server(toolbox: Toolbox) -> MCPServer[Any]:
    """Make a protocol server that exposes the tools of `toolbox`; other errors than theirs go to the log alone."""
    server: MCPServer[Any] = MCPServer(
        "trailnotes-memory", title="A memory of tips", instructions=INSTRUCTIONS, version=__version__,
        log_level="WARNING",
    )  # fmt: skip
    for tool in (*toolbox.readers, *toolbox.writers):
        hints = types.ToolAnnotations(
            read_only_hint=tool in toolbox.readers, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        )
        server.add_tool(tool, description=inspect.cleandoc(tool.__doc__ or ""), annotations=hints)
    return server


def serve_stdio(toolbox: Toolbox) -> None:
    """Serve one client over standard input and output until it closes the former."""
    make_server(toolbox).run()


def make_app(toolbox: Toolbox, token: str) -> ASGIApp:
    """Make the application that serves `PATH` on this machine, and only requests with the token."""
    app = make_server(toolbox).streamable_http_app(
        streamable_http_path=PATH, json_response=True, max_request_body_size=MAX_BODY_BYTES,
        max_sessions=MAX_SESSIONS, session_idle_timeout=SESSION_IDLE_S,
    )  # fmt: skip
    return SecurityMiddleware(BearerMiddleware(app, token, _make_refusal), LOOPBACK_NAMES, _make_refusal)


def _make_refusal(status: int, text: str) -> ASGIApp:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": text}, status, headers)
