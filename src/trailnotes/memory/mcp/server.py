"""The protocol server for the tools of a memory: over stdio, or over streamable HTTP on this machine.

Source: Model Context Protocol 2026-07-28 and the versions before it that the package `mcp` speaks.
"""

from __future__ import annotations

import inspect
import json
import logging
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from starlette.responses import JSONResponse

from trailnotes import __version__
from trailnotes.errors import TrailnotesError
from trailnotes.memory.mcp.tools import INSTRUCTIONS, Toolbox, ToolCall, ToolCallRefused
from trailnotes.web.guard import LOOPBACK_NAMES, BearerMiddleware, SecurityMiddleware

if TYPE_CHECKING:
    from mcp.server import ServerRequestContext
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)

PATH: Final = "/mcp"
MAX_BODY_BYTES: Final = 256 * 1024  # bytes of a request: the longest state, escaped, and some more
MAX_SESSIONS: Final = 64
SESSION_IDLE_S: Final = 1800.0  # after which a session is forgotten
INTERNAL_ERROR: Final = "the memory failed; its owner's terminal says how"


def make_server(toolbox: Toolbox) -> Server[dict[str, Any]]:
    """Make a protocol server that exposes the tools of `toolbox`, and nothing else of this process."""

    async def list_tools(
        _context: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe_tool(tool) for tool in toolbox.offered])

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        who = context.session.client_params
        client = who.client_info.name if who else ""
        try:
            answer = await anyio.to_thread.run_sync(toolbox.call, params.name, params.arguments or {}, client)
        except ToolCallRefused as error:
            return _make_text_result(str(error), is_error=True)
        except TrailnotesError as error:  # which may name files
            logger.error("%s: %s", params.name, error)  # noqa: TRY400 (it is for the owner, not for us)
            return _make_text_result(INTERNAL_ERROR, is_error=True)
        except Exception:  # the boundary: the client is told no more than that, and the terminal the rest
            logger.exception("%s failed", params.name)
            return _make_text_result(INTERNAL_ERROR, is_error=True)
        return types.CallToolResult(content=_make_text_result(json.dumps(answer)).content, structured_content=answer)

    return Server(
        "trailnotes-memory", version=__version__, title="A memory of tips", instructions=INSTRUCTIONS,
        on_list_tools=list_tools, on_call_tool=call_tool,
    )  # fmt: skip


def serve_stdio(toolbox: Toolbox) -> None:
    """Serve one client over standard input and output until it closes the former."""
    server = make_server(toolbox)

    async def answer() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(answer)


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


def _describe_tool(tool: type[ToolCall]) -> types.Tool:
    schema = tool.model_json_schema()
    schema.pop("description", None)  # it is the tool's
    hints = types.ToolAnnotations(
        read_only_hint=not tool.writes, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    about = inspect.cleandoc(tool.__doc__ or "")
    return types.Tool(name=tool.name, description=about, input_schema=schema, annotations=hints)


def _make_text_result(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)
