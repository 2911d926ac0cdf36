"""What people say of a reply or an episode of theirs, on its way to the store: joined by id, late and out of order, once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Connection, select

from trivium.errors import InputError
from trivium.serve.errors import ApiError, missing
from trivium.serve.exchange import EXCHANGES, REPLIES, Exchanges, accounts_of, decoded
from trivium.serve.keys import Caller
from trivium.serve.redact import Rules
from trivium.trace import Feedback
from trivium.trace.people import SERVED
from trivium.trace.schema import EPISODES


@dataclass(frozen=True, slots=True)
class Target:
    """What feedback is about: an episode, or an exchange that is to become a part of one; whose it is; and what was said in it,
    where it is one reply."""

    id: str
    account: str
    said: str = ""


def hear(exchanges: Exchanges, rules: Rules, caller: Caller, feedback: Feedback) -> bool:
    """Keep what a caller did with a reply or an episode, which `feedback.episode` names as clients know it; whether it was new.

    Raises ApiError: 404 where it is not the caller's, 403 for a key without consent, 409 for an id that said something else.
    """
    with exchanges.store.writing() as connection:
        target = _target(connection, caller, feedback.episode)
        if target is None:
            raise missing(f"there is no reply and no episode {feedback.episode!r:.80}")
        if not caller.key.consent:
            raise ApiError(403, "permission_error", "under this key nothing is kept to learn from, so no feedback is either")
        original = (feedback.original or target.said) if feedback.kind == "edit" else ""
        known = replace(feedback, episode=target.id, account=target.account)
        try:
            return exchanges.store.hear(
                connection, replace(known, text=rules.text(feedback.text), original=rules.text(original))
            )
        except InputError as error:
            raise ApiError(409, "conflict_error", str(error)) from error


def _target(connection: Connection, caller: Caller, id: str) -> Target | None:
    """A caller's reply or episode of this id. None where there is none, or where it may be part of no episode."""
    table = EXCHANGES.c
    mine = accounts_of(caller, table.account)
    row = connection.execute(select(table.episode, table.account, table.data).where(table.id == id, mine)).first()
    if row is not None:
        name = id if row.episode is None else row.episode
        return Target(name, row.account, decoded(row.data).message["content"]) if name else None
    mine = accounts_of(caller, REPLIES.c.account)
    row = connection.execute(select(REPLIES).where(REPLIES.c.id == id, mine)).first()
    if row is not None:
        return Target(row.episode, row.account, row.said)
    mine = accounts_of(caller, EPISODES.c.account)
    row = connection.execute(select(EPISODES.c.id, EPISODES.c.account).where(EPISODES.c.id == SERVED + id, mine)).first()
    return None if row is None else Target(row.id, row.account)
