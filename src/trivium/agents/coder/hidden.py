"""Hidden tests of an attempt: on the files that it left, where its code cannot reach them (`trivium.sandbox.grade`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from blake3 import blake3

from trivium.agents.coder.desk import Desks
from trivium.errors import InputError, PlaceError
from trivium.sandbox import Sandbox
from trivium.sandbox.grade import grade
from trivium.trace import Task

SECONDS = 60.0
"""For all tests of a file together."""


class HiddenTests:
    """The grader. What it has graded it knows: equal files are not run twice, and attempts at one task often end alike."""

    def __init__(self, desks: Desks) -> None:
        self.desks = desks
        self.known: dict[tuple[str, str], dict[str, bool]] = {}
        self.running: dict[tuple[str, str], asyncio.Future[dict[str, bool]]] = {}

    async def grade(self, task: Task, snapshot: str) -> Mapping[str, bool]:
        """Raises InputError for a task without tests, PlaceError where they could not be begun."""
        tests, expected = task.truth.get("tests"), task.truth.get("expected")
        if not expected or not tests:
            raise InputError(f"task {task.id} has no hidden tests: it cannot be scored")
        if not snapshot:
            raise PlaceError(f"an attempt at task {task.id} left no snapshot to grade")
        key = task.id, await self._digest(snapshot)
        if key in self.known:
            return self.known[key]
        if key not in self.running:
            verdict = grade(self.desks.provider, snapshot, tests, expected, SECONDS, self.desks.limits)
            self.running[key] = asyncio.ensure_future(verdict)
            self.running[key].add_done_callback(lambda _: self.running.pop(key))
        self.known[key] = await asyncio.shield(self.running[key])
        return self.known[key]

    async def _digest(self, snapshot: str) -> str:
        """The hash of what a snapshot holds."""
        box = await self.desks.box(snapshot)
        try:
            return await _hashed(box)
        finally:
            await box.close()


async def _hashed(box: Sandbox) -> str:
    hasher = blake3()
    for path, size in sorted((await box.files()).items()):
        hasher.update(f"{path}\0{size}\0".encode(errors="surrogateescape"))
        hasher.update(await box.read(path, size))
    return hasher.hexdigest()
