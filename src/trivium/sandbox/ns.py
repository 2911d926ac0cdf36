"""Sandboxes of Linux namespaces: an overlay on layers of limited size, bubblewrap around each command, control groups, an
allow-list of system calls, no network. They share the host's kernel, as containers do: no wall against a kernel's own faults.

One keeper process (keeper.py) holds all mounts in a namespace of its own; when this process dies, however it dies, the keeper's
socket ends, and with it go its sandboxes, mounts and groups. As root, commands run as a user that owns nothing else on the
host. Without root a user namespace takes its place, and what is then not enforced stands in `capabilities().missing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trivium.errors import InputError, PlaceError, Unsupported
from trivium.sandbox import keeper, seccomp
from trivium.sandbox.base import WORK, Capabilities, Command, Limits, Result, Sandbox, SandboxError, inside, status
from trivium.sandbox.local_unsafe import read_descriptor
from trivium.sandbox.output import Tap
from trivium.sandbox.packages import folders_of

USER = 64_123
"""Of all commands, where we are root: a number that owns nothing and is no user of the host."""

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
        self._line: _Line | None = None
        self._starting = asyncio.Lock()

    async def create(self, source: str, limits: Limits = Limits(), n: int = 1) -> list[Sandbox]:
        line = await self._started()
        path = os.path.abspath(source) if os.path.isdir(source) else source
        answer = await line.ask({"verb": "create", "source": path, "limits": asdict(limits), "n": n})
        if answer.get("error") == "source":
            raise InputError(f"{source} is neither an image's folder nor a snapshot of this provider")
        _raise(answer, "a sandbox cannot be made")
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
        if self._line:
            await self._line.close()
            self._line = None

    async def _started(self) -> _Line:
        """The keeper; a new one where the old one died, whose sandboxes and snapshots are lost."""
        async with self._starting:
            if self._line is None or self._line.dead:
                self._line = await _Line.open(self._packages)
            return self._line


@dataclass(slots=True)
class _Line:
    """The conversation with a keeper. `groups` are the limits that control groups count; `shown` the arguments by which
    bubblewrap shows the interpreter and the packages."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    base: Path
    groups: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    dead: bool = False
    _asked: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = field(default_factory=dict)
    _last: int = 0

    @classmethod
    async def open(cls, packages: Sequence[str]) -> _Line:
        """Start a keeper and show it what commands may see. PlaceError where the kernel refuses."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        base = Path(tempfile.mkdtemp(prefix="trivium-ns-"))
        process = _start(theirs, base)
        line = cls(process, ours, base)
        ours.setblocking(False)
        hello: asyncio.Future[tuple[dict[str, Any], list[int]]] = asyncio.get_running_loop().create_future()
        line._asked[0] = hello
        asyncio.get_running_loop().add_reader(ours, line._hear)
        line.groups = (await hello)[0].get("groups", [])
        if line.dead:
            raise PlaceError(f"namespaces cannot be had here: {line._why()}")
        line.shown = [part for folder, place in _shown(packages) for part in ("--ro-bind", await line._bound(folder), place)]
        return line

    async def _bound(self, folder: Path) -> str:
        answer = await self.ask({"verb": "bind", "folder": str(folder)})
        _raise(answer, f"{folder} cannot be shown to sandboxes")
        return answer["place"]

    async def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """The keeper's answer. PlaceError where it is gone."""
        answer, back = await self.ask_for_file(request, descriptors)
        for descriptor in back:
            os.close(descriptor)
        return answer

    async def ask_for_file(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """The same, with the descriptors that came back, which are the caller's to close."""
        self._last += 1
        id, answer = self._last, asyncio.get_running_loop().create_future()
        self._asked[id] = answer
        payload = json.dumps({"id": id, **request}).encode()
        while not self.dead:
            try:
                socket.send_fds(self.socket, [payload], list(descriptors))
                break
            except BlockingIOError:  # it has not read what was asked before
                await asyncio.sleep(0.001)
            except OSError:
                self._end()
        if self.dead and not answer.done():
            self._asked.pop(id, None)
            raise PlaceError(f"the keeper of the sandboxes is gone: {self._why()}")
        reply, back = await answer
        if reply.get("error") == "dead":
            raise PlaceError(f"the keeper of the sandboxes is gone: {self._why()}")
        return reply, back

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 20, 16)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            return self._end()
        reply = json.loads(data)
        answer = self._asked.pop(reply["id"], None)
        if answer and not answer.done():
            answer.set_result((reply, descriptors))
        else:  # whoever asked was cancelled
            for descriptor in descriptors:
                os.close(descriptor)

    def _end(self) -> None:
        """The keeper is gone: everybody who waits for it hears so."""
        if not self.dead:
            self.dead = True
            asyncio.get_running_loop().remove_reader(self.socket)
            self.socket.close()
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_result(({"error": "dead"}, []))
            self._asked.clear()

    def _why(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        said = self.process.stderr.read().decode(errors="replace").strip() if self.process.stderr else ""
        return said.splitlines()[-1] if said else f"it ended with status {self.process.returncode}"

    async def close(self) -> None:
        self._end()
        try:
            await asyncio.to_thread(self.process.wait, 30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()
        with contextlib.suppress(OSError):
            self.base.rmdir()


@dataclass(slots=True)
class NsSandbox:
    """One sandbox; its files are an overlay that the keeper holds."""

    line: _Line
    id: str
    limits: Limits
    filter: bytes
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def exec(self, command: Command, seconds: float = 60.0, env: Mapping[str, str] | None = None) -> Result:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
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
            finally:
                for descriptor in (out, err, calls):
                    os.close(descriptor)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reading, 10)  # all that held the pipes is dead
                from_out.close()
                from_err.close()
            _raise(answer, "a command cannot be begun")
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
                _raise(await self.line.ask({"verb": "list", "box": self.id}, (listing,)), "its files cannot be listed")
                return dict(sorted(json.loads(os.pread(listing, os.fstat(listing).st_size, 0)).items()))
            finally:
                os.close(listing)

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        request = {"verb": "read", "box": self.id, "path": inside(path)}
        answer, back = await self.line.ask_for_file(request)
        if answer.get("error") == "os":
            raise SandboxError(f"there is no file {path} to read ({answer['why']})")
        _raise(answer, f"{path} cannot be read")
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
            _raise(answer, f"{path} cannot be written")

    async def snapshot(self) -> str:
        async with self._turn:
            answer = await self.line.ask({"verb": "snapshot", "box": self.id})
            _raise(answer, "no snapshot can be made")
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


def _start(theirs: socket.socket, base: Path) -> subprocess.Popen[bytes]:
    """A keeper in a mount namespace of its own; without root in a user namespace as well."""
    root = not os.geteuid()
    flags = (
        ["--mount", "--propagation", "private"]
        if root
        else ["--user", "--map-root-user", "--mount", "--propagation", "private"]
    )
    argv = [
        "unshare",
        *flags,
        sys.executable,
        "-I",
        "-S",
        keeper.__file__,
        str(theirs.fileno()),
        str(base),
        str(USER if root else 0),
    ]
    environment = {"PATH": "/usr/bin:/bin", **({} if root else {"USERNS": "1"})}
    process = subprocess.Popen(
        argv, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    theirs.close()
    return process


def _shown(packages: Sequence[str]) -> list[tuple[Path, str]]:
    """Folders of the host and where commands see them, read-only: the interpreter, and each package."""
    prefix = Path(sys.base_prefix)
    places = [] if prefix == Path("/usr") else [(prefix, str(prefix))]
    return places + [(folder, f"/packages/{folder.name}") for folder in folders_of(packages)]


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


def _raise(answer: dict[str, Any], what: str) -> None:
    """PlaceError for an answer that says something is gone or broken."""
    if "error" in answer:
        gone = "this sandbox was closed, or its keeper was begun anew" if answer["error"] == "gone" else answer.get("why", "")
        raise PlaceError(f"{what}: {gone}")
