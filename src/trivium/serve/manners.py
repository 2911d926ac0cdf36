"""What holds for every request, whatever it asks: who it is, limits, sizes, time-outs, a log line, and numbers.

This stands around the application as ASGI's own kind of wrapper, for it has to see a body before it is read, and every piece
of an answer as it leaves.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
import uuid
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.serve import pages
from trivium.serve.errors import ApiError, body_of, headers_of
from trivium.serve.keys import Key, Keyring
from trivium.serve.limits import Gate
from trivium.serve.metrics import Metrics

OPEN = frozenset({"/healthz", "/metrics"})
"""Paths that need no key and count for no limit."""

logger = logging.getLogger("trivium.serve")


@dataclass(slots=True)
class Visit:
    """One request on its way: what its log line says."""

    id: str
    path: str
    began: float
    key: str = ""
    status: int = 0
    error: str = ""


class Manners:
    """Wraps an ASGI application."""

    def __init__(self, app: ASGIApp, keyring: Keyring, gate: Gate, metrics: Metrics, body: int, stall: float) -> None:
        self._app, self._keyring, self._gate, self._metrics = app, keyring, gate, metrics
        self._body, self._stall = body, stall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        visit = Visit(uuid.uuid4().hex, scope["path"], time.time())
        with self._metrics.active.track_inprogress():
            try:
                await self._visit(visit, scope, receive, self._sending(visit, send))
            except asyncio.CancelledError:
                visit.error = visit.error or "cut off"
                raise
            finally:
                self._note(visit, scope)

    async def _visit(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if visit.path in OPEN:
                return await self._app(scope, receive, send)
            key = self._key(scope)
            visit.key = key.name
            scope.setdefault("state", {})["key"] = key
            with self._gate.admit(key):
                await self._app(scope, await self._whole(scope, receive), send)
        except ApiError as error:
            visit.error = error.message
            self._metrics.refused.labels(str(error.status)).inc()
            if not visit.status:
                await _tell(error, visit.path, send)
        except _Stalled:
            visit.error = f"the client read nothing for {self._stall:g} seconds"

    def _key(self, scope: Scope) -> Key:
        """Whose request it is. ApiError (401) for nobody's."""
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic" and _is_page(scope["path"]):
            token = _password(token)
        elif scheme.lower() != "bearer":
            token = headers.get("x-api-key", "")
        if (key := self._keyring.find(token.strip())) is None:
            raise ApiError(401, "authentication_error", "this server asks for an API key, and there is none such")
        return key

    async def _whole(self, scope: Scope, receive: Receive) -> Receive:
        """`receive` of a request whose body is here. ApiError for one that is too large (413) or comes too slowly (408)."""
        if (Headers(scope=scope).get("content-length") or "0").isdecimal():
            self._check(int(Headers(scope=scope).get("content-length") or 0))
        parts, size, more = [], 0, True
        while more:
            message = await self._patient(receive)
            if message["type"] != "http.request":
                return _replayed([message], receive)
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            self._check(size)
        return _replayed([{"type": "http.request", "body": b"".join(parts), "more_body": False}], receive)

    def _check(self, size: int) -> None:
        if size > self._body:
            raise ApiError(413, "request_too_large", f"a request has at most {self._body:,} bytes here")

    async def _patient(self, receive: Receive) -> Message:
        try:
            async with asyncio.timeout(self._stall):
                return await receive()
        except TimeoutError:
            raise ApiError(408, "timeout_error", f"nothing of the request came for {self._stall:g} seconds") from None

    def _sending(self, visit: Visit, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", visit.id.encode())]}
            try:
                async with asyncio.timeout(self._stall):
                    await send(message)
            except TimeoutError:
                raise _Stalled from None

        return sending

    def _note(self, visit: Visit, scope: Scope) -> None:
        route = getattr(scope.get("route"), "path", "none")
        seconds = time.time() - visit.began
        self._metrics.requests.labels(route, str(visit.status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        if visit.path not in OPEN:
            line = {
                "request": visit.id,
                "route": route,
                "key": visit.key,
                "status": visit.status,
                "ms": round(1000 * seconds, 1),
            }
            logger.info("request", extra={"line": line | ({"error": visit.error} if visit.error else {})})


def _is_page(path: str) -> bool:
    """Whether a browser asks, which sends a key as a password. It does so for the page alone: what a browser sends by itself
    must not change anything."""
    return path == pages.PATH or path.startswith(f"{pages.PATH}/")


def _password(pair: str) -> str:
    """That of `name:password` in base64; empty where it is none."""
    try:
        return base64.b64decode(pair, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


class _Stalled(Exception):
    """A client reads nothing."""


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return replay


async def _tell(error: ApiError, path: str, send: Send) -> None:
    body = json.dumps(body_of(error, path)).encode()
    headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in headers_of(error).items()]
    if error.status == 401 and _is_page(path):  # a browser asks for the key, as a password of anybody
        headers.append((b"www-authenticate", b'Basic realm="Trivium: your key is the password", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Lines(logging.Formatter):
    """One JSON object a line: when, how grave, what; of a request its numbers, and never what was said."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "line", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
