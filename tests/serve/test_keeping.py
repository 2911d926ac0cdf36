"""What becomes of what is kept: redaction by rule, retention, and sessions that end."""

from __future__ import annotations

import time
from types import SimpleNamespace

import httpx
import pytest
import re2
from sqlalchemy import func, select, update

from tests.serve.house import options, sealed, serving
from trivium.errors import CorruptError, InputError
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.serve import sessions
from trivium.serve.assemble import episode_of
from trivium.serve.exchange import EXCHANGES
from trivium.serve.redact import Rules, redacted
from trivium.serve.service import Service
from trivium.trace import Call, Episode, Piece, Segment, Task, Thread, rows
from trivium.trace.schema import EPISODES

MAIL = r"[^\s@]+@[\w.]+"


def service_of(renderer, tmp_path, **changes) -> Service:
    return Service({"script": Scripted(lambda view: say("Noted, as you say."), renderer)}, options(tmp_path, **changes))


def ask(url: str, *texts: str) -> None:
    with httpx.Client(base_url=url, timeout=60) as http:
        messages = []
        for text in texts:
            messages.append({"role": "user", "content": text})
            answer = http.post("/v1/chat/completions", json={"model": "script", "messages": messages})
            messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})


def test_what_matches_a_rule_is_neither_text_nor_tokens_of_an_episode(renderer, tmp_path):
    (tmp_path / "rules").write_text(f"{MAIL}\n\nsecret \\d+\n")
    service = service_of(renderer, tmp_path, redact=str(tmp_path / "rules"))
    with serving(service) as url:
        ask(url, "hello", "I am ann@house.example, secret 1234, żółć@house.example")
        (episode,) = sealed(service)
    data = renderer.decode(episode.agent.segments[0].tokens)
    assert "house" not in data and "1234" not in data and "ann" not in data and "I am x" in data
    assert rows(episode, ["script"])[0].trained == len(renderer.reply(say("Noted, as you say.")))  # the first reply alone


def episode(renderer) -> Episode:
    segment = Segment()
    segment.append(renderer.encode("ask "), "prompt")
    for text in ("one", "write to ann@house.example now", "two"):
        tokens = renderer.encode(text)
        segment.speak(tokens, [-1.0] * len(tokens), [3] * len(tokens))
    done = Call("c", 0, "mail", {"to": ["ann@house.example"]}, [Piece("sent to ann@house.example")])
    task = Task("t", "mail ann@house.example", messages=[{"role": "user", "content": "ann@house.example"}])
    return Episode("served/1", task, threads=[Thread("0", "agent", [segment], [done], "told ann@house.example")])


def test_a_reply_that_matches_is_context_and_so_is_all_behind_it(renderer):
    clean = redacted(episode(renderer), Rules((re2.compile(MAIL),)), lambda name: renderer)
    (row,) = rows(clean, ["agent"])
    assert renderer.decode(row.tokens[row.mask].tolist()) == "one" and set(row.versions[row.mask].tolist()) == {3}
    assert "house" not in repr(clean) and "house" not in renderer.decode(clean.agent.segments[0].tokens)
    assert clean.agent.answer == "told [redacted]" and clean.task.prompt == "mail [redacted]"


@pytest.mark.parametrize("rule", ["(", "(?<=a)b"])
def test_a_rule_that_is_no_pattern_is_named_with_its_line(tmp_path, rule):
    (tmp_path / "rules").write_text(f"fine\n{rule}\n")
    with pytest.raises(InputError, match="line 2"):
        Rules.load(str(tmp_path / "rules"))


def test_exchanges_go_when_nothing_can_extend_them_and_episodes_when_they_are_old(renderer, tmp_path):
    service = service_of(renderer, tmp_path, retention=1.0, idle=100.0, seconds=10.0)
    with serving(service) as url:
        ask(url, "hello")
        now, keeper = time.time(), service.keeper
        keeper.tidy(now + 50)
        assert (exchanges(service), len(list(service.store.select()))) == (1, 0)
        assert keeper.tidy(now + 150) == 1 and keeper.tidy(now + 150) == 0
        assert (exchanges(service), len(list(service.store.select()))) == (1, 1)
        keeper.tidy(now + 250)
        assert (exchanges(service), len(list(service.store.select()))) == (0, 1)
        keeper.tidy(now + 2 * 86400)
        assert list(service.store.select()) == []


def test_a_session_that_cannot_be_an_episode_keeps_nothing_else_from_its_end(renderer, tmp_path, caplog):
    (tmp_path / "rules").write_text(f"{MAIL}\n")
    changes = {"redact": str(tmp_path / "rules"), "retention": 1.0, "idle": 100.0}
    with serving(service_of(renderer, tmp_path, **changes)) as url:
        ask(url, "hello")
    another = Service({"agent": Scripted(lambda view: say("Yes."), renderer, name="agent")}, options(tmp_path, **changes))
    with serving(another) as url, httpx.Client(base_url=url, timeout=60) as http:
        http.post("/v1/chat/completions", json={"model": "agent", "messages": [{"role": "user", "content": "hi"}]})
        assert another.keeper.tidy(time.time() + 150) == 1 and "nobody here reads the tokens" in caplog.text
        assert [each.agent.policy for each in another.store.select()] == ["agent"]
        another.keeper.tidy(time.time() + 2 * 86400)
        assert (exchanges(another), list(another.store.select())) == (0, [])


def test_a_session_that_goes_on_is_kept_whole_until_its_last_exchange_is_old(renderer, tmp_path):
    service = service_of(renderer, tmp_path, retention=1.0)
    with serving(service) as url:
        ask(url, "hello", "more")
        make_older(service, EXCHANGES)
        service.keeper.tidy()
        (episode,) = sealed(service)
        (segment,) = episode.agent.segments
        assert [span.kind for span in segment.spans] == ["prompt", "sampled", "message", "sampled"]
        service.keeper.tidy(time.time() + 2 * 86400)
        assert (exchanges(service), list(service.store.select())) == (0, [])


def test_exchanges_that_stay_without_their_episode_are_part_of_none(renderer, tmp_path):
    service = service_of(renderer, tmp_path, retention=1.0)
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as http:
        ask(url, "hello")
        (old,) = sealed(service)
        go_on(url)
        make_older(service, EXCHANGES)
        make_older(service, EPISODES)
        service.keeper.tidy()
        assert (exchanges(service), list(service.store.select())) == (2, [])
        vote = {"target": old.id.removeprefix("served/"), "value": 1}
        assert http.post("/v1/feedback", json=vote).status_code == 404 and service.store.tail_feedback() == []
        (new,) = sealed(service)
        assert new.session == old.session and new.agent.segments[0].tokens[: len(tokens_of(old))] == tokens_of(old)


def test_nothing_goes_on_from_what_may_be_gone_before_its_reply(renderer, tmp_path, monkeypatch):
    service = service_of(renderer, tmp_path, retention=20 / 86400, seconds=10.0)
    with serving(service) as url:
        ask(url, "hello")
        now = time.time() + 15
        monkeypatch.setattr(sessions, "time", SimpleNamespace(time=lambda: now))
        go_on(url)
        monkeypatch.undo()
        (first, second) = (each for place in service.exchanges.over(float("inf")) for each in service.exchanges.session(*place))
        assert second.parent == "" and second.session != first.session


def test_half_a_conversation_is_no_episode_and_nothing_goes_on_from_it(renderer, tmp_path, caplog):
    service = service_of(renderer, tmp_path)
    with serving(service) as url:
        ask(url, "hello", "more")
    with service.store.writing() as connection:  # as a deletion may that comes while a reply is under way
        connection.execute(EXCHANGES.delete().where(EXCHANGES.c.seq == 1))
    ((account, session),) = service.exchanges.over(float("inf"))
    (half,) = service.exchanges.session(account, session)
    with pytest.raises(CorruptError, match=f"exchange {half.id} goes on from {half.parent}"):
        episode_of([half])
    with serving(service_of(renderer, tmp_path)) as url, httpx.Client(base_url=url, timeout=60) as http:
        body = {"model": "script", "input": "and?", "previous_response_id": f"resp_{half.id}"}
        assert http.post("/v1/responses", json=body).status_code == 404
        go_on(url, NOTED, {"role": "user", "content": "and?"})
    (episode,) = sealed(service)
    assert episode.session != session and "is torn" in caplog.text
    (whole,) = service.exchanges.session(account, episode.session)
    assert tokens_of(episode_of([whole], [half])) == tokens_of(episode)  # what begins anew beside it is whole
    assert service.keeper.tidy(time.time() + 2 * service.options.idle + service.options.seconds + 1) == 0
    assert exchanges(service) == 0


NOTED = {"role": "assistant", "content": "Noted, as you say."}
HELLO = [{"role": "user", "content": "hello"}, NOTED, {"role": "user", "content": "more"}]


def go_on(url: str, *messages) -> None:
    """Go on with the conversation that `ask` began."""
    body = {"model": "script", "messages": [*HELLO, *messages]}
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def make_older(service, table) -> None:
    """Let 25 hours pass for the first row of a table."""
    with service.store.writing() as connection:
        first = select(func.min(table.c.seq)).scalar_subquery()
        connection.execute(update(table).where(table.c.seq == first).values(ended=table.c.ended - 25 * 3600))


def tokens_of(episode: Episode) -> list[int]:
    return episode.agent.segments[0].tokens


def exchanges(service) -> int:
    with service.store.reading() as connection:
        return len(connection.execute(EXCHANGES.select()).all())


def test_a_session_under_way_is_not_over(renderer, tmp_path):
    service = service_of(renderer, tmp_path)
    with serving(service) as url:
        ask(url, "hello", "more")
        assert service.keeper.tidy() == 0 and list(service.store.select()) == []
        assert len(sealed(service)) == 1


def test_a_tool_call_is_kept_with_its_result(renderer, tmp_path):
    policy = Scripted([call(("look", {"at": "it"}))], renderer)
    service = Service({"script": policy}, options(tmp_path))
    spec = {
        "type": "function",
        "function": {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}},
    }
    with serving(service) as url, httpx.Client(base_url=url) as http:
        body = {"model": "script", "messages": [{"role": "user", "content": "go"}], "tools": [spec]}
        assert http.post("/v1/chat/completions", json=body).json()["choices"][0]["finish_reason"] == "tool_calls"
        (episode,) = sealed(service)
    assert [(each.name, each.arguments, each.pieces) for each in episode.agent.calls] == [("look", {"at": "it"}, [])]
    assert "came back no more" in episode.agent.stop.detail
