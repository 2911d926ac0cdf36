"""Tools of MCP servers: two from npm, started here, and one of our own that misbehaves, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from trivium.errors import InputError
from trivium.harness import Harness, Window
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Task

mcp = pytest.importorskip("mcp")

from trivium.harness.mcp import Mcp  # noqa: E402

SERVER = '''
import asyncio, os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("ours")

@server.tool()
def double(number: int) -> str:
    """Twice a number."""
    return str(2 * number)

@server.tool()
def refuse() -> str:
    """Fails."""
    raise ValueError("not today")

@server.tool()
async def hang() -> str:
    """Takes an hour."""
    await asyncio.sleep(3600)
    return ""

@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(1)

server.run()
'''


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER)
    return f"{sys.executable} {path}"


def lived(renderer, tools, *calls: tuple[str, dict]):
    harness = Harness(tools, Window(4000), "Go.", specs=False)
    policy = Scripted([*(call(each) for each in calls), say("done")], renderer)
    return asyncio.run(harness.run(Task("t", "?"), policy)).agent


def test_its_tools_are_tools_of_a_harness_with_the_servers_schemas(renderer, command):
    with Mcp(command) as server:
        specs = {tool.name: tool.spec()["function"] for tool in server.tools}
        assert specs.keys() == {"double", "refuse", "hang", "die"} and specs["double"]["description"] == "Twice a number."
        assert specs["double"]["parameters"]["properties"]["number"]["type"] == "integer"
        for _ in range(2):  # on one event loop after the other
            thread = lived(renderer, server.tools, ("double", {"number": 21}), ("refuse", {}), ("double", {"number": "x"}))
            assert [piece.text.strip() for piece in thread.calls[0].pieces] == ["42"] and not thread.calls[0].error
            assert thread.calls[1].error and thread.calls[2].error and thread.answer == "done"


def test_a_server_that_dies_is_data(renderer, command):
    with Mcp(command) as server:
        thread = lived(renderer, server.tools, ("die", {}), ("double", {"number": 1}))
    assert [each.fault for each in thread.calls] == ["provider", "provider"] and thread.answer == "done"


def test_a_call_has_a_deadline(renderer, command):
    with Mcp(command) as server:
        server.seconds = 0.5
        thread = lived(renderer, server.tools, ("hang", {}), ("double", {"number": 4}))
    assert thread.calls[0].fault in ("timeout", "provider") and not thread.calls[1].error


@pytest.mark.parametrize("server", ["no-such-command-here", f"{sys.executable} -c pass", "http://127.0.0.1:9/mcp"])
def test_a_server_that_is_none_is_one_error(server):
    with pytest.raises(InputError, match="does not answer"), Mcp(server):
        pass


def npm(package: str) -> str:
    """The command of a server from npm; skips where there is none."""
    if not shutil.which("npx"):
        pytest.skip("npx is not here: no server from npm")
    return f"npx -y {package}"


@pytest.mark.slow
def test_everything(renderer):
    with Mcp(npm("@modelcontextprotocol/server-everything"), seconds=120) as server:
        thread = lived(renderer, server.tools, ("echo", {"message": "hello"}))
    assert "hello" in thread.calls[0].pieces[0].text


@pytest.mark.slow
def test_filesystem(renderer, tmp_path: Path):
    (tmp_path / "note.txt").write_text("The key is renewed in May.")
    with Mcp(f"{npm('@modelcontextprotocol/server-filesystem')} {tmp_path}", seconds=120) as server:
        calls = (("read_text_file", {"path": str(tmp_path / "note.txt")}), ("read_text_file", {"path": "/etc/passwd"}))
        thread = lived(renderer, server.tools, *calls)
    assert "renewed in May" in thread.calls[0].pieces[0].text and thread.calls[1].error
