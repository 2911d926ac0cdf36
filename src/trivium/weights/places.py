"""Where objects lie: a local folder, or a bucket by obstore. What both can do, and that a replacement finds what it replaces.

A folder is written by our own hand: obstore neither syncs to the disk, nor replaces on a condition, nor shows what a killed
process left staged there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from trivium import files
from trivium.errors import InputError

PART = ".part"
"""How a staged file ends, until it is whole and renamed."""


class Seen(NamedTuple):
    """An object as it was read (None: there was none), and the store's tag for it."""

    data: bytes | None
    tag: str | None = None


class Changed(Exception):
    """The object to replace is another one than was seen."""


class Place(Protocol):
    """Reads raise FileNotFoundError for what is not there, everything raises what the disk or the network does."""

    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str) -> Seen: ...

    def names(self) -> list[str]: ...

    def delete(self, name: str) -> None: ...

    def replace(self, name: str, data: bytes, seen: Seen) -> None: ...


class Folder:
    """A local folder: after a power cut an object is there whole or not at all, and in the order in which they were put."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if nearest := next((part for part in (path, *path.parents) if part.exists() and not part.is_dir()), None):
            raise InputError(f"weights cannot lie in {path}: {nearest} is a file")

    def put(self, name: str, data: bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        staged = self.path / f"{name}.{uuid4().hex}{PART}"
        try:
            files.write(staged, data)
            os.replace(staged, self.path / name)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        files.sync(self.path)

    def get(self, name: str) -> Seen:
        with open(self.path / name, "rb") as file:
            return Seen(file.read())

    def names(self) -> list[str]:
        return [file.name for file in self.path.iterdir() if file.is_file()] if self.path.exists() else []

    def delete(self, name: str) -> None:
        (self.path / name).unlink()

    def replace(self, name: str, data: bytes, seen: Seen) -> None:
        """Under a lock on the folder, which ends with the process that holds it."""
        with self._opened() as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _now(self, name).data != seen.data:
                raise Changed
            self.put(name, data)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            yield handle
        finally:
            os.close(handle)


class Bucket:
    """Anything that obstore opens."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def put(self, name: str, data: bytes) -> None:
        self.store.put(name, data)

    def get(self, name: str) -> Seen:
        found = self.store.get(name)
        return Seen(bytes(found.bytes()), found.meta["e_tag"])

    def names(self) -> list[str]:
        return [meta["path"] for part in self.store.list() for meta in part]

    def delete(self, name: str) -> None:
        self.store.delete(name)

    def replace(self, name: str, data: bytes, seen: Seen) -> None:
        """Compared right before, and by the store itself, as S3 does; some servers ignore the condition or refuse it."""
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

        if _now(self, name).data != seen.data:
            raise Changed
        try:
            self.store.put(name, data, mode="create" if seen.data is None else {"e_tag": seen.tag})
        except (NotSupportedError, NotImplementedError):
            self.store.put(name, data)
        except (AlreadyExistsError, PreconditionError) as error:
            if _now(self, name).data != data:  # else it was we: a repeated request, whose first answer was lost
                raise Changed from error


def _now(place: Place, name: str) -> Seen:
    try:
        return place.get(name)
    except FileNotFoundError:
        return Seen(None)
