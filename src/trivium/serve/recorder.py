"""Exchanges on their way to the store: written before they are acknowledged, those that come together in one transaction."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from trivium.errors import TriviumError
from trivium.serve.errors import ApiError, away
from trivium.serve.exchange import Exchange, Exchanges, Row, row_of
from trivium.serve.metrics import Metrics

PATIENCE = 5.0
"""Seconds that a database may be away, or a disk full, before those who wait are told."""
_PAUSE = 0.1

logger = logging.getLogger("trivium.serve")


class Recorder:
    """The one writer of a server. It lives in one event loop."""

    def __init__(self, exchanges: Exchanges, metrics: Metrics, patience: float = PATIENCE) -> None:
        self._exchanges, self._metrics, self._patience = exchanges, metrics, patience
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self._driver: asyncio.Task | None = None

    def put(self, exchange: Exchange) -> asyncio.Future[None]:
        """What is done when the exchange is written; ApiError where it could not be."""
        written = asyncio.get_running_loop().create_future()
        written.add_done_callback(_heard)
        self._waiting.append((row_of(exchange), written))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return written

    async def write(self, exchange: Exchange) -> None:
        """`put`, and wait for it."""
        began = time.perf_counter()
        await self.put(exchange)
        self._metrics.capture.observe(time.perf_counter() - began)

    async def close(self) -> None:
        """Wait until all that was put is written, or was given up."""
        if self._driver is not None:
            await asyncio.wait([self._driver])

    async def _drive(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            rows, error = [row for row, _ in batch], None
            try:
                await patiently(lambda rows=rows: self._exchanges.write(rows), self._patience)
            except ApiError as failure:
                self._metrics.unwritten.inc(len(rows))
                error = failure
            for _, written in batch:
                if not written.done():
                    written.set_exception(error) if error else written.set_result(None)


async def patiently(work: Callable[[], None], patience: float = PATIENCE) -> None:
    """Do `work`, which writes into a store, in a thread of its own; again where the store is away for a moment. ApiError (503)
    where it stays away."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return await asyncio.to_thread(work)
        except Exception as error:  # a bug too: those who wait are to be told
            if time.monotonic() > deadline or not isinstance(error, TriviumError):
                logger.exception("nothing can be written")
                raise away(f"the store cannot be written: {error}") from error
        await asyncio.sleep(_PAUSE)


def _heard(written: asyncio.Future[None]) -> None:
    """Who was cut off waits no more, and its error is nobody's."""
    if not written.cancelled():
        written.exception()
