"""A coder's desk: the files of one attempt, in a sandbox of its own, as tools see them.

Paths are of the project, relative to its top. What a policy asks for and cannot have is a ToolError; a sandbox that is gone is
a PlaceError, and the attempt is begun anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from trivium.errors import PlaceError
from trivium.harness import Scene, ToolError
from trivium.trace import Task

MOST_BYTES = 1_000_000
"""Of a file that is read or written as a whole."""

SEARCHED = 4_000_000
"""Bytes of all files together that grep and search_code read."""

OUTPUT = 64_000
"""Bytes of a command's output that are kept."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command came to: its exit code, stdout and stderr in one, and whether its time was used up."""

    code: int
    output: str
    timed_out: bool = False


class Box(Protocol):
    """The verbs of a sandbox that a desk needs."""

    async def files(self) -> dict[str, int]:
        """Every regular file below the top, path -> size in bytes. Names that are no UTF-8 are escaped."""
        ...

    async def read(self, path: str, most: int) -> bytes: ...

    async def write(self, files: Mapping[str, bytes]) -> None: ...

    async def run(self, command: str, seconds: float, output: int) -> Outcome: ...

    async def snapshot(self) -> str: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Desk:
    """What stands open during one attempt: the harness' OpenPlace."""

    box: Box

    async def files(self) -> list[str]:
        """The paths of all files, sorted; those of caches left out, which nobody wrote."""
        return sorted(path for path in await self.box.files() if "__pycache__" not in path and not path.startswith(".git/"))

    async def text(self, path: str) -> str:
        """A file's text. Raises ToolError where there is none, and for what is no text or too large."""
        clean, sizes = _inside(path), await self.box.files()
        if clean not in sizes:
            raise ToolError(f"there is no file {path}; list_files shows them.")
        if sizes[clean] > MOST_BYTES:
            raise ToolError(f"{path} has {sizes[clean]:,} bytes, too many to read: run a command that shows a part.")
        try:
            return _decoded(await self.box.read(clean, MOST_BYTES))
        except UnicodeDecodeError:
            raise ToolError(f"{path} is no text.") from None

    async def texts(self) -> dict[str, str]:
        """The texts of all files that are text, path -> text, as many in order as are not too large together."""
        sizes, found, left = await self.box.files(), {}, SEARCHED
        for path in await self.files():
            if sizes[path] > min(MOST_BYTES, left):
                continue
            left -= sizes[path]
            try:
                found[path] = _decoded(await self.box.read(path, MOST_BYTES))
            except UnicodeDecodeError:
                continue
        return found

    async def write(self, path: str, text: str) -> None:
        """Raises ToolError for a path outside of the project, a text too large, and a disk that is full."""
        data = text.encode(errors="replace")
        if len(data) > MOST_BYTES:
            raise ToolError(f"a text of {len(data):,} bytes is too long to write.")
        try:
            await self.box.write({_inside(path): data})
        except OSError as error:
            raise ToolError(f"{path} cannot be written: {error.strerror or error}.") from error

    async def run(self, command: str, seconds: float) -> Outcome:
        return await self.box.run(command, seconds, OUTPUT)

    async def snapshot(self) -> str:
        return await self.box.snapshot()

    async def close(self) -> None:
        await self.box.close()


def desk_of(scene: Scene) -> Desk:
    if not isinstance(scene.place, Desk):
        raise PlaceError("a coder's tools need a desk: give the harness a place that opens one")
    return scene.place


def project(task: Task) -> dict[str, bytes]:
    """The files that a task begins with."""
    return {path: text.encode() for path, text in task.truth["files"].items()}


def _inside(path: str) -> str:
    """A path of the project in its plain form. Raises ToolError for one that leads out of it."""
    pure = PurePosixPath(path)
    if not path or "\0" in path or pure.is_absolute() or ".." in pure.parts:
        raise ToolError(f"{path!r} is no path inside of the project.")
    return str(pure)


def _decoded(data: bytes) -> str:
    """Text, or UnicodeDecodeError; a file with a zero byte is none, whatever its other bytes say."""
    if b"\0" in data:
        raise UnicodeDecodeError("utf-8", data, 0, 1, "a zero byte")
    return data.decode()
