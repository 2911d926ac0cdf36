"""One request and its reply, by their exact tokens, and the table that keeps them until their session is an episode."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zstandard
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Float,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    func,
    or_,
    select,
)
from sqlalchemy.schema import CreateIndex, CreateTable

from trivium.policy.message import Message
from trivium.serve.keys import Caller
from trivium.trace import Sampling, Store
from trivium.trace.schema import SEQ, insert_of
from trivium.trace.store import of_account


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and what was said to it. `parent` is the exchange that it extends: its prompt is that one's prompt and reply,
    and then `fresh`; without a parent `fresh` is the whole prompt, and `reason` says why it extends none.

    `messages` are those that `fresh` shows, `message` the reply as the client got it, and `finish` how it ended: stop,
    length or tool_calls, or else cancelled, timeout or failed, of which the client has heard a part at most. `after` and
    `closing` are digests by which a later request finds it: of the conversation up to the reply, as messages and as tokens.
    `deployment` is who spoke, and `propensity` the chance with which it was to.
    """

    id: str
    account: str
    session: str
    model: str
    began: float
    ended: float
    fresh: list[int]
    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    kept: list[float]
    sampling: Sampling
    messages: list[Message]
    message: Message
    finish: str
    parent: str = ""
    reason: str = ""
    after: str = ""
    closing: str = ""
    consent: bool = False
    tools: list[Message] = field(default_factory=list)
    deployment: str = ""
    propensity: float = 0.0


META = MetaData()
EXCHANGES = Table(
    "exchanges",
    META,
    Column("seq", SEQ, primary_key=True, autoincrement=True),
    Column("id", String, unique=True, nullable=False),
    Column("account", String, nullable=False, index=True),
    Column("session", String, nullable=False),
    Column("after", String, index=True),
    Column("closing", String, index=True),
    Column("ended", Float, nullable=False),
    Column("episode", String),  # whose part it is by now; NULL while its session goes on, empty where it may be part of none
    Column("data", LargeBinary, nullable=False),
    Index("exchanges_of_a_session", "account", "session"),
    sqlite_autoincrement=True,
)

REPLIES = Table(
    "replies",  # what is left of an exchange for as long as its episode is kept: by what id clients know it, and what it said
    META,
    Column("id", String, primary_key=True),
    Column("account", String, nullable=False),
    Column("episode", String, nullable=False, index=True),
    Column("said", String, nullable=False),
)

_decoder = msgspec.msgpack.Decoder(Exchange)


Row = dict[str, Any]


class Exchanges:
    """The exchanges in a store's database. All is asked for in the name of an account, and nobody gets another's."""

    def __init__(self, store: Store) -> None:
        self.store = store
        with store.writing() as connection:
            for table in META.sorted_tables:
                connection.execute(CreateTable(table, if_not_exists=True))
                for index in table.indexes:
                    connection.execute(CreateIndex(index, if_not_exists=True))

    def write(self, rows: Sequence[Row]) -> None:
        """Keep exchanges, as `row_of` has them, all or none. One that is there already is not written twice."""
        with self.store.writing() as connection:
            connection.execute(insert_of(connection.dialect.name)(EXCHANGES).on_conflict_do_nothing(), list(rows))

    def find(self, account: str, digests: Collection[str], since: float) -> Exchange | None:
        """The newest exchange of an account that the first of `digests` names, by its messages or by its tokens, of those that
        ended after the time `since`."""
        table, last = EXCHANGES.c, len(digests)
        named = or_(table.after.in_(digests), table.closing.in_(digests))
        query = select(table.after, table.closing, table.data).where(table.account == account, table.ended > since, named)
        with self.store.reading() as connection:
            rows = list(connection.execute(query.order_by(table.seq.desc())))
        order = {digest: number for number, digest in enumerate(digests)}
        rows.sort(key=lambda row: min(order.get(row.after, last), order.get(row.closing, last)))
        return decoded(rows[0].data) if rows else None

    def get(self, account: str, id: str) -> Exchange | None:
        """The exchange of this id, where it is this account's."""
        query = select(EXCHANGES.c.data).where(EXCHANGES.c.account == account, EXCHANGES.c.id == id)
        with self.store.reading() as connection:
            data = connection.execute(query).scalar()
        return None if data is None else decoded(data)

    def session(self, account: str, session: str) -> list[Exchange]:
        """The exchanges of a session, in the order in which they were written."""
        with self.store.reading() as connection:
            return session_of(connection, account, session)

    def over(self, before: float, sealed: bool = False) -> list[tuple[str, str]]:
        """Account and session of those without an exchange since the time `before`, and with one that is no part of an episode
        yet; or with `sealed` of those whose exchanges all are."""
        table = EXCHANGES.c
        new = func.count() - func.count(table.episode)
        some = new == 0 if sealed else new > 0
        query = select(table.account, table.session).group_by(table.account, table.session)
        with self.store.reading() as connection:
            return [
                (account, session)
                for account, session in connection.execute(query.having(func.max(table.ended) < before, some))
            ]


def session_of(connection: Connection, account: str, session: str, sealed: bool | None = None) -> list[Exchange]:
    """`Exchanges.session`, inside a transaction; those alone that are `sealed`, or are not."""
    table = EXCHANGES.c
    query = select(table.data).where(table.account == account, table.session == session)
    query = query if sealed is None else query.where(table.episode.is_not(None) if sealed else table.episode.is_(None))
    return [decoded(data) for data in connection.execute(query.order_by(table.seq)).scalars()]


def accounts_of(caller: Caller, column: Column) -> ColumnElement[bool]:
    """The rows that are a caller's: its user's, or where it names none the key's own and all its users'."""
    return column == caller.account if caller.user else of_account(column, caller.key.name)


def row_of(exchange: Exchange) -> Row:
    """An exchange as the table keeps it."""
    data = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(msgspec.msgpack.encode(exchange))
    names = ("id", "account", "session", "after", "closing", "ended")
    return {name: getattr(exchange, name) for name in names} | {"data": data}


def decoded(data: bytes) -> Exchange:
    """An exchange as the table keeps it, read again."""
    return _decoder.decode(zstandard.decompress(data))
