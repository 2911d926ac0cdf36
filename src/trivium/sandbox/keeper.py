"""The keeper: one process that holds the files of all sandboxes of one provider, and starts their commands.

It lives in a mount namespace of its own, below a tmpfs that no path of the host leads to. So all that it mounted goes with it,
and it goes when its provider does: its socket comes to an end. Run by ns.py as a script, on the standard library alone:

    layers/ID/       a tmpfs of limited size: up/ (files) and work/ (overlayfs' own)
    boxes/ID/        an overlay: the layers of a snapshot below, one layer of its own on top
    runtime/N/       what is shown read-only: the interpreter, packages

Requests are JSON of {"verb", "id", ...} with file descriptors beside; each is answered by {"id", ...}, with an "error"
where it failed.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import ctypes
import errno
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
_OPENAT2 = 437
_BENEATH, _NO_MAGIC, _NO_LINKS = 0x08, 0x02, 0x04
_DETACH = 2
_MESSAGE, _DESCRIPTORS = 1 << 20, 16
DEEPEST = 64
"""Layers of a snapshot, above which they are made one: an overlay finds a file in time proportional to them."""


def check(status: int, what: str) -> int:
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return status


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    status = LIBC.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode())
    check(status, f"mount {kind or source}")


def unmount(target: str) -> None:
    check(LIBC.umount2(target.encode(), _DETACH), f"unmount {target}")


class How(ctypes.Structure):
    """struct open_how."""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_below(top: int, path: bytes, flags: int, resolve: int) -> int:
    """Open a path below a folder; the kernel refuses to leave it, whatever links say."""
    how = How(flags | os.O_CLOEXEC, 0o644 if flags & os.O_CREAT else 0, _NO_MAGIC | _BENEATH | resolve)
    return check(LIBC.syscall(_OPENAT2, top, path, ctypes.byref(how), ctypes.sizeof(how)), os.fsdecode(path))


# --- control groups --------------------------------------------------------------------------------------------------


class Groups:
    """A control group for each sandbox, of version 1 or 2, below the one that this process is in. `memory` and `pids` say which
    limits could be had."""

    def __init__(self, name: str) -> None:
        self._name, self._tops = name, {}
        for controller in ("memory", "pids"):
            with contextlib.suppress(OSError):
                self._tops[controller] = self._top(controller)

    @property
    def had(self) -> list[str]:
        return sorted(self._tops)

    def _top(self, controller: str) -> Path:
        own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        if controller in own:
            top = Path("/sys/fs/cgroup", controller) / own[controller].lstrip("/") / self._name
        else:
            root = Path("/sys/fs/cgroup/unified" if Path("/sys/fs/cgroup/unified").is_dir() else "/sys/fs/cgroup")
            parent = root / own[""].lstrip("/")
            if controller not in (parent / "cgroup.controllers").read_text().split():
                raise OSError(errno.ENOENT, controller)
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            top = parent / self._name
        _sweep(top.parent)
        top.mkdir(exist_ok=True)
        if (top / "cgroup.subtree_control").exists():
            (top / "cgroup.subtree_control").write_text(f"+{controller}")
        probe = top / "probe"
        probe.mkdir()
        probe.rmdir()
        return top

    def make(self, box: str, memory: int, processes: int) -> None:
        for controller, top in self._tops.items():
            group = top / box
            group.mkdir(exist_ok=True)
            for file, value in _limits(controller, group, memory, processes):
                (group / file).write_text(str(value))

    def enter(self, box: str) -> None:
        """Move this process into the groups of a sandbox."""
        for top in self._tops.values():
            (top / box / "cgroup.procs").write_text("0")

    def oom_kills(self, box: str) -> int:
        """How often the kernel killed one of its processes for memory."""
        top = self._tops.get("memory")
        for file in ("memory.events", "memory.oom_control"):
            if top and (top / box / file).exists():
                words = dict(line.split() for line in (top / box / file).read_text().splitlines())
                return int(words.get("oom_kill", 0))
        return 0

    def alive(self, box: str) -> list[int]:
        """The processes in it."""
        return [int(pid) for top in self._tops.values() for pid in (top / box / "cgroup.procs").read_text().split()]

    def drop(self, box: str) -> bool:
        """Remove a sandbox' groups; whether they are gone."""
        return all(_remove(top / box) for top in self._tops.values())

    def close(self) -> None:
        for top in self._tops.values():
            for group in [*top.glob("*/"), top]:
                _remove(group)


def _limits(controller: str, group: Path, memory: int, processes: int) -> list[tuple[str, int]]:
    if controller == "pids":
        return [("pids.max", processes)]
    if (group / "memory.max").exists():
        return [("memory.max", memory), *([("memory.swap.max", 0)] if (group / "memory.swap.max").exists() else [])]
    return [("memory.limit_in_bytes", memory)]


def _remove(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _sweep(parent: Path) -> None:
    """Groups of a keeper that was killed before it could remove them. Their names begin with its process' number."""
    for top in parent.glob("trivium-*"):
        pid = top.name.split("-")[1]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            for group in [*top.glob("*/"), top]:
                _remove(group)


# --- files -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Box:
    """A sandbox: the layers below, its own on top, and its limits."""

    lowers: tuple[str, ...]
    upper: str
    limits: dict
    process: subprocess.Popen | None = None


@dataclass(slots=True)
class Keeper:
    """Answers the requests of one provider."""

    base: Path
    user: int
    groups: Groups
    boxes: dict[str, Box] = field(default_factory=dict)
    snapshots: dict[str, tuple[str, ...]] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    bound: int = 0

    def path(self, *parts: str) -> str:
        return str(self.base.joinpath(*parts))

    # layers

    def layer(self, limits: dict) -> str:
        """A new one, empty."""
        id = os.urandom(6).hex()
        os.mkdir(self.path("layers", id), 0o711)
        size = f"size={limits['disk']},nr_inodes={limits['inodes']},mode=0711"
        mount("tmpfs", self.path("layers", id), "tmpfs", options=size)
        for name in ("up", "work"):
            os.mkdir(self.path("layers", id, name))
        os.chown(self.path("layers", id, "up"), self.user, self.user)
        return id

    def image(self, folder: str) -> str:
        """The layer of an image: a copy that belongs to the user of all sandboxes, made once for each state of the folder."""
        key = f"{folder}:{_state(folder)}"
        if key not in self.images:
            id = self.layer({"disk": 4 << 30, "inodes": 1_000_000})
            top = self.path("layers", id, "up")
            shutil.copytree(folder, top, symlinks=True, dirs_exist_ok=True)
            for place, folders, files in os.walk(top):
                for name in (*folders, *files):
                    os.chown(os.path.join(place, name), self.user, self.user, follow_symlinks=False)
            os.chown(top, self.user, self.user)
            self.images[key] = id
        return self.images[key]

    def open(self, id: str, lowers: tuple[str, ...], upper: str) -> None:
        """Mount a box' overlay."""
        os.makedirs(self.path("boxes", id), exist_ok=True)
        os.chdir(self.path("layers"))  # so that the names of many layers fit into the options, which are one page
        options = f"lowerdir={':'.join(f'{each}/up' for each in reversed(lowers))},upperdir={upper}/up,workdir={upper}/work"
        mount(
            "overlay", self.path("boxes", id), "overlay", options=options + (",userxattr" if os.environ.get("USERNS") else "")
        )

    def flat(self, lowers: tuple[str, ...], limits: dict) -> tuple[str, ...]:
        """The same files in one layer, where there are too many."""
        if len(lowers) < DEEPEST:
            return lowers
        whole = self.layer({"disk": limits["disk"] * 2, "inodes": limits["inodes"] * 2})
        seen, scratch = os.urandom(6).hex(), self.layer(limits)
        self.open(seen, lowers, scratch)
        subprocess.run(["cp", "-a", f"{self.path('boxes', seen)}/.", self.path("layers", whole, "up")], check=True)
        unmount(self.path("boxes", seen))
        os.rmdir(self.path("boxes", seen))
        self.discard(scratch)
        return (whole,)

    def discard(self, layer: str) -> None:
        unmount(self.path("layers", layer))
        os.rmdir(self.path("layers", layer))

    def sweep(self) -> None:
        """Discard the layers that no box, snapshot or image has any more."""
        used = {each for box in self.boxes.values() for each in (*box.lowers, box.upper)}
        used |= {each for lowers in self.snapshots.values() for each in lowers} | set(self.images.values())
        for layer in set(os.listdir(self.path("layers"))) - used:
            self.discard(layer)

    # verbs

    def do_bind(self, request: dict, descriptors: list[int]) -> dict:
        """Show a folder or a file of the host, read-only, to sandboxes of a user who may not go there."""
        place = self.path("runtime", str(self.bound))
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
        lowers = self.snapshots[source] if source in self.snapshots else (self.image(source),)
        lowers = self.flat(lowers, request["limits"])
        ids = [f"{os.urandom(6).hex()}" for _ in range(request["n"])]
        for id in ids:
            upper = self.layer(request["limits"])
            self.open(id, lowers, upper)
            self.groups.make(id, request["limits"]["memory"], request["limits"]["processes"])
            self.boxes[id] = Box(lowers, upper, request["limits"])
        return {"boxes": ids}

    def do_snapshot(self, request: dict, descriptors: list[int]) -> dict:
        box, name = self.boxes[request["box"]], f"ns-{os.urandom(12).hex()}"
        lowers = (*box.lowers, box.upper)
        unmount(self.path("boxes", request["box"]))
        box.lowers, box.upper = lowers, self.layer(box.limits)
        self.open(request["box"], self.flat(lowers, box.limits), box.upper)
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
            unmount(self.path("boxes", request["box"]))
            os.rmdir(self.path("boxes", request["box"]))
            self.groups.drop(request["box"])
            self.sweep()
        return {}

    async def end(self, id: str, box: Box) -> None:
        """End all that runs in a box: bubblewrap's death is that of its process 1, and so of all others; wait until they are
        gone."""
        if box.process and box.process.poll() is None:
            box.process.kill()
            box.process.wait()
        for _ in range(5000):
            alive = self.groups.alive(id)
            if not alive:
                return
            for pid in alive:  # one whose bubblewrap died while it was still setting up hears nothing of that death
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.001)

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
                target = open_below(place, name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, _NO_LINKS)
            finally:
                os.close(place)
            with open(target, "wb", buffering=0) as file, open(descriptors[0], "rb", closefd=False) as data:
                if not stat.S_ISREG(os.fstat(target).st_mode):
                    raise OSError(errno.EINVAL, "no regular file")
                os.fchown(target, self.user, self.user)
                shutil.copyfileobj(data, file, 1 << 20)
        return {}

    def folder(self, parent: int, name: bytes) -> int:
        """A folder below an open one, made where it is missing; the open one is closed."""
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
                os.chown(name, self.user, self.user, dir_fd=parent, follow_symlinks=False)
            return open_below(parent, name, os.O_RDONLY | os.O_DIRECTORY, _NO_LINKS)
        finally:
            os.close(parent)

    def do_list(self, request: dict, descriptors: list[int]) -> dict:
        """Every regular file with its size, as JSON in a descriptor: there may be many."""
        top, sizes = self.path("boxes", request["box"]), {}
        for place, _, names in os.walk(top):
            for name in names:
                status = os.lstat(os.path.join(place, name))
                if stat.S_ISREG(status.st_mode):
                    sizes[os.path.relpath(os.path.join(place, name), top)] = status.st_size
        with open(descriptors[0], "w", closefd=False) as file:
            json.dump(sizes, file)
        return {}

    @contextlib.contextmanager
    def top(self, id: str):
        descriptor = os.open(self.path("boxes", id), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    async def do_exec(self, request: dict, descriptors: list[int]) -> dict:
        """Run a command with stdout, stderr and the filter of system calls as descriptors; until it ends, or its time does."""
        id, out, err, calls = request["box"], *descriptors
        box, killed = self.boxes[id], self.groups.oom_kills(id)
        argv = [
            part.format(box=self.path("boxes", id), seccomp=calls) if at else part for at, part in enumerate(request["argv"])
        ]
        box.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, pass_fds=[calls], start_new_session=True, cwd="/",
            env={"PATH": "/usr/bin:/bin"}, preexec_fn=lambda: self.begin(id, box.limits),
        )  # fmt: skip
        for descriptor in descriptors:
            os.close(descriptor)
        descriptors.clear()
        timed_out = not await _ended(box.process.pid, request["seconds"])
        await self.end(id, box)
        return {"code": box.process.wait(), "timed_out": timed_out, "oom": self.groups.oom_kills(id) > killed}

    def begin(self, id: str, limits: dict) -> None:
        """In the new process: its groups, limits of its own, its user. What no group counts, those limits count."""
        self.groups.enter(id)
        rows = {resource.RLIMIT_CPU: limits["cpu"], resource.RLIMIT_NOFILE: limits["files"], resource.RLIMIT_CORE: 0}
        if "memory" not in self.groups.had:
            rows[resource.RLIMIT_AS] = limits["memory"]
        for kind, value in rows.items():
            resource.setrlimit(kind, (value, value))
        if self.user:  # without root we are nobody already, in a user namespace
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)


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


def _state(folder: str) -> int:
    """A number that changes with a folder's files."""
    rows = []
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            status = os.lstat(os.path.join(place, name))
            rows.append((place, name, status.st_size, status.st_mtime_ns, status.st_ino))
    return hash(tuple(sorted(rows)))


# --- the conversation ------------------------------------------------------------------------------------------------


async def answer(keeper: Keeper, line: socket.socket, request: dict, descriptors: list[int]) -> None:
    back: list[int] = []
    try:
        result = getattr(keeper, f"do_{request['verb']}")(request, descriptors)
        result = await result if asyncio.iscoroutine(result) else result
        result, back = result if isinstance(result, tuple) else (result, [])
    except KeyError as error:
        result = {"error": "gone", "why": str(error)}
    except OSError as error:
        result = {"error": "os", "number": error.errno, "why": error.strerror or str(error)}
    except Exception as error:  # noqa: BLE001  (whatever it is, who asked hears of it)
        result = {"error": "bug", "why": f"{type(error).__name__}: {error}"}
    payload = json.dumps({"id": request["id"], **result}).encode()
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", back))] if back else []
    try:
        while True:
            try:
                line.sendmsg([payload], beside)
                break
            except BlockingIOError:
                await asyncio.sleep(0.001)
    except OSError:
        pass  # the provider is gone, and this process goes with it
    for descriptor in (*descriptors, *back):
        os.close(descriptor)


async def serve(keeper: Keeper, line: socket.socket) -> None:
    """Answer until the provider's end is closed."""
    loop, ended, running = asyncio.get_running_loop(), asyncio.Event(), set()

    def heard() -> None:
        data, descriptors, _, _ = socket.recv_fds(line, _MESSAGE, _DESCRIPTORS)
        if not data:
            loop.remove_reader(line)
            ended.set()
            return
        task = loop.create_task(answer(keeper, line, json.loads(data), list(descriptors)))
        running.add(task)
        task.add_done_callback(running.discard)

    loop.add_reader(line, heard)
    await ended.wait()
    for id, box in keeper.boxes.items():
        await keeper.end(id, box)
        keeper.groups.drop(id)
    keeper.groups.close()


def main() -> None:
    """As a script: the number of the socket, the base folder, the user that sandboxes run as."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the provider's, which closes the socket
    line, base, user = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
    line.setblocking(False)
    mount("tmpfs", str(base), "tmpfs", options="mode=0711")
    os.umask(0o022)
    for name in ("layers", "boxes", "runtime"):
        os.mkdir(base / name, 0o711)
    keeper = Keeper(base, user, Groups(f"trivium-{os.getpid()}-{os.urandom(4).hex()}"))
    line.send(json.dumps({"id": 0, "groups": keeper.groups.had}).encode())
    asyncio.run(serve(keeper, line))


if __name__ == "__main__":
    main()
