"""A server's parts, made once, and what it does by itself beside answering."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.types import ASGIApp

from trivium.errors import InputError, TriviumError
from trivium.harness import Harness
from trivium.policy import Policy, Renderer
from trivium.serve.agent import Agent, Outcome
from trivium.serve.errors import ApiError, invalid, missing
from trivium.serve.exchange import Exchanges
from trivium.serve.following import Deployed, follow, keep_deployed
from trivium.serve.keeping import Keeper
from trivium.serve.keys import Caller, Keyring
from trivium.serve.limits import Gate
from trivium.serve.metrics import Metrics
from trivium.serve.options import Options
from trivium.serve.pages import Pages
from trivium.serve.recorder import Recorder
from trivium.serve.redact import Rules
from trivium.serve.routing import Lane, Route
from trivium.serve.sessions import Sessions
from trivium.serve.speaking import Desk
from trivium.trace import Episode, Sampling, Store

if TYPE_CHECKING:
    from trivium.weights import Subscriber

CHECKPOINT = 0.5
"""Seconds between checkpoints of the store."""

logger = logging.getLogger("trivium.serve")


class Service:
    """What the routes stand on. `models` are who can be asked, by the names that requests give them."""

    def __init__(
        self,
        models: Mapping[str, Policy | Deployed],
        options: Options,
        harness: Harness | None = None,
        outcome: Outcome | None = None,
        page_of: Callable[[str], ASGIApp] | None = None,
    ) -> None:
        """With a `harness` the first of `models` is an agent in it; `outcome` says what came of an episode beside its answer.
        `page_of` makes the page of an account's episodes in the store, or of all for an empty one."""
        self._deployed = {name: each for name, each in models.items() if isinstance(each, Deployed)}
        self.routes = {
            name: each.route if isinstance(each, Deployed) else Route(Lane("", each)) for name, each in models.items()
        }
        self.options, self.metrics = options, Metrics()
        self._subscribed = self._subscribers()
        self.keyring, self.gate = Keyring.load(options.keys), Gate(options.concurrent)
        self.store = Store(options.store)
        self.exchanges = Exchanges(self.store)
        self.keeper = Keeper(
            self.exchanges, Rules.load(options.redact), self._renderer, options.idle, options.seconds, options.retention
        )
        self.recorder = Recorder(self.exchanges, self.metrics)
        sessions = Sessions(self.exchanges, _age(options))
        self.desk = Desk(sessions, self.recorder, self.metrics, options.seconds, options.reply)
        self.agent = self._agent(harness, outcome or _answer_alone) if harness else None
        self.pages = Pages(page_of) if page_of else None

    def _agent(self, harness: Harness, outcome: Outcome) -> Agent:
        first = next(iter(self.routes))
        sampling = Sampling(temperature=self.options.temperature, max_tokens=harness.window.reply)
        return Agent(harness, lambda: self.routes[first], sampling, self.keeper.keep, outcome, self.options.seconds)

    @property
    def models(self) -> dict[str, Policy]:
        """Who answers for each model, but for those whom a canary answers."""
        return {name: route.incumbent.policy for name, route in self.routes.items()}

    def _renderer(self, policy: str) -> Renderer:
        """The renderer of the policy of this name: a model's, or a sub-agent's. InputError where nobody has it."""
        speakers = [*self.models.values(), *(self.agent.members if self.agent else [])]
        if (found := next((each.renderer for each in speakers if each.name == policy), None)) is None:
            raise InputError(f"nobody here reads the tokens of {policy!r}, so nothing in them can be redacted")
        return found

    def route(self, name: str) -> Route:
        """Raises ApiError for a model that is not served."""
        if (route := self.routes.get(name)) is None:
            raise missing(f"there is no model {name!r:.100} here; there are {', '.join(self.routes)}")
        return route

    def model(self, name: str) -> Policy:
        """Raises ApiError as `route`."""
        return self.route(name).incumbent.policy

    @asynccontextmanager
    async def running(self, _: Any = None) -> AsyncGenerator[None]:
        """The time in which it serves; at its end all that was said is in the store."""
        works = [*map(asyncio.create_task, (self._tidy(), self._checkpoint(), *self._following()))]
        try:
            yield
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            if self.agent:
                await self.agent.close()
            await self.recorder.close()
            self.store.close()

    def _subscribers(self) -> list[tuple[Any, Subscriber]]:
        """Each engine that can take over new weights, with who looks for them. InputError for a URL that cannot be opened."""
        if not self.options.follow:
            return []
        from trivium.weights import Subscriber

        engines = [getattr(policy, "engine", policy) for policy in self.models.values()]
        return [(engine, Subscriber(self.options.follow)) for engine in engines if hasattr(engine, "load")]

    def _following(self) -> list[Coroutine[Any, Any, None]]:
        """What takes over new weights, for each model that can."""
        following: list[Coroutine[Any, Any, None]] = [
            follow(subscriber, engine, self.metrics) for engine, subscriber in self._subscribed
        ]
        for name, deployed in self._deployed.items():
            following.append(keep_deployed(deployed, partial(self.routes.__setitem__, name), self.metrics))
        return following

    async def _checkpoint(self) -> None:
        """A commit that also moves what was written ahead into the file takes ten times as long: so nobody waits for that."""
        self.store.defer_checkpoints()
        while True:
            await asyncio.sleep(CHECKPOINT)
            with suppress(TriviumError):  # a store that is away: those who write are told
                await asyncio.to_thread(self.store.checkpoint)

    async def _tidy(self) -> None:
        """Do what is due, again and again; a store that is away is no end."""
        while True:
            await asyncio.sleep(min(60.0, self.options.idle / 4))
            try:
                self.metrics.episodes.inc(await asyncio.to_thread(self.keeper.tidy))
            except Exception:
                logger.exception("tidying failed")
            if self.agent:
                self.agent.drop(time.time() - self.options.idle)


def _age(options: Options) -> float:
    """Seconds for which an exchange is gone on from: a reply takes `options.seconds` of those for which it is kept."""
    kept = options.retention * 86400 - options.seconds if options.retention else math.inf
    return min(2 * options.idle, kept)


async def _answer_alone(episode: Episode) -> str:
    return ""


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    return request.app.state.service


def caller_of(request: Request, user: str = "") -> Caller:
    """Whose request it is; `user` is whom its body names."""
    if not user.isprintable():
        raise invalid("the name of a user is letters that can be printed")
    return Caller(request.state.key, user)


def session_header(request: Request) -> str:
    """The session that a request names. ApiError for a name that is none."""
    name = request.headers.get("x-trivium-session", "")
    if len(name) > 256 or not name.isprintable():
        raise invalid("the header X-Trivium-Session is a name of up to 256 letters that can be printed")
    return name


async def connected(request: Request, work: asyncio.Task) -> Any:
    """The result of `work`, which ends where the client leaves."""
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait([work, leaving], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ApiError(499, "client_closed", "the client left")
    finally:
        leaving.cancel()
        work.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
