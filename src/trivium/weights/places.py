"""Where objects lie: a local folder, or a bucket by obstore. Both replace an object only if it is still the one that was read.

A folder is written by our own code: obstore does not sync to the disk, replaces nothing on a condition, and does not list the
staged files of a killed process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from trivium import files
from trivium.errors import InputError

PART = ".part"
"""How a staged file ends, until it is whole and renamed."""


class Content(NamedTuple):
    """An object as it was read (None: there was none), and the store's tag for it."""

    data: bytes | None
    tag: str | None = None


class Conflict(Exception):
    """The object to replace is another one than was read."""


class Storage(Protocol):
    """A place for objects. `get` and `delete` raise FileNotFoundError for an object that is not there, and all methods raise
    what the disk or the network raises. `replace` raises Conflict if the object is no longer `old`."""

    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str) -> Content: ...

    def names(self) -> list[str]: ...

    def delete(self, name: str) -> None: ...

    def replace(self, name: str, data: bytes, old: Content) -> None: ...


class Folder:
    """A local folder. After a power cut an object is there whole or not at all, and in the order in which they were put."""

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

    def get(self, name: str) -> Content:
        with open(self.path / name, "rb") as file:
            return Content(file.read())

    def names(self) -> list[str]:
        return [file.name for file in self.path.iterdir() if file.is_file()] if self.path.exists() else []

    def delete(self, name: str) -> None:
        (self.path / name).unlink()

    def replace(self, name: str, data: bytes, old: Content) -> None:
        """Replace under a lock on the folder, which ends with the process that holds it."""
        with self._handle() as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _content(self, name).data != old.data:
                raise Conflict
            self.put(name, data)

    @contextmanager
    def _handle(self) -> Generator[int]:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            yield handle
        finally:
            os.close(handle)


class Bucket:
    """A bucket, or anything else that obstore opens."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def put(self, name: str, data: bytes) -> None:
        self.store.put(name, data)

    def get(self, name: str) -> Content:
        result = self.store.get(name)
        return Content(bytes(result.bytes()), result.meta["e_tag"])

    def names(self) -> list[str]:
        return [meta["path"] for part in self.store.list() for meta in part]

    def delete(self, name: str) -> None:
        self.store.delete(name)

    def replace(self, name: str, data: bytes, old: Content) -> None:
        """Compare right before writing, and let the store compare too, as S3 does. Some servers ignore that or refuse it."""
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

        if _content(self, name).data != old.data:
            raise Conflict
        try:
            self.store.put(name, data, mode="create" if old.data is None else {"e_tag": old.tag})
        except (NotSupportedError, NotImplementedError):
            self.store.put(name, data)
        except (AlreadyExistsError, PreconditionError) as error:
            if _content(self, name).data != data:  # else we wrote it: a repeated request, whose first answer was lost
                raise Conflict from error


def _content(storage: Storage, name: str) -> Content:
    try:
        return storage.get(name)
    except FileNotFoundError:
        return Content(None)
