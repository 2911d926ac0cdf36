"""The conversation of a provider with its keeper: how that is started, asked, and found to be gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.errors import PlaceError
from trivium.sandbox import keeper
from trivium.sandbox.base import SandboxError
from trivium.sandbox.packages import folders_of

USER = 64_123
"""Of all commands, where we are root: a number that owns nothing and is no user of the host."""


@dataclass(slots=True)
class Line:
    """The conversation with a keeper. `groups` are the limits that control groups count; `shown` the arguments by which
    bubblewrap shows the interpreter and the packages."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    base: Path
    groups: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    dead: bool = False
    _loop: asyncio.AbstractEventLoop | None = None
    _asked: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = field(default_factory=dict)
    _last: int = 0
    _words: str = ""

    @classmethod
    async def open(cls, packages: Sequence[str]) -> Line:
        """Start a keeper and show it what commands may see. PlaceError where the kernel refuses."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        base = Path(tempfile.mkdtemp(prefix="trivium-ns-"))
        process = _start(theirs, base)
        line = cls(process, ours, base)
        ours.setblocking(False)
        try:
            await line._greet(packages)
        except BaseException:
            await line.close()
            raise
        return line

    async def _greet(self, packages: Sequence[str]) -> None:
        """Hear what the keeper has, and show it the packages."""
        self._listen()
        hello: asyncio.Future[tuple[dict[str, Any], list[int]]] = asyncio.get_running_loop().create_future()
        self._asked[0] = hello
        self.groups = (await hello)[0].get("groups", [])
        if self.dead:
            raise PlaceError(f"namespaces cannot be had here: {self._why()}")
        self.shown = [part for folder, place in _shown(packages) for part in ("--ro-bind", await self._bound(folder), place)]

    async def _bound(self, folder: Path) -> str:
        answer = await self.ask({"verb": "bind", "folder": str(folder)})
        check(answer, f"{folder} cannot be shown to sandboxes")
        return answer["place"]

    async def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """The keeper's answer. PlaceError where it is gone, SandboxError for a request that is too long."""
        answer, back = await self.ask_for_file(request, descriptors)
        for descriptor in back:
            os.close(descriptor)
        return answer

    async def ask_for_file(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """The same, with the descriptors that came back, which are the caller's to close."""
        self._listen()
        self._last += 1
        id, answer = self._last, asyncio.get_running_loop().create_future()
        payload = self._payload({"id": id, **request})
        self._asked[id] = answer
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

    def _payload(self, request: dict[str, Any]) -> bytes:
        """A request as it is sent. SandboxError for one that the keeper does not read at once, or that the socket, whose room
        the machine limits, does not take: it would never be answered, or end the conversation for all."""
        payload = json.dumps(request).encode()
        most = (
            keeper.MESSAGE
            if self.dead
            else min(keeper.MESSAGE, self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 64)
        )
        if len(payload) > most:
            raise SandboxError(f"a sandbox is asked with at most {most:,} bytes at once, and not {len(payload):,}")
        return payload

    def _listen(self) -> None:
        """In the event loop that runs: a program may have had others before, in which nobody hears any more."""
        if self._loop is not (loop := asyncio.get_running_loop()) and not self.dead:
            self._asked.clear()
            loop.add_reader(self.socket, self._hear)
            self._loop = loop

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, keeper.MESSAGE, 16)
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
        """Its last words, which can be read but once."""
        if not self._words:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            said = self.process.stderr.read().decode(errors="replace").strip() if self.process.stderr else ""
            self._words = said.splitlines()[-1] if said else f"it ended with status {self.process.returncode}"
        return self._words

    async def close(self) -> None:
        self._words = self._words or "its provider was closed"
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
        str(Path(keeper.__file__).with_name("__main__.py")),
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


def check(answer: dict[str, Any], what: str) -> None:
    """PlaceError for an answer that says something is gone or broken."""
    if "error" in answer:
        gone = "this sandbox was closed, or its keeper was begun anew" if answer["error"] == "gone" else answer.get("why", "")
        raise PlaceError(f"{what}: {gone}")
