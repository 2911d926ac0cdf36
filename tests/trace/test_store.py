"""The store's tables: prefixes read off an index, times and versions, older files, and reading that writes nothing.

What a kill leaves: tests/laws/test_store.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.exc import DatabaseError

from trivium.errors import CorruptError, InputError
from trivium.trace import Episode, Score, Store, Task, schema

OLD_TABLES = """
    CREATE TABLE episodes (seq INTEGER NOT NULL, id VARCHAR NOT NULL, task VARCHAR, data BLOB NOT NULL,
        PRIMARY KEY (seq), UNIQUE (id));
    CREATE INDEX ix_episodes_task ON episodes (task);
    CREATE TABLE pins (name VARCHAR NOT NULL, value VARCHAR NOT NULL, PRIMARY KEY (name));
    CREATE TABLE scores (seq INTEGER NOT NULL, episode VARCHAR, name VARCHAR, value FLOAT, scorer VARCHAR, version VARCHAR,
        thread VARCHAR, PRIMARY KEY (seq));
    CREATE INDEX ix_scores_episode ON scores (episode);
"""
OLD_BYTES = bytes.fromhex(
    "7472766D0128B52FFD64A8007D090086523E2D90B73973FF87D855CFBE47234B44D68A1AC22A223FFFB0BE1FED946E12D9DBA4374A2133663CE6D3CCECA4"
    "1119320031003200EBE824681E14F9522444DCE976E329CDEDBA6C0B71A47E2D5A1D345EEA9F8BEA398ACDD757EE4D101ED7970A80B5DC9B4002F03D72E1"
    "F82EDBB7BECF07E550D9E722A39EF7910DA2216B110519E54C6C7622842516CAE13EF12F48C41F6EE4AC630F032DBD6C14220E41DACCE6F6756B4369CB03"
    "C3A1D1427B98C1F1B7A5D75E8EF6191E0E7CD8E4303EEF15C01C25B14802B62D17937F6C382BF4CAE41C2D0749EF8043BDDC3AB8B3B596417596994E19AB"
    "63F7CEC9B7D9C79781E4B4561CD5460A65830114006D23B8CC3AC28D03DB96C0AEAB34D896919A8CE1D2293EF4B297190177A031A1EE39320E59F4929911"
    "B41C38813E030505597E6551"
)
"""The episode e/0 as the code of 2026-11-27 wrote it: one segment of a prompt's token and a sampled one, one failed call."""


def episode(id: str, **known) -> Episode:
    return Episode(id, Task("t", "?"), **known)


def old_store(path: Path) -> Path:
    """A file as a run of 2026-11-27 left it, in the journal's mode of then."""
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript("PRAGMA journal_mode=WAL;" + OLD_TABLES)
        file.execute("INSERT INTO episodes VALUES (1, 'e/0', 't', ?)", (OLD_BYTES,))
        file.execute("INSERT INTO scores VALUES (1, 'e/0', 'f1', 0.5, 'x', '1', ''), (2, 'e/0', 'g', NULL, 'x', '1', '')")
        file.execute("INSERT INTO pins VALUES ('rl', '{}')")
    return path


def new_store(path: Path) -> None:
    store = Store(path)
    store.write([episode("e/0")])
    store.close()


def rows(path: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as file:
        return file.execute(query).fetchall()


@pytest.fixture
def shelf():
    """A folder that others may enter, which pytest's are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@contextlib.contextmanager
def locked(folder: Path):
    """Nobody may write in `folder` meanwhile, nor in its files; root may anywhere, so it becomes somebody else."""
    files = list(folder.iterdir())
    for path in (*files, folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for path in (folder, *files):
            path.chmod(0o755)


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -- prefixes


TRICKY = ["", "a", "A", "a/", "a/b", "a0", "a%", "a_", "%", "_", "é", "e\u0301", "\ud7ff", "\ud7ff!", "\ue000", "\U0010ffff",
          "a\U0010ffff", "a\U0010ffff\U0010ffff!", "b", "a\x00", "a\x00b", "\U00010000", "\uffff"]  # fmt: skip
texts = st.text(st.sampled_from("aAb/%_é\x00\ud7ff\ue000\uffff\U00010000\U0010ffff"), max_size=4)


@settings(max_examples=60, deadline=None)
@given(ids=st.sets(texts, min_size=1, max_size=12), prefix=texts)
@example(ids=set(TRICKY) - {""}, prefix="a\U0010ffff")
@example(ids=set(TRICKY) - {""}, prefix="\U0010ffff")
@example(ids=set(TRICKY) - {""}, prefix="\ud7ff")
def test_a_prefix_is_one_by_pythons_word(ids, prefix):
    store = Store("sqlite://")  # in memory
    store.write([episode(id) for id in sorted(ids) if id])
    assert {each.id for each in store.select(prefix)} == {id for id in ids if id.startswith(prefix) and id}


def plans(store: Store, *arguments, explain: str = "EXPLAIN QUERY PLAN") -> list[str]:
    """How the database looks for what `select` asks for."""
    statements = []
    event.listen(store._engine, "before_cursor_execute", lambda *args: statements.append(args[2:4]))
    list(store.select(*arguments))
    (statement, values) = statements[0]  # which finds their numbers
    with store._engine.connect() as connection:
        return [row[-1] for row in connection.exec_driver_sql(f"{explain} {statement}", values)]


def test_a_prefix_is_looked_up_in_the_index(tmp_path):
    """Of 200 episodes, and as SQLite plans it once it knows how they lie."""
    path = tmp_path / "store.db"
    store = Store(path)
    store.write([episode(f"rl/{number % 20}/{number}") for number in range(200)])
    for analysed in (False, True):
        for arguments in (["rl/7/"], ["rl/7/", None, 3], ["rl/", None, 1], ["\U0010ffff"]):
            found = plans(store, *arguments)
            assert any("SEARCH episodes USING COVERING INDEX sqlite_autoindex_episodes_1 (id>" in step for step in found), found
            assert not any(step.startswith("SCAN") for step in found), found
        assert [each.id for each in store.select("rl/7/", limit=2)] == ["rl/7/7", "rl/7/27"]
        if not analysed:
            store.close()
            rows(path, "ANALYZE")
            store = Store(path)


def test_a_prefix_with_half_a_character_is_said(tmp_path):
    store = Store(tmp_path / "store.db")
    with pytest.raises(InputError, match=r"store\.db cannot be read: .*surrogates"):
        list(store.select("\udcff"))  # an argument that was no text
    with pytest.raises(InputError, match=r"store\.db cannot be written: .*surrogates"):
        store.score([Score("e", "\udcff", 1.0, "me")])


def test_of_many_episodes_the_new_ones_are_appended(tmp_path):
    """More than a statement has room for, and scores of the new ones alone."""
    store = Store(tmp_path / "store.db")
    store.write([episode(f"e/{number}") for number in range(0, 3000, 2)])
    store.write([episode(f"e/{n}") for n in range(3000)], [Score(f"e/{n}", "f1", 0.5, "x") for n in range(-1, 3000)])
    assert rows(tmp_path / "store.db", "SELECT count(*) FROM episodes") == [(3000,)]
    assert rows(tmp_path / "store.db", "SELECT count(*), count(DISTINCT episode) FROM scores") == [(1501, 1501)]
    assert [len(store.scores(f"e/{number}")) for number in (-1, 0, 1)] == [1, 0, 1]


# -- what stands in columns


def test_accounts_are_told_apart_by_case_and_to_the_last_letter(tmp_path):
    names = ("acme", "acme/eve", "ACME/bob", "acme2/ann", "ac_e/x", "acm%/x")
    store = Store(tmp_path / "store.db")
    store.write([episode(name, account=name) for name in names])
    reader = Store(tmp_path / "store.db", readonly=True, account="acme")
    assert {each.id for each in reader.select()} == {"acme", "acme/eve"}
    assert {each.id for each in Store(tmp_path / "store.db", readonly=True, account="acm%").select()} == {"acm%/x"}


def test_times_deployment_session_and_account_can_be_queried(tmp_path):
    path = tmp_path / "store.db"
    Store(path).write([episode("e/0", began=10.0, ended=12.5, deployment="d1", session="s", account="ann"), episode("e/1")])
    assert rows(path, "SELECT id, ended - began, deployment, session FROM episodes WHERE account = 'ann'") == [
        ("e/0", 2.5, "d1", "s")
    ]
    assert rows(path, "SELECT began, ended, deployment, session, account FROM episodes WHERE id = 'e/1'") == [(None,) * 5]


def test_a_score_has_its_time_and_version(tmp_path):
    store, before = Store(tmp_path / "store.db"), time.time()
    store.write([episode("e/0")], [Score("e/0", "f1", 0.5, "x", "beta=4")])
    store.score([Score("e/0", "human", 1.0, "me", time=77.0)])
    first, second = store.scores("e/0")
    assert first.version == "beta=4" and before <= first.time <= time.time()
    assert second == Score("e/0", "human", 1.0, "me", "1", "", 77.0)
    assert rows(tmp_path / "store.db", "SELECT name FROM scores WHERE time < 100") == [("human",)]


def test_own_scores_are_of_the_first_scorer_and_its_version(tmp_path):
    """A resumed run learns from these: neither from a mended scorer's nor from somebody else's, whoever came second."""
    store = Store(tmp_path / "store.db")
    first = [
        Score("e/0", "reward", 0.5, "x", "beta=4"),
        Score("e/0", "part", 9.0, "x", thread="1"),
        Score("e/0", "f1", 0.6, "x", "beta=4"),
    ]
    store.write([episode("e/0")], [*first, Score("e/0", "tone", 0.1, "y", "beta=4"), Score("e/0", "more", 0.2, "x", "beta=3")])
    assert store.own_scores("e/0") == {"reward": 0.5, "f1": 0.6} and store.own_scores("e/1") == {}
    store.write([episode("e/1")], [Score("e/1", "reward", 0.5, "x", "2"), Score("e/1", "f1", 0.5, "y", "2")])
    store.write([episode("e/2")], [Score("e/2", "reward", 0.5, "x", "2"), Score("e/2", "f1", 0.5, "x", "1")])
    assert store.own_scores("e/1") == store.own_scores("e/2") == {"reward": 0.5}


def test_numbers_are_not_given_twice(tmp_path):
    """Whoever keeps the last number sees what comes next, also when somebody's episodes were deleted meanwhile."""
    store = Store(tmp_path / "store.db")
    store.write([episode("e/0"), episode("e/1", account="ann")])
    last = store.tail()[-1][0]
    with closing(sqlite3.connect(tmp_path / "store.db")) as file, file:
        file.execute("DELETE FROM episodes WHERE account = 'ann'")
    store.write([episode("e/2")])
    assert [each.id for _, each in store.tail(after=last)] == ["e/2"]
    assert [seq for seq, _ in store.tail()] == [1, 3]


# -- older and newer files


def test_an_old_store_is_read_as_it_is(tmp_path):
    path = old_store(tmp_path / "store.db")
    store = Store(path, readonly=True)
    (found,) = store.select("e/")
    assert found.task == Task("t", "?", {"a": 1}) and found.agent.segments[0].tokens == [1, 2]
    assert (found.began, found.account, found.agent.calls[0].error, found.agent.calls[0].fault) == (0.0, "", "bad", "")
    f1, g = store.scores("e/0")
    assert f1 == Score("e/0", "f1", 0.5, "x", "1", "", 0.0) and math.isnan(g.value)
    store.close()
    assert "account" not in rows(path, "SELECT sql FROM sqlite_master WHERE name = 'episodes'")[0][0]


def test_an_old_store_is_brought_up_to_date_by_who_writes(tmp_path):
    path = old_store(tmp_path / "store.db")
    for _ in range(2):
        store = Store(path)
        assert store.pin("rl", "other") == "{}" and store.own_scores("e/0")["f1"] == 0.5
    store.write([episode("e/1", ended=5.0)], [Score("e/1", "f1", 0.7, "x")])
    store.score([Score("e/0", "human", 1.0, "me")])
    assert [each.id for each in store.select("e/")] == ["e/0", "e/1"]
    assert [score.time > 0 for score in store.scores("e/0")] == [False, False, True]
    assert rows(path, "SELECT id FROM episodes WHERE ended < 9") == [("e/1",)]
    tables = (schema.EPISODES, schema.SCORES)
    assert [[row[1] for row in rows(path, f"PRAGMA table_info({each.name})")] for each in tables] == [
        list(each.columns.keys()) for each in tables
    ]
    assert {f"ix_episodes_{name}" for name in ("task", "ended", "session", "account")} < {
        name for (name,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'index'")
    }


def test_a_store_from_before_there_were_pins_is_read_and_brought_up_to_date(tmp_path):
    path = old_store(tmp_path / "store.db")
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("DROP TABLE pins")
    assert len(Store(path, readonly=True).tail()) == 1
    assert len(Store(path).tail()) == 1 and rows(path, "SELECT * FROM pins") == [("schema", "3")]


def test_the_version_that_a_store_says_rises_with_its_tables(tmp_path):
    path = old_store(tmp_path / "store.db")
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("INSERT INTO pins VALUES ('schema', '1')")
    Store(path)
    assert rows(path, "SELECT * FROM pins ORDER BY name") == [("rl", "{}"), ("schema", "3")]


def test_an_episode_that_cannot_be_read_is_named(tmp_path):
    path = old_store(tmp_path / "store.db")
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("INSERT INTO episodes VALUES (2, 'e/1', 't', ?)", (OLD_BYTES[:-9],))
    store = Store(path, readonly=True)
    assert [each.id for each in store.select("e/0")] == ["e/0"]
    with pytest.raises(CorruptError, match=r"store\.db, episode e/1: a stored episode is torn"):
        list(store.select())


def test_an_upgrade_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = old_store(tmp_path / "store.db")
    before = rows(path, "SELECT sql FROM sqlite_master")

    def dies(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(schema, "CreateIndex", dies)  # after the columns of the first table were added
        Store(path)
    assert rows(path, "SELECT sql FROM sqlite_master") == before
    assert len(list(Store(path).select())) == 1


def test_a_newer_store_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "store.db"
    Store(path).close()
    assert rows(path, "SELECT value FROM pins WHERE name = 'schema'") == [(str(schema.SCHEMA),)]
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE pins SET value = '4' WHERE name = 'schema'")
        file.execute("ALTER TABLE scores DROP COLUMN time")
    for readonly in (False, True):
        with pytest.raises(InputError, match=r"tables of version 4, and this Trivium reads up to 3: upgrade"):
            Store(path, readonly=readonly)
    assert "time" not in [row[1] for row in rows(path, "PRAGMA table_info(scores)")]


def test_several_may_open_a_new_store_at_once(tmp_path):
    for number in range(4):
        failed = []

        def opens(path=tmp_path / f"{number}.db", failed=failed):
            try:
                Store(path).write([episode(f"e/{threading.get_ident()}")])
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=opens) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed and len(Store(tmp_path / f"{number}.db").tail()) == 6


def test_the_journal_is_asked_for_again_where_sqlite_refuses_without_waiting(monkeypatch):
    """As it does, once in a hundred times, where two open a new store at once."""
    refusals, statements = [sqlite3.OperationalError("database is locked")] * 3, []

    class Connection:
        def execute(self, statement):
            if refusals and "journal_mode" in statement:
                raise refusals.pop()
            statements.append(statement)

    schema.write_ahead(Connection(), None)
    assert statements == ["PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL"]
    monkeypatch.setattr(schema, "PATIENCE", 0.2)
    refusals += [sqlite3.OperationalError("database is locked")] * 1000
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        schema.write_ahead(Connection(), None)
    assert 900 < len(refusals) < 999


@pytest.mark.parametrize(("patience", "opens"), [(20, True), (0.2, False)])
def test_a_store_that_somebody_locks_is_waited_for_and_no_longer(tmp_path, monkeypatch, patience, opens):
    monkeypatch.setattr(schema, "PATIENCE", patience)
    with closing(sqlite3.connect(tmp_path / "store.db", check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        release = threading.Timer(0.5, other.rollback) if opens else threading.Timer(0, lambda: None)
        release.start()
        began = time.monotonic()
        with contextlib.nullcontext() if opens else pytest.raises(InputError, match="cannot be opened .database is locked"):
            Store(tmp_path / "store.db").write([episode("e/0")])
        assert 0.2 < time.monotonic() - began < 15
        release.join()


# -- reading


@pytest.mark.parametrize("begin", [old_store, new_store])
def test_who_reads_writes_nothing(shelf, begin):
    begin(shelf / "store.db")
    before = listing(shelf)
    store = Store(shelf / "store.db", readonly=True)
    assert [each.id for each in store.select("e/")] == ["e/0"] and store.tail() and not store.first_scores("e/7")
    for write in (lambda: store.write([episode("e/1")]), lambda: store.score([Score("e/0", "a", 1.0, "x")])):
        with pytest.raises(InputError, match=r"store\.db was opened with readonly=True"):
            write()
    with pytest.raises(InputError, match="was opened with readonly=True"):
        store.pin("rl", "mine")
    with pytest.raises(DatabaseError, match="attempt to write"), store._engine.begin() as connection:  # nor by any other way
        connection.execute(schema.SCORES.delete())
    store.close()
    assert listing(shelf) == before


@pytest.mark.parametrize("begin", [old_store, new_store])
def test_a_store_where_nobody_may_write_is_read(shelf, begin):
    begin(shelf / "a store?#%20.db")
    with locked(shelf):
        store = Store(shelf / "a store?#%20.db", readonly=True)
        assert [each.id for each in store.select("e/")] == ["e/0"]
        with pytest.raises(InputError, match="cannot be opened .* may you write in it"):
            Store(shelf / "a store?#%20.db")
    assert [path.name for path in shelf.iterdir()] == ["a store?#%20.db"]


def test_what_a_writer_is_writing_is_read_where_others_may_not_write(shelf):
    writer = Store(shelf / "store.db")
    writer.write([episode("e/0")])
    with locked(shelf):
        reader = Store(shelf / "store.db", readonly=True)
        assert len(reader.tail()) == 1
    writer.write([episode("e/1")])
    assert [each.id for _, each in reader.tail(after=1)] == ["e/1"]  # and what came since


def test_what_a_killed_writer_left_is_not_passed_over(shelf):
    writer = Store(shelf / "store.db")
    writer.write([episode("e/0")])
    (shelf / "left").mkdir()
    for name in ("store.db", "store.db-wal"):  # without its -shm, as after a power cut
        shutil.copy(shelf / name, shelf / "left" / name)
    with locked(shelf / "left"), pytest.raises(InputError, match=r"store\.db-wal holds its newest episodes: copy both"):
        Store(shelf / "left" / "store.db", readonly=True)
    assert len(Store(shelf / "left" / "store.db", readonly=True).tail()) == 1


@pytest.mark.parametrize("readonly", [False, True])
def test_a_writer_is_waited_for_half_a_minute(tmp_path, readonly):
    new_store(tmp_path / "store.db")
    with Store(tmp_path / "store.db", readonly)._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_only_a_store_is_read(tmp_path):
    with pytest.raises(InputError, match=r"no\.db is no file, so there is no store to read"):
        Store(tmp_path / "no.db", readonly=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / "empty.db").touch()
    with pytest.raises(CorruptError, match=r"empty\.db is no episode store: it has no tables"):
        Store(tmp_path / "empty.db", readonly=True)
    (tmp_path / "note.db").write_text("this is no database, but a note to myself" * 50)
    with pytest.raises(CorruptError, match=r"note\.db is no episode store"):
        Store(tmp_path / "note.db", readonly=True)
