"""Exchanges on their way to the store: written before they are acknowledged, those that come together in one transaction."""

from __future__ import annotations

import asyncio
import time

from trivium.errors import TriviumError
from trivium.serve.errors import away
from trivium.serve.exchange import Exchange, Exchanges, Row, row_of
from trivium.serve.metrics import Metrics

PATIENCE = 5.0
"""Seconds that a database may be away, or a disk full, before those who wait are told."""
_PAUSE = 0.1


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
            error = await self._written([row for row, _ in batch])
            for _, written in batch:
                if written.done():
                    continue
                written.set_exception(away(f"the store cannot be written: {error}")) if error else written.set_result(None)

    async def _written(self, rows: list[Row]) -> TriviumError | None:
        """What kept them from being written, after some time of trying."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return await asyncio.to_thread(self._exchanges.write, rows)
            except TriviumError as error:
                self._metrics.unwritten.inc()
                if time.monotonic() > deadline:
                    return error
            await asyncio.sleep(_PAUSE)


def _heard(written: asyncio.Future[None]) -> None:
    """Who was cut off waits no more, and its error is nobody's."""
    if not written.cancelled():
        written.exception()
