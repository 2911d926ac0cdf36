"""Sandboxes of a service on another machine, or beside this process: the same verbs over HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import msgspec

from trivium.errors import InputError, PlaceError
from trivium.sandbox.base import Capabilities, Command, Limits, Result, Sandbox, inside, words
from trivium.sandbox.wire import MEDIA, Create, Read, Write, error_of, exec_body

T = TypeVar("T")
_SLACK = 60.0
"""Seconds that a service may take beside those that a command was given."""


@dataclass(slots=True)
class _Line:
    """What ends with one event loop: its connections, whose turn it is to open a lease, and the task that renews one."""

    loop: asyncio.AbstractEventLoop
    client: httpx.AsyncClient
    opening: asyncio.Lock
    beat: asyncio.Task[None] | None = None


class Remote:
    """A provider whose sandboxes live with the service at `url`. An image is the name of one of the service's."""

    def __init__(self, url: str, token: str) -> None:
        """`token` is what the service printed. Nothing is asked of it yet."""
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}", "content-type": MEDIA}
        self._lease, self._pause = "", 0.0
        self._line: _Line | None = None
        self._closed = False

    async def create(self, source: str, limits: Limits = Limits(), n: int = 1) -> list[Sandbox]:
        lease = await self._open()
        try:
            return await self._create(lease, source, limits, n)
        except PlaceError:  # of a lease that ended another one is to be had
            if await self._held(self._here().client, lease):
                raise
            return await self._create(await self._open(), source, limits, n)

    async def _create(self, lease: str, source: str, limits: Limits, n: int) -> list[Sandbox]:
        ids = await self.ask("POST", f"/leases/{lease}/sandboxes", list[str], Create(source, limits, n))
        return [RemoteSandbox(self, f"/leases/{lease}/sandboxes/{id}") for id in ids]

    async def _open(self) -> str:
        """The lease, opened when it is first needed, and kept alive from then on."""
        line = self._here()
        async with line.opening:
            if not self._lease:
                self._lease, seconds = await self.ask("POST", "/leases", tuple[str, float])
                self._pause = seconds / 3
                line.beat = asyncio.create_task(self._renew(line.client, self._lease))
            return self._lease

    def _here(self) -> _Line:
        """The line of the event loop that runs. A lease outlives a loop, so a new one goes on renewing it."""
        loop = asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            client = httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=_SLACK)
            beat = loop.create_task(self._renew(client, self._lease)) if self._lease else None
            self._line = _Line(loop, client, asyncio.Lock(), beat)
        return self._line

    async def _renew(self, client: httpx.AsyncClient, lease: str) -> None:
        """Say that we live, until the lease ends. A service that is gone for a moment is asked again."""
        while await self._held(client, lease):
            await asyncio.sleep(self._pause)

    async def _held(self, client: httpx.AsyncClient, lease: str) -> bool:
        """Prolong a lease; whether it goes on. One that ended (the service began anew, or we were silent for too long) is
        given up, so that the next sandbox opens another."""
        with suppress(httpx.TransportError):
            if (await client.put(f"/leases/{lease}")).status_code == httpx.codes.GONE and self._lease == lease:
                self._lease = ""
        return self._lease == lease

    async def forget(self, snapshot: str) -> None:
        await self.ask("DELETE", f"/leases/{await self._open()}/snapshots/{snapshot}")

    def capabilities(self) -> Capabilities:
        """Those of the service's provider, asked for now. Raises PlaceError where it does not answer."""
        try:
            answer = httpx.get(f"{self.url}/capabilities", headers=self._headers, timeout=_SLACK)
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        return _read(answer, Capabilities)

    async def close(self) -> None:
        line = self._here()
        if line.beat:
            line.beat.cancel()
        try:
            if self._lease:
                await self.ask("DELETE", f"/leases/{self._lease}")
        except PlaceError:
            pass  # a service that is gone holds nothing of ours
        self._closed = True
        await line.client.aclose()

    async def ask(self, method: str, path: str, kind: type[T] | None = None, body: object = None, seconds: float = 0.0) -> Any:
        """What the service answers, as `kind`. Raises the error that it names, and PlaceError where it does not answer."""
        if self._closed:
            raise PlaceError("the provider of the sandboxes was closed")
        content = b"" if body is None else msgspec.msgpack.encode(body)
        try:
            answer = await self._here().client.request(method, path, content=content, timeout=seconds + _SLACK)
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        return _read(answer, kind)

    def _silent(self, error: Exception) -> PlaceError:
        return PlaceError(f"the sandbox service at {self.url} does not answer ({type(error).__name__})")


def _read(answer: httpx.Response, kind: type[T] | None) -> Any:
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise InputError(f"the sandbox service at {answer.url.host} refused the token: it prints it when it starts")
    if answer.is_error:
        raise error_of(answer.status_code, answer.text)
    return None if kind is None else msgspec.msgpack.decode(answer.content, type=kind)


@dataclass(frozen=True, slots=True)
class RemoteSandbox:
    """One of them: where it is found."""

    provider: Remote
    path: str

    async def exec(self, command: Command, seconds: float = 60.0, env: Mapping[str, str] | None = None) -> Result:
        words(command)  # what no program can be given has no bytes to be sent either
        return await self.provider.ask("POST", f"{self.path}/exec", Result, exec_body(command, seconds, env), seconds)

    async def files(self) -> dict[str, int]:
        sizes = await self.provider.ask("GET", f"{self.path}/files", dict[bytes, int])
        return {os.fsdecode(path): size for path, size in sizes.items()}

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        return await self.provider.ask("POST", f"{self.path}/read", bytes, Read(os.fsencode(inside(path)), most))

    async def write(self, files: Mapping[str, bytes]) -> None:
        body = Write({os.fsencode(inside(path)): bytes(data) for path, data in files.items()})
        await self.provider.ask("POST", f"{self.path}/write", None, body)

    async def snapshot(self) -> str:
        return await self.provider.ask("POST", f"{self.path}/snapshot", str)

    async def close(self) -> None:
        try:
            await self.provider.ask("DELETE", self.path)
        except PlaceError:
            return  # the service or the lease is gone, and the sandbox with it
