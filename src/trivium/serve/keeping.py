"""What becomes of what is kept: sessions that are over become episodes, and what is old or unwanted is deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, func, select, tuple_, update

from trivium.errors import CorruptError
from trivium.policy import Renderer
from trivium.serve.assemble import episode_of
from trivium.serve.exchange import EXCHANGES, REPLIES, Exchange, Exchanges, accounts_of, session_of
from trivium.serve.feedback import hear
from trivium.serve.keys import Caller, Key
from trivium.serve.redact import Rules, redacted
from trivium.trace import Episode, Feedback, decode
from trivium.trace.people import SERVED
from trivium.trace.schema import EPISODES, FEEDBACK, SCORES

logger = logging.getLogger("trivium.serve")


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
        """Do what is due; how many sessions became episodes. What is too old goes first, so nothing keeps it here."""
        now = now or time.time()
        if self.retention:
            self._expire(now - self.retention * 86400)
        sealed = sum(self._sealed(*session) for session in self.exchanges.over(now - self.idle))
        for account, session in self.exchanges.over(now - 2 * self.idle - self.seconds, sealed=True):
            with self.exchanges.store.writing() as connection:
                connection.execute(EXCHANGES.delete().where(EXCHANGES.c.account == account, EXCHANGES.c.session == session))
        return sealed

    def _sealed(self, account: str, session: str) -> bool:
        """Whether a session became an episode. One that cannot stays as it is, and keeps no other from it."""
        try:
            return self.seal(account, session) is not None
        except Exception:
            logger.exception("a session cannot be an episode", extra={"line": {"session": session}})
            return False

    def seal(self, account: str, session: str) -> str | None:
        """Make an episode of what a session has said since its last one, in one transaction: it is there once, or not yet.
        Returns its id; None where there is nothing new, or where it may be part of none."""
        with self.exchanges.store.writing() as connection:
            new = session_of(connection, account, session, sealed=False)
            if not new:
                return None
            before = session_of(connection, account, session, sealed=True)
            episode = self._episode(new, before)
            id = episode.id if episode else ""
            if episode:
                self.exchanges.store.append(connection, [episode])
            named = [exchange.id for exchange in new]
            connection.execute(update(EXCHANGES).where(EXCHANGES.c.id.in_(named)).values(episode=id))
            self._hand_over(connection, new, id)
        return new[0].id if id else None

    def _episode(self, new: Sequence[Exchange], before: Sequence[Exchange]) -> Episode | None:
        """What a session has said since its last episode; None where a part of it was said without consent, or is gone."""
        if not all(exchange.consent for exchange in new):
            return None
        try:
            episode = episode_of(new, before)
        except CorruptError:  # its user's data were deleted, perhaps, while a reply was under way
            logger.exception("a session is torn, and becomes no episode", extra={"line": {"session": new[0].session}})
            return None
        return redacted(episode, self.rules, self.renderers)

    def _hand_over(self, connection: Connection, exchanges: Sequence[Exchange], episode: str) -> None:
        """What was said of exchanges is said of their episode from here on; it goes where they may be part of none."""
        named = [exchange.id for exchange in exchanges]
        for table in (SCORES, FEEDBACK):
            about = table.c.episode.in_(named)
            connection.execute(update(table).where(about).values(episode=episode) if episode else table.delete().where(about))
        if episode:
            said = [
                {"id": each.id, "account": each.account, "episode": episode, "said": self.rules.text(each.message["content"])}
                for each in exchanges
            ]
            connection.execute(REPLIES.insert(), said)

    def episode(self, id: str, key: Key) -> Episode | None:
        """An episode that a key or one of its users had here."""
        mine = accounts_of(Caller(key), EPISODES.c.account)
        with self.exchanges.store.reading() as connection:
            data = connection.execute(select(EPISODES.c.data).where(EPISODES.c.id == SERVED + id, mine)).scalar()
        return None if data is None else decode(data)

    def hear(self, caller: Caller, feedback: Feedback) -> bool:
        """Keep what a caller did with a reply or an episode. As `feedback.hear`."""
        return hear(self.exchanges, self.rules, caller, feedback)

    def keep(self, episode: Episode) -> None:
        """Write an episode that the agent lived here."""
        self.exchanges.store.write([redacted(episode, self.rules, self.renderers)])

    def forget(self, caller: Caller) -> dict[str, int]:
        """Delete all that is kept of a caller: its user's, or where it names none all that its key has. How much of it."""
        with self.exchanges.store.writing() as connection:
            exchanges = self._delete_exchanges(connection, accounts_of(caller, EXCHANGES.c.account))
            episodes = self._delete(connection, accounts_of(caller, EPISODES.c.account))
        return {"exchanges": exchanges, "episodes": episodes}

    def _expire(self, before: float) -> None:
        """Delete sessions without an exchange since the time `before`, and episodes that ended earlier. A session goes whole:
        what is said in it last was said to all before it (law 2)."""
        table = EXCHANGES.c
        over = (
            select(table.account, table.session).group_by(table.account, table.session).having(func.max(table.ended) < before)
        )
        with self.exchanges.store.writing() as connection:
            self._delete_exchanges(connection, tuple_(table.account, table.session).in_(over))
            self._delete(connection, EPISODES.c.ended < before)

    def _delete_exchanges(self, connection: Connection, which: ColumnElement[bool]) -> int:
        """With what was said of them; what was said of their episode stays with that."""
        connection.execute(FEEDBACK.delete().where(FEEDBACK.c.episode.in_(select(EXCHANGES.c.id).where(which))))
        return connection.execute(EXCHANGES.delete().where(which)).rowcount

    def _delete(self, connection: Connection, which: ColumnElement[bool]) -> int:
        """Of episodes that people had here, and of no others that the store may hold. Exchanges that stay are part of none."""
        served = and_(which, EPISODES.c.id.startswith(SERVED, autoescape=True))
        gone = select(EPISODES.c.id).where(served)
        connection.execute(REPLIES.delete().where(REPLIES.c.episode.in_(gone)))
        connection.execute(update(EXCHANGES).where(EXCHANGES.c.episode.in_(gone)).values(episode=""))
        return self.exchanges.store.delete(connection, served)
