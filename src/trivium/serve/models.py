"""The routes at which models are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from trivium.serve import chat
from trivium.serve.ask import Answer, Ask
from trivium.serve.chat import ChatBody
from trivium.serve.errors import ApiError, body_of
from trivium.serve.service import caller_of, connected, service_of, session_header
from trivium.serve.speaking import Part, Speaking, begin

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """OpenAI's chat completions."""
    speaking = await _asked(request, body.ask(session_header(request)), body.user or "")
    renderer = service_of(request).model(body.model).renderer
    if body.stream:
        return _streamed(request, speaking, chat.stream(speaking.parts(), speaking.id, body, renderer))
    return _whole(speaking, chat.whole(await _answer(request, speaking), body, renderer))


async def _asked(request: Request, ask: Ask, user: str) -> Speaking:
    service = service_of(request)
    return await begin(service.desk, service.model(ask.model), ask, caller_of(request, user))


async def _answer(request: Request, speaking: Speaking) -> Answer:
    """The whole answer; a client that leaves ends it."""
    return await connected(request, asyncio.create_task(_last(speaking.parts())))


async def _last(parts: AsyncGenerator[Part]) -> Answer:
    async for part in parts:
        if isinstance(part, Answer):
            return part
    raise AssertionError("unreachable: the last part is the answer")


def _whole(speaking: Speaking, content: dict[str, Any]) -> Response:
    return JSONResponse(content, headers={"X-Trivium-Session": _ascii(speaking.session)})


def _streamed(request: Request, speaking: Speaking, events: AsyncGenerator[str]) -> Response:
    headers = {"X-Trivium-Session": _ascii(speaking.session), "Cache-Control": "no-store"}
    return StreamingResponse(_or_error(events, request.url.path), headers=headers, media_type="text/event-stream")


async def _or_error(events: AsyncGenerator[str], path: str) -> AsyncGenerator[str]:
    """The events of a stream, and the error that broke it as its last."""
    try:
        async for event in events:
            yield event
    except ApiError as error:
        name = "event: error\n" if path.startswith("/v1/messages") else ""
        yield name + chat.event(body_of(error, path))
    finally:
        await events.aclose()


def _ascii(name: str) -> str:
    """A name as a header can hold it."""
    return name.encode("ascii", "backslashreplace").decode()
