"""Where the actions of an episode land: a sandbox, a desk, a world of its own; tools see it as `scene.place`."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Awaitable, Mapping
from typing import Protocol, TypeVar

from blake3 import blake3

from trivium.errors import InputError, PlaceError
from trivium.harness.calls import cancelled
from trivium.trace import Task

T = TypeVar("T")


class OpenPlace(Protocol):
    """One episode's place. Its other methods are what its tools call; they raise PlaceError when it is gone."""

    async def snapshot(self) -> str:
        """The id of a copy of all that is in it, by which `Place.open` begins there again, also after it was closed."""
        ...

    async def close(self) -> None:
        """Give back what it holds. Called once, also where the episode is cancelled."""
        ...


class Place(Protocol):
    """Opens a place for each episode that begins, and for each branch where its snapshot was taken."""

    async def open(self, task: Task, snapshot: str = "") -> OpenPlace:
        """A place for one attempt at `task`, as it was in `snapshot` where one is given. One that is cancelled leaves nothing
        behind. Raises InputError for a set-up that can never work, and anything else for a place that broke."""
        ...


async def whole(work: Awaitable[T]) -> T:
    """What a place gives. Raises PlaceError for whatever it raises, but InputError for what a person has to mend."""
    try:
        return await work
    except (InputError, PlaceError):
        raise
    except asyncio.CancelledError as error:
        if cancelled():
            raise
        raise PlaceError("what the place waited for was cancelled") from error
    except Exception as error:
        raise PlaceError(f"{type(error).__name__}: {error}") from error


async def close(place: OpenPlace, episode: str) -> None:
    """Close it to the end, also where the episode is cancelled meanwhile. What it raises is a warning: the episode is over."""
    closing = asyncio.ensure_future(place.close())
    try:
        await asyncio.wait([closing])
    except asyncio.CancelledError:
        await asyncio.wait([closing])
        raise
    finally:
        reason = "closing it was cancelled" if closing.cancelled() else closing.done() and closing.exception()
        if reason:
            warnings.warn(f"the place of episode {episode} may still be open: {reason!r}", stacklevel=2)


class MemoryPlace:
    """Files in memory (path -> text), which each episode changes on its own: the fake that ships. `open_files` are those of the
    episodes that go on. A snapshot's id is the hash of what it holds."""

    def __init__(self, files: Mapping[str, str] | None = None) -> None:
        self.files = dict(files or {})
        self.open_files: list[MemoryFiles] = []
        self.snapshots: dict[str, dict[str, str]] = {}

    async def open(self, task: Task, snapshot: str = "") -> MemoryFiles:
        """Raises PlaceError for a snapshot that it has not."""
        if snapshot and snapshot not in self.snapshots:
            raise PlaceError(f"there is no snapshot {snapshot}")
        files = MemoryFiles(self, dict(self.snapshots[snapshot] if snapshot else self.files))
        self.open_files.append(files)
        return files


class MemoryFiles:
    """One episode's files in memory: `files` maps paths to texts."""

    def __init__(self, home: MemoryPlace, files: dict[str, str]) -> None:
        self.home, self.files = home, files

    async def snapshot(self) -> str:
        id = blake3(json.dumps(self.files, sort_keys=True).encode()).hexdigest()[:16]
        self.home.snapshots[id] = dict(self.files)
        return id

    async def close(self) -> None:
        self.home.open_files.remove(self)
