"""The routes at which models are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from trivium.serve import chat, messages, responses
from trivium.serve.ask import Answer, Ask
from trivium.serve.chat import ChatBody
from trivium.serve.errors import ApiError, body_of
from trivium.serve.messages import CountBody, MessageBody
from trivium.serve.responses import ResponseBody
from trivium.serve.service import caller_of, connected, service_of, session_header
from trivium.serve.speaking import Part, Speaking, begin, rendered

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """OpenAI's chat completions."""
    speaking = await _asked(request, body.ask(session_header(request)), body.user or "")
    renderer = service_of(request).model(body.model).renderer
    if body.stream:
        return _streamed(request, speaking, chat.stream(speaking.parts(), speaking.id, body, renderer))
    return _whole(speaking, chat.whole(await _answer(request, speaking), body, renderer))


@router.post("/v1/responses")
async def create_response(body: ResponseBody, request: Request) -> Response:
    """OpenAI's responses."""
    speaking = await _asked(request, body.ask(session_header(request)), body.user or "")
    if body.stream:
        return _streamed(request, speaking, responses.stream(speaking.parts(), speaking, body))
    return _whole(speaking, responses.whole(await _answer(request, speaking), body))


@router.post("/v1/messages")
async def create_message(body: MessageBody, request: Request) -> Response:
    """Anthropic's messages."""
    speaking = await _asked(request, body.ask(session_header(request)), body.user)
    if body.stream:
        return _streamed(request, speaking, messages.stream(speaking.parts(), speaking, body.model))
    return _whole(speaking, messages.whole(await _answer(request, speaking)))


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountBody, request: Request) -> dict[str, int]:
    """How many tokens a conversation has, before it is sent."""
    ask = body.ask()
    return {"input_tokens": len(rendered(service_of(request).model(ask.model), ask))}


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The models that can be asked, for OpenAI's clients and for Anthropic's."""
    names = list(service_of(request).models)
    return {
        "object": "list",
        "data": [_model(name) for name in names],
        "has_more": False,
        "first_id": names[0],
        "last_id": names[-1],
    }


@router.get("/v1/models/{name}")
async def read_model(name: str, request: Request) -> dict[str, Any]:
    """One of them."""
    service_of(request).model(name)
    return _model(name)


def _model(name: str) -> dict[str, Any]:
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "trivium"}
    return openai | {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


async def _asked(request: Request, ask: Ask, user: str) -> Speaking:
    service = service_of(request)
    return await begin(service.desk, service.route(ask.model), ask, caller_of(request, user))


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
