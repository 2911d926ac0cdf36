"""Boxes that isolate nothing: a folder each on this machine, and commands that may do whatever you may.

For tasks whose code you trust. Whoever opens one says so by its name, `local-unsafe`, and every run says it again. A snapshot
is a copy of the folder, named by the hash of what it holds, so equal runs have equal snapshots.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from trivium.agents.coder.desk import Desk, Outcome, project
from trivium.errors import PlaceError
from trivium.trace import Task

WARNING = "local-unsafe isolates nothing: what the agent and the tests run, runs as you, on this machine"


class LocalUnsafe:
    """Makes boxes below `folder`, by default a temporary one that goes with the process."""

    def __init__(self, folder: str | Path | None = None) -> None:
        warnings.warn(WARNING, stacklevel=2)
        self._temporary = tempfile.TemporaryDirectory(prefix="trivium-coder-", ignore_cleanup_errors=True)
        self.folder = Path(folder or self._temporary.name)
        self.snapshots = self.folder / "snapshots"
        self.snapshots.mkdir(parents=True, exist_ok=True)

    async def open(self, task: Task, snapshot: str = "") -> Desk:
        """A desk with the files of a task, or of a snapshot. Raises PlaceError for one that is lost."""
        box = self.box(snapshot)
        if not snapshot:
            await box.write(project(task))
        return Desk(box)

    def box(self, snapshot: str = "") -> LocalBox:
        """A box of its own, empty or as a snapshot was."""
        if snapshot and not (self.snapshots / snapshot).is_dir():
            raise PlaceError(f"there is no snapshot {snapshot}")
        top = Path(tempfile.mkdtemp(prefix="box-", dir=self.folder))
        if snapshot:
            shutil.copytree(self.snapshots / snapshot, top, symlinks=True, dirs_exist_ok=True)
        return LocalBox(self, top)


@dataclass(slots=True)
class LocalBox:
    """One folder."""

    home: LocalUnsafe
    top: Path

    async def files(self) -> dict[str, int]:
        top, found = os.fsencode(self.top), {}
        for folder, _, names in os.walk(top):
            for path in (os.path.join(folder, name) for name in names):
                if os.path.isfile(path) and not os.path.islink(path):
                    found[os.path.relpath(path, top).decode(errors="backslashreplace")] = os.path.getsize(path)
        return found

    async def read(self, path: str, most: int) -> bytes:
        with open(self._place(path), "rb") as file:
            return file.read(most)

    async def write(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            place = self._place(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    def _place(self, path: str) -> Path:
        """OSError for a path that a link leads out of the box."""
        place = self.top / path
        if not place.resolve().is_relative_to(self.top.resolve()):
            raise PermissionError(1, "it leads out of the project by a link")
        return place

    async def run(self, command: str, seconds: float, output: int) -> Outcome:
        """What a shell makes of `command` at the top. All that it began is killed in the end."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
        surroundings = {"PATH": path, "HOME": str(self.top), "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}
        process = await asyncio.create_subprocess_shell(
            command, cwd=self.top, env=surroundings, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        ends = Ends(output)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                while part := await process.stdout.read(1 << 16):
                    ends.add(part)
                return Outcome(await process.wait(), ends.text())
        except TimeoutError:
            return Outcome(-signal.SIGKILL, ends.text(), timed_out=True)
        finally:
            _kill(process.pid)
            await process.wait()

    async def snapshot(self) -> str:
        id = _digest(self.top)
        kept = self.home.snapshots / id
        if not kept.exists():
            fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=self.home.folder))
            shutil.copytree(self.top, fresh, symlinks=True, dirs_exist_ok=True)
            fresh.rename(kept) if not kept.exists() else shutil.rmtree(fresh)
        return id

    async def close(self) -> None:
        shutil.rmtree(self.top, ignore_errors=True)


class Ends:
    """The beginning and the end of an output, at most `most` bytes of it, however long it is."""

    def __init__(self, most: int) -> None:
        self.half, self.head, self.tail, self.left_out = most // 2, bytearray(), bytearray(), 0

    def add(self, part: bytes) -> None:
        room = self.half - len(self.head)
        self.head += part[:room]
        self.tail += part[room:] if room < len(part) else b""
        if (excess := len(self.tail) - self.half) > 0:
            self.left_out += excess
            del self.tail[:excess]

    def text(self) -> str:
        note = f"\n[{self.left_out:,} bytes left out]\n".encode() if self.left_out else b""
        return bytes(self.head + note + self.tail).decode(errors="replace")


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _digest(top: Path) -> str:
    """The hash of every file below `top`: its name, whether it can be run, its bytes or where its link leads."""
    hasher = blake3()
    for path in sorted(top.rglob("*")):
        name = os.fsencode(path.relative_to(top))
        if path.is_symlink():
            hasher.update(b"l%d:%b" % (len(name), name) + os.fsencode(os.readlink(path)))
        elif path.is_file():
            data = path.read_bytes()
            hasher.update(b"%d%d:%b%d:" % (os.access(path, os.X_OK), len(name), name, len(data)) + data)
    return hasher.hexdigest()[:24]
