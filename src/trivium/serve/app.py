"""The application: the routes, what an error looks like, and the manners around them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from trivium.serve import data, episodes, models, pages
from trivium.serve.errors import ApiError, body_of, headers_of
from trivium.serve.manners import Manners
from trivium.serve.service import Service, service_of


def application(service: Service) -> FastAPI:
    """The service behind HTTP."""
    lives = [service.running()]
    app = FastAPI(title="Trivium", docs_url=None, redoc_url=None, lifespan=lambda _: _through(lives))
    app.state.service = service
    for routes in (models.router, data.router, episodes.router):
        app.include_router(routes)
    app.add_api_route("/healthz", health, include_in_schema=False)
    app.add_api_route("/metrics", metrics, include_in_schema=False)
    if service.options.mcp:
        from trivium.serve.tool import serving_tool, tool_routes, tool_server

        server = tool_server(service)
        app.router.routes += tool_routes(server, service)
        lives.append(serving_tool(server))
    if service.pages:
        app.mount(pages.PATH, service.pages)
    app.add_exception_handler(ApiError, _told)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _unknown)
    options = service.options
    app.add_middleware(
        Manners, keyring=service.keyring, gate=service.gate, metrics=service.metrics, body=options.body, stall=options.stall
    )
    return app


@asynccontextmanager
async def _through(lives: Sequence[AbstractAsyncContextManager[None]]) -> AsyncGenerator[None]:
    """The time of several parts, the first of which lives longest."""
    async with AsyncExitStack() as stack:
        for life in lives:
            await stack.enter_async_context(life)
        yield


async def health() -> dict[str, str]:
    """Whether it answers."""
    return {"status": "ok"}


async def metrics(request: Request) -> Response:
    """What Prometheus reads."""
    return PlainTextResponse(service_of(request).metrics.text())


def _told(request: Request, error: Any) -> Response:
    return JSONResponse(body_of(error, request.url.path), error.status, headers_of(error))


def _malformed(request: Request, error: Any) -> Response:
    """One sentence for the first thing that is wrong with a body."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    return _told(request, ApiError(400, "invalid_request_error", f"{place:.200}: {first['msg']:.300}"))


def _unknown(request: Request, error: Any) -> Response:
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    response = _told(request, ApiError(error.status_code, kind, f"{request.method} {request.url.path:.200}: {error.detail}"))
    response.headers.update(error.headers or {})
    return response
