"""The agent as a tool of other people's models: an MCP server by the official SDK (extra `mcp`), over HTTP or stdio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import Field
from starlette.routing import BaseRoute

from trivium.errors import InputError
from trivium.serve.agent import Agent, Told
from trivium.serve.errors import ApiError
from trivium.serve.keys import LOCAL, Caller, Key
from trivium.serve.service import Service
from trivium.trace import Task

try:
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError as error:
    raise InputError("the MCP SDK is missing: pip install 'trivium[mcp]'") from error

PATH = "/mcp"
_SHOWN = 200
"""Letters of an event that a client is told while the agent works."""

Question = Annotated[str, Field(min_length=1, description="the whole question or request: the agent sees nothing else")]


def tool_server(service: Service) -> MCPServer:
    """A server with one tool, `ask`. InputError for a service without an agent."""
    if (agent := service.agent) is None:
        raise InputError("--mcp serves an agent, and there is none here: name what it works on with --data")
    server = MCPServer("trivium", version=version("trivium"))

    async def ask(input: Question, context: Context) -> str:
        return await _asked(service, agent, input, context)

    server.add_tool(ask, description=_description(agent), structured_output=False)
    return server


def tool_routes(server: MCPServer, service: Service) -> list[BaseRoute]:
    """The route at which the server answers. No request belongs to a session of the protocol: each comes with its own key.
    Without keys a page of another host, whose name was made to point to this machine, is refused."""
    host = service.options.host if service.options.keys else "127.0.0.1"
    app = server.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, host=host, max_request_body_size=service.options.body
    )
    return app.routes


@asynccontextmanager
async def serving_tool(server: MCPServer) -> AsyncGenerator[None]:
    """The time in which its routes answer."""
    async with server.session_manager.run():
        yield


async def serve_stdio(service: Service) -> None:
    """Serve whoever started this process, until its end of stdin is closed."""
    server = tool_server(service)
    async with service.running():
        await server.run_stdio_async()


async def _asked(service: Service, agent: Agent, question: str, context: Context) -> str:
    """One episode, whose events are the call's progress. It ends with the call, where that is cancelled. ToolError for an
    episode that came to no answer."""
    caller = Caller(_key(context))
    try:
        attempt = agent.begin(caller, Task("served", question), "", 0, service.gate.hold(caller.key, "episodes"))
    except ApiError as error:
        raise ToolError(str(error)) from error
    try:
        async for number, told in attempt.heard(0):
            await context.report_progress(number + 1, message=_line(told))
    finally:
        if attempt.work and not attempt.work.done():
            attempt.work.cancel()
            await asyncio.wait([attempt.work])
    if attempt.episode is None:
        raise ToolError(attempt.error)
    stop = attempt.episode.agent.stop
    if stop and stop.reason != "finished":
        raise ToolError(f"the agent came to no answer: {stop.reason} ({stop.detail})")
    return f"{attempt.episode.agent.answer}\n\n{attempt.episode.outcome}".strip()


def _key(context: Context) -> Key:
    """Whose call it is: over HTTP the request's key, over stdio whoever started this process."""
    request: Any = context.request_context.request
    return LOCAL if request is None else request.state.key


def _description(agent: Agent) -> str:
    tools = ", ".join(agent.tools) or "no tools"
    return f"Ask an agent that works by itself, step by step, with tools of its own ({tools}), and returns its answer."


def _line(told: Told) -> str:
    """An event in one line."""
    words = [str(told[name]) for name in ("name", "arguments", "error", "text") if told.get(name)]
    return " ".join([told["type"], *words])[:_SHOWN]
