"""The agent as an MCP server: asked by the SDK's own client and by our harness, over live HTTP and over stdio."""

from __future__ import annotations

import asyncio
import os
import sys

import httpx
import pytest

from tests.serve.house import options, serving, until
from trivium.errors import InputError
from trivium.harness import Harness, Scene, Window, tool
from trivium.harness.mcp import Mcp
from trivium.policy import Scripted, View
from trivium.policy.message import Message
from trivium.policy.scripted import call, say
from trivium.serve import keys
from trivium.serve.service import Service
from trivium.trace import Episode, Task

mcp = pytest.importorskip("mcp")


SAID = "Ann, it says.\n\nAnn runs the mill."


@tool
def look_up(scene: Scene, name: str) -> str:
    """What is known of a name."""
    return f"{name} runs the mill."


def script(view: View) -> Message:
    if view.messages[-1]["role"] == "tool":
        return say("Ann, it says.")
    return call(("look_up", {"name": "Ann"})) if view.messages[-1]["content"] == "Who?" else say("I do not know.")


async def passages(episode: Episode) -> str:
    return "".join(piece.shown for call in episode.agent.calls for piece in call.pieces)


def service_at(renderer, folder, **changes) -> Service:
    harness = Harness([look_up], Window(2048))
    return Service({"agent": Scripted(script, renderer)}, options(folder, mcp=True, **changes), harness, passages)


async def asked(client, **arguments):
    """The result of one call, and the progress that was told."""
    told: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    return await client.call_tool("ask", arguments, progress_callback=hear), told


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdks_client_asks_the_agent_and_hears_it_work(renderer, tmp_path, mode):
    async def talk(url: str):
        async with mcp.Client(f"{url}/mcp", mode=mode) as client:
            (listed,) = (await client.list_tools()).tools
            return listed, *await asked(client, input="Who?")

    service = service_at(renderer, tmp_path)
    with serving(service) as url:
        listed, result, told = asyncio.run(talk(url))
    assert listed.name == "ask" and "look_up" in listed.description and listed.input_schema["required"] == ["input"]
    assert not result.is_error and [block.text for block in result.content] == [SAID]
    assert [line.split()[0] for line in told] == ["turn", "call", "turn", "answer"] and "look_up" in told[1]
    (episode,) = service.store.select("served/")
    assert episode.agent.answer == "Ann, it says." and episode.account == "local"


def test_our_harness_has_the_agent_as_its_tool(renderer, tmp_path):
    policy = Scripted([call(("ask", {"input": "Who?"}), ("ask", {"input": ""})), say("done")], renderer)
    with serving(service_at(renderer, tmp_path)) as url, Mcp(f"{url}/mcp") as server:
        harness = Harness(server.tools, Window(4000), specs=False)
        calls = asyncio.run(harness.run(Task("t", "?"), policy)).agent.calls
    assert SAID in calls[0].pieces[0].text and not calls[0].error
    assert calls[1].error, "an empty question is the error of its call"


def test_each_call_is_that_of_its_key(renderer, tmp_path):
    file = tmp_path / "keys.json"
    tokens = {name: keys.add(file, name, consent=True, per_minute=0, concurrent=0) for name in ("ann", "bob")}

    async def talk(url: str, token: str):
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        http = create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})
        async with http, mcp.Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client:
            return (await asked(client, input="Who?"))[0]

    service = service_at(renderer, tmp_path, keys=str(file))
    with serving(service) as url:
        assert httpx.post(f"{url}/mcp", json={}).status_code == 401
        for token in tokens.values():
            assert not asyncio.run(talk(url, token)).is_error
    assert [episode.account for episode in service.store.select("served/")] == ["ann", "bob"]


def test_a_call_that_is_given_up_ends_its_episode(renderer, tmp_path):
    begun, ended = [], []

    @tool
    async def wait(scene: Scene) -> str:
        """Wait for ever."""
        begun.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)
        return ""

    policy = Scripted(lambda view: call(("wait", {})), renderer)
    service = Service({"agent": policy}, options(tmp_path, mcp=True), Harness([wait], Window(2048)))

    async def give_up(url: str) -> None:
        async with mcp.Client(f"{url}/mcp") as client:
            asking = asyncio.create_task(asked(client, input="go"))
            while not begun:
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait([asking])

    with serving(service) as url:
        asyncio.run(give_up(url))
        until(lambda: ended)
    assert list(service.store.select("served/")) == []


def test_an_agent_without_an_answer_is_an_error_of_the_call(renderer, tmp_path):
    policy = Scripted(lambda view: call(("look_up", {"name": "Ann"})), renderer)
    service = Service({"agent": policy}, options(tmp_path, mcp=True), Harness([look_up], Window(800)))

    async def talk(url: str):
        async with mcp.Client(f"{url}/mcp") as client:
            return [(await asked(client, input=text))[0] for text in ("Who?", "who " * 500)]

    with serving(service) as url:
        lost, long = asyncio.run(talk(url))
    assert lost.is_error and "came to no answer: window" in lost.content[0].text
    assert long.is_error and "window holds 800" in long.content[0].text


def test_a_page_of_another_host_is_refused_where_there_are_no_keys(renderer, tmp_path):
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {"Accept": "application/json, text/event-stream"}
    with serving(service_at(renderer, tmp_path)) as url:
        assert httpx.post(f"{url}/mcp", json=ping, headers=headers).status_code == 200
        assert httpx.post(f"{url}/mcp", json=ping, headers={**headers, "Host": "evil.test"}).status_code == 421
        assert httpx.post(f"{url}/mcp", json=ping, headers={**headers, "Origin": "http://evil.test"}).status_code == 403


def test_without_an_agent_there_is_no_tool(renderer, tmp_path):
    with pytest.raises(InputError, match="name what it works on with --data"):
        with serving(Service({"agent": Scripted(script, renderer)}, options(tmp_path, mcp=True))):
            pass


def test_over_stdio_it_serves_whoever_started_it(tiny_model, tmp_path):
    arguments = ["-m", "tests.serve.stand", str(tmp_path / "served.db"), str(tiny_model), "stdio"]

    async def talk():
        server = mcp.StdioServerParameters(
            command=sys.executable, args=arguments, env={"PYTHONPATH": os.pathsep.join(sys.path)}
        )
        async with mcp.Client(server) as client:
            return await asked(client, input="Who?")

    result, told = asyncio.run(talk())
    assert not result.is_error and result.content[0].text == "Hello." and told[-1].startswith("answer")
