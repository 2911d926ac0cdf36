"""A sandbox that runs nothing: files in memory, and commands that a Python function answers. For tests of whoever uses one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trivium.errors import InputError, PlaceError
from trivium.sandbox.base import Capabilities, Command, Limits, Result, Sandbox, SandboxError, inside, words

Answer = Callable[[Command, dict[str, bytes]], Result]
"""What a command does: it may change the files that it is given."""


def nothing(command: Command, files: dict[str, bytes]) -> Result:
    """Every command succeeds, and does nothing."""
    return Result(0)


@dataclass
class Fake:
    """A provider of fake sandboxes; `made` counts them, and `alive` those that are open."""

    answer: Answer = nothing
    made: int = 0
    alive: int = 0
    _snapshots: dict[str, dict[str, bytes]] = field(default_factory=dict)
    _numbers: itertools.count = field(default_factory=itertools.count)

    async def create(self, source: str, limits: Limits = Limits(), n: int = 1) -> list[Sandbox]:
        files = self._snapshots[source] if source in self._snapshots else _folder(source)
        self.made, self.alive = self.made + n, self.alive + n
        return [FakeSandbox(self, dict(files), limits) for _ in range(n)]

    async def forget(self, snapshot: str) -> None:
        self._snapshots.pop(snapshot, None)

    def capabilities(self) -> Capabilities:
        return Capabilities("fake", "runs nothing: files in memory", frozenset({"disk"}))

    async def close(self) -> None:
        self._snapshots.clear()

    def keep(self, files: Mapping[str, bytes]) -> str:
        name = f"fake-{next(self._numbers)}"
        self._snapshots[name] = dict(files)
        return name


@dataclass
class FakeSandbox:
    """One of them."""

    provider: Fake
    contents: dict[str, bytes]
    limits: Limits
    closed: bool = False

    async def exec(self, command: Command, seconds: float = 60.0, env: Mapping[str, str] | None = None) -> Result:
        self._check()
        words(command)
        return self.provider.answer(command, self.contents)

    async def files(self) -> dict[str, int]:
        self._check()
        return {path: len(data) for path, data in self.contents.items()}

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        self._check()
        data = self.contents.get(inside(path))
        if data is None:
            raise SandboxError(f"there is no file {path}")
        if len(data) > most:
            raise SandboxError(f"{path} has {len(data):,} bytes, more than {most:,}")
        return data

    async def write(self, files: Mapping[str, bytes]) -> None:
        self._check()
        for path, data in files.items():
            after = {**self.contents, inside(path): bytes(data)}
            if sum(map(len, after.values())) > self.limits.disk:
                raise SandboxError(f"{path} cannot be written: the disk is full")
            self.contents = after

    async def snapshot(self) -> str:
        self._check()
        return self.provider.keep(self.contents)

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.provider.alive -= 1

    def _check(self) -> None:
        if self.closed:
            raise PlaceError("this sandbox was closed")


def _folder(source: str) -> dict[str, bytes]:
    """An image's files."""
    top = Path(source)
    if not top.is_dir():
        raise InputError(f"{source} is neither an image's folder nor a snapshot of this provider")
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}
