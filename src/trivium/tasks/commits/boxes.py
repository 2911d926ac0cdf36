"""Trials in the sandboxes of a provider, each in one of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from trivium.errors import InputError
from trivium.sandbox import Limits, Provider
from trivium.tasks.commits.prove import BARE, passing

_LIMITS = Limits(output=1 << 20)
"""The names of all tests that pass have to fit."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """A Trial (prove.py): `seconds` for a command, after which it is stopped and counts as far as it came."""

    provider: Provider
    seconds: float = 120.0

    async def __call__(self, files: Mapping[str, str], command: str) -> str:
        with tempfile.TemporaryDirectory(prefix="trivium-trial-") as empty:
            (box,) = await self.provider.create(empty, _LIMITS)
            try:
                await box.write({path: text.encode() for path, text in files.items()})
                result = await box.exec(command, self.seconds)
            finally:
                await box.close()
        return result.stdout.decode(errors="replace")

    async def check(self) -> None:
        """Raises InputError where no tests can run in these sandboxes at all."""
        if not await passing(self, {"test_a.py": "def test_a():\n    pass\n"}, ["test_a.py"], BARE):
            raise InputError("the sandbox cannot run pytest: give its image Python and pytest")
