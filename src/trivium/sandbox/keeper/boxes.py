"""Sandboxes: their files, snapshots and commands. Each verb of a request is a method."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
from dataclasses import dataclass, field

from trivium.sandbox.keeper.groups import Groups
from trivium.sandbox.keeper.kernel import NO_LINKS, end_strays, mount, open_below
from trivium.sandbox.keeper.layers import Layers
from trivium.sandbox.keeper.trees import regular_files


@dataclass(slots=True)
class Box:
    """A sandbox: the layers below, its own on top, and its limits."""

    lowers: tuple[str, ...]
    upper: str
    limits: dict
    process: subprocess.Popen | None = None


@dataclass(slots=True)
class Boxes:
    """All of one provider, by their names."""

    layers: Layers
    groups: Groups
    boxes: dict[str, Box] = field(default_factory=dict)
    snapshots: dict[str, tuple[str, ...]] = field(default_factory=dict)
    bound: int = 0

    def do_bind(self, request: dict, descriptors: list[int]) -> dict:
        """Show a folder or a file of the host, read-only, to sandboxes of a user who may not go there."""
        place = self.layers.path("runtime", str(self.bound))
        self.bound += 1
        if os.path.isdir(request["folder"]):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT))
        mount(request["folder"], place, flags=0x1000 | 0x4000)  # MS_BIND | MS_REC
        return {"place": place}

    def do_create(self, request: dict, descriptors: list[int]) -> dict:
        source = request["source"]
        if source not in self.snapshots and not os.path.isdir(source):
            return {"error": "source"}
        lowers = self.snapshots[source] if source in self.snapshots else (self.layers.image(source),)
        lowers = self.layers.flat(lowers, request["limits"])
        ids = [f"{os.urandom(6).hex()}" for _ in range(request["n"])]
        try:
            for id in ids:
                upper = self.layers.layer(request["limits"])
                self.layers.open(id, lowers, upper)
                self.groups.make(id, request["limits"]["memory"], request["limits"]["processes"])
                self.boxes[id] = Box(lowers, upper, request["limits"])
        except OSError:
            for id in ids:
                self.unmake(id)
            raise
        return {"boxes": ids}

    def unmake(self, id: str) -> None:
        """Remove what there is of a box of which another part cannot be had."""
        self.boxes.pop(id, None)
        with contextlib.suppress(OSError):  # it was never mounted
            self.layers.shut(id)
        self.groups.drop(id)
        self.sweep()

    def do_snapshot(self, request: dict, descriptors: list[int]) -> dict:
        box, name = self.boxes[request["box"]], f"ns-{os.urandom(12).hex()}"
        lowers = (*box.lowers, box.upper)
        self.layers.shut(request["box"])
        box.lowers, box.upper = lowers, self.layers.layer(box.limits)
        self.layers.open(request["box"], self.layers.flat(lowers, box.limits), box.upper)
        self.snapshots[name] = lowers
        return {"snapshot": name}

    def do_forget(self, request: dict, descriptors: list[int]) -> dict:
        self.snapshots.pop(request["snapshot"], None)
        self.sweep()
        return {}

    async def do_close(self, request: dict, descriptors: list[int]) -> dict:
        box = self.boxes.pop(request["box"], None)
        if box:
            await self.end(request["box"], box)
            self.layers.shut(request["box"])
            self.groups.drop(request["box"])
            self.sweep()
        return {}

    def sweep(self) -> None:
        """Discard the layers that no box and no snapshot has any more."""
        used = {each for box in self.boxes.values() for each in (*box.lowers, box.upper)}
        self.layers.sweep(used | {each for lowers in self.snapshots.values() for each in lowers})

    async def end(self, id: str, box: Box) -> None:
        """End all that runs in a box: bubblewrap's death is that of its process 1, and so of all others; wait until they are
        gone."""
        if box.process and box.process.poll() is None:
            box.process.kill()
            box.process.wait()
        for _ in range(5000):
            alive, strays = self.groups.alive(id), end_strays(self.running())
            if not alive and not strays:
                return
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.001)

    def running(self) -> set[int]:
        """The processes that were begun here and have not ended."""
        processes = (box.process for box in self.boxes.values())
        return {process.pid for process in processes if process and process.returncode is None}

    def do_read(self, request: dict, descriptors: list[int]) -> tuple[dict, list[int]]:
        with self.top(request["box"]) as top:
            path = os.fsencode(request["path"])
            return {}, [open_below(top, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, 0)]

    def do_write(self, request: dict, descriptors: list[int]) -> dict:
        """Copy what a descriptor holds to a path; links on the way are refused, and folders made."""
        with self.top(request["box"]) as top:
            *folders, name = os.fsencode(request["path"]).split(b"/")
            place = os.dup(top)
            for folder in folders:
                place = self.folder(place, folder)
            try:
                target = open_below(place, name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, NO_LINKS)
            finally:
                os.close(place)
            with open(target, "wb") as file, open(descriptors[0], "rb", closefd=False) as data:
                if not stat.S_ISREG(os.fstat(target).st_mode):
                    raise OSError(errno.EINVAL, "no regular file")
                os.fchown(target, self.layers.user, self.layers.user)
                shutil.copyfileobj(data, file, 1 << 20)
        return {}

    def folder(self, parent: int, name: bytes) -> int:
        """A folder below an open one, made where it is missing; the open one is closed."""
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
                os.chown(name, self.layers.user, self.layers.user, dir_fd=parent, follow_symlinks=False)
            return open_below(parent, name, os.O_RDONLY | os.O_DIRECTORY, NO_LINKS)
        finally:
            os.close(parent)

    def do_list(self, request: dict, descriptors: list[int]) -> dict:
        """Every regular file with its size, as JSON in a descriptor: there may be many."""
        sizes = regular_files(self.layers.path("boxes", request["box"]))
        with open(descriptors[0], "w", closefd=False) as file:
            json.dump(sizes, file)
        return {}

    @contextlib.contextmanager
    def top(self, id: str):
        descriptor = os.open(self.layers.path("boxes", id), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    async def do_exec(self, request: dict, descriptors: list[int]) -> dict:
        """Run a command with stdout, stderr and the filter of system calls as descriptors; until it ends, or its time does."""
        id, out, err, calls = request["box"], *descriptors
        box, killed = self.boxes[id], self.groups.oom_kills(id)
        argv = [
            part.format(box=self.layers.path("boxes", id), seccomp=calls) if at else part
            for at, part in enumerate(request["argv"])
        ]
        try:
            box.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, pass_fds=[calls], start_new_session=True, cwd="/",
                env={"PATH": "/usr/bin:/bin"}, preexec_fn=lambda: self.begin(id, box.limits),
            )  # fmt: skip
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            return {"error": "command", "why": error.strerror}
        for descriptor in descriptors:
            os.close(descriptor)
        descriptors.clear()
        timed_out = not await _ended(box.process.pid, request["seconds"])
        await self.end(id, box)
        return {"code": box.process.wait(), "timed_out": timed_out, "oom": self.groups.oom_kills(id) > killed}

    async def do_end(self, request: dict, descriptors: list[int]) -> dict:
        """End a command before its time: nobody waits for it any more."""
        await self.end(request["box"], self.boxes[request["box"]])
        return {}

    def begin(self, id: str, limits: dict) -> None:
        """In the new process: its groups, limits of its own, its user. What no group counts, those limits count."""
        self.groups.enter(id)
        rows = {resource.RLIMIT_CPU: limits["cpu"], resource.RLIMIT_NOFILE: limits["files"], resource.RLIMIT_CORE: 0}
        if "memory" not in self.groups.had:
            rows[resource.RLIMIT_AS] = limits["memory"]
        for kind, value in rows.items():
            resource.setrlimit(kind, (value, value))
        if self.layers.user:  # without root we are nobody already, in a user namespace
            os.setgroups([])
            os.setresgid(self.layers.user, self.layers.user, self.layers.user)
            os.setresuid(self.layers.user, self.layers.user, self.layers.user)


async def _ended(pid: int, seconds: float) -> bool:
    """Whether a process ended within its time."""
    loop, done, descriptor = asyncio.get_running_loop(), asyncio.Event(), os.pidfd_open(pid)
    loop.add_reader(descriptor, done.set)
    try:
        await asyncio.wait_for(done.wait(), seconds)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return True
