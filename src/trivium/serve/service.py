"""A server's parts, made once, and what it does by itself beside answering."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request

from trivium.policy import Policy
from trivium.serve.errors import ApiError, invalid, missing
from trivium.serve.exchange import Exchanges
from trivium.serve.keys import Caller, Keyring
from trivium.serve.limits import Gate
from trivium.serve.metrics import Metrics
from trivium.serve.options import Options
from trivium.serve.recorder import Recorder
from trivium.serve.sessions import Sessions
from trivium.serve.speaking import Desk
from trivium.trace import Store

logger = logging.getLogger("trivium.serve")


class Service:
    """What the routes stand on. `models` are who can be asked, by the names that requests give them."""

    def __init__(self, models: Mapping[str, Policy], options: Options) -> None:
        self.models, self.options, self.metrics = models, options, Metrics()
        self.keyring, self.gate = Keyring.load(options.keys), Gate(options.concurrent)
        self.store = Store(options.store)
        self.exchanges = Exchanges(self.store)
        self.recorder = Recorder(self.exchanges, self.metrics)
        sessions = Sessions(self.exchanges, 2 * options.idle)
        self.desk = Desk(sessions, self.recorder, self.metrics, options.seconds, options.reply)

    def model(self, name: str) -> Policy:
        """Raises ApiError for one that is not served."""
        if (policy := self.models.get(name)) is None:
            raise missing(f"there is no model {name!r:.100} here; there are {', '.join(self.models)}")
        return policy

    @asynccontextmanager
    async def running(self, _: Any = None) -> AsyncGenerator[None]:
        """The time in which it serves; at its end all that was said is in the store."""
        try:
            yield
        finally:
            await self.recorder.close()
            self.store.close()


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
