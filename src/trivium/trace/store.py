"""An append-only episode store in a SQL database: write, tail, select. SQLite (WAL) here, PostgreSQL elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, event, func, or_, select
from sqlalchemy.exc import DatabaseError, DataError, InterfaceError, OperationalError

from trivium.errors import CorruptError, InputError
from trivium.trace import schema
from trivium.trace.codec import decode, encode
from trivium.trace.episode import Episode, Score
from trivium.trace.feedback import Feedback, in_order, is_same
from trivium.trace.schema import EPISODES, FEEDBACK, PINS, SCORES

_PART = 64
"""Episodes that `select` reads at once."""
_FEEDBACK = [column for column in FEEDBACK.columns if column is not FEEDBACK.c.seq]


class Store:
    """Episodes and their scores. One transaction per `write`, so a killed process leaves all of it or none (law 9).

    Writing an episode whose id is already there changes nothing: a resumed run repeats its ids, and facts do not change.
    """

    def __init__(self, url: str | Path, readonly: bool = False, account: str = "") -> None:
        """`url` is the path of an SQLite file, made if missing, or an SQLAlchemy URL of SQLite or PostgreSQL. An older store
        gets the columns that it lacks. With `readonly` nothing is made or changed, an older store is read as it is, and neither
        the file nor its folder needs to be writable. With an `account` its readers see the episodes of that account and of its
        users (account/user) alone.

        InputError where it cannot be opened or a newer Trivium wrote it, CorruptError for a file that is none, or somebody
        else's database; a URL may name a database that has other tables too."""
        self.url, self._readonly, self._account = str(url), readonly, account
        try:
            self._engine = schema.connect(self.url, readonly)
            self._insert = schema.insert_of(self._engine.dialect.name)
            self._columns = self._open()
        except OperationalError as error:  # no such folder, or not ours to write
            raise InputError(
                f"{self.url} cannot be opened ({error.orig}): is there such a folder, and may you write in it?"
            ) from None
        except DatabaseError as error:
            raise CorruptError(f"{self.url} is no episode store: {error.orig}") from error

    def _open(self) -> schema.Columns:
        """The columns that can be read, once what is missing was made. What is refused is left as it was, its journal too."""
        tables = schema.columns(self._engine)
        schema.check(tables, self.url, alone="://" not in self.url)
        with self._engine.connect() as connection:
            schema.refuse_newer(connection, tables, self.url)
        if self._readonly:
            if not {EPISODES.name, SCORES.name} <= tables.keys():
                raise CorruptError(f"{self.url} is no episode store: it has no tables of episodes and scores")
            return tables
        if self._engine.dialect.name == "sqlite":
            self._engine.dispose()  # connections from here on write ahead
            event.listen(self._engine, "connect", schema.write_ahead)
        if not schema.is_complete(tables):
            with self._engine.begin() as connection:
                schema.upgrade(connection)
        return {name: set(table.columns.keys()) for name, table in schema.META.tables.items()}

    def write(self, episodes: Iterable[Episode], scores: Iterable[Score] = ()) -> None:
        """Append episodes and scores, all or nothing. Scores of an episode that was already there are not added again."""
        rows, opinions = [_episode_row(episode) for episode in episodes], [_score_row(score) for score in scores]
        with self.writing() as connection:
            self._append(connection, rows, opinions)

    def append(self, connection: Connection, episodes: Iterable[Episode]) -> None:
        """`write` inside the transaction `connection`, which `writing` gave."""
        self._append(connection, [_episode_row(episode) for episode in episodes], [])

    def _append(self, connection: Connection, rows: list[dict[str, Any]], opinions: list[dict[str, Any]]) -> None:
        old = {row["id"] for row in rows}
        if rows:
            append = self._insert(EPISODES).on_conflict_do_nothing().returning(EPISODES.c.id)
            old -= set(connection.execute(append, rows).scalars())
        if new := [row for row in opinions if row["episode"] not in old]:
            connection.execute(SCORES.insert(), new)

    def delete(self, connection: Connection, which: ColumnElement[bool]) -> int:
        """Delete the episodes of which `which` holds, with their scores and feedback, inside the transaction `connection`,
        which `writing` gave; how many. What somebody asks to be forgotten, or what was kept long enough, is the only reason
        to."""
        gone = select(EPISODES.c.id).where(which)
        for table in (SCORES, FEEDBACK):
            connection.execute(table.delete().where(table.c.episode.in_(gone)))
        return connection.execute(EPISODES.delete().where(which)).rowcount

    def score(self, scores: Iterable[Score]) -> None:
        """Append opinions that came later."""
        if new := [_score_row(score) for score in scores]:
            with self.writing() as connection:
                connection.execute(SCORES.insert(), new)

    def listen(self, feedback: Iterable[Feedback]) -> int:
        """Append what people did, all or nothing; how much of it was new. It may come twice, late and out of order: what has
        the account and id of an earlier one is not kept again. InputError for an episode that is not here or is another
        account's, and for an id that was used before for something else."""
        with self.writing() as connection:
            return sum(self.hear(connection, self._joined(connection, each)) for each in feedback)

    def _joined(self, connection: Connection, feedback: Feedback) -> Feedback:
        """With the account of its episode."""
        query = select(EPISODES.c.id, EPISODES.c.account).where(EPISODES.c.id == feedback.episode)
        row = connection.execute(query).first()
        if row is None:
            raise InputError(f"feedback {feedback.id}: {self.url} has no episode {feedback.episode}")
        owner = row.account or ""
        if feedback.account not in ("", owner):
            raise InputError(f"feedback {feedback.id}: episode {feedback.episode} is not {feedback.account}'s")
        return replace(feedback, account=owner)

    def hear(self, connection: Connection, feedback: Feedback) -> bool:
        """`listen` to one thing inside the transaction `connection`, which `writing` gave; whether it was new. What it is about
        is the caller's to know: it may become part of an episode later. InputError for an id that was used before."""
        row = asdict(feedback) | {"time": feedback.time or time.time()}
        append = self._insert(FEEDBACK).on_conflict_do_nothing().returning(FEEDBACK.c.seq)
        if connection.execute(append, row).scalar() is not None:
            return True
        mine = (FEEDBACK.c.account == feedback.account, FEEDBACK.c.id == feedback.id)
        kept = connection.execute(select(*_FEEDBACK).where(*mine)).mappings().one()
        if not is_same(feedback, Feedback(**kept)):
            raise InputError(f"feedback {feedback.id!r:.80} was given before and said something else: give this one its own id")
        return False

    def feedback(self, episode: str) -> list[Feedback]:
        """What people did with one episode, in the order in which it happened."""
        return in_order(each for _, each in self._heard(FEEDBACK.c.episode == episode))

    def tail_feedback(self, after: int = 0, limit: int = 1000) -> list[tuple[int, Feedback]]:
        """Up to `limit` of what came after number `after`, each with its number: ask again with the last one."""
        return self._heard(FEEDBACK.c.seq > after, limit)

    def _heard(self, which: ColumnElement[bool], limit: int | None = None) -> list[tuple[int, Feedback]]:
        """None in an older store that is only read."""
        if FEEDBACK.name not in self._columns:
            return []
        query = select(FEEDBACK.c.seq, *_FEEDBACK).where(which, *self._about_seen(FEEDBACK))
        query = query.order_by(FEEDBACK.c.seq).limit(limit)
        with self.reading() as connection:
            rows = connection.execute(query).mappings().all()
        return [(row["seq"], Feedback(**{each.name: row[each.name] for each in _FEEDBACK})) for row in rows]

    def pin(self, name: str, value: str) -> str:
        """What is kept under `name`: `value`, or what was there before."""
        with self.writing() as connection:
            connection.execute(self._insert(PINS).on_conflict_do_nothing(), {"name": name, "value": value})
            return connection.execute(select(PINS.c.value).where(PINS.c.name == name)).scalar_one()

    def select(self, prefix: str = "", task: str | None = None, limit: int | None = None) -> Iterator[Episode]:
        """Episodes in the order they were written, those whose id begins with `prefix`, as an index of ids has them. Those that
        are written after this began are not among them."""
        # + 0: else SQLite looks at every row in their order, and does without a sort, where a limit is small
        query = select(EPISODES.c.seq).order_by(EPISODES.c.seq + 0 if prefix else EPISODES.c.seq).limit(limit)
        query = query.where(*_begins(prefix)) if prefix else query
        query = query.where(EPISODES.c.task == task) if task is not None else query
        query = query.where(*self._seen())
        with self.reading() as connection:
            numbers = connection.execute(query).scalars().all()
        for at in range(0, len(numbers), _PART):  # nothing is held open while somebody works with an episode
            yield from (episode for _, episode in self._read(EPISODES.c.seq.in_(numbers[at : at + _PART]), _PART))

    def count(self) -> int:
        """How many episodes there are."""
        with self.reading() as connection:
            return connection.execute(select(func.count()).select_from(EPISODES).where(*self._seen())).scalar_one()

    def tail(self, after: int = 0, limit: int = 1000) -> list[tuple[int, Episode]]:
        """Up to `limit` episodes written after number `after`, each with its number: ask again with the last one."""
        return self._read(EPISODES.c.seq > after, limit)

    def _read(self, which: ColumnElement[bool], limit: int) -> list[tuple[int, Episode]]:
        query = select(EPISODES.c.seq, EPISODES.c.id, EPISODES.c.data).where(which, *self._seen())
        query = query.order_by(EPISODES.c.seq).limit(limit)
        with self.reading() as connection:
            return [(seq, self._decoded(id, data)) for seq, id, data in connection.execute(query)]

    def _decoded(self, id: str, data: bytes) -> Episode:
        try:
            return decode(data)
        except CorruptError as error:
            raise CorruptError(f"{self.url}, episode {id}: {error}") from error

    def tail_scores(self, after: int = 0, limit: int = 1000) -> list[tuple[int, Score]]:
        """Up to `limit` scores written after number `after`, each with its number: ask again with the last one."""
        query = select(*self._score_columns(), SCORES.c.seq).where(SCORES.c.seq > after, *self._about_seen(SCORES))
        query = query.order_by(SCORES.c.seq).limit(limit)
        with self.reading() as connection:
            return [(row["seq"], _score(row)) for row in connection.execute(query).mappings()]

    def scores(self, episode: str) -> list[Score]:
        """Every opinion about one episode, oldest first."""
        query = select(*self._score_columns()).where(SCORES.c.episode == episode, *self._about_seen(SCORES))
        query = query.order_by(SCORES.c.seq)
        with self.reading() as connection:
            return [_score(row) for row in connection.execute(query).mappings()]

    def _score_columns(self) -> list[ColumnElement]:
        """Those that this store has, but its number."""
        return [each for each in SCORES.columns if each.name in self._columns[SCORES.name] and each is not SCORES.c.seq]

    def first_scores(self, episode: str) -> dict[str, float]:
        """The oldest opinion of each name on the whole episode, whoever gave it."""
        return {score.name: score.value for score in reversed(self.scores(episode)) if not score.thread}

    def own_scores(self, episode: str) -> dict[str, float]:
        """The opinions of its first scorer alone: those written with it. What somebody adds later has no part in them: it comes
        from another scorer, or says again what was said."""
        scores = [score for score in self.scores(episode) if not score.thread]
        own: dict[str, float] = {}
        for score in takewhile(lambda each: each.name not in own, scores):
            if (score.scorer, score.version) == (scores[0].scorer, scores[0].version):
                own[score.name] = score.value
        return own

    def _seen(self) -> list[ColumnElement[bool]]:
        """Which episodes are read."""
        return [of_account(EPISODES.c.account, self._account)] if self._account else []

    def _about_seen(self, table: Table) -> list[ColumnElement[bool]]:
        """Which rows are read of a table about episodes."""
        return [table.c.episode.in_(select(EPISODES.c.id).where(*self._seen()))] if self._account else []

    def reading(self) -> AbstractContextManager[Connection]:
        """A connection to read with, for tables of others beside this store's. Raises as `writing`."""
        return self._connected(self._engine.connect, "read")

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """A transaction of the only writer, committed at its end. InputError for a store that was opened to be read, and where
        nothing can be written: a full disk, a database that is away."""
        if self._readonly:
            raise InputError(f"{self.url} was opened with readonly=True, so nothing can be written in it")
        with self._connected(self._engine.begin, "written") as connection:
            schema.take_turns(connection)
            yield connection

    @contextmanager
    def _connected(self, connect: Callable[[], AbstractContextManager[Connection]], verb: str) -> Generator[Connection]:
        """What `connect` gives. InputError where it cannot be `verb`: a full disk, a store that another process holds too long,
        a text that it cannot hold; CorruptError where the file is torn inside."""
        try:
            with connect() as connection:
                yield connection
        except UnicodeEncodeError as error:
            raise InputError(f"{self.url} cannot be {verb}: {error}") from error
        except (OperationalError, InterfaceError, DataError) as error:
            raise InputError(f"{self.url} cannot be {verb}: {error.orig}") from error
        except DatabaseError as error:
            raise CorruptError(f"{self.url} cannot be {verb}: {error.orig}") from error

    def defer_checkpoints(self) -> None:
        """From here on no write of this store waits until SQLite has moved what was written ahead into the file: who asks for
        this calls `checkpoint` every second or so. Of PostgreSQL nothing changes."""
        if self._engine.dialect.name == "sqlite":
            self._engine.dispose()
            event.listen(self._engine, "connect", schema.defer_checkpoints)

    def checkpoint(self) -> None:
        """Move what was written ahead into the file, beside those who read and write meanwhile."""
        if self._engine.dialect.name == "sqlite":
            with self.reading() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        self._engine.dispose()


def of_account(column: ColumnElement[str], account: str) -> ColumnElement[bool]:
    """The rows of an account, and of its users (account/user). LIKE would ignore case, and a range would need a column that is
    ordered by code points."""
    users = f"{account}/"
    return or_(column == account, func.substr(column, 1, len(users)) == users)


def _begins(prefix: str) -> list[ColumnElement[bool]]:
    """That an id begins with `prefix`, as a range, for which a database uses its index. LIKE would ignore case."""
    bound = schema.upper_bound(prefix)
    return [EPISODES.c.id >= prefix] + ([] if bound is None else [EPISODES.c.id < bound])


def _episode_row(episode: Episode) -> dict[str, Any]:
    beside = {name: getattr(episode, name) or None for name in ("began", "ended", "deployment", "session", "account")}
    return {"id": episode.id, "task": episode.task.id, "data": encode(episode), **beside}


def _score_row(score: Score) -> dict[str, Any]:
    return asdict(score) | {"time": score.time or time.time()}


def _score(row: Any) -> Score:
    """SQLite keeps NaN as NULL, and a store from before 2026-11-28 has no times."""
    value = math.nan if row["value"] is None else row["value"]
    return Score(row["episode"], row["name"], value, row["scorer"], row["version"], row["thread"], row.get("time") or 0.0)
