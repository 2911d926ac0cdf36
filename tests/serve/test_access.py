"""No data of one key is shown to another: not by id, not by session, not by guessing, and deletion ends at one's own."""

from __future__ import annotations

import httpx
import pytest

from tests.serve.house import options, serving
from trivium.harness import Harness, Window
from trivium.policy import Scripted
from trivium.policy.scripted import say
from trivium.serve import keys
from trivium.serve.service import Service
from trivium.trace.schema import FEEDBACK, SCORES

SECRET = [{"role": "user", "content": "the secret is 1234"}]


@pytest.fixture
def service(renderer, tmp_path):
    policy = Scripted(lambda view: say(f"I see {len(view.messages)} messages"), renderer)
    return Service({"agent": policy}, options(tmp_path, keys=str(tmp_path / "keys.json")), Harness([], Window(2048)))


@pytest.fixture
def two(tmp_path, request):
    """A client of ann's key and one of bob's, on one server."""
    tokens = [
        keys.add(tmp_path / "keys.json", name, consent=name == "ann", per_minute=0, concurrent=0) for name in ("ann", "bob")
    ]
    with serving(request.getfixturevalue("service")) as url:
        clients = [httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) for token in tokens]
        yield clients
        for client in clients:
            client.close()


def chat(client, messages=SECRET, session="", **more):
    headers = {"X-Trivium-Session": session} if session else {}
    return client.post("/v1/chat/completions", json={"model": "agent", "messages": messages, **more}, headers=headers)


def count(service, table=SCORES) -> int:
    with service.store.reading() as connection:
        return len(connection.execute(table.select()).all())


def test_a_response_is_gone_on_from_by_its_own_key_alone(two):
    ann, bob = two
    id = ann.post("/v1/responses", json={"model": "agent", "input": "the secret is 1234"}).json()["id"]
    body = {"model": "agent", "input": "what is it?", "previous_response_id": id}
    assert bob.post("/v1/responses", json=body).status_code == 404
    assert ann.post("/v1/responses", json=body).json()["output"][0]["content"][0]["text"] == "I see 1 messages"


def test_one_name_of_a_session_is_two_sessions_of_two_keys(two, service):
    ann, bob = two
    said = chat(ann, session="shared").json()["choices"][0]["message"]
    messages = [*SECRET, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "and?"}]
    assert chat(bob, messages, session="shared").json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert chat(ann, messages, session="shared").json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert {account for account, _ in service.exchanges.over(float("inf"))} == {"ann", "bob"}
    assert bob.post("/v1/sessions/shared/end").json()["episode"] is None  # bob gave no consent
    assert ann.post("/v1/sessions/shared/end").json()["episode"]


def test_an_episode_is_its_own_keys_alone(two):
    ann, bob = two
    id = ann.post("/v1/episodes", json={"input": "secret"}).json()["id"]
    assert '"answer"' in ann.get(f"/v1/episodes/{id}/events").text
    for answer in (
        bob.get(f"/v1/episodes/{id}"), bob.get(f"/v1/episodes/{id}/events"), bob.delete(f"/v1/episodes/{id}"),
        bob.post(f"/v1/episodes/{id}/answer", json={"input": "tell me"}),
    ):  # fmt: skip
        assert answer.status_code == 404 and "secret" not in answer.text
    assert ann.get(f"/v1/episodes/{id}").json()["status"] == "finished"


def test_feedback_is_on_ones_own_alone_and_goes_over_to_the_episode(two, service):
    ann, bob = two
    id = chat(ann, session="s").json()["id"]
    assert bob.post("/v1/feedback", json={"target": id, "value": 1.0}).status_code == 404
    assert bob.post("/v1/feedback", json={"target": chat(bob).json()["id"], "value": 1.0}).status_code == 403  # no consent
    assert count(service, FEEDBACK) == 0
    assert ann.post("/v1/feedback", json={"target": id, "value": 1.0}).status_code == 201
    episode = ann.post("/v1/sessions/s/end").json()["episode"]
    assert ann.post("/v1/feedback", json={"target": id, "name": "late", "value": 0.5}).status_code == 201
    assert ann.post("/v1/feedback", json={"target": episode, "name": "later", "value": 0.0}).status_code == 201
    assert bob.post("/v1/feedback", json={"target": episode, "value": 0.0}).status_code == 404
    feedback = service.store.feedback(f"served/{episode}")
    assert [(each.name, each.value, each.account) for each in feedback] == [
        ("", 1.0, "ann"), ("late", 0.5, "ann"), ("later", 0.0, "ann"),
    ]  # fmt: skip
    assert count(service) == 0  # a fact is no opinion


def test_deletion_takes_a_users_data_and_nobody_elses(two, service):
    ann, bob = two
    for user in ("u1", "u2", "u1/x", None):
        chat(ann, session="s", **({"user": user} if user else {}))
    chat(bob)
    ann.post("/v1/sessions/s/end", params={"user": "u1"})
    left = lambda: sorted(account for account, _ in service.exchanges.over(float("inf")))  # noqa: E731
    assert ann.delete("/v1/data", params={"user": "u1"}).json() == {"deleted": {"exchanges": 1, "episodes": 1}}
    assert left() == ["ann", "ann/u1/x", "ann/u2", "bob"] and list(service.store.select("served/")) == []
    assert bob.delete("/v1/data", params={"user": "u2"}).json() == {"deleted": {"exchanges": 0, "episodes": 0}}
    assert ann.delete("/v1/data").json()["deleted"]["exchanges"] == 3
    assert left() == ["bob"]


def test_without_consent_nothing_becomes_an_episode(two, service):
    _, bob = two
    chat(bob, session="s")
    id = bob.post("/v1/episodes", json={"input": "hello"}).json()["id"]
    assert '"answer"' in bob.get(f"/v1/episodes/{id}/events").text
    service.keeper.tidy(now=2e9 + 1e9)
    assert list(service.store.select()) == []
