"""The same store in PostgreSQL, on a server of its own; where there is none, or no driver, these are skipped."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest

from tests.postgres import BINARIES, WHY, Cluster, sql
from tests.trace.test_feedback import FACTS
from tests.trace.test_store import OLD_BYTES, TRICKY, episode, plans
from trivium.errors import InputError
from trivium.trace import Feedback, Score, Store, schema

pytest.importorskip("psycopg", reason="a PostgreSQL database needs psycopg: pip install psycopg[binary]")
if BINARIES is None:
    pytest.skip(WHY, allow_module_level=True)


@pytest.fixture(scope="module")
def server():
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        cluster.remove()


@pytest.fixture
def url(server, request) -> str:
    """A database of the test's own."""
    return server.database(request.node.name)


def test_what_is_written_comes_back_once(url):
    store = Store(url)
    batch = [episode(f"e/{number}", account="ann", ended=5.0) for number in range(2500)]
    for _ in range(2):
        store.write(batch, [Score(each.id, "f1", math.nan, "x", "beta=4") for each in batch])
    assert [each.id for each in store.select()] == [each.id for each in batch]
    (score,) = store.scores("e/7")
    assert math.isnan(score.value) and score.version == "beta=4" and score.time > 0
    numbered = store.tail(limit=10)
    assert [each.id for _, each in store.tail(numbered[-1][0], 2)] == ["e/10", "e/11"]
    assert store.pin("rl", "a") == store.pin("rl", "b") == "a"
    assert sql(url, "SELECT count(*) FROM episodes WHERE account = 'ann' AND ended < 6") == [(2500,)]


def test_a_prefix_is_one_by_pythons_word_whatever_the_locale(url):
    store = Store(url)
    ids = [id for id in TRICKY if id and "\x00" not in id]  # which PostgreSQL's texts cannot hold
    store.write([episode(id) for id in ids])
    for prefix in [id for id in TRICKY if "\x00" not in id]:
        assert {each.id for each in store.select(prefix)} == {id for id in ids if id.startswith(prefix)}, prefix


def test_a_text_that_it_cannot_hold_is_said_and_changes_nothing(url):
    store = Store(url)
    for id, told in (("a\x00b", "NUL"), ("half \udcff", "cannot be stored")):
        with pytest.raises(InputError, match=told):
            store.write([episode("e/0"), episode(id)])
    assert list(store.select()) == []


def test_a_prefix_is_looked_up_in_the_index(url):
    store = Store(url)
    store.write([episode(f"rl/{number % 100}/{number}") for number in range(5000)])
    sql(url, "ANALYZE episodes")
    plan = "\n".join(plans(store, "rl/7/", explain="EXPLAIN"))
    assert "episodes_id_key" in plan and "Index Cond: (((id)::text >= 'rl/7/'" in plan and "Seq Scan" not in plan, plan
    assert len(list(store.select("rl/7/"))) == 50


def test_who_keeps_the_last_number_sees_every_episode(url):
    """Numbers are given when a row is written and seen when it is committed: a second writer waits for the first."""
    one, two = Store(url), Store(url)
    with one.writing() as connection:
        connection.execute(schema.EPISODES.insert(), [{"id": "slow", "task": "t", "data": OLD_BYTES}])
        other = threading.Thread(target=two.write, args=([episode("quick")],))
        other.start()
        other.join(0.5)
        assert one.tail() == []  # else a reader would pass over the slow one's lower number
    other.join()
    assert [seq for seq, _ in one.tail()] == [1, 2]


def test_two_open_a_new_store_at_once(url):
    opened = [threading.Thread(target=Store, args=(url,)) for _ in range(4)]
    for thread in opened:
        thread.start()
    for thread in opened:
        thread.join()
    assert list(Store(url).select()) == []


def test_an_old_store_is_read_as_it_is_and_brought_up_to_date_by_who_writes(url):
    sql(
        url,
        "CREATE TABLE episodes (seq SERIAL NOT NULL, id VARCHAR NOT NULL, task VARCHAR, data BYTEA NOT NULL,"
        " PRIMARY KEY (seq), UNIQUE (id))",
        "CREATE TABLE scores (seq SERIAL NOT NULL, episode VARCHAR, name VARCHAR, value FLOAT, scorer VARCHAR,"
        " version VARCHAR, thread VARCHAR, PRIMARY KEY (seq))",
        "CREATE TABLE pins (name VARCHAR NOT NULL, value VARCHAR NOT NULL, PRIMARY KEY (name))",
        "INSERT INTO scores (episode, name, value, scorer, version, thread) VALUES ('e/0', 'f1', 0.5, 'x', '1', '')",
    )
    sql(url, "INSERT INTO episodes (id, task, data) VALUES ('e/0', 't', :data)", data=OLD_BYTES)
    reader = Store(url, readonly=True)
    assert [each.id for each in reader.select("e/")] == ["e/0"]
    assert reader.scores("e/0") == [Score("e/0", "f1", 0.5, "x")]
    with pytest.raises(InputError, match="was opened with readonly=True"):
        reader.write([episode("e/1")])
    store = Store(url)
    store.write([episode("e/1", session="s")], [Score("e/1", "f1", 0.7, "x")])
    assert [each.id for each in store.select("e/")] == ["e/0", "e/1"] and store.scores("e/1")[0].time > 0
    assert sql(url, "SELECT value FROM pins WHERE name = 'schema'") == [("3",)]


def test_feedback_is_kept_once_by_two_writers(url):
    store, other = Store(url), Store(url)
    store.write([episode("e/0"), episode("e/1", account="ann")])
    assert store.listen(FACTS[:3]) == 3 and other.listen([*FACTS[1:3], Feedback("a", "e/1", "vote")]) == 1
    writers = [threading.Thread(target=each.listen, args=([FACTS[5]],)) for each in (store, other)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert [each.id for each in other.feedback("e/0")] == ["b", "f", "c", "a"]
    with pytest.raises(InputError, match="said something else"):
        other.listen([replace(FACTS[0], value=0.5)])
    assert [seq for seq, _ in store.tail_feedback()] == sorted(seq for seq, _ in store.tail_feedback())
    assert len(store.tail_feedback()) == 5
