"""Exchanges on their way to the store: written before they are acknowledged, those that come together in one transaction."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from trivium.errors import TriviumError
from trivium.serve.errors import ApiError, away
from trivium.serve.exchange import Exchange, Exchanges, Row, row_of
from trivium.serve.metrics import Metrics

PATIENCE = 5.0
"""Seconds that a database may be away, or a disk full, before those who wait are told."""
_PAUSE = 0.1
T = TypeVar("T")

logger = logging.getLogger("trivium.serve")


@dataclass(slots=True)
class _Waiting:
    """A row to be written, and who waits for it, in which event loop and since when."""

    row: Row
    written: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    since: float = field(default_factory=time.perf_counter)

    def settle(self, error: ApiError | None) -> None:
        if not self.written.done():
            self.written.set_exception(error) if error else self.written.set_result(None)


class Recorder:
    """The one writer of a server, in a thread of its own: no commit waits for a request."""

    def __init__(self, exchanges: Exchanges, metrics: Metrics, patience: float = PATIENCE) -> None:
        self._exchanges, self._metrics, self.patience = exchanges, metrics, patience
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, exchange: Exchange) -> asyncio.Future[None]:
        """What is done when the exchange is written; ApiError where it could not be."""
        written = asyncio.get_running_loop().create_future()
        written.add_done_callback(_heard)
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, daemon=True, name="recorder")
            self._thread.start()
        self._queue.put(_Waiting(row_of(exchange), written))
        return written

    async def close(self) -> None:
        """Wait until all that was put is written, or was given up."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join)

    def _drive(self) -> None:
        while batch := self._batch():
            error = None
            try:
                insist(lambda rows=[each.row for each in batch]: self._exchanges.write(rows), self.patience)
            except ApiError as failure:
                self._metrics.unwritten.inc(len(batch))
                error = failure
            now = time.perf_counter()
            for each in batch:
                self._metrics.capture.observe(now - each.since)
                with suppress(RuntimeError):  # who waited is gone, and its loop closed
                    each.loop.call_soon_threadsafe(each.settle, error)

    def _batch(self) -> list[_Waiting]:
        """All that waits, once something does; nothing at the end."""
        batch: list[_Waiting] = []
        while not batch or not self._queue.empty():
            waiting = self._queue.get()
            if waiting is None:
                if batch:
                    self._queue.put(None)
                return batch
            batch.append(waiting)
        return batch


async def stored(work: Callable[[], T]) -> T:
    """What `work`, which reads or writes a store, returns. ApiError as `insist`."""
    return await asyncio.to_thread(lambda: insist(work))


def insist(work: Callable[[], T], patience: float = PATIENCE) -> T:
    """Do `work` with a store; again where that is away for a moment. ApiError (503) where it stays away: why is for the log,
    since a client is not to be told where the store is; and what `work` itself has to tell a client."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return work()
        except ApiError:
            raise
        except Exception as error:  # a bug too: those who wait are to be told
            if time.monotonic() > deadline or not isinstance(error, TriviumError):
                logger.exception("the store fails")
                raise away("the store is full or away: nothing was kept") from error
        time.sleep(_PAUSE)


def _heard(written: asyncio.Future[None]) -> None:
    """Who was cut off waits no more, and its error is nobody's."""
    if not written.cancelled():
        written.exception()
