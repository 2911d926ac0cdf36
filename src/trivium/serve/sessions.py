"""What a request goes on from: the exchange that it extends, and its prompt by that one's exact tokens.

A client sends the whole conversation each time. Rendered again, its own earlier replies might get other tokens than those that
were sampled. So an exchange is found again by its conversation, and only what is new is rendered behind its tokens; where a
client changed how it writes a message, by the tokens that its conversation is rendered to. A request that extends nothing
begins a context of its own: in the session that it names, or whose tool calls it answers, or else in a new one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from trivium.policy import Renderer
from trivium.policy.message import Message
from trivium.serve.ask import Ask
from trivium.serve.errors import invalid, missing
from trivium.serve.exchange import Exchange, Exchanges
from trivium.serve.keys import Caller
from trivium.serve.recorder import stored

_KEPT = 4_000_000
"""Tokens of contexts that are kept in memory; others are read from the store again."""
CALL = "call_"


@dataclass(frozen=True, slots=True)
class Past:
    """An exchange to go on from: its prompt and its reply, by their tokens."""

    id: str
    session: str
    ended: float
    prompt: list[int]
    reply: list[int]
    deployment: str = ""
    propensity: float = 0.0

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.reply]


@dataclass(frozen=True, slots=True)
class Opening:
    """How a request begins: the tokens of its prompt, of which the first `known` are those of the exchange `parent`; the
    messages that the rest shows; its session; the digest of its conversation; and who said what it goes on from."""

    tokens: list[int]
    known: int
    parent: str
    messages: list[Message]
    session: str
    digest: str
    reason: str = ""
    deployment: str = ""
    propensity: float = 0.0


class Sessions:
    """Finds what requests go on from, in memory or in the store."""

    def __init__(self, exchanges: Exchanges, age: float) -> None:
        """What ended more than `age` seconds ago is not gone on from: it may be deleted at any moment."""
        self._exchanges, self._age = exchanges, age
        self._recent: OrderedDict[str, Past] = OrderedDict()  # by the digests of `Exchange`, within them by account
        self._size = 0

    async def open(self, ask: Ask, account: str, renderer: Renderer) -> Opening:
        """Raises ApiError where the request names an exchange that is not there."""
        if ask.previous:
            return await self._resume(ask, account, renderer)
        chain = list(digests(account, ask))
        ends = [number for number, message in enumerate(ask.messages) if message["role"] == "assistant"]
        places = {chain[number]: number for number in reversed(ends)}
        digest, reason = chain[-1], ""
        if found := await self._find(account, list(places)):
            past, place = found[0], places[found[1]]
            if (opening := _extended(ask, past, ask.messages[place + 1 :], renderer, digest)) is not None:
                return opening
            reason = "template"
        tokens = renderer.opening(ask.messages, ask.tools)
        if ends and (found := await self._find(account, list(_closings(account, tokens, renderer)))):
            past = found[0]
            return _at(ask, past, tokens, ask.messages[ends[-1] + 1 :], digest)
        session = ask.session or await self._by_calls(account, ask.messages) or uuid.uuid4().hex
        return Opening(tokens, 0, "", ask.messages, session, digest, reason or "another context")

    def remember(self, exchange: Exchange, prompt: Sequence[int]) -> None:
        """Keep what has been said in memory, for the request that extends it."""
        past = Past(exchange.id, exchange.session, exchange.ended, list(prompt), exchange.tokens, *_lane(exchange))
        for digest in (exchange.after, exchange.closing):
            place = _place(exchange.account, digest)
            self._size += len(prompt) - len(self._recent[place].prompt if place in self._recent else ())
            self._recent[place] = past
        while self._size > _KEPT and len(self._recent) > 1:
            self._size -= len(self._recent.popitem(last=False)[1].prompt)

    def forget(self, caller: Caller) -> None:
        """Let what a caller said go from memory."""
        mine = (f"{caller.account}\n",) if caller.user else (f"{caller.account}\n", f"{caller.account}/")
        for place in [place for place in self._recent if place.startswith(mine)]:
            self._size -= len(self._recent.pop(place).prompt)

    async def _resume(self, ask: Ask, account: str, renderer: Renderer) -> Opening:
        """A request that names the exchange that it goes on from, and shows what is new alone."""
        exchange = await stored(lambda: self._exchanges.get(account, ask.previous))
        if exchange is None or exchange.ended < time.time() - self._age:
            raise missing(f"there is no response {ask.previous!r} to go on from")
        if ask.session and ask.session != exchange.session:
            raise invalid(f"the response {ask.previous!r} is of another session than {ask.session!r}")
        line = await stored(lambda: self._line(exchange))
        if not line:
            raise missing(f"what the response {ask.previous!r} goes on from was deleted")
        digest = chained(line[-1].after, ask.messages)
        opening = _extended(ask, _past(line), ask.messages, renderer, digest)
        if opening is not None:
            return opening
        whole = [message for each in line for message in (*each.messages, each.message)] + ask.messages
        tokens = renderer.opening(whole, ask.tools)
        return Opening(tokens, 0, "", whole, exchange.session, digest, "template")

    async def _find(self, account: str, names: list[str]) -> tuple[Past, str] | None:
        """The exchange that the first of `names` names that names any, and which it was."""
        since, recent = time.time() - self._age, None
        for number, digest in enumerate(names):
            if (past := self._recent.get(_place(account, digest))) is not None and past.ended > since:
                names, recent = names[:number], (past, digest)
                break
        # another server may have gone further with it than this one
        if not names or (exchange := await stored(lambda: self._exchanges.find(account, names, since))) is None:
            return recent
        if not (line := await stored(lambda: self._line(exchange))):
            return recent
        return _past(line), exchange.after if exchange.after in names else exchange.closing

    def _line(self, exchange: Exchange) -> list[Exchange]:
        """An exchange and those that it extends, the first one first; nothing where one of them was deleted."""
        known = {each.id: each for each in self._exchanges.session(exchange.account, exchange.session)}
        line = [exchange]
        while line[0].parent:
            if (parent := known.get(line[0].parent)) is None:
                return []
            line.insert(0, parent)
        return line

    async def _by_calls(self, account: str, messages: Sequence[Message]) -> str:
        """The session of whose tool calls the messages speak: we gave them their ids."""
        ids = [message.get("tool_call_id", "") for message in messages]
        ids += [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        for name in {id.removeprefix(CALL).partition("_")[0] for id in ids if id.startswith(CALL)}:
            if (exchange := await stored(lambda name=name: self._exchanges.get(account, name))) is not None:
                return exchange.session
        return ""


def digests(account: str, ask: Ask) -> Iterator[str]:
    """A digest of the conversation up to each of its messages."""
    value = _digest(account, ask.model, json.dumps(ask.tools, sort_keys=True))
    for message in ask.messages:
        value = chained(value, [message])
        yield value


def chained(digest: str, messages: Sequence[Message]) -> str:
    """The digest of a conversation that goes on with `messages`. Arguments count by value: clients write them anew."""
    for message in messages:
        calls = [[c["id"], c["function"]["name"], _value(c["function"]["arguments"])] for c in message.get("tool_calls") or ()]
        parts = [message["role"], message.get("content") or "", calls, message.get("tool_call_id", "")]
        digest = _digest(digest, json.dumps(parts, sort_keys=True))
    return digest


def closing(account: str, tokens: Sequence[int]) -> str:
    """The digest of a context by its tokens."""
    return _digest(account, blake3(np.asarray(tokens, np.int32).tobytes()).hexdigest())


def _closings(account: str, tokens: list[int], renderer: Renderer) -> Iterator[str]:
    """The digests of those contexts that `tokens` may extend, the longest first: a reply ends with a stop token, or was cut off
    where the template writes one."""
    stops = [number for number, token in enumerate(tokens) if token in renderer.stop_tokens]
    hasher, start, found = blake3(), 0, []
    for place in sorted({*stops, *(number + 1 for number in stops)}):
        hasher.update(np.asarray(tokens[start:place], np.int32).tobytes())
        start = place
        found.append(_digest(account, hasher.hexdigest()))
    return reversed(found)


def _extended(ask: Ask, past: Past, new: list[Message], renderer: Renderer, digest: str) -> Opening | None:
    """The opening that goes on from `past` with `new` messages; None where this dialect has to render all again."""
    if not new or any(message["role"] not in ("tool", "user") for message in new):
        return None
    placed = renderer.continuation(past.prompt, past.reply, new)
    if placed is None:
        return None
    return _at(ask, past, [*past.tokens, *(token for tokens, _ in placed for token in tokens)], new, digest)


def _at(ask: Ask, past: Past, tokens: list[int], new: list[Message], digest: str) -> Opening:
    """Behind `past`, or in the session of its own that the request names."""
    if ask.session and ask.session != past.session:
        return Opening(tokens, 0, "", ask.messages, ask.session, digest, "another session went on")
    known = len(past.prompt) + len(past.reply)
    return Opening(tokens, known, past.id, new, past.session, digest, "", past.deployment, past.propensity)


def _past(line: Sequence[Exchange]) -> Past:
    """The last exchange of a line, by its tokens."""
    prompt: list[int] = []
    for exchange in line[:-1]:
        prompt += [*exchange.fresh, *exchange.tokens]
    last = line[-1]
    return Past(last.id, last.session, last.ended, [*prompt, *last.fresh], last.tokens, *_lane(last))


def _lane(exchange: Exchange) -> tuple[str, float]:
    return exchange.deployment, exchange.propensity


def _place(account: str, digest: str) -> str:
    return f"{account}\n{digest}"


def _value(arguments: object) -> object:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


def _digest(*parts: str) -> str:
    return blake3("\n".join(parts).encode(errors="replace")).hexdigest()[:32]
