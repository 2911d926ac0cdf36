"""Sandboxes that are containers of a Docker daemon: as strong as its runtime is. By the docker SDK.

Each holds its standard input open as long as the connection to this process lives, and is removed by the daemon when it ends.
So a process that dies, however it dies, leaves no container.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tarfile
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import IO, Any

from trivium.errors import InputError, PlaceError, Unsupported
from trivium.sandbox.base import WORK, Capabilities, Command, Limits, Result, Sandbox, SandboxError, inside, words
from trivium.sandbox.making import held, several
from trivium.sandbox.output import Ends

USER = 1000
"""Of all commands. The container's first process is root's, so that no command can end it."""
SWEEP = ["sh", "-c", "kill -9 -1"]
"""Ends all that the user who runs it may end."""
SNAPSHOTS = "trivium-snapshot"
_THREADS = 512
"""The SDK waits in threads: two for each command that runs, at most."""
_GRACE = 10.0
"""Seconds in which a killed command's output has to come to its end."""


class Docker:
    """The provider. Containers begin from the image `base`, with an image's folder at their top."""

    def __init__(self, base: str = "python:3.11-slim", client: Any = None) -> None:
        """`client` is a `docker.DockerClient`, by default the one that the environment names. Raises Unsupported where no
        daemon answers, or it has no image `base`: nothing is pulled unasked."""
        try:
            import docker
            from docker.errors import DockerException, ImageNotFound
        except ImportError as error:
            raise Unsupported("Docker needs the SDK: pip install 'trivium[docker]'") from error
        try:
            self._client = client or docker.from_env()
            self._client.ping()
            self._client.images.get(base)
        except ImageNotFound as error:
            raise Unsupported(f"the Docker daemon has no image {base}: docker pull {base}") from error
        except DockerException as error:
            raise Unsupported(f"Docker needs a daemon that answers: {error}") from error
        self.base = base
        self._snapshots: set[str] = set()
        self._open: set[Container] = set()
        self._threads = ThreadPoolExecutor(_THREADS, "docker")

    async def create(self, source: str, limits: Limits = Limits(), n: int = 1) -> list[Sandbox]:
        if source not in self._snapshots and not Path(source).is_dir():
            raise InputError(f"{source} is neither an image's folder nor a snapshot of this provider")
        return await held(several(lambda: self.call(self._create, source, limits), n))

    def _create(self, source: str, limits: Limits) -> Container:
        api, made = self.api, source in self._snapshots
        with _broken("a container cannot be made"):
            id = api.create_container(
                source if made else self.base, ["cat"], user="0:0", stdin_open=True, detach=False, working_dir=WORK,
                host_config=api.create_host_config(**_limits(limits)),
            )["Id"]  # fmt: skip
            box = Container(self, id, limits)
            try:
                box.held = api.attach_socket(id, {"stdin": 1, "stream": 1})
                api.start(id)
                if not made:
                    with _packed(Path(source)) as tar:
                        api.put_archive(id, "/", tar)
            except BaseException:
                self._remove(box)
                raise
        self._open.add(box)
        return box

    async def keep(self, box: Container) -> str:
        """A snapshot of a container: an image of the daemon's."""
        tag = secrets.token_hex(12)
        with _broken("no snapshot can be made"):
            await self.call(self.api.commit, box.id, SNAPSHOTS, tag)
        self._snapshots.add(f"{SNAPSHOTS}:{tag}")
        return f"{SNAPSHOTS}:{tag}"

    async def forget(self, snapshot: str) -> None:
        if snapshot in self._snapshots:
            self._snapshots.discard(snapshot)
            with _broken("a snapshot cannot be forgotten"):
                await self.call(self.api.remove_image, snapshot, True)

    async def drop(self, box: Container) -> None:
        """Remove a container. A second time does nothing."""
        if box in self._open:
            self._open.discard(box)
            await self.call(self._remove, box)

    def _remove(self, box: Container) -> None:
        from docker.errors import APIError

        try:
            self.api.remove_container(box.id, force=True)
        except APIError as error:
            if error.status_code not in (404, 409):  # it is gone, or is being removed
                raise PlaceError(f"a container cannot be removed: {error}") from error
        finally:
            if box.held:
                hang_up(box.held)

    def capabilities(self) -> Capabilities:
        return Capabilities(
            "docker",
            "a container of the daemon's runtime, by default on the host's kernel, no network",
            frozenset({"processes", "memory", "cpu", "files", "output"}),
            ("disk, inodes: the daemon's storage driver has no quota that holds everywhere", "oom is read off the status 137"),
        )

    async def close(self) -> None:
        for box in list(self._open):
            await self.drop(box)
        for snapshot in list(self._snapshots):
            await self.forget(snapshot)
        self._threads.shutdown()
        self._client.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Call the SDK in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def has(self, box: Container) -> bool:
        return box in self._open

    @property
    def api(self) -> Any:
        return self._client.api


@dataclass(eq=False, slots=True)
class Container:
    """One of them. `held` is the connection whose end is the container's, once there is one."""

    provider: Docker
    id: str
    limits: Limits
    held: Any = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def exec(self, command: Command, seconds: float = 60.0, env: Mapping[str, str] | None = None) -> Result:
        argv = words(command)
        surroundings = {"HOME": WORK, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
        self._check()
        async with self._turn:
            began, ends = time.monotonic(), (Ends(self.limits.output), Ends(self.limits.output))
            with _broken("a command cannot be begun"):
                id = await self.provider.call(self._begin, argv, surroundings)
                reading = self.provider.call(self._hear, id, ends)
                try:
                    timed_out = not await self._ended(id, reading, began + seconds)
                finally:
                    await asyncio.shield(asyncio.ensure_future(self._swept(reading)))
                if reading.done():
                    reading.result()
                code = (await self.provider.call(self.provider.api.exec_inspect, id))["ExitCode"]
            (out, cut), (err, also) = (each.text() for each in ends)
            code = 137 if code is None else code
            oom = code == 137 and not timed_out
            return Result(code, out, err, cut or also, timed_out, oom, time.monotonic() - began)

    def _begin(self, argv: list[str], env: Mapping[str, str]) -> str:
        api = self.provider.api
        return api.exec_create(self.id, argv, user=f"{USER}:{USER}", workdir=WORK, environment=dict(env))["Id"]

    def _hear(self, id: str, ends: tuple[Ends, Ends]) -> None:
        """Run it, and take what it prints to the end."""
        for parts in self.provider.api.exec_start(id, stream=True, demux=True):
            for end, part in zip(ends, parts, strict=True):
                end.add(part or b"")

    async def _ended(self, id: str, reading: asyncio.Future[None], deadline: float) -> bool:
        """Whether the command ended in time. What it left running may hold its output open, so the daemon is asked too."""
        pause = 0.02
        while time.monotonic() < deadline:
            await asyncio.wait([reading], timeout=min(pause, max(deadline - time.monotonic(), 0.001)))
            if reading.done():
                return True
            told = await self.provider.call(self.provider.api.exec_inspect, id)
            if told["ExitCode"] is not None:
                return True
            pause = min(2 * pause, 0.5)
        return False

    async def _swept(self, reading: asyncio.Future[None]) -> None:
        """End what is left, until its output came to an end: where it was cancelled, the daemon may not have begun it yet."""
        deadline = time.monotonic() + _GRACE
        while True:
            await self.provider.call(self._sweep)
            await asyncio.wait([reading], timeout=0.5)
            if reading.done() or time.monotonic() > deadline:
                return

    def _sweep(self) -> None:
        """End what is left of the command's processes."""
        api = self.provider.api
        api.exec_start(api.exec_create(self.id, SWEEP, user=f"{USER}:{USER}")["Id"])

    async def files(self) -> dict[str, int]:
        """By the tar of its top: no program of the container is asked."""
        self._check()
        with _broken("its files cannot be listed"):
            return await self.provider.call(self._files)

    def _files(self) -> dict[str, int]:
        stream, _ = self.provider.api.get_archive(self.id, WORK)
        with tarfile.open(fileobj=_Stream(stream), mode="r|") as tar:
            sizes = {member.name.partition("/")[2]: member.size for member in tar if member.isreg() or member.islnk()}
        return dict(sorted(sizes.items()))

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        plain = inside(path)
        self._check()
        with _broken(f"{path} cannot be read"):
            return await self.provider.call(self._read, plain, path, most)

    def _read(self, plain: str, path: str, most: int) -> bytes:
        from docker.errors import NotFound

        try:
            stream, _ = self.provider.api.get_archive(self.id, os.fsencode(f"{WORK}/{plain}"))
        except NotFound:
            raise SandboxError(f"there is no file {path} to read") from None
        with tarfile.open(fileobj=_Stream(stream), mode="r|") as tar:
            member = tar.next()
            if member is None or not member.isreg():
                raise SandboxError(f"{path} is no regular file")
            if member.size > most:
                raise SandboxError(f"{path} has {member.size:,} bytes, more than {most:,}")
            file = tar.extractfile(member)
            return file.read() if file else b""

    async def write(self, files: Mapping[str, bytes]) -> None:
        plain = {inside(path): data for path, data in files.items()}
        self._check()
        for path, data in plain.items():
            with _broken(f"{path} cannot be written"):
                await self.provider.call(self.provider.api.put_archive, self.id, WORK, _one(path, data))

    async def snapshot(self) -> str:
        self._check()
        async with self._turn:
            return await self.provider.keep(self)

    async def close(self) -> None:
        await self.provider.drop(self)

    def _check(self) -> None:
        if not self.provider.has(self):
            raise PlaceError("this sandbox was closed")


def hang_up(held: Any) -> None:
    """End a connection that `attach_socket` gave; its answer holds it too."""
    getattr(held, "_response", held).close()


def _limits(limits: Limits) -> dict[str, Any]:
    """The host's side of a container."""
    from docker.types import Ulimit

    return {
        "network_mode": "none", "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "auto_remove": True, "init": True,
        "mem_limit": limits.memory, "memswap_limit": limits.memory, "pids_limit": limits.processes,
        "ulimits": [
            Ulimit(name="cpu", soft=limits.cpu, hard=limits.cpu), Ulimit(name="nofile", soft=limits.files, hard=limits.files),
        ],
    }  # fmt: skip


@contextmanager
def _broken(what: str) -> Generator[None]:
    """PlaceError for what the daemon, or the way to it, does not do; SandboxError for a full disk."""
    from docker.errors import DockerException
    from requests import RequestException

    try:
        yield
    except (DockerException, RequestException, OSError) as error:
        kind = SandboxError if "no space left" in str(error).lower() else PlaceError
        raise kind(f"{what}: {error}") from error


@contextmanager
def _packed(folder: Path) -> Generator[IO[bytes]]:
    """An image's folder as a tar that is unpacked at a container's root, its files owned by who runs commands."""

    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = USER
        return member

    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.add(folder, WORK.lstrip("/"), filter=owned)
        file.seek(0)
        yield file


def _one(path: str, data: bytes) -> bytes:
    """A tar of one file and the folders that lead to it."""
    file, parts = BytesIO(), path.split("/")
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for depth in range(1, len(parts) + 1):
            member = tarfile.TarInfo("/".join(parts[:depth]))
            member.uid = member.gid = USER
            if depth < len(parts):
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            else:
                member.size, member.mtime = len(data), int(time.time())
                tar.addfile(member, BytesIO(data))
    return file.getvalue()


class _Stream(RawIOBase):
    """What the SDK gives in parts, as a file that tarfile reads."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts, self._left = iter(parts), b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._left) < size:
            if not (part := next(self._parts, b"")):
                break
            self._left += part
        given, self._left = (self._left, b"") if size < 0 else (self._left[:size], self._left[size:])
        return given
