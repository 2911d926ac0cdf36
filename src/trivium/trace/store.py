"""An append-only episode store in a SQL database: write, tail, select. SQLite (WAL) here, PostgreSQL elsewhere."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    inspect,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError
from sqlalchemy.schema import CreateIndex, CreateTable

from trivium.errors import CorruptError, InputError
from trivium.trace.codec import decode, encode
from trivium.trace.episode import Episode, Score

_PATIENCE = 30  # seconds that another writer may take
_meta = MetaData()
_episodes = Table(
    "episodes",
    _meta,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("id", String, unique=True, nullable=False),
    Column("task", String, index=True),
    Column("data", LargeBinary, nullable=False),
)
_scores = Table(
    "scores",
    _meta,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("episode", String, index=True),
    Column("name", String),
    Column("value", Float),
    Column("scorer", String),
    Column("version", String),
    Column("thread", String),
)


_pins = Table("pins", _meta, Column("name", String, primary_key=True), Column("value", String, nullable=False))


class Store:
    """Episodes and their scores. One transaction per `write`, so a killed process leaves all of it or none (law 9).

    Writing an episode whose id is already there changes nothing: a resumed run repeats its ids, and facts do not change.
    """

    def __init__(self, url: str | Path) -> None:
        """`url` is the path of an SQLite file, made if missing, or an SQLAlchemy URL of SQLite or PostgreSQL (not tested).
        InputError where it cannot be opened, CorruptError for a file that is none, or somebody else's database; a URL may name
        a database that has other tables too."""
        self.url = str(url)
        self._engine = _open(self.url)
        self._insert = (postgresql if self._engine.dialect.name == "postgresql" else sqlite).insert
        try:
            if "://" not in self.url:
                self._refuse_foreign()
            if self._engine.dialect.name == "sqlite":
                event.listen(self._engine, "connect", _write_ahead)
            self._make_tables()
        except OperationalError as error:  # no such folder, or not ours to write
            raise InputError(
                f"{self.url} cannot be opened ({error.orig}): is there such a folder, and may you write in it?"
            ) from None
        except DatabaseError as error:
            raise CorruptError(f"{self.url} is no episode store: {error.orig}") from error

    def _refuse_foreign(self) -> None:
        """Before anything is written, the journal's mode included."""
        look = inspect(self._engine)
        there = {name: {column["name"] for column in look.get_columns(name)} for name in look.get_table_names()}
        self._engine.dispose()  # connections from here on write ahead
        ours = {name: set(table.columns.keys()) for name, table in _meta.tables.items() if name in there}
        if (there and not ours) or any(columns - there[name] for name, columns in ours.items()):
            raise CorruptError(f"{self.url} is no episode store: it is a database of {', '.join(list(there)[:3])}")

    def _make_tables(self) -> None:
        """By name and only if missing: several processes may open a new store at once."""
        with self._engine.begin() as connection:
            for table in _meta.sorted_tables:
                connection.execute(CreateTable(table, if_not_exists=True))
                for index in table.indexes:
                    connection.execute(CreateIndex(index, if_not_exists=True))

    def write(self, episodes: Iterable[Episode], scores: Iterable[Score] = ()) -> None:
        """Append episodes and scores, all or nothing. Scores of an episode that was already there are not added again."""
        episodes, scores = list(episodes), list(scores)
        with self._connected(self._engine.begin, "written") as connection:
            known = _known(connection, [episode.id for episode in episodes])
            fresh = [episode for episode in episodes if episode.id not in known]
            if fresh:
                values = [{"id": e.id, "task": e.task.id, "data": encode(e)} for e in fresh]
                connection.execute(self._insert(_episodes).on_conflict_do_nothing(), values)
            if new := [score for score in scores if score.episode not in known]:
                connection.execute(_scores.insert(), [asdict(score) for score in new])

    def pin(self, name: str, value: str) -> str:
        """What is kept under `name`: `value`, or what was there before."""
        with self._connected(self._engine.begin, "written") as connection:
            connection.execute(self._insert(_pins).on_conflict_do_nothing(), {"name": name, "value": value})
            return connection.execute(select(_pins.c.value).where(_pins.c.name == name)).scalar_one()

    def score(self, scores: Iterable[Score]) -> None:
        """Append opinions that came later."""
        if new := [asdict(score) for score in scores]:
            with self._connected(self._engine.begin, "written") as connection:
                connection.execute(_scores.insert(), new)

    def select(self, prefix: str = "", task: str | None = None, limit: int | None = None) -> Iterator[Episode]:
        """Episodes in the order they were written, those whose id begins with `prefix`."""
        query = select(_episodes.c.id, _episodes.c.data).order_by(_episodes.c.seq).limit(limit)
        query = query.where(func.substr(_episodes.c.id, 1, len(prefix)) == prefix) if prefix else query  # LIKE ignores case
        query = query.where(_episodes.c.task == task) if task is not None else query
        with self._connected(self._engine.connect, "read") as connection:
            for id, data in connection.execute(query):
                yield self._decoded(id, data)

    def tail(self, after: int = 0, limit: int = 1000) -> list[tuple[int, Episode]]:
        """Up to `limit` episodes written after number `after`, each with its number: ask again with the last one."""
        columns = _episodes.c.seq, _episodes.c.id, _episodes.c.data
        query = select(*columns).where(_episodes.c.seq > after).order_by(_episodes.c.seq)
        with self._connected(self._engine.connect, "read") as connection:
            return [(seq, self._decoded(id, data)) for seq, id, data in connection.execute(query.limit(limit))]

    def _decoded(self, id: str, data: bytes) -> Episode:
        try:
            return decode(data)
        except CorruptError as error:
            raise CorruptError(f"{self.url}, episode {id}: {error}") from error

    def scores(self, episode: str) -> list[Score]:
        """Every opinion about one episode, oldest first."""
        query = select(_scores).where(_scores.c.episode == episode).order_by(_scores.c.seq)
        with self._connected(self._engine.connect, "read") as connection:
            return [
                Score(r.episode, r.name, _number(r.value), r.scorer, r.version, r.thread) for r in connection.execute(query)
            ]

    def first_scores(self, episode: str) -> dict[str, float]:
        """The oldest opinion of each name on the whole episode, whoever gave it."""
        return {score.name: score.value for score in reversed(self.scores(episode)) if not score.thread}

    def own_scores(self, episode: str) -> dict[str, float]:
        """The opinions of its first scorer alone: those written with it. What somebody adds later has no part in them: it comes
        from another scorer, or says again what was said."""
        found = [score for score in self.scores(episode) if not score.thread]
        own: dict[str, float] = {}
        for score in takewhile(lambda each: each.name not in own, found):
            if (score.scorer, score.version) == (found[0].scorer, found[0].version):
                own[score.name] = score.value
        return own

    @contextmanager
    def _connected(self, connect: Callable[[], AbstractContextManager[Connection]], done: str) -> Iterator[Connection]:
        """What `connect` gives. InputError where it cannot be `done`: a full disk, a store that another process holds too long;
        CorruptError where the file is torn inside."""
        try:
            with connect() as connection:
                yield connection
        except OperationalError as error:
            raise InputError(f"{self.url} cannot be {done}: {error.orig}") from error
        except DatabaseError as error:
            raise CorruptError(f"{self.url} cannot be {done}: {error.orig}") from error

    def close(self) -> None:
        self._engine.dispose()


def _number(kept: float | None) -> float:
    """SQLite keeps NaN as NULL."""
    return math.nan if kept is None else kept


def _known(connection, ids: list[str]) -> set[str]:
    query = select(_episodes.c.id).where(_episodes.c.id.in_(ids))
    return set(connection.execute(query).scalars())


def _open(url: str) -> Engine:
    """InputError for another database, or one without its driver."""
    try:
        made = make_url(url) if "://" in url else URL.create("sqlite", database=url)
        if made.get_backend_name() not in ("sqlite", "postgresql"):
            raise InputError(f"{url}: a store is SQLite or PostgreSQL, and not {made.get_backend_name()}")
        return create_engine(made)
    except ArgumentError as error:
        raise InputError(f"{url} is no URL of a database: {error}") from error
    except ModuleNotFoundError as error:
        raise InputError(f"{url} needs a driver: pip install {error.name}") from error


def _write_ahead(connection, _record) -> None:
    """WAL: readers never block the writer, and a killed writer leaves the last committed transaction."""
    connection.execute(f"PRAGMA busy_timeout={_PATIENCE * 1000}")
    deadline = time.monotonic() + _PATIENCE
    while True:  # where two open a new store at once, SQLite refuses one of them this pragma without waiting
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous=NORMAL")
