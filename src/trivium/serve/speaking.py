"""One request to a model, from its prompt to the record of what was said."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from trivium.errors import InputError, PolicyError, Unsupported
from trivium.policy import Policy, Reply, Streaming, View
from trivium.policy.message import Message
from trivium.serve.ask import Answer, Ask
from trivium.serve.errors import ApiError, away, invalid, late
from trivium.serve.exchange import Exchange
from trivium.serve.keys import Caller
from trivium.serve.metrics import Metrics
from trivium.serve.recorder import Recorder
from trivium.serve.routing import Choice, Route
from trivium.serve.sessions import Opening, Sessions, chained, closing
from trivium.serve.text import Hearing, Said, read
from trivium.trace import Sampling
from trivium.trace.people import user_of

Part = str | Answer

logger = logging.getLogger("trivium.serve")


@dataclass(frozen=True, slots=True)
class Desk:
    """What every request needs: who is asked, what it goes on from, and where it is written down."""

    sessions: Sessions
    recorder: Recorder
    metrics: Metrics
    seconds: float
    reply: int


@dataclass(slots=True)
class Heard:
    """A reply as far as it came."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    message: Message | None = None
    complete: bool = True

    def add(self, part: Reply) -> None:
        self.tokens += part.tokens
        self.logprobs += part.logprobs
        self.versions += part.versions
        self.kept += part.kept
        self.message, self.complete = part.message, part.complete

    def reply(self) -> Reply:
        return Reply(self.tokens, self.logprobs, self.versions, self.kept, self.message, self.complete)


class Speaking:
    """A reply under way. `parts` are heard by one listener; who leaves it stops the reply, and what had been said is recorded
    as broken off. It goes on without waiting for a slow listener, so its slot is soon free again."""

    def __init__(self, desk: Desk, choice: Choice, ask: Ask, caller: Caller, opening: Opening, sampling: Sampling) -> None:
        self._desk, self._choice, self._ask, self._caller = desk, choice, ask, caller
        self._policy = policy = choice.lane.policy
        self._opening, self._sampling = opening, sampling
        self.id, self.session, self._began = uuid.uuid4().hex, opening.session, time.time()
        self.read, self.known = len(opening.tokens), opening.known
        self._hearing = Hearing(policy.renderer, ask.stop)
        self._heard = Heard()
        self._parts: asyncio.Queue[Part | ApiError] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def parts(self) -> AsyncGenerator[Part]:
        """Texts as they come, and the answer, which is in the store by then. Raises ApiError for a reply that broke."""
        try:
            while True:
                part = await self._parts.get()
                if isinstance(part, ApiError):
                    raise part
                yield part
                if isinstance(part, Answer):
                    return
        finally:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._desk.seconds):
                await self._listen()
            self._parts.put_nowait(await self._finished())
        except asyncio.CancelledError:
            self._break_off("cancelled")
            raise
        except TimeoutError:
            self._parts.put_nowait(late(f"the reply took more than {self._desk.seconds:g} seconds"))
            self._break_off("timeout")
        except ApiError as error:
            self._parts.put_nowait(error)
        except PolicyError as error:
            self._parts.put_nowait(away(f"the model cannot speak: {error}"))
            self._break_off("failed")
        except Exception as error:  # a bug: its request alone is lost
            self._parts.put_nowait(ApiError(500, "api_error", f"the server failed: {type(error).__name__}"))
            logger.exception("a reply failed")
            self._break_off("failed")

    async def _listen(self) -> None:
        number = self.id if self._ask.seed is None else "seed"
        stream = (self._ask.seed or 0, "serve", number, 0)
        view = View(self._opening.tokens, self._ask.messages, self._ask.tools, stream)
        async with aclosing(spoken(self._policy, view, self._sampling)) as parts:
            async for part in parts:
                self._heard.add(part)
                if text := self._hearing.hear(part.tokens):
                    self._parts.put_nowait(text)
                if self._hearing.stopped:
                    return

    async def _finished(self) -> Answer:
        said = self._said()
        if text := self._hearing.end(said.message["content"]):
            self._parts.put_nowait(text)
        exchange = self._exchange(said.message, said.finish)
        await self._desk.recorder.put(exchange)
        self._desk.sessions.remember(exchange, self._opening.tokens)
        self._desk.metrics.tokens.labels(self._policy.name, "read").inc(self.read)
        self._desk.metrics.tokens.labels(self._policy.name, "said").inc(len(exchange.tokens))
        return Answer(
            self.id, self.session, self._ask.model, said.message, said.finish, self.read, self.known, exchange.tokens,
            exchange.logprobs, int(self._began),
        )  # fmt: skip

    def _said(self) -> Said:
        return read(self._heard.reply(), self._hearing, self._policy.renderer, self.id, bool(self._ask.tools))

    def _break_off(self, how: str) -> None:
        """Record what was said of a reply that came to no end; nobody waits for it. Where that fails too the log says so."""
        self._desk.metrics.cuts.labels(how).inc()
        try:
            if self._heard.tokens:
                self._desk.recorder.put(self._exchange(self._said().message, how))
        except Exception:  # what broke the reply may be in what was said
            logger.exception("a reply that was broken off is not kept")

    def _exchange(self, message: Message, finish: str) -> Exchange:
        opening, heard, account = self._opening, self._heard, self._caller.account
        tokens = heard.tokens or self._policy.renderer.reply(heard.message or message)
        versions = heard.versions or [self._policy.version] * len(tokens)
        return Exchange(
            self.id, account, self.session, self._policy.name, self._began, time.time(), opening.tokens[opening.known :],
            tokens, heard.logprobs, versions, heard.kept, self._sampling, opening.messages, message, finish,
            opening.parent, opening.reason, chained(opening.digest, [message]), closing(account, [*opening.tokens, *tokens]),
            self._caller.key.consent, [] if opening.parent else self._ask.tools,
            self._choice.lane.deployment, self._choice.propensity,
        )  # fmt: skip


async def begin(desk: Desk, route: Route, ask: Ask, caller: Caller) -> Speaking:
    """A reply to `ask` by whom `route` chooses. Raises ApiError for what cannot be asked."""
    try:
        opening = await desk.sessions.open(ask, caller.account, route.incumbent.policy.renderer)
        choice = route.kept(opening.deployment, opening.propensity) if opening.parent else None
        choice = choice or route.drawn(user_of(caller.account, opening.session))
        policy = choice.lane.policy
        sampling = Sampling(ask.temperature, ask.top_p, ask.top_k, ask.reply or _room(policy, len(opening.tokens), desk.reply))
    except RecursionError:
        raise invalid("the conversation or a tool is nested too deeply") from None
    except (InputError, Unsupported) as error:
        raise invalid(str(error)) from error
    context = getattr(policy, "context", None)
    if context is not None and len(opening.tokens) + sampling.max_tokens > context:
        raise invalid(
            f"{len(opening.tokens)} tokens and a reply of {sampling.max_tokens} do not fit the context of {context} tokens"
        )
    return Speaking(desk, choice, ask, caller, opening, sampling)


def rendered(policy: Policy, ask: Ask) -> list[int]:
    """The prompt of a conversation that begins here. Raises ApiError for what cannot be rendered."""
    try:
        return policy.renderer.opening(ask.messages, ask.tools)
    except RecursionError:
        raise invalid("the conversation or a tool is nested too deeply") from None
    except InputError as error:
        raise invalid(str(error)) from error


def _room(policy: Policy, prompt: int, most: int) -> int:
    """The longest reply where a request says nothing."""
    context = getattr(policy, "context", None)
    return most if context is None else max(1, min(most, context - prompt))


async def spoken(policy: Policy, view: View, sampling: Sampling) -> AsyncGenerator[Reply]:
    """A reply in parts, or in one where the policy cannot be heard while it speaks."""
    if not isinstance(policy, Streaming):
        yield await policy.speak(view, sampling)
        return
    async with aclosing(policy.stream(view, sampling)) as parts:  # which stops the policy at once
        async for part in parts:
            yield part
