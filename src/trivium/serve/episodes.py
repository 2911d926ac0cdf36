"""The routes of the agent: an episode is begun, heard, answered and read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from trivium.policy.message import Message
from trivium.serve.agent import Agent, Attempt, answer_of, call_of
from trivium.serve.body import Body, Seed
from trivium.serve.chat import ChatMessage, conversation, event, message_of
from trivium.serve.errors import ApiError, invalid, missing
from trivium.serve.recorder import stored
from trivium.serve.service import caller_of, service_of, session_header
from trivium.trace import Episode, Task

router = APIRouter(prefix="/v1/episodes")


class Question(Body):
    """What the agent is asked: a question, or a conversation that ends with one."""

    input: str | list[ChatMessage] = Field(min_length=1)
    seed: Seed = 0
    user: str | None = Field(None, max_length=256)

    def task(self) -> Task:
        if isinstance(self.input, str):
            return Task("served", self.input)
        messages = conversation([message_of(message) for message in self.input])
        if messages[-1]["role"] != "user":
            raise invalid("a conversation with the agent ends with a message of role user")
        return Task("served", messages[-1]["content"], messages=messages[:-1])


class Reply(Body):
    """What the user says to the agent's answer."""

    input: str = Field(min_length=1)
    seed: Seed = 0


@router.post("", status_code=201)
async def begin(body: Question, request: Request) -> dict[str, Any]:
    """Begin an episode. Its events and its answer are asked for by its id."""
    return _begin(request, body.task(), session_header(request), body.seed, body.user or "")


@router.get("/{id}")
async def read(id: str, request: Request) -> dict[str, Any]:
    """An episode: whether it goes on, its calls and its answer."""
    if attempt := _attempt(request, id):
        if attempt.episode is None:
            return {"id": id, "session": attempt.session, "status": attempt.status, "error": attempt.error}
        return _told(id, attempt.episode)
    return _told(id, await _stored(request, id))


@router.get("/{id}/events")
async def events(id: str, request: Request) -> Response:
    """The events of an episode as they come, each with its number as id; Last-Event-ID says which was heard last."""
    last = request.headers.get("last-event-id", "")
    start = int(last) + 1 if last.isdecimal() and len(last) < 10 else 0
    attempt = _attempt(request, id)
    lines = _live(attempt, start) if attempt else _past(await _stored(request, id), start)
    return StreamingResponse(lines, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@router.post("/{id}/answer", status_code=201)
async def answer(id: str, body: Reply, request: Request) -> dict[str, Any]:
    """Answer the agent: a new episode of the same session, which has the conversation so far before it."""
    attempt = _attempt(request, id)
    if attempt and attempt.episode is None:
        raise ApiError(
            409, "invalid_request_error", f"episode {id} is {attempt.status}: only one that has an answer is answered"
        )
    episode = attempt.episode if attempt and attempt.episode else await _stored(request, id)
    asked: list[Message] = [{"role": "user", "content": episode.task.prompt}] if episode.task.prompt else []
    said: Message = {"role": "assistant", "content": episode.agent.answer}
    task = Task("served", body.input, messages=[*episode.task.messages, *asked, said])
    _, _, user = episode.account.partition("/")
    return _begin(request, task, episode.session, body.seed, user)


@router.delete("/{id}")
async def cancel(id: str, request: Request) -> dict[str, Any]:
    """End an episode that is under way. Nothing of it is kept."""
    attempt = _attempt(request, id)
    if attempt is None:
        raise missing(f"there is no episode {id!r:.80} under way")
    if attempt.work:
        attempt.work.cancel()
        await asyncio.wait([attempt.work])
    return {"id": id, "status": attempt.status}


def _agent(request: Request) -> Agent:
    agent = service_of(request).agent
    if agent is None:
        raise missing("this server has models and no agent: start it with --data, which names what the agent works on")
    return agent


def _begin(request: Request, task: Task, session: str, seed: int, user: str) -> dict[str, Any]:
    agent, caller = _agent(request), caller_of(request, user)
    inside = service_of(request).gate.hold(caller.key, "episodes")
    attempt = agent.begin(caller, task, session, seed, inside)
    return {"id": attempt.id, "session": attempt.session, "status": attempt.status}


def _attempt(request: Request, id: str) -> Attempt | None:
    return _agent(request).get(id, caller_of(request).key)


async def _stored(request: Request, id: str) -> Episode:
    """An episode of the caller's key in the store. ApiError where there is none."""
    keeper, key = service_of(request).keeper, caller_of(request).key
    episode = await stored(lambda: keeper.episode(id, key))
    if episode is None:
        raise missing(f"there is no episode {id!r:.80}")
    return episode


def _told(id: str, episode: Episode) -> dict[str, Any]:
    calls = [call_of(call) for call in episode.agent.calls]
    return {"id": id, "session": episode.session, "status": "finished", "calls": calls, "answer": answer_of(episode)}


async def _live(attempt: Attempt, start: int) -> AsyncGenerator[str]:
    async for number, told in attempt.heard(start):
        yield f"id: {number}\nevent: {told['type']}\n{event(told)}"


async def _past(episode: Episode, start: int) -> AsyncGenerator[str]:
    """What is left of the events of an episode that another server, or this one before it was started again, had."""
    told = [{"type": "call", "thread": episode.agent.id, **call_of(call)} for call in episode.agent.calls]
    for number, each in enumerate([*told, answer_of(episode)]):
        if number >= start:
            yield f"id: {number}\nevent: {each['type']}\n{event(each)}"
