"""The tables of a store: what stands in them, how a database is opened, and how an older one is brought up to date.

Sequence numbers rise in the order in which transactions commit, and none is given twice, also after rows were deleted: who
keeps the last number that it used sees every row once. (In a SQLite file that version 1 began, the number of a deleted last row
is given again.)
"""

from __future__ import annotations

import os
import sqlite3
import time
from urllib.parse import quote

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Index,
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
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from trivium.errors import CorruptError, InputError

SCHEMA = 3
"""The version of these tables, which a store keeps in its pins. Version 1, until 2026-11-28, had none of the columns that are
marked new, and its file says no version; version 2 had no feedback."""

PATIENCE = 30
"""Seconds that another writer may take."""

_LOCK = 0x7472_766D  # "trvm": the number under which writers of a PostgreSQL database take turns
SEQ = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts by itself in an INTEGER alone
_ID = String().with_variant(String(collation="C"), "postgresql")  # ordered by code points, as SQLite's are, in every locale
_NEW = {"since": 2}
META = MetaData()

EPISODES = Table(
    "episodes",
    META,
    Column("seq", SEQ, primary_key=True, autoincrement=True),
    Column("id", _ID, unique=True, nullable=False),
    Column("task", String, index=True),
    Column("data", LargeBinary, nullable=False),
    # what is asked of many episodes at once stands beside their bytes as well; NULL where it is unknown
    Column("began", Float, info=_NEW),
    Column("ended", Float, index=True, info=_NEW),
    Column("deployment", String, info=_NEW),
    Column("session", String, index=True, info=_NEW),
    Column("account", String, index=True, info=_NEW),
    sqlite_autoincrement=True,
)
SCORES = Table(
    "scores",
    META,
    Column("seq", SEQ, primary_key=True, autoincrement=True),
    Column("episode", String, index=True),
    Column("name", String),
    Column("value", Float),
    Column("scorer", String),
    Column("version", String),
    Column("thread", String),
    Column("time", Float, info=_NEW),
    sqlite_autoincrement=True,
)
FEEDBACK = Table(
    "feedback",
    META,
    Column("seq", SEQ, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False),
    Column("episode", String, nullable=False, index=True),
    Column("kind", String, nullable=False),
    Column("name", String, nullable=False),
    Column("value", Float, nullable=False),
    Column("text", String, nullable=False),
    Column("original", String, nullable=False),
    Column("time", Float, nullable=False),
    Column("account", String, nullable=False),
    Index("feedback_once", "account", "id", unique=True),
    sqlite_autoincrement=True,
)
PINS = Table("pins", META, Column("name", String, primary_key=True), Column("value", String, nullable=False))

Columns = dict[str, set[str]]
"""The columns of each table that a database has."""


def connect(url: str, readonly: bool) -> Engine:
    """The database at `url`. InputError for one that is neither SQLite nor PostgreSQL, or lacks its driver; with `readonly`
    also for a file that is not there, or cannot be read."""
    try:
        address = make_url(url) if "://" in url else URL.create("sqlite", database=url)
        if address.get_backend_name() not in ("sqlite", "postgresql"):
            raise InputError(f"{url}: a store is SQLite or PostgreSQL, and not {address.get_backend_name()}")
        if address.get_backend_name() == "postgresql":
            return create_engine(address, execution_options={"postgresql_readonly": readonly})
        return _read_file(address.database or "") if readonly else _sqlite(address)
    except ArgumentError as error:
        raise InputError(f"{url} is no URL of a database: {error}") from error
    except ModuleNotFoundError as error:
        raise InputError(f"{url} needs a driver: pip install {error.name}") from error


def _sqlite(url: URL) -> Engine:
    return create_engine(url, connect_args={"timeout": PATIENCE})


def _read_file(path: str) -> Engine:
    """A SQLite file as one reader among processes that may write; SQLite puts two files beside it for as long as it is open.
    Where they cannot be written and nobody has left any, the file alone is the whole store."""
    if not os.path.isfile(path):
        raise InputError(f"{path} is no file, so there is no store to read")
    name = f"file:{quote(os.path.abspath(path))}"
    engine = _sqlite(URL.create("sqlite", database=name, query={"mode": "rw", "uri": "true"}))
    event.listen(engine, "connect", _only_read)
    try:
        with engine.connect():
            return engine
    except OperationalError as error:
        engine.dispose()
        if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
            copy = "copy both to a folder that you may write in"
            raise InputError(f"{path} cannot be read here, and {path}-wal holds its newest episodes: {copy}") from error
    return _sqlite(URL.create("sqlite", database=name, query={"immutable": "1", "uri": "true"}))


def _only_read(connection, _record) -> None:
    connection.execute("PRAGMA query_only=ON")
    connection.execute("SELECT name FROM sqlite_master").fetchone()  # opens the file, which SQLite has put off till now


def write_ahead(connection, _record) -> None:
    """WAL: readers never block the writer, and a killed writer leaves the last committed transaction."""
    deadline = time.monotonic() + PATIENCE
    while True:  # where two open a new store at once, SQLite refuses one of them this pragma without waiting
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous=NORMAL")


def defer_checkpoints(connection, _record) -> None:
    """No commit of this connection moves what was written ahead into the file, unless nobody else has for 64 MB."""
    connection.execute("PRAGMA wal_autocheckpoint=16000")


def columns(connection: Engine | Connection) -> Columns:
    """What the database has now."""
    inspector = inspect(connection)
    return {name: {column["name"] for column in inspector.get_columns(name)} for name in inspector.get_table_names()}


def check(tables: Columns, url: str, alone: bool) -> None:
    """CorruptError for somebody else's database: one that has a table of our name and other columns, or where ours should be
    `alone`, one that has tables and none of ours."""
    ours = [table for table in META.sorted_tables if table.name in tables]
    foreign = any(_first_columns(table) - tables[table.name] for table in ours)
    if foreign or (alone and tables and not ours):
        raise CorruptError(f"{url} is no episode store: it is a database of {', '.join(list(tables)[:3])}")


def _first_columns(table: Table) -> set[str]:
    """The columns that a table had from the first version on."""
    return {column.name for column in table.columns if not column.info}


def refuse_newer(connection: Connection, tables: Columns, url: str) -> None:
    """InputError for a store that a later Trivium wrote, in tables that this one may misread."""
    if PINS.name not in tables:
        return
    version = connection.execute(select(PINS.c.value).where(PINS.c.name == "schema")).scalar()
    if version is not None and int(version) > SCHEMA:
        raise InputError(f"{url} has tables of version {version}, and this Trivium reads up to {SCHEMA}: upgrade it")


def is_complete(tables: Columns) -> bool:
    """Whether the database has all tables and columns of this version."""
    return all(set(table.columns.keys()) <= tables.get(table.name, set()) for table in META.sorted_tables)


def upgrade(connection: Connection) -> None:
    """Make what is missing, in the one transaction of `connection`. Several processes may open one store at once, and wait here
    for each other."""
    take_turns(connection)
    tables = columns(connection)
    for table in META.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for column in table.columns:
            if table.name in tables and column.name not in tables[table.name]:
                definition = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {definition}")
        for index in table.indexes:
            connection.execute(CreateIndex(index, if_not_exists=True))
    insert = insert_of(connection.dialect.name)(PINS)
    statement = insert.on_conflict_do_update(index_elements=["name"], set_={"value": str(SCHEMA)})
    connection.execute(statement, {"name": "schema", "value": str(SCHEMA)})


def take_turns(connection: Connection) -> None:
    """One writer at a time from here to the end of the transaction: what it read stays true until it commits, and sequence
    numbers rise in the order of commits."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    else:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def insert_of(dialect: str):
    """The INSERT of a dialect, which can pass over rows that are there."""
    return (postgresql if dialect == "postgresql" else sqlite).insert


def upper_bound(prefix: str) -> str | None:
    """The first text, by code points, behind all texts that begin with `prefix`; None where nothing stands behind them."""
    while prefix:
        *_, last = prefix
        prefix = prefix[:-1]
        if ord(last) < 0x10FFFF:
            following = ord(last) + 1
            return prefix + chr(0xE000 if 0xD800 <= following < 0xE000 else following)  # no text has half a character
    return None
