"""How many requests a server takes: of a key in a minute, of a key at once, of all at once. Each process counts its own."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from trivium.serve.errors import busy
from trivium.serve.keys import Key


class Gate:
    """Lets requests in or says when to come again; none ever waits here."""

    def __init__(self, concurrent: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._concurrent, self._clock = concurrent, clock
        self._inside: Counter[tuple[str, str]] = Counter()
        self._left: dict[str, tuple[float, float]] = {}  # of each key: requests that it may still make, and as of when

    @contextmanager
    def admit(self, key: Key) -> Generator[None]:
        """The time of one request. ApiError (429) where a limit is reached."""
        with self.hold(key, "requests"):
            self._spend(key)
            yield

    @contextmanager
    def hold(self, key: Key, what: str) -> Generator[None]:
        """The time of one of the `what` that go on by themselves. ApiError (429) where a limit is reached."""
        if sum(count for (kind, _), count in self._inside.items() if kind == what) >= self._concurrent:
            raise busy(f"{self._concurrent} {what} are under way, and there is room for no more", 1)
        if key.concurrent and self._inside[what, key.name] >= key.concurrent:
            raise busy(f"key {key.name} has {key.concurrent} {what} under way, as many as it may", 1)
        self._inside[what, key.name] += 1
        try:
            yield
        finally:
            self._inside[what, key.name] -= 1

    def _spend(self, key: Key) -> None:
        """Take one of a minute's requests, which come back one by one."""
        if not key.per_minute:
            return
        now = self._clock()
        left, then = self._left.get(key.name, (key.per_minute, now))
        left = min(key.per_minute, left + (now - then) * key.per_minute / 60)
        if left < 1:
            wait = math.ceil((1 - left) * 60 / key.per_minute)
            raise busy(f"key {key.name} may make {key.per_minute} requests a minute", wait)
        self._left[key.name] = left - 1, now
