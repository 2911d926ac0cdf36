"""The seam of sandboxes: where what a policy does may land, and nothing else.

    provider = Ns()                                        # or Docker(), Remote(url), LocalUnsafe(), Fake(...)
    box, twin = await provider.create(IMAGE, n=2)          # an image is a folder; it is never changed
    result = await box.exec("python -m pytest -q", seconds=20)
    point = await box.snapshot()                           # its files; processes do not survive
    (fork,) = await provider.create(point)

Paths are relative to the project's top, `/work` in the sandbox. A path that leads out of it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from trivium.errors import InputError, TriviumError

WORK = "/work"
"""The project's top inside of a sandbox."""


LONGEST = {"name": 255, "path": 4095, "word": (1 << 17) - 1}
"""Bytes that Linux takes: of one name, of a path, of one word of a command."""


class SandboxError(TriviumError):
    """What a sandbox refuses: no such file, no regular file, too large, a full disk, a path that leads out, a command that no
    program can be given."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use. Bytes, but for `processes`, `inodes` and `files` (open at once), and seconds of `cpu` for one
    command. `output` is kept of stdout and of stderr, each. Defaults: reference/sandbox.md section 9."""

    processes: int = 64
    memory: int = 512 << 20
    disk: int = 256 << 20
    inodes: int = 200_000
    cpu: int = 60
    files: int = 1024
    output: int = 64 << 10

    def __post_init__(self) -> None:
        if small := next((name for name in self.__slots__ if getattr(self, name) < 1), None):
            raise InputError(f"a sandbox with {small}={getattr(self, small)} can do nothing: at least 1")


@dataclass(frozen=True, slots=True)
class Result:
    """What a command came to. `code` is its exit status, or 128 and the signal that ended it. `cut` says that output was left
    out of the middle. `timed_out`: its seconds were used up; `oom`: its memory was. `seconds` of wall time."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""
    cut: bool = False
    timed_out: bool = False
    oom: bool = False
    seconds: float = 0.0

    @property
    def output(self) -> str:
        """Both streams as text, stderr behind stdout."""
        return (self.stdout + self.stderr).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider really gives, for the record of a run. `isolation` is one sentence; `enforced` names the limits that
    hold, `missing` what does not hold and why."""

    name: str
    isolation: str
    enforced: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()


Command = str | Sequence[str]
"""A line for the shell, or a program with its arguments."""


class Sandbox(Protocol):
    """One sandbox. One command runs at a time; what it left running ends with it. Every verb raises PlaceError where the
    sandbox is gone."""

    async def exec(self, command: Command, seconds: float = 60.0, env: Mapping[str, str] | None = None) -> Result:
        """Run a command at the top, with `env` beside a small environment of the sandbox' own. Raises SandboxError for one with
        a zero byte, or too long."""
        ...

    async def files(self) -> dict[str, int]:
        """Every regular file, path -> bytes. Odd bytes in names are surrogates, as `os.fsdecode` has them."""
        ...

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        """A regular file's bytes. Raises SandboxError where there is none, or it has more than `most`."""
        ...

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, in order; folders are made. Raises SandboxError for a full disk, naming the path."""
        ...

    async def snapshot(self) -> str:
        """The id of its files as they are now, from which the same provider creates others, also after it was closed."""
        ...

    async def close(self) -> None:
        """End it, and all that runs in it. A second time does nothing."""
        ...


class Provider(Protocol):
    """Makes sandboxes."""

    async def create(self, source: str, limits: Limits = Limits(), n: int = 1) -> list[Sandbox]:
        """`n` sandboxes from an image's folder or a snapshot. Raises InputError for a source that is neither, and PlaceError
        where one cannot be made."""
        ...

    async def forget(self, snapshot: str) -> None:
        """Let a snapshot's room be used again. One that is unknown is no error."""
        ...

    def capabilities(self) -> Capabilities: ...

    async def close(self) -> None:
        """End all sandboxes and forget all snapshots."""
        ...


def status(code: int) -> int:
    """A process' end as a shell has it, from what Python has: minus the signal."""
    return 128 - code if code < 0 else code


def inside(path: str) -> str:
    """A path in its plain form, relative to the top. Raises SandboxError for one that leads out, or is none."""
    pure = PurePosixPath(path.removeprefix(f"{WORK}/"))
    _fit("path", str(pure))
    for name in pure.parts:
        _fit("name", name)
    if not path or "\0" in path or pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise SandboxError(f"{path!r} is no path inside of the sandbox")
    return str(pure)


def words(command: Command) -> list[str]:
    """A program with its arguments. Raises SandboxError for what no program can be given."""
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    for word in argv:
        _fit("word", word)
        if "\0" in word:
            raise SandboxError("a command has no zero byte")
    return argv


def _fit(kind: str, text: str) -> None:
    """SandboxError for a text that is too long for what it is, or has letters without bytes."""
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        raise SandboxError(f"{text[:40]!r} has letters that no {kind} can have") from None
    if size > LONGEST[kind]:
        raise SandboxError(f"{text[:40]!r}... is too long: a {kind} has at most {LONGEST[kind]:,} bytes, and not {size:,}")
