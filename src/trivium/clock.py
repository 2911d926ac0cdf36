"""Simulated time, in which tests see hours in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from trivium.errors import LawError

T = TypeVar("T")


class SimulatedClock:
    """Time that jumps to the next moment at which somebody wakes, as soon as nobody can go on.

    `run` runs a coroutine on an event loop whose time is this clock's. Every wait of asyncio is then simulated: sleeps,
    timeouts, queues, locks. So the code under test is the code that runs, and the program alone decides what happens, and in
    which order (law 11). Where nobody will ever wake, it raises LawError instead of hanging. Threads, processes and sockets
    live outside of this time: use fakes that wait with asyncio.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main`, and return or raise what it does. The clock goes on from where it stood."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            return runner.run(main)

    def jump(self, seconds: float) -> None:
        """Move on by so many seconds, before which nobody can go on. The event loop calls this."""
        self._now += seconds


class _Loop(asyncio.SelectorEventLoop):
    """An event loop on a simulated clock."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(_Jump(clock))
        self._simulated = clock

    def time(self) -> float:
        return self._simulated.now()


class _Jump(selectors.DefaultSelector):
    """A selector that lets the clock jump to the next timer, where an event loop would wait for it."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise LawError("everybody waits, and nobody will ever wake: this would hang")
        self._clock.jump(timeout)
        return []
