"""Law 9 for the store: kill any writer at any moment, and what is there is whole."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest

from tests.laws.walks import pruning
from trivium.errors import CorruptError, InputError, LawError
from trivium.trace import Episode, Score, Segment, Store, Task, decode, encode


def numbered(episode: Episode, number: int) -> Episode:
    return Episode(f"e/{number}", Task(f"t{number % 3}", "?"), number, 0, episode.threads, episode.ops)


@pytest.fixture(scope="module")
def episode(renderer) -> Episode:
    return asyncio.run(pruning(renderer))[0]


def _write_for_ever(path: str, data: bytes, number: int) -> None:
    store, episode = Store(path), decode(data)
    while True:
        batch = [numbered(episode, number + n) for n in range(4)]
        store.write(batch, [Score(e.id, "f1", 0.5, "test") for e in batch])
        number += 4


def test_a_killed_writer_leaves_whole_batches(tmp_path, episode):
    path = str(tmp_path / "store.db")
    written, last = 0, 0
    for delay in (0.0, 0.01, 0.03, 0.1):
        process = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(path, encode(episode), written))
        process.start()
        while not Store(path).tail(after=last, limit=1):  # cheap: what is read while it writes would grow without end
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        store = Store(path)
        found = list(store.select())
        written, last = len(found), store.tail(after=last, limit=1_000_000)[-1][0]
        assert found and written % 4 == 0
        assert all(len(store.scores(e.id)) == 1 for e in found)
        store.close()


def test_a_repeated_write_changes_nothing(tmp_path, episode):
    store = Store(tmp_path / "store.db")
    batch = [numbered(episode, n) for n in range(3)]
    for _ in range(2):
        store.write(batch, [Score(e.id, "f1", 0.5, "test") for e in batch])
    assert [e.id for e in store.select()] == ["e/0", "e/1", "e/2"]
    assert len(store.scores("e/1")) == 1
    store.score([Score("e/1", "human", 1.0, "me")])
    store.score([])
    assert [s.name for s in store.scores("e/1")] == ["f1", "human"]


def test_a_store_torn_inside_is_named(tmp_path, episode):
    store = Store(tmp_path / "store.db")
    store.write([numbered(episode, n) for n in range(40)])
    store.close()
    file = tmp_path / "store.db"
    whole = file.read_bytes()
    file.write_bytes(whole[:8192] + b"x" * (len(whole) - 8192))
    with pytest.raises(CorruptError, match="store.db"):
        list(Store(file).select())


def test_select_and_tail(tmp_path, episode):
    store = Store(tmp_path / "store.db")
    store.write([numbered(episode, n) for n in range(6)])
    assert [e.id for e in store.select(task="t1")] == ["e/1", "e/4"]
    assert [e.id for e in store.select(prefix="e/", limit=2)] == ["e/0", "e/1"]
    first = store.tail(limit=4)
    assert [e.id for _, e in first] == ["e/0", "e/1", "e/2", "e/3"]
    assert [e.id for _, e in store.tail(after=first[-1][0])] == ["e/4", "e/5"]


def test_a_store_that_cannot_be_opened_or_written_is_named_and_keeps_what_it_has(tmp_path, episode, monkeypatch):
    for url, told in (("mysql://x/y", "and not mysql"), ("://", "is no URL"), ("postgresql+none://x/y", "is no URL")):
        with pytest.raises(InputError, match=told):
            Store(url)
    with pytest.raises(InputError, match=r"no/such/store\.db cannot be opened"):
        Store(tmp_path / "no" / "such" / "store.db")
    monkeypatch.setattr("trivium.trace.schema.PATIENCE", 0)
    store = Store(tmp_path / "store.db")
    store.write([numbered(episode, 0)])
    with closing(sqlite3.connect(tmp_path / "store.db")) as other:
        other.execute("begin immediate")
        with pytest.raises(InputError, match="cannot be written: database is locked"):
            store.write([numbered(episode, 1)])
    store.write([numbered(episode, 2)])
    assert [e.id for e in store.select()] == ["e/0", "e/2"]


def test_a_foreign_or_torn_store_is_named(tmp_path, episode):
    (tmp_path / "store.db").write_text("this is no database, but a note to myself" * 50)
    with pytest.raises(CorruptError, match="no episode store"):
        Store(tmp_path / "store.db")
    data = encode(episode)
    foreign, other = "no Trivium episode .the magic number is missing", "has schema 99, this Trivium reads schema 1"
    for torn, told in (
        *((data[:length], foreign) for length in (0, 3, 4)),
        *((data[:length], "a stored episode is torn") for length in (5, len(data) - 20)),
        (b"nonsense" + data, foreign),
        (data[:4] + b"\x63" + data[5:], other),
    ):
        with pytest.raises(CorruptError, match=told):
            decode(torn)


@pytest.mark.parametrize("table", ["orders (id INTEGER)", "scores (id INTEGER, points INTEGER)"])  # one has a name of ours
def test_somebody_elses_database_is_left_as_it_was(tmp_path, table):
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as shop, shop:
        shop.execute(f"CREATE TABLE {table}")
    before = file.read_bytes()
    with pytest.raises(CorruptError, match=f"shop.db is no episode store: it is a database of {table.split()[0]}"):
        Store(file)
    assert file.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == ["shop.db"]
    if table.startswith("orders"):  # asked for by its url it may hold both
        assert not list(Store(f"sqlite:///{file}").select())


@pytest.mark.parametrize("value", [np.float32(1), 2**70, "half \ud83d"])
def test_a_truth_that_no_bytes_are_written_of_is_named(episode, value):
    with pytest.raises(InputError, match="e/7 cannot be stored .* JSON-like"):
        encode(Episode("e/7", Task("t", "?", {"score": value}), 0, 0, episode.threads))


@pytest.mark.parametrize("truth", ["Paris", {1: "x"}, None])
def test_a_truth_that_could_not_be_read_back_is_no_truth(truth):
    with pytest.raises(InputError, match="task q1: its truth is a dict by names"):
        Task("q1", "What?", truth)


def test_tokens_without_versions_are_of_no_age():
    with pytest.raises(LawError, match="2 tokens of 0 versions"):
        Segment().speak([1, 2], [-1.0, -1.0], [])


def test_a_flipped_bit_is_no_other_episode(episode):
    whole, rng = encode(episode), random.Random(0)
    for place in rng.sample(range(len(whole)), min(300, len(whole))):
        rotten = bytearray(whole)
        rotten[place] ^= 1 << rng.randrange(8)
        try:
            assert encode(decode(bytes(rotten))) == whole  # a bit that nobody reads; episodes with NaN in them equal none
        except CorruptError:
            pass


@pytest.mark.parametrize("name", ["beta?1", "100%20", "a#b", "é x"])
def test_a_store_lies_where_its_path_says(tmp_path, episode, name):
    folder = tmp_path / name
    folder.mkdir()
    Store(folder / "store.db").write([numbered(episode, 0)])
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (folder / "store.db").is_file() and len(list(Store(folder / "store.db").select())) == 1


def test_case_tells_ids_apart_and_first_scores_are_those_of_then(tmp_path, episode):
    store = Store(tmp_path / "store.db")
    big = Episode("E/0", Task("t", "?"), 0, 0, episode.threads, episode.ops)
    store.write([numbered(episode, 0), big], [Score("e/0", "reward", 1.0, "judge")])
    store.score([Score("e/0", "reward", -5.0, "critic"), Score("e/0", "tone", 0.5, "critic", thread="1")])
    assert [e.id for e in store.select(prefix="e/")] == ["e/0"] and [e.id for e in store.select(prefix="E")] == ["E/0"]
    assert store.first_scores("e/0") == {"reward": 1.0}


def test_own_scores_are_the_first_scorers_whoever_is_called_like_it(tmp_path, episode):
    store = Store(tmp_path / "store.db")
    own = [Score("e/0", name, 0.5, "scorer") for name in ("reward", "a/reward")]
    store.write([numbered(episode, 0)], own)
    store.score([Score("e/0", "human", 1.0, "critic")])
    store.score([Score("e/0", name, 0.9, "scorer") for name in ("reward", "b/reward", "b/human")])
    assert store.own_scores("e/0") == {"reward": 0.5, "a/reward": 0.5}
