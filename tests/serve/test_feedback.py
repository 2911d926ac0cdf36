"""Feedback over HTTP: joined by id, late and out of order, once; what is somebody else's or unknown is not found."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.house import options, sealed, serving
from trivium.harness import Harness, Window
from trivium.policy import Scripted
from trivium.policy.scripted import say
from trivium.serve import keys
from trivium.serve.exchange import REPLIES
from trivium.serve.service import Service
from trivium.trace.schema import FEEDBACK


@pytest.fixture
def service(renderer, tmp_path):
    policy = Scripted(lambda view: say(f"line one\nanswer {len(view.messages)}"), renderer)
    (tmp_path / "rules").write_text("secret \\d+\n")
    changes = {"redact": str(tmp_path / "rules"), "idle": 100.0, "seconds": 10.0, "retention": 1.0}
    return Service({"agent": policy}, options(tmp_path, **changes), Harness([], Window(2048)))


@pytest.fixture
def http(service):
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


def chat(http, *texts: str, **more) -> list[str]:
    """A conversation. Returns the ids of its replies."""
    messages, ids = [], []
    for text in texts:
        messages.append({"role": "user", "content": text})
        answer = http.post("/v1/chat/completions", json={"model": "agent", "messages": messages, **more})
        messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
        ids.append(answer.json()["id"])
    return ids


def say_so(http, target: str, **body) -> int:
    return http.post("/v1/feedback", json={"target": target, **body}).status_code


def test_what_is_said_of_a_reply_is_said_of_its_episode_hours_later_too(http, service):
    first, last = chat(http, "hello", "more")
    assert say_so(http, first, kind="edit", text="line one, secret 99\nmine", key="e1") == 201
    (episode,) = sealed(service)
    assert say_so(http, last, kind="accept", value=1, key="a1") == 201  # its exchange is still there
    service.keeper.tidy(time.time() + 400)
    assert service.exchanges.over(float("inf")) == service.exchanges.over(float("inf"), sealed=True) == []
    assert say_so(http, last, kind="outcome", name="merged", value=1, key="o1", time=5.0) == 201  # and now only the episode is
    assert say_so(http, first, kind="edit", text="line one", key="e2") == 201
    assert say_so(http, episode.id.removeprefix("served/"), kind="vote", value=-1, key="v1") == 201
    kept = {each.id: each for each in service.store.feedback(episode.id)}
    assert kept.keys() == {"e1", "a1", "o1", "e2", "v1"} and kept["o1"].time == 5.0
    assert kept["e1"].text == "line one, [redacted]\nmine"
    assert kept["e1"].original == kept["e2"].original == "line one\nanswer 1"  # what the edited reply said, not the last one


def test_the_same_is_kept_once_and_a_key_that_says_something_else_is_a_conflict(http, service):
    (id,) = chat(http, "hello")
    assert [say_so(http, id, value=1, key="k") for _ in range(3)] == [201, 200, 200]
    assert say_so(http, id, value=-1, key="k") == 409
    (episode,) = sealed(service)
    assert say_so(http, id, value=1, key="k") == 200  # also when the reply has become an episode
    assert say_so(http, id, value=1, key="k", user="u") == 404  # another user's it is not
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: say_so(http, id, kind="accept", value=1, key="at-once"), range(16)))
    assert sorted(statuses) == [200] * 15 + [201]
    assert [each.kind for each in service.store.feedback(episode.id)] == ["vote", "accept"]


def test_an_episode_of_the_agent_hears_too(http, service):
    id = http.post("/v1/episodes", json={"input": "hello", "user": "u"}).json()["id"]
    assert "answer" in http.get(f"/v1/episodes/{id}/events").text
    assert say_so(http, id, kind="follow_up", text="that is wrong", user="v") == 404
    assert say_so(http, id, kind="follow_up", text="that is wrong", user="u") == 201
    (said,) = service.store.feedback(f"served/{id}")
    assert (said.text, said.account) == ("that is wrong", "local/u")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "feedback of kind vote needs a value"),
        ({"kind": "edit"}, "feedback of kind edit needs a text"),
        ({"kind": "smile", "value": 1}, "kind"),
        ({"value": 3}, "a vote goes from -1 to 1"),
        ({"kind": "accept", "value": 0.5}, "the value of accept is 1 or 0"),
        ({"value": 1, "text": "words"}, "vote has a value, and no text"),
        ({"kind": "edit", "text": "a", "value": 1}, "edit has a text, and no value"),
        ({"kind": "outcome", "value": 1}, "an outcome has a name"),
        ({"kind": "edit", "text": "a\x00b"}, "no NUL"),
        ({"value": 1, "key": "two words"}, "key"),
        ({"value": 1, "time": -1}, "time"),
        ({"value": 1, "mood": "good"}, "mood"),
    ],
)
def test_what_nobody_can_have_done_is_one_sentence(http, service, body, told):
    (id,) = chat(http, "hello")
    answer = http.post("/v1/feedback", json={"target": id, **body})
    assert answer.status_code == 400 and told in answer.json()["error"]["message"]
    assert service.store.tail_feedback() == []


def test_unknown_targets_are_not_found(http, service):
    for target in ("chatcmpl-none", "served/none", "'; DROP TABLE feedback; --"):
        assert say_so(http, target, value=1) == 404
    assert service.store.tail_feedback() == []


def test_it_goes_where_its_data_go(http, service):
    (mine,), (theirs,) = chat(http, "hello", user="u"), chat(http, "hi", user="v")
    (open_one,) = chat(http, "and this", user="u")
    sealed(service)
    for id, user in ((mine, "u"), (theirs, "v"), (open_one, "u")):
        assert say_so(http, id, value=1, user=user) == 201
    http.delete("/v1/data", params={"user": "u"})
    assert [each.account for _, each in service.store.tail_feedback()] == ["local/v"] and rows(service, REPLIES) == 1
    service.keeper.tidy(time.time() + 2 * 86400)
    assert rows(service, FEEDBACK) == rows(service, REPLIES) == 0


def rows(service, table) -> int:
    with service.store.reading() as connection:
        return len(connection.execute(table.select()).all())


def test_without_consent_nothing_is_kept(renderer, tmp_path):
    token = keys.add(tmp_path / "keys.json", "bob", consent=False, per_minute=0, concurrent=0)
    service = Service(
        {"agent": Scripted(lambda view: say("Yes."), renderer)}, options(tmp_path, keys=str(tmp_path / "keys.json"))
    )
    with serving(service) as url, httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as http:
        (id,) = chat(http, "hello")
        refused = http.post("/v1/feedback", json={"target": id, "value": 1})
        assert refused.status_code == 403 and "nothing is kept to learn from" in refused.text
        assert sealed(service) == [] and rows(service, REPLIES) == 0


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_comes_when_the_same_is_kept(http, service, data):
    """Order independence across the moment at which a session becomes an episode: early, late, twice."""
    ids = chat(http, "hello", f"and {time.time_ns()}")
    facts = [
        {"target": ids[0], "value": 1, "key": f"a {ids[0]}".replace(" ", ""), "time": 3},
        {"target": ids[1], "kind": "edit", "text": "line one", "key": f"b{ids[0]}", "time": 1},
        {"target": ids[1], "kind": "follow_up", "text": "and?", "key": f"c{ids[0]}", "time": 2},
    ]
    order = data.draw(st.permutations(facts + data.draw(st.lists(st.sampled_from(facts), max_size=3))))
    at = data.draw(st.integers(0, len(order)))
    statuses = [http.post("/v1/feedback", json=each).status_code for each in order[:at]]
    episode = next(each for each in sealed(service) if each.id.endswith(ids[0].removeprefix("chatcmpl-")))
    statuses += [http.post("/v1/feedback", json=each).status_code for each in order[at:]]
    assert sorted(statuses) == [200] * (len(order) - 3) + [201] * 3
    assert [each.kind for each in service.store.feedback(episode.id)] == ["edit", "follow_up", "vote"]
    assert service.store.feedback(episode.id)[0].original == "line one\nanswer 3"
