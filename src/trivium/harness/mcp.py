"""The tools of any MCP server as tools of a harness, by the official SDK (extra `mcp`): over stdio, or streamable HTTP."""

from __future__ import annotations

import asyncio
import concurrent.futures
import shlex
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from trivium.errors import InputError
from trivium.harness.base import Scene, ToolError

T = TypeVar("T")


class Mcp:
    """A connection to one server, given by its URL, or by the command that starts it:

        with Mcp("npx -y @modelcontextprotocol/server-filesystem notes/") as server:
            harness = Harness(server.tools, window)

    `seconds` is the deadline of one call, and of the greeting; `environment` is the command's, beside the usual.

    It lives on an event loop of its own, in a thread, so that a harness may be run on any. A server that died is data: its
    calls fail and say so. Raises InputError on entering where the SDK is missing or the server does not answer.
    """

    def __init__(self, server: str, environment: Mapping[str, str] | None = None, seconds: float = 30.0) -> None:
        if not server.strip() or not seconds > 0:
            raise InputError(f"an MCP server is a URL or a command, with more than 0 seconds, not {server!r} and {seconds:g}")
        self.server, self.seconds, self.tools = server, seconds, []
        self._environment = dict(environment or {})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._client: Any = None
        self._closing = asyncio.Event()
        self._life: concurrent.futures.Future[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        ready: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()
        self._life = asyncio.run_coroutine_threadsafe(self._live(ready), self._loop)
        try:
            self.tools = [McpTool(self, each) for each in ready.result()]
        except Exception as error:
            self.__exit__()
            raise InputError(f"the MCP server {self.server!r} does not answer: {_words(error)}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        if self._life:
            concurrent.futures.wait([self._life], self.seconds)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _live(self, ready: concurrent.futures.Future[list[Any]]) -> None:
        """The connection from its beginning to its end, in one task, as the SDK wants it."""
        try:
            from mcp import Client

            async with asyncio.timeout(self.seconds) as greeting, Client(self._address()) as client:
                tools = await _listed(client)
                greeting.reschedule(None)
                self._client = client
                ready.set_result(tools)
                await self._closing.wait()
        except ImportError:
            ready.set_exception(InputError("the MCP SDK is missing: pip install 'trivium[mcp]'"))
        except BaseException as error:  # noqa: BLE001  of whatever tree: the SDK's, anyio's groups, the system's
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else RuntimeError(_words(error)))

    def _address(self) -> Any:
        if self.server.startswith(("http://", "https://")):
            return self.server
        from mcp import StdioServerParameters

        command, *arguments = shlex.split(self.server)
        return StdioServerParameters(command=command, args=arguments, env=self._environment or None)

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The text of a tool's result. Raises ToolError for one that failed, and for a server that is gone."""
        if self._life is None or self._life.done():
            raise ToolError(f"{name} failed: the MCP server is gone", "provider")
        asked: Coroutine[Any, Any, Any] = self._client.call_tool(name, arguments, read_timeout_seconds=self.seconds)
        try:
            result = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._loop))
        except Exception as error:  # the SDK's own, a closed pipe, a refused connection
            raise ToolError(f"{name} failed: {_words(error)}", "provider") from error
        text = "\n".join(_text(block) for block in result.content)
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a server, its schema as the server gives it."""

    server: Mcp = field(repr=False)
    listed: Any
    frees: bool = False

    @property
    def name(self) -> str:
        return self.listed.name

    @property
    def seconds(self) -> float:
        return self.server.seconds

    def spec(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.listed.description or "", "parameters": self.listed.input_schema}
        return {"type": "function", "function": function}

    async def __call__(self, scene: Scene, arguments: dict[str, Any]) -> str:
        return await self.server.call(self.name, arguments)


async def _listed(client: Any) -> list[Any]:
    """Every tool, page by page."""
    tools, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tools


def _text(block: Any) -> str:
    """A block of a result as text; what is none is named."""
    return block.text if block.type == "text" else f"[{block.type}]"


def _words(error: BaseException) -> str:
    """An error in words; of a group the first."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
