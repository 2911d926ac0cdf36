"""What becomes of what is kept: sessions that are over become episodes, and what is old or unwanted is deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, select, update

from trivium.policy import Renderer
from trivium.serve.assemble import PREFIX, episode_of
from trivium.serve.exchange import EXCHANGES, Exchanges, accounts_of, session_of
from trivium.serve.keys import Caller, Key
from trivium.serve.redact import Rules, redacted
from trivium.trace import Episode, decode
from trivium.trace.schema import EPISODES, SCORES


@dataclass(frozen=True, slots=True)
class Keeper:
    """`idle` seconds without an exchange end a session. Its exchanges stay twice as long, and `seconds` more, for a request
    that still goes on from one. `retention` is in days, 0 for ever; `renderers` are by the names of models."""

    exchanges: Exchanges
    rules: Rules
    renderers: Callable[[str], Renderer]
    idle: float
    seconds: float
    retention: float

    def tidy(self, now: float | None = None) -> int:
        """Do what is due; how many sessions became episodes."""
        now = now or time.time()
        ids = [self.seal(*session) for session in self.exchanges.over(now - self.idle)]
        for account, session in self.exchanges.over(now - 2 * self.idle - self.seconds, sealed=True):
            with self.exchanges.store.writing() as connection:
                connection.execute(EXCHANGES.delete().where(EXCHANGES.c.account == account, EXCHANGES.c.session == session))
        if self.retention:
            self._expire(now - self.retention * 86400)
        return sum(id is not None for id in ids)

    def seal(self, account: str, session: str) -> str | None:
        """Make an episode of what a session has said since its last one, in one transaction: it is there once, or not yet.
        Returns its id; None where there is nothing new, or where a part of it was said without consent."""
        with self.exchanges.store.writing() as connection:
            new = session_of(connection, account, session, sealed=False)
            if not new:
                return None
            before = session_of(connection, account, session, sealed=True)
            id = PREFIX + new[0].id if all(exchange.consent for exchange in new) else ""
            if id:
                episode = redacted(episode_of(new, before), self.rules, self.renderers)
                self.exchanges.store.append(connection, [episode])
            named = [exchange.id for exchange in new]
            connection.execute(update(EXCHANGES).where(EXCHANGES.c.id.in_(named)).values(episode=id))
            connection.execute(update(SCORES).where(SCORES.c.episode.in_(named)).values(episode=id))
        return new[0].id if id else None

    def episode(self, id: str, key: Key) -> Episode | None:
        """An episode that a key or one of its users had here."""
        mine = accounts_of(Caller(key), EPISODES.c.account)
        with self.exchanges.store.reading() as connection:
            data = connection.execute(select(EPISODES.c.data).where(EPISODES.c.id == PREFIX + id, mine)).scalar()
        return None if data is None else decode(data)

    def score(self, caller: Caller, target: str, name: str, value: float) -> bool:
        """Keep an opinion about an exchange or an episode of a caller's; False where it has none of this id. That about an
        exchange goes over to its episode."""
        with self.exchanges.store.writing() as connection:
            mine = accounts_of(caller, EXCHANGES.c.account)
            query = select(EXCHANGES.c.id, EXCHANGES.c.episode).where(EXCHANGES.c.id == target, mine)
            if row := connection.execute(query).first():
                about = row.id if row.episode is None else row.episode
            else:
                query = select(EPISODES.c.id).where(EPISODES.c.id == PREFIX + target, accounts_of(caller, EPISODES.c.account))
                about = connection.execute(query).scalar()
            if about:
                opinion = {"episode": about, "name": name, "value": value, "scorer": "client", "version": "1", "thread": ""}
                connection.execute(SCORES.insert(), opinion | {"time": time.time()})
        return bool(about)

    def keep(self, episode: Episode) -> None:
        """Write an episode that the agent lived here."""
        self.exchanges.store.write([redacted(episode, self.rules, self.renderers)])

    def forget(self, caller: Caller) -> dict[str, int]:
        """Delete all that is kept of a caller: its user's, or where it names none all that its key has. How much of it."""
        with self.exchanges.store.writing() as connection:
            mine = accounts_of(caller, EXCHANGES.c.account)
            exchanges = connection.execute(EXCHANGES.delete().where(mine)).rowcount
            episodes = self._delete(connection, accounts_of(caller, EPISODES.c.account))
        return {"exchanges": exchanges, "episodes": episodes}

    def _expire(self, before: float) -> None:
        with self.exchanges.store.writing() as connection:
            connection.execute(EXCHANGES.delete().where(EXCHANGES.c.ended < before))
            self._delete(connection, EPISODES.c.ended < before)

    def _delete(self, connection: Connection, which: ColumnElement[bool]) -> int:
        """Of episodes that people had here, and of no others that the store may hold."""
        return self.exchanges.store.delete(connection, and_(which, EPISODES.c.id.startswith(PREFIX, autoescape=True)))
