"""Who shows a person how far a run is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Watcher(Protocol):
    """A run is a row of stages; each has a name and a number of steps."""

    def stage(self, name: str, total: int, done: int = 0) -> None: ...

    def advance(self, n: int = 1, **numbers: float) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """The Watcher of all ranks but the first."""

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def stage(self, name: str, total: int, done: int = 0) -> None:
        pass

    def advance(self, n: int = 1, **numbers: float) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def embedding(watcher: Watcher) -> Callable[[int, int], None]:
    """A stage for vectors that are made for the first time: told how many of how many there are."""
    before = 0

    def tell(done: int, total: int) -> None:
        nonlocal before
        watcher.stage("embed", total, before)
        watcher.advance(done - before)
        before = done

    return tell
