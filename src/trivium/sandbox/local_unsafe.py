"""A folder and a process group: it isolates nothing. For a machine where no sandbox works, and for code that one trusts.

A command here reads and changes whatever its user may, and has the network. So it is asked for by its name alone, and every run
that uses it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trivium.errors import InputError, PlaceError
from trivium.sandbox.base import Capabilities, Command, Limits, Result, Sandbox, SandboxError, inside, status, words
from trivium.sandbox.keeper.trees import entries, regular_files
from trivium.sandbox.making import held, several
from trivium.sandbox.output import Tap

_UNREACHED = {errno.EACCES, errno.ENOENT, errno.ENAMETOOLONG}


class LocalUnsafe:
    """Sandboxes that are folders below a temporary one, which goes with the provider, or with its process where that ends by
    itself. `i_know_that_nothing_is_isolated` has to be said."""

    def __init__(self, *, i_know_that_nothing_is_isolated: bool = False) -> None:
        """Raises InputError where it was not said."""
        if not i_know_that_nothing_is_isolated:
            raise InputError(
                "LocalUnsafe isolates nothing, its commands may do all that you may: say i_know_that_nothing_is_isolated=True, "
                "or take Ns or Docker"
            )
        self._top = Path(tempfile.mkdtemp(prefix="trivium-unsafe-"))
        self._remove = weakref.finalize(self, _removed, self._top)
        self._snapshots: dict[str, Path] = {}

    async def create(self, source: str, limits: Limits = Limits(), n: int = 1) -> list[Sandbox]:
        folder = self._snapshots.get(source) or Path(source)
        if not folder.is_dir():
            raise InputError(f"{source} is neither an image's folder nor a snapshot of this provider")

        async def one() -> Sandbox:
            return Folder(self, await asyncio.to_thread(self._copy, folder, "box"), limits)

        return await held(several(one, n))

    def _copy(self, folder: Path, kind: str) -> Path:
        """A real copy: a hard link would let two sandboxes change one file."""
        target = self._top / f"{kind}-{secrets.token_hex(8)}"
        try:
            _copied(str(folder), str(target))
        except BaseException:
            _removed(target)
            raise
        return target

    async def keep(self, folder: Path) -> str:
        """A snapshot of a folder."""
        copy = await asyncio.to_thread(self._copy, folder, "snapshot")
        self._snapshots[copy.name] = copy
        return copy.name

    async def forget(self, snapshot: str) -> None:
        if folder := self._snapshots.pop(snapshot, None):
            await asyncio.to_thread(_removed, folder)

    def capabilities(self) -> Capabilities:
        return Capabilities(
            "local-unsafe",
            "none: commands run as you, with your files and your network",
            frozenset({"cpu", "files", "output"}),
            ("processes, memory, disk, inodes: nothing here counts them",),
        )

    async def close(self) -> None:
        self._snapshots.clear()
        await asyncio.to_thread(self._remove)


@dataclass
class Folder:
    """One of them: a folder, and one command at a time in a process group of its own."""

    provider: LocalUnsafe
    top: Path
    limits: Limits
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def exec(self, command: Command, seconds: float = 60.0, env: Mapping[str, str] | None = None) -> Result:
        argv = words(command)
        self._check()
        async with self._turn:
            began = time.monotonic()
            process = await self._begun(self._limited(argv), env or {})
            streams = [Tap(stream, self.limits.output) for stream in (process.stdout, process.stderr) if stream]
            reading = [asyncio.create_task(each.read()) for each in streams]
            try:
                await asyncio.wait_for(process.wait(), seconds)
                timed_out = False
            except TimeoutError:
                timed_out = True
            finally:
                _kill(process.pid)  # also what it left behind in its group
            await process.wait()
            await asyncio.wait(reading, timeout=5)  # what left the group may hold the pipes open
            for each in reading:
                each.cancel()
            (out, cut), (err, also) = (each.text() for each in streams)
            return Result(status(process.returncode or 0), out, err, cut or also, timed_out, False, time.monotonic() - began)

    async def _begun(self, argv: Sequence[str], env: Mapping[str, str]) -> asyncio.subprocess.Process:
        """The command's process. Who is cancelled while it begins has it ended with all that it began."""
        beginning = asyncio.ensure_future(self._spawned(argv, env))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError, SandboxError):  # it did not begin
                _kill((await beginning).pid)
            raise

    async def _spawned(self, argv: Sequence[str], env: Mapping[str, str]) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *argv,
                cwd=self.top,
                env={"PATH": _path(), "HOME": str(self.top), "LANG": "C.UTF-8", **env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise SandboxError(f"a command cannot be begun: {error.strerror}") from error

    def _limited(self, command: Sequence[str]) -> list[str]:
        """Limits are set by a shell that becomes the command. Python would set them in a copy of this process, and to copy one
        that holds a model takes as long as the tests of an attempt."""
        return ["/bin/sh", "-c", f'ulimit -t {self.limits.cpu} && ulimit -n {self.limits.files} && exec "$@"', "sh", *command]

    async def files(self) -> dict[str, int]:
        self._check()
        return dict(sorted((await asyncio.to_thread(regular_files, str(self.top))).items()))

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        self._check()
        return await asyncio.to_thread(read_regular, self.top / inside(path), path, most)

    async def write(self, files: Mapping[str, bytes]) -> None:
        self._check()
        for path, data in files.items():
            await asyncio.to_thread(_write, self.top / inside(path), path, data)

    async def snapshot(self) -> str:
        self._check()
        async with self._turn:
            return await self.provider.keep(self.top)

    async def close(self) -> None:
        await asyncio.to_thread(_removed, self.top)

    def _check(self) -> None:
        if not self.top.is_dir():
            raise PlaceError("this sandbox was closed")


def _path() -> str:
    """Where programs are found: this interpreter's folder first."""
    return os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _copied(source: str, target: str) -> None:
    """Copy a folder. A pipe, a socket and what cannot be reached are left out: whoever made them loses nothing else by it."""
    folders = [(source, target)]
    os.mkdir(target)
    for path, entry in entries(source):
        place = os.path.join(target, path)
        try:
            if entry.is_symlink():
                os.symlink(os.readlink(entry), place)
            elif entry.is_dir(follow_symlinks=False):
                os.mkdir(place)
                folders.append((entry.path, place))
            elif entry.is_file(follow_symlinks=False):
                shutil.copy2(entry, place)
        except OSError as error:
            if error.errno not in _UNREACHED:
                raise
    for folder, place in reversed(folders):  # when they are full: one may be closed to its owner
        shutil.copystat(folder, place)


def _removed(folder: Path) -> None:
    """Remove a folder, which may be deeper than Python's own way of it goes."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, check=False)


def read_regular(place: Path, path: str, most: int) -> bytes:
    """The bytes of a regular file; a pipe or a device is refused, and does not hang. Raises as `Sandbox.read`."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"there is no file {path} to read ({error.strerror})") from None
    return read_descriptor(descriptor, path, most)


def read_descriptor(descriptor: int, path: str, most: int) -> bytes:
    """The bytes of an open file, which is closed. Raises as `Sandbox.read`."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SandboxError(f"{path} is no regular file")
        if status.st_size > most:
            raise SandboxError(f"{path} has {status.st_size:,} bytes, more than {most:,}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def _write(place: Path, path: str, data: bytes) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o666), "wb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "no regular file")
            file.write(data)
    except OSError as error:
        raise SandboxError(f"{path} cannot be written: {error.strerror}") from None
