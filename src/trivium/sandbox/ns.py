"""Sandboxes of Linux namespaces: an overlay on layers of limited size, bubblewrap around each command, control groups, an
allow-list of system calls, no network. They share the host's kernel, as containers do: no wall against a kernel's own faults.

One keeper process (keeper/) holds all mounts in a namespace of its own; when this process dies, however it dies, the keeper's
socket ends, and with it go its sandboxes, mounts and groups. As root, commands run as a user that owns nothing else on the
host. Without root a user namespace takes its place, and what is then not enforced stands in `capabilities().missing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from trivium.errors import InputError, PlaceError, Unsupported
from trivium.sandbox import seccomp
from trivium.sandbox.base import WORK, Capabilities, Command, Limits, Result, Sandbox, SandboxError, inside, status, words
from trivium.sandbox.line import Line, check
from trivium.sandbox.local_unsafe import read_descriptor
from trivium.sandbox.making import held
from trivium.sandbox.output import Tap

_LIMITED = {"memory": "memory", "pids": "processes"}
_FIRST = ["/bin/sh", "-c", '"$@"; exit $?', "sh"]
"""Process 1 of a sandbox: a shell that waits for the command, under the filter of system calls itself."""
_TOOLS = {"bwrap": "bubblewrap", "unshare": "util-linux"}


class Ns:
    """The provider. `packages` are those of this Python that commands may import, with what they need; the interpreter is the
    one that runs us, without its other packages."""

    def __init__(self, packages: Sequence[str] = ("pytest",)) -> None:
        """Starts nothing yet. Raises Unsupported where the kernel or a tool is missing, naming it; it never takes a weaker
        provider instead."""
        if sys.platform != "linux":
            raise Unsupported("Ns needs Linux: take Docker, or Remote to a machine that has it")
        if missing := next((tool for tool in _TOOLS if shutil.which(tool) is None), None):
            raise Unsupported(f"Ns needs {missing}: apt-get install {_TOOLS[missing]}")
        self._filter, self._packages = seccomp.program(), tuple(packages)
        self._line: Line | None = None
        self._starting: asyncio.Task[Line] | None = None

    async def create(self, source: str, limits: Limits = Limits(), n: int = 1) -> list[Sandbox]:
        return await held(self._create(await self._started(), source, limits, n))

    async def _create(self, line: Line, source: str, limits: Limits, n: int) -> list[Sandbox]:
        path = os.path.abspath(source) if os.path.isdir(source) else source
        answer = await line.ask({"verb": "create", "source": path, "limits": asdict(limits), "n": n})
        if answer.get("error") == "source":
            raise InputError(f"{source} is neither an image's folder nor a snapshot of this provider")
        check(answer, "a sandbox cannot be made")
        return [NsSandbox(line, id, limits, self._filter) for id in answer["boxes"]]

    async def forget(self, snapshot: str) -> None:
        await (await self._started()).ask({"verb": "forget", "snapshot": snapshot})

    def capabilities(self) -> Capabilities:
        """What holds; the groups that could be had are known once a first sandbox was made."""
        line = self._line
        counted = {_LIMITED[group] for group in line.groups} if line else set(_LIMITED.values())
        missing = [
            f"{name}: no control group could be made; a process' own limits hold"
            for name in _LIMITED.values()
            if name not in counted
        ]
        if os.geteuid():
            missing.append("user: commands run as you, in a user namespace where you own nothing but the sandbox")
        enforced = frozenset({"disk", "inodes", "cpu", "files", "output", *counted})
        return Capabilities(
            "ns", "kernel namespaces and an allow-list of system calls, one kernel, no network", enforced, tuple(missing)
        )

    async def close(self) -> None:
        starting, self._starting, self._line = self._starting, None, None
        if starting:
            with contextlib.suppress(PlaceError, InputError):  # it never began, and whoever wanted it heard so
                await (await starting).close()

    async def _started(self) -> Line:
        """The keeper; a new one where the old one died, whose sandboxes and snapshots are lost."""
        if self._line is None or self._line.dead:
            if self._starting is None or self._starting.done():
                self._starting = asyncio.create_task(Line.open(self._packages))
            self._line = await asyncio.shield(self._starting)
        return self._line


@dataclass(slots=True)
class NsSandbox:
    """One sandbox; its files are an overlay that the keeper holds."""

    line: Line
    id: str
    limits: Limits
    filter: bytes
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def exec(self, command: Command, seconds: float = 60.0, env: Mapping[str, str] | None = None) -> Result:
        argv = words(command)
        async with self._turn:
            began = time.monotonic()
            (out, from_out), (err, from_err) = await _pipe(), await _pipe()
            calls = _memory(self.filter)
            request = {
                "verb": "exec",
                "box": self.id,
                "argv": [*self._wrapped(env or {}), *map(_plain, argv)],
                "seconds": seconds,
            }
            taps = [Tap(stream, self.limits.output) for stream in (from_out.stream, from_err.stream)]
            reading = asyncio.gather(*(tap.read() for tap in taps))
            try:
                answer = await self.line.ask(request, (out, err, calls))
            except asyncio.CancelledError:
                with contextlib.suppress(PlaceError):
                    await self.line.ask({"verb": "end", "box": self.id})
                raise
            finally:
                for descriptor in (out, err, calls):
                    os.close(descriptor)
                try:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reading, 10)  # all that held the pipes is dead
                finally:
                    from_out.close()
                    from_err.close()
            if answer.get("error") == "command":
                raise SandboxError(f"a command cannot be begun: {answer['why']}")
            check(answer, "a command cannot be begun")
            (stdout, cut), (stderr, also) = (tap.text() for tap in taps)
            return Result(
                status(answer["code"]),
                stdout,
                stderr,
                cut or also,
                answer["timed_out"],
                answer["oom"],
                time.monotonic() - began,
            )

    def _wrapped(self, env: Mapping[str, str]) -> list[str]:
        """Bubblewrap's arguments: what a command sees. `{box}` and `{seccomp}` are the keeper's to fill in."""
        given = {"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "LANG": "C.UTF-8"}
        given |= {"PYTHONPATH": "/packages", "PYTHONDONTWRITEBYTECODE": "1", **env}
        setting = [part for name, value in given.items() for part in ("--setenv", name, _plain(value))]
        return [
            "bwrap", "--unshare-user", "--unshare-all", "--as-pid-1",
            "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000",
            "--hostname", "sandbox", "--clearenv", *setting, *_SYSTEM, *self.line.shown, *_MASKED,
            "--proc", "/proc", "--dev", "/dev", "--size", str(16 << 20), "--tmpfs", "/dev/shm",
            "--size", str(min(self.limits.disk, 64 << 20)), "--tmpfs", "/tmp", "--bind", "{box}", WORK, "--chdir", WORK,
            "--remount-ro", "/", "--seccomp", "{seccomp}", "--", *_FIRST,
        ]  # fmt: skip

    async def files(self) -> dict[str, int]:
        async with self._turn:
            listing = os.memfd_create("files", os.MFD_CLOEXEC)
            try:
                check(await self.line.ask({"verb": "list", "box": self.id}, (listing,)), "its files cannot be listed")
                return dict(sorted(json.loads(os.pread(listing, os.fstat(listing).st_size, 0)).items()))
            finally:
                os.close(listing)

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        request = {"verb": "read", "box": self.id, "path": inside(path)}
        answer, back = await self.line.ask_for_file(request)
        if answer.get("error") == "os":
            raise SandboxError(f"there is no file {path} to read ({answer['why']})")
        check(answer, f"{path} cannot be read")
        return await asyncio.to_thread(read_descriptor, back[0], path, most)

    async def write(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            holder = _memory(data)
            try:
                answer = await self.line.ask({"verb": "write", "box": self.id, "path": inside(path)}, (holder,))
            finally:
                os.close(holder)
            if answer.get("error") == "os":
                raise SandboxError(f"{path} cannot be written: {answer['why']}")
            check(answer, f"{path} cannot be written")

    async def snapshot(self) -> str:
        async with self._turn:
            answer = await self.line.ask({"verb": "snapshot", "box": self.id})
            check(answer, "no snapshot can be made")
            return answer["snapshot"]

    async def close(self) -> None:
        with contextlib.suppress(PlaceError):
            await self.line.ask({"verb": "close", "box": self.id})


_SYSTEM = [
    part
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64")
    if os.path.exists(f"/{name}")
    for part in (
        ("--symlink", os.readlink(f"/{name}"), f"/{name}")
        if os.path.islink(f"/{name}")
        else ("--ro-bind", f"/{name}", f"/{name}")
    )
] + [part for name in ("/etc/ld.so.cache", "/etc/alternatives") for part in ("--ro-bind-try", name, name)]


_MASKED = [
    part
    for folder in (
        f"{sys.base_prefix}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages",
        "/usr/lib/python3/dist-packages",
    )
    if os.path.isdir(folder)
    for part in ("--tmpfs", folder)
]
"""Packages of the interpreter itself, and of the system's: an empty folder stands before them."""


@dataclass(slots=True)
class _Source:
    """The reading end of a pipe, as a stream."""

    stream: asyncio.StreamReader
    transport: asyncio.BaseTransport

    def close(self) -> None:
        self.transport.close()


async def _pipe() -> tuple[int, _Source]:
    """A pipe's writing end, and its reading end as a stream."""
    from_end, to_end = os.pipe()
    stream = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(stream)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(from_end, "rb"))
    return to_end, _Source(stream, transport)


def _memory(data: bytes) -> int:
    """A descriptor that holds `data`."""
    descriptor = os.memfd_create("data", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _plain(text: str) -> str:
    """The keeper fills in braces."""
    return text.replace("{", "{{").replace("}", "}}")
