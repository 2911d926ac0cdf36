"""PostgreSQL, a real server: two server processes on one database, a database that goes and comes back, and kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.postgres import BINARIES, WHY, Cluster
from tests.serve.house import adding, options, sealed, serving
from trivium.policy import Scripted
from trivium.serve.options import Options
from trivium.serve.service import Service
from trivium.trace import Store

pytest.importorskip("psycopg", reason="a PostgreSQL database needs psycopg: pip install psycopg[binary]")
if BINARIES is None:
    pytest.skip(WHY, allow_module_level=True)


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        cluster.remove()


@contextmanager
def process(store: str, folder) -> Generator[tuple[subprocess.Popen, str]]:
    """A server of its own process, and its URL."""
    command = [sys.executable, "-m", "tests.serve.stand", store, str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ})
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        yield server, line.split(" at ")[1].strip().removesuffix("/v1")
    finally:
        server.kill()
        server.wait(60)


def converse(urls: list[str], number: int, turns: int) -> list[str]:
    """A conversation whose turns go to one server after the other. Returns the ids of the replies."""
    messages, ids = [{"role": "user", "content": f"conversation {number}"}], []
    for turn in range(turns):
        body = {"model": "script", "messages": messages}
        answer = httpx.post(f"{urls[turn % len(urls)]}/v1/chat/completions", json=body, timeout=200)
        assert answer.status_code == 200, answer.text
        ids.append(answer.json()["id"].removeprefix("chatcmpl-"))
        said = {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]}
        messages = [*messages, said, {"role": "user", "content": f"turn {turn}"}]
    return ids


@pytest.mark.slow
def test_two_processes_on_one_database_share_their_sessions(cluster, tiny_model, renderer, tmp_path):
    url = cluster.database("two")
    with process(url, tiny_model) as (one, first), process(url, tiny_model) as (_, second):
        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda number: converse([first, second], number, 4), range(8)))
        one.send_signal(signal.SIGTERM)
        assert one.wait(60) in (0, -signal.SIGTERM)  # uvicorn ends as it was asked to
    services = [Service({"script": Scripted(adding, renderer)}, options(tmp_path, store=url)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:  # both make episodes of the same sessions
        list(pool.map(sealed, services))
    episodes = list(Store(url).select("served/"))
    assert len(episodes) == 8 and {episode.id.removeprefix("served/") for episode in episodes} == {line[0] for line in ids}
    assert all(len(episode.agent.segments) == 1 and episode.agent.turns == 4 for episode in episodes)


@pytest.mark.slow
def test_a_killed_server_loses_nothing_that_it_acknowledged(cluster, tiny_model, renderer):
    url = cluster.database("killed")
    with process(url, tiny_model) as (server, address):
        ids = converse([address], 0, 3)
        server.send_signal(signal.SIGKILL)
        server.wait(60)
    with process(url, tiny_model) as (_, address):
        assert len(converse([address], 1, 1)) == 1
    service = Service({"script": Scripted(adding, renderer)}, Options(port=0, store=url))
    kept = {each.id for place in service.exchanges.over(float("inf")) for each in service.exchanges.session(*place)}
    assert set(ids) < kept and len(kept) == 4


def test_a_database_that_goes_and_comes_back_loses_nothing(cluster, renderer, tmp_path):
    url = cluster.database("away")
    service = Service({"script": Scripted(adding, renderer)}, options(tmp_path, store=url))
    service.recorder.patience = 120
    with serving(service) as address:
        ids = converse([address], 0, 2)
        cluster.stop()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(converse, [address], 1, 1)  # it is patient for some seconds
            cluster.start()
            ids += waiting.result()
        ids += converse([address], 2, 2)
        kept = {each.id for place in service.exchanges.over(float("inf")) for each in service.exchanges.session(*place)}
    assert kept == set(ids)


def test_a_database_that_stays_away_is_told(cluster, renderer, tmp_path):
    url = cluster.database("gone")
    service = Service({"script": Scripted(adding, renderer)}, options(tmp_path, store=url))
    service.recorder.patience = 0.2
    with serving(service) as address:
        cluster.stop()
        body = {"model": "script", "messages": [{"role": "user", "content": "hi"}]}
        refused = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=200)
        cluster.start()
        assert (
            refused.status_code == 503
            and refused.headers["retry-after"]
            and "full or away" in refused.text
            and "postgres" not in refused.text
        )
        assert converse([address], 0, 1)


def test_feedback_that_two_servers_are_sent_is_kept_once(cluster, renderer, tmp_path):
    url = cluster.database("feedback")
    services = [Service({"script": Scripted(adding, renderer)}, options(tmp_path, store=url)) for _ in range(2)]
    with serving(services[0]) as one, serving(services[1]) as two:
        (id,) = converse([one], 0, 1)
        body = {"target": id, "kind": "edit", "text": "Hello, all.", "key": "k"}
        with ThreadPoolExecutor(4) as pool:
            sent = pool.map(
                lambda number: httpx.post(f"{(one, two)[number % 2]}/v1/feedback", json=body, timeout=200), range(8)
            )
            assert sorted(each.status_code for each in sent) == [200] * 7 + [201]
        (episode,) = sealed(services[1])
        assert httpx.post(f"{two}/v1/feedback", json=body, timeout=200).status_code == 200
        assert httpx.post(f"{two}/v1/feedback", json=body | {"text": "no"}, timeout=200).status_code == 409
        (kept,) = services[0].store.feedback(episode.id)
        assert (kept.text, kept.original, kept.episode) == ("Hello, all.", "Hello.", f"served/{id}")
