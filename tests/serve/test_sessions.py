"""Which requests extend which: segments that go on, cuts that are recorded, and sessions by header, by calls and by tokens."""

from __future__ import annotations

import httpx
import pytest

from tests.policy.test_template import plain
from tests.serve.house import ADD, adding, options, sealed, serving
from trivium.engine import Engine
from trivium.policy import Scripted
from trivium.serve.service import Service
from trivium.trace import Restart, rows

HI = {"role": "user", "content": "hi"}
MORE = {"role": "user", "content": "and more"}


@pytest.fixture
def service(tiny_model, renderer, tmp_path):
    engine = Engine(tiny_model, slots=4, context=2048, name="tiny")
    return Service({"script": Scripted(adding, renderer), "tiny": engine}, options(tmp_path))


@pytest.fixture
def http(service):
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


def ask(http, messages, model="tiny", session="", **more) -> dict:
    headers = {"X-Trivium-Session": session} if session else {}
    body = {"model": model, "messages": messages, "max_tokens": 8, "seed": 1, **more}
    answer = http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    extra = {"session": answer.headers["x-trivium-session"], "tokens": told["usage"]["completion_tokens"]}
    return told["choices"][0]["message"] | extra


def said(answer: dict) -> dict:
    return {key: value for key, value in answer.items() if key in ("role", "content", "tool_calls")}


def test_a_conversation_that_goes_on_is_one_segment_by_its_sampled_tokens(http, service):
    one = ask(http, [HI])
    two = ask(http, [HI, said(one), MORE])
    three = ask(http, [HI, said(one), MORE, said(two), MORE])
    assert one["session"] == two["session"] == three["session"]
    (episode,) = sealed(service)
    (segment,) = episode.agent.segments
    assert [span.kind for span in segment.spans] == ["prompt", "sampled", "message", "sampled", "message", "sampled"]
    assert episode.ops == [] and rows(episode, ["tiny"])[0].trained == one["tokens"] + two["tokens"] + three["tokens"]


def test_a_context_that_was_pruned_begins_a_segment_with_a_recorded_restart(http, service):
    one = ask(http, [HI], session="mine")
    two = ask(http, [HI, said(one), MORE], session="mine")
    three = ask(http, [HI, MORE], session="mine")
    (episode,) = sealed(service)
    (cut,) = episode.ops
    first, second = episode.agent.segments
    assert isinstance(cut, Restart) and cut.author == "client" and cut.reason == "another context"
    assert (cut.before.position, cut.after.position) == (len(first.tokens), second.carried) and second.carried > 0
    assert [row.trained for row in rows(episode, ["tiny"])] == [one["tokens"] + two["tokens"], three["tokens"]]
    assert two["session"] == episode.session == "mine"


def test_what_answers_our_calls_is_of_their_session_however_it_was_cut(http, service):
    one = ask(http, [HI], model="script", tools=[ADD], max_tokens=200)
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "5"} for each in one["tool_calls"]]
    two = ask(
        http,
        [{"role": "user", "content": "a summary instead"}, said(one), *results],
        model="script",
        tools=[ADD],
        max_tokens=200,
    )
    assert one["session"] == two["session"]
    (episode,) = sealed(service)
    assert [type(op) for op in episode.ops] == [Restart] and [call.pieces[0].text for call in episode.agent.calls] == ["5", "5"]


def test_a_model_that_its_own_template_speaks_for_reads_what_its_tools_returned(tmp_path):
    renderer = plain(tmp_path)
    service = Service({"script": Scripted(adding, renderer)}, options(tmp_path))
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as http:
        one = ask(http, [HI], model="script", tools=[ADD], max_tokens=200)
        results = [{"role": "tool", "tool_call_id": each["id"], "content": "it is 5"} for each in one["tool_calls"]]
        ask(http, [HI, said(one), *results], model="script", tools=[ADD], max_tokens=200)
        (episode,) = sealed(service)
    (segment,) = episode.agent.segments
    assert renderer.decode(segment.tokens).count("<tool_response>\nit is 5\n</tool_response>") == 2


def test_one_exchange_extended_twice_is_learned_from_once(http, service):
    one = ask(http, [HI])
    two = ask(http, [HI, said(one), MORE])
    three = ask(http, [HI, said(one), {"role": "user", "content": "something else"}])
    (episode,) = sealed(service)
    assert [op.reason for op in episode.ops] == ["an earlier exchange was extended again"]
    assert [row.trained for row in rows(episode, ["tiny"])] == [one["tokens"] + two["tokens"], three["tokens"]]


def test_two_that_say_the_same_are_two_sessions(http, service):
    ask(http, [HI])
    ask(http, [HI])
    assert len(sealed(service)) == 2


def test_a_client_that_writes_its_messages_anew_is_known_by_its_tokens(http, service):
    one = ask(http, [HI], model="script", tools=[ADD], max_tokens=200)
    renamed = [{**each, "id": f"other_{number}"} for number, each in enumerate(one["tool_calls"])]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "5"} for each in renamed]
    ask(http, [HI, {**said(one), "tool_calls": renamed}, *results], model="script", tools=[ADD], max_tokens=200)
    (episode,) = sealed(service)
    assert len(episode.agent.segments) == 1 and episode.ops == []


def test_a_session_that_was_sealed_goes_on_in_another_episode(http, service):
    one = ask(http, [HI])
    (first,) = sealed(service)
    two = ask(http, [HI, said(one), MORE])
    again, second = sealed(service)
    assert again.id == first.id and second.session == first.session
    assert second.agent.segments[0].tokens[: len(first.agent.segments[0].tokens)] == first.agent.segments[0].tokens
    assert [row.trained for each in (first, second) for row in rows(each, ["tiny"])] == [one["tokens"], two["tokens"]]


def test_another_server_on_the_store_goes_on_where_this_one_was(http, service, tiny_model, tmp_path):
    one = ask(http, [HI])
    other = Service({"tiny": Engine(tiny_model, slots=2, context=2048, name="tiny")}, options(tmp_path))
    with serving(other) as url, httpx.Client(base_url=url, timeout=60) as second:
        two = ask(second, [HI, said(one), MORE])
        three = ask(http, [HI, said(one), MORE, said(two), MORE])  # of which this server remembers the beginning alone
    assert one["session"] == two["session"] == three["session"]
    (episode,) = sealed(service)
    assert len(episode.agent.segments) == 1
