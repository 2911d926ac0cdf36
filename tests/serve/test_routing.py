"""A canary answers its share of the users, always the same ones; who answered is on each episode; a record decides."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass, field

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.house import options, sealed, serving, until
from trivium.engine import Engine
from trivium.errors import InputError
from trivium.harness import Harness, Window
from trivium.policy import Scripted
from trivium.policy.scripted import say
from trivium.serve import following
from trivium.serve.aside import Aside
from trivium.serve.following import Deployed
from trivium.serve.keys import LOCAL, Caller
from trivium.serve.routing import Lane, Route, Wanted, is_drawn
from trivium.serve.service import Service
from trivium.trace.people import user_of


@dataclass
class Record:
    """One in memory, whose deployments say their names."""

    renderer: object
    now: Wanted
    loaded: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    broken: list[Exception] = field(default_factory=list)

    def wanted(self) -> Wanted:
        if self.broken:
            raise self.broken.pop()
        return self.now

    def load(self, deployment: str) -> Scripted:
        if deployment in self.gone:
            raise InputError(f"{deployment} is gone")
        self.loaded.append(deployment)
        return Scripted(lambda view: say(f"I am {deployment}."), self.renderer, name="agent")


@pytest.fixture
def record(renderer):
    return Record(renderer, Wanted("7"))


@pytest.fixture
def service(record, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "EVERY", 0.01)
    return Service({"agent": Deployed(record)}, options(tmp_path), Harness([], Window(2048)))


@pytest.fixture
def http(service):
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


def ask(http, user: str = "", session: str = "", before=()) -> tuple[str, list]:
    """Who answers, and the conversation so far."""
    messages = [*before, {"role": "user", "content": "who are you?"}]
    body = {"model": "agent", "messages": messages} | ({"user": user} if user else {})
    headers = {"X-Trivium-Session": session} if session else {}
    answer = http.post("/v1/chat/completions", json=body, headers=headers).json()["choices"][0]["message"]["content"]
    return answer.removeprefix("I am ").removesuffix("."), [*messages, {"role": "assistant", "content": answer}]


def deploy(service, record, *wanted) -> None:
    record.now = Wanted(*wanted)
    names = [name for name in wanted[:2] if name]
    until(lambda: [lane.deployment for lane in service.routes["agent"].lanes] == names)


USERS = [f"user {number}" for number in range(16)]


def test_a_share_of_the_users_is_answered_by_the_canary_and_always_the_same(http, service, record):
    deploy(service, record, "7", "8", 0.5)
    first = {user: ask(http, user)[0] for user in USERS}
    assert {ask(http, user)[0] == name for user, name in first.items()} == {True}
    assert first == {user: "8" if is_drawn(f"local/{user}", "8", 0.5) else "7" for user in USERS}
    assert 3 < list(first.values()).count("8") < 13
    id = http.post("/v1/episodes", json={"input": "who?", "user": USERS[0]}).json()["id"]
    assert f"I am {first[USERS[0]]}." in http.get(f"/v1/episodes/{id}/events").text
    episodes = sealed(service)
    assert len(episodes) == 2 * len(USERS) + 1
    for episode in episodes:
        assert episode.agent.answer == f"I am {episode.deployment}."
        assert episode.propensity == 0.5 and episode.deployment == first[episode.account.removeprefix("local/")]


def test_who_names_no_user_is_drawn_by_the_conversation(http, service, record):
    deploy(service, record, "7", "8", 0.5)
    assert {ask(http, session=f"s{number}")[0] for number in range(10)} == {"7", "8"}
    for episode in sealed(service):
        assert (episode.deployment == "8") == is_drawn(episode.session, "8", 0.5)


def test_a_conversation_stays_with_whom_it_began(http, service, record):
    user = next(user for user in USERS if is_drawn(f"local/{user}", "8", 0.3))
    name, messages = ask(http, user)
    deploy(service, record, "7", "8", 0.3)
    assert (name, ask(http, user, before=messages)[0], ask(http, user)[0]) == ("7", "7", "8")
    told = {(each.deployment, each.propensity, each.agent.turns) for each in sealed(service)}
    assert told == {("7", 1.0, 2), ("8", 0.3, 1)}


def test_an_alarm_ends_a_canary_and_a_conversation_of_two_is_nobodys(http, service, record):
    user = next(user for user in USERS if is_drawn(f"local/{user}", "8", 0.3))
    deploy(service, record, "7", "8", 0.3)
    name, messages = ask(http, user)
    deploy(service, record, "7")
    assert (name, ask(http, user, before=messages)[0], ask(http, user)[0]) == ("8", "7", "7")
    assert {(each.deployment, each.propensity) for each in sealed(service)} == {("", 0.0), ("7", 1.0)}


def test_a_promoted_canary_is_loaded_once_and_what_is_gone_is_told(http, service, record):
    deploy(service, record, "7", "8", 0.3)
    deploy(service, record, "8")
    assert record.loaded == ["7", "8"] and ask(http)[0] == "8"
    record.gone = {"9"}
    deploy(service, record, "8")
    record.now = Wanted("8", "9", 0.9)
    until(lambda: 'trivium_swaps_total{outcome="refused"} 1.0' in http.get("/metrics").text)
    assert ask(http)[0] == "8"
    record.now = Wanted("9", "7", 0.0)  # an incumbent that is gone: who served serves on, and the rest is done
    until(lambda: len(service.routes["agent"].lanes) == 2)
    assert ask(http)[0] == "8"
    record.gone = set()
    deploy(service, record, "9", "7", 0.0)
    assert ask(http)[0] == "9"


def test_a_record_that_cannot_be_read_once_is_followed_on(http, service, record):
    deploy(service, record, "8")
    record.broken = [OSError(24, "Too many open files")]
    until(lambda: 'trivium_swaps_total{outcome="refused"} 1.0' in http.get("/metrics").text)
    deploy(service, record, "7")  # a rollback
    assert ask(http)[0] == "7"


def test_a_server_does_not_begin_without_its_incumbent(record):
    record.gone = {"7"}
    with pytest.raises(InputError, match="7 is gone"):
        Deployed(record)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_keeps_whom_a_smaller_one_drew(user, one, other):
    if is_drawn(user, "8", min(one, other)):
        assert is_drawn(user, "8", max(one, other))
    assert not is_drawn(user, "8", 0.0) and is_drawn(user, "8", 1.0)


def test_another_canary_draws_others(renderer):
    drawn = [{user for user in map(str, range(2000)) if is_drawn(user, name, 0.2)} for name in ("8", "9")]
    assert all(330 < len(each) < 470 for each in drawn) and 40 < len(drawn[0] & drawn[1]) < 130
    lane = Lane("8", Scripted([], renderer))
    with pytest.raises(InputError, match="a name of its own"):
        Route(lane, lane, 0.5)
    with pytest.raises(InputError, match="from 0 to 1"):
        Route(lane, share=2.0)
    assert (user_of(Caller(LOCAL, "ann").account, "s"), user_of(Caller(LOCAL).account, "s")) == ("local/ann", "s")


def test_an_engine_that_nobody_asks_any_more_ends_its_thread(tiny_model):
    def alive() -> bool:
        return any(thread.name == "engine retired" for thread in threading.enumerate())

    aside = Aside(Engine(tiny_model, slots=1, context=64, name="retired"))
    assert alive()
    del aside
    gc.collect()
    until(lambda: not alive())
