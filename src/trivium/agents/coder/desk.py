"""A coder's desk: the files of one attempt, in a sandbox of its own, as its tools see them.

Paths are of the project, relative to its top. What a policy asks for and cannot have is a ToolError; a sandbox that is gone is
a PlaceError, and the attempt is begun anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trivium.errors import InputError, PlaceError
from trivium.harness import Scene, ToolError
from trivium.sandbox import Docker, Limits, LocalUnsafe, Ns, Provider, Result, Sandbox, SandboxError, inside
from trivium.trace import Task

MOST_BYTES = 1_000_000
"""Of a file that is read or written as a whole."""

SEARCHED = 4_000_000
"""Bytes of all files together that grep and search_code read."""

SKIPPED = frozenset(
    {".git", ".hg", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Folders, wherever they stand, whose files nobody wrote: they are neither copied nor looked at, and come back to nobody."""

Backend = Literal["ns", "docker", "local-unsafe"]


def open_provider(backend: Backend) -> Provider:
    """What makes sandboxes. Raises Unsupported where this machine has not what it needs; a weaker one is never taken."""
    if backend == "local-unsafe":
        return LocalUnsafe(i_know_that_nothing_is_isolated=True)
    return Ns() if backend == "ns" else Docker()


@dataclass(slots=True)
class Desk:
    """What stands open during one attempt: the harness' OpenPlace."""

    box: Sandbox

    async def sizes(self) -> dict[str, int]:
        """Every file that somebody may have written, path -> bytes, sorted; those in a folder of SKIPPED are left out."""
        sizes = await self.box.files()
        return {path: sizes[path] for path in sorted(sizes) if SKIPPED.isdisjoint(path.split("/")[:-1])}

    async def text(self, path: str) -> str:
        """A file's text. Raises ToolError where there is none, and for what is no text or too large."""
        try:
            size = (await self.box.files()).get(inside(path))
            if size is None:
                raise ToolError(f"there is no file {path}; list_files shows them.")
            if size > MOST_BYTES:
                raise ToolError(f"{path} has {size:,} bytes, too many to read: run a command that shows a part.")
            return _decoded(await self.box.read(path, MOST_BYTES))
        except SandboxError as error:
            raise ToolError(f"{error}.") from error
        except UnicodeDecodeError:
            raise ToolError(f"{path} is no text.") from None

    async def texts(self) -> dict[str, str]:
        """The texts of all files that are text, path -> text, as many in order as are not too large together."""
        found, left = {}, SEARCHED
        for path, size in (await self.sizes()).items():
            if size > min(MOST_BYTES, left):
                continue
            left -= size
            try:
                found[shown(path)] = _decoded(await self.box.read(path, MOST_BYTES))
            except (SandboxError, UnicodeDecodeError):
                continue
        return found

    async def write(self, path: str, text: str) -> None:
        """Raises ToolError for a path outside of the project, a text too large, and a disk that is full."""
        data = text.encode(errors="replace")
        if len(data) > MOST_BYTES:
            raise ToolError(f"a text of {len(data):,} bytes is too long to write.")
        try:
            await self.box.write({path: data})
        except SandboxError as error:
            raise ToolError(f"{error}.") from error

    async def run(self, command: str, seconds: float) -> Result:
        """Raises ToolError for a command that no shell can be given."""
        try:
            return await self.box.exec(command, seconds)
        except SandboxError as error:
            raise ToolError(f"{error}.") from error

    async def snapshot(self) -> str:
        return await self.box.snapshot()

    async def close(self) -> None:
        await self.box.close()


def desk_of(scene: Scene) -> Desk:
    if not isinstance(scene.place, Desk):
        raise PlaceError("a coder's tools need a desk: give the harness Desks as its place")
    return scene.place


@dataclass
class Desks:
    """The harness' Place: a desk for each attempt, with the files of its task, or with `files` where those are given."""

    provider: Provider
    limits: Limits = Limits()
    files: Mapping[str, bytes] | None = None
    _image: tempfile.TemporaryDirectory = field(default_factory=tempfile.TemporaryDirectory)

    async def open(self, task: Task, snapshot: str = "") -> Desk:
        """Raises PlaceError for a snapshot that is lost, and where no sandbox can be made."""
        box = await self.box(snapshot)
        if not snapshot:
            try:
                await box.write(project(task) if self.files is None else self.files)
            except BaseException:
                await box.close()
                raise
        return Desk(box)

    async def held(self, snapshot: str) -> dict[str, bytes]:
        """The files of a snapshot, path -> bytes. Raises as `box`."""
        desk = Desk(await self.box(snapshot))
        try:
            return {path: await desk.box.read(path, size) for path, size in (await desk.sizes()).items()}
        finally:
            await desk.close()

    async def box(self, snapshot: str = "") -> Sandbox:
        """A sandbox, empty or as a snapshot was."""
        try:
            (box,) = await self.provider.create(snapshot or self._image.name, self.limits)
        except InputError as error:
            raise PlaceError(str(error)) from error
        return box


def project(task: Task) -> dict[str, bytes]:
    """The files that a task begins with."""
    return {path: text.encode() for path, text in task.truth["files"].items()}


def shown(path: str) -> str:
    """A path as it can stand in a text: bytes that are no UTF-8 are escaped."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _decoded(data: bytes) -> str:
    """Text, or UnicodeDecodeError; a file with a zero byte is none, whatever its other bytes say."""
    if b"\0" in data:
        raise UnicodeDecodeError("utf-8", data, 0, 1, "a zero byte")
    return data.decode()
