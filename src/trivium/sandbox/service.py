"""The verbs of a provider over HTTP: `trivium sandbox serve` on one machine, `Remote` on another."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response

from trivium import files
from trivium.errors import InputError, PlaceError, TriviumError
from trivium.sandbox.leases import Leases
from trivium.sandbox.wire import MEDIA, STATUS, Create, Exec, Read, Write, command_of

T = TypeVar("T")
BODY = 1 << 30
"""Bytes of one request at most."""
HEARING = 0.5
"""Seconds between two looks whether the client of a command is still there."""


def service(leases: Leases, token: str) -> FastAPI:
    """The application. Every request but that for /health brings the token, since whoever is heard may run programs."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncGenerator[None]:
        watch = asyncio.create_task(leases.watch())
        yield
        watch.cancel()
        await leases.provider.close()

    def check(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "the service needs its token: it printed it when it started")

    app = FastAPI(title="Trivium sandboxes", lifespan=life)
    app.add_api_route("/health", lambda: {"status": "ok"})
    app.include_router(_leases(leases), dependencies=[Depends(check)])
    app.include_router(_sandboxes(leases), dependencies=[Depends(check)])
    app.add_exception_handler(TriviumError, _refusal)
    return app


def _leases(leases: Leases) -> APIRouter:
    """Leases, sandboxes made and closed, snapshots forgotten."""
    routes = APIRouter()

    @routes.get("/capabilities")
    async def capabilities() -> Response:
        return _answer(leases.provider.capabilities())

    @routes.post("/leases")
    async def open() -> Response:
        return _answer((leases.open(), leases.seconds))

    @routes.put("/leases/{lease}")
    async def renew(lease: str) -> None:
        leases.lease(lease)

    @routes.delete("/leases/{lease}")
    async def end(lease: str) -> None:
        await leases.end(lease)

    @routes.post("/leases/{lease}/sandboxes")
    async def create(lease: str, request: Request) -> Response:
        body = await _body(request, Create)
        return _answer(await leases.create(lease, body.source, body.limits, body.n))

    @routes.delete("/leases/{lease}/sandboxes/{id}")
    async def close(lease: str, id: str) -> None:
        await leases.close(lease, id)

    @routes.delete("/leases/{lease}/snapshots/{snapshot}")
    async def forget(lease: str, snapshot: str) -> None:
        await leases.forget(lease, snapshot)

    return routes


def _sandboxes(leases: Leases) -> APIRouter:
    """What one sandbox does."""
    routes = APIRouter(prefix="/leases/{lease}/sandboxes/{id}")

    @routes.post("/exec")
    async def exec(lease: str, id: str, request: Request) -> Response:
        body = await _body(request, Exec)
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in body.env.items()}
        work = leases.sandbox(lease, id).exec(command_of(body), body.seconds, env)
        return _answer(await _while_heard(request, work))

    @routes.get("/files")
    async def files(lease: str, id: str) -> Response:
        sizes = await leases.sandbox(lease, id).files()
        return _answer({os.fsencode(path): size for path, size in sizes.items()})

    @routes.post("/read")
    async def read(lease: str, id: str, request: Request) -> Response:
        body = await _body(request, Read)
        return _answer(await leases.sandbox(lease, id).read(os.fsdecode(body.path), body.most))

    @routes.post("/write")
    async def write(lease: str, id: str, request: Request) -> None:
        body = await _body(request, Write)
        await leases.sandbox(lease, id).write({os.fsdecode(path): data for path, data in body.files.items()})

    @routes.post("/snapshot")
    async def snapshot(lease: str, id: str) -> Response:
        return _answer(await leases.snapshot(lease, id))

    return routes


async def _while_heard(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` comes to. It is cancelled once the client is gone: it was cancelled itself, and nobody waits."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=HEARING)
            if not task.done() and await request.is_disconnected():
                task.cancel()
        return await task
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise PlaceError("the client is gone") from None


async def _body(request: Request, kind: type[T]) -> T:
    """What a request says. Raises InputError where it is too long, or says something else."""
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        if (size := size + len(part)) > BODY:
            raise InputError(f"a request to the sandbox service has at most {BODY:,} bytes: write fewer files at once")
    try:
        return msgspec.msgpack.decode(b"".join(parts), type=kind)
    except files.TORN as error:
        raise InputError(f"this is no request that the sandbox service knows: {error}") from None


def _answer(content: object) -> Response:
    return Response(msgspec.msgpack.encode(content), media_type=MEDIA)


async def _refusal(request: Request, error: Exception) -> Response:
    status = next((number for kind, number in STATUS.items() if isinstance(error, kind)), 500)
    return Response(str(error).encode(errors="backslashreplace"), status, media_type="text/plain")
