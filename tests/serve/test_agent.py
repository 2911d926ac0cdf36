"""The agent over HTTP: begun, heard as it works, answered, cancelled, and read again after a restart."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.serve.house import options, serving, until
from trivium.harness import Harness, Scene, Window, tool
from trivium.policy import Scripted, View
from trivium.policy.message import Message
from trivium.policy.scripted import call, say
from trivium.serve.service import Service


@tool
def add(scene: Scene, a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def script(view: View) -> Message:
    asked = [message["content"] for message in view.messages if message["role"] == "user"][-1]
    if view.messages[-1]["role"] == "tool" or asked != "add":
        return say(f"{asked}: done after {len(view.messages)} messages")
    return call(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": "x"}))


@pytest.fixture
def service(renderer, tmp_path):
    return Service({"agent": Scripted(script, renderer)}, options(tmp_path), Harness([add], Window(2048)))


@pytest.fixture
def http(service):
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


def events(http, id: str, **headers) -> list[dict]:
    """Every event of an episode, up to its last one."""
    answer = http.get(f"/v1/episodes/{id}/events", headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]


def test_an_episode_is_begun_heard_and_read(http, service):
    begun = http.post("/v1/episodes", json={"input": "add"})
    assert begun.status_code == 201 and begun.json()["status"] == "running"
    id = begun.json()["id"]
    told = events(http, id)
    assert [event["type"] for event in told] == ["turn", "call", "call", "turn", "answer"]
    assert told[1]["result"].startswith("3\n") and told[2]["error"] and told[-1]["stop"] == "finished"
    (episode,) = service.store.select("served/")
    assert episode.id == f"served/{id}" and episode.agent.answer == told[-1]["text"]
    read = http.get(f"/v1/episodes/{id}").json()
    assert read["answer"] == told[-1] and [each["name"] for each in read["calls"]] == ["add", "add"]


def test_who_was_cut_off_hears_what_is_left(http):
    id = http.post("/v1/episodes", json={"input": "add"}).json()["id"]
    told = events(http, id)
    assert events(http, id, **{"Last-Event-ID": "2"}) == told[3:]


def test_an_answer_to_the_agent_goes_on_with_the_conversation(http, service):
    first = http.post("/v1/episodes", json={"input": "hello"}).json()
    events(http, first["id"])
    second = http.post(f"/v1/episodes/{first['id']}/answer", json={"input": "go on"}).json()
    assert events(http, second["id"])[-1]["text"] == "go on: done after 3 messages"
    assert second["session"] == first["session"]
    assert [episode.session for episode in service.store.select("served/")] == [first["session"]] * 2


def test_another_server_reads_what_this_one_kept(http, renderer, tmp_path):
    id = http.post("/v1/episodes", json={"input": "add"}).json()["id"]
    last = events(http, id)[-1]
    other = Service({"agent": Scripted(script, renderer)}, options(tmp_path), Harness([add], Window(2048)))
    with serving(other) as url, httpx.Client(base_url=url, timeout=60) as second:
        assert second.get(f"/v1/episodes/{id}").json()["answer"] == last
        assert [event["type"] for event in events(second, id)] == ["call", "call", "answer"]
        assert second.post(f"/v1/episodes/{id}/answer", json={"input": "go on"}).status_code == 201


def test_what_cannot_be_asked_is_an_error_of_its_own(http):
    assert http.post("/v1/episodes", json={"input": "x" * 5000}).status_code == 400
    assert http.post("/v1/episodes", json={"input": []}).status_code == 400
    assert http.post("/v1/episodes", json={"input": [{"role": "assistant", "content": "hi"}]}).status_code == 400
    for path in ("/v1/episodes/forged", "/v1/episodes/forged/events"):
        assert http.get(path).status_code == 404
    assert http.post("/v1/episodes/forged/answer", json={"input": "hi"}).status_code == 404
    assert http.delete("/v1/episodes/forged").status_code == 404


def test_a_cancelled_episode_ends_and_is_not_kept(renderer, tmp_path):
    @tool
    async def wait(scene: Scene) -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return ""

    policy = Scripted(lambda view: call(("wait", {})), renderer)
    service = Service({"agent": policy}, options(tmp_path), Harness([wait], Window(2048)))
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as http:
        id = http.post("/v1/episodes", json={"input": "go"}).json()["id"]
        assert http.post(f"/v1/episodes/{id}/answer", json={"input": "hm"}).status_code == 409
        assert http.delete(f"/v1/episodes/{id}").json()["status"] == "failed"
        assert events(http, id)[-1] == {"type": "failed", "error": "it was cancelled"}
        until(lambda: http.get(f"/v1/episodes/{id}").json()["status"] == "failed")
        assert list(service.store.select("served/")) == []


def test_a_server_of_models_alone_says_how_it_gets_an_agent(renderer, tmp_path):
    with serving(Service({"agent": Scripted(script, renderer)}, options(tmp_path))) as url:
        begun = httpx.post(f"{url}/v1/episodes", json={"input": "add"}, timeout=60)
        read = httpx.get(f"{url}/v1/episodes/none", timeout=60)
    assert begun.status_code == read.status_code == 404
    assert "start it with --data" in begun.json()["error"]["message"] == read.json()["error"]["message"]
