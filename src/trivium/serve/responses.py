"""OpenAI's responses: the body of a request, and the answer, whole or as events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Literal

from pydantic import Field

from trivium.policy.message import Message
from trivium.serve.ask import Answer, Ask
from trivium.serve.body import Body, Count, Heat, Loose, Name, Share, function, refuse, text_of
from trivium.serve.chat import conversation, event
from trivium.serve.errors import invalid
from trivium.serve.speaking import Part, Speaking

_TEXTS = ("input_text", "output_text", "text", "refusal")
PREFIX = "resp_"
Event = tuple[str, dict[str, Any]]


class Item(Loose):
    """A message, a call, the result of one, or a thought, which the model has in its tokens already."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[dict[str, Any]] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: str | list[dict[str, Any]] = ""


class Tool(Body):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseBody(Body):
    """A request. What stands below `text` is taken and changes nothing."""

    model: Name
    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    temperature: Heat | None = None
    top_p: Share | None = None
    max_output_tokens: Count | None = None
    stream: bool | None = False
    top_logprobs: int | None = None
    truncation: str | None = None
    background: bool | None = None
    conversation: Any = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    store: bool | None = None
    stream_options: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = Field(None, max_length=256)
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    max_tool_calls: int | None = None

    def ask(self, session: str) -> Ask:
        """What is asked. ApiError for an option that cannot be honoured."""
        refuse(self, tool_choice=(None, "auto", "none"), parallel_tool_calls=(None, True), top_logprobs=(None, 0))
        refuse(self, truncation=(None, "disabled"), background=(None, False), conversation=(None,))
        refuse(self, reasoning=(None, {}), text=(None, {}, {"format": {"type": "text"}}))
        if self.previous_response_id and self.instructions:
            raise invalid("instructions stand before the first message, so they cannot come with a previous_response_id")
        tools = [function(tool.name, tool.description or "", tool.parameters) for tool in self.tools or ()]
        messages = list(_messages(self))
        if not messages:
            raise invalid("input is empty: there is nothing to reply to")
        return Ask(
            model=self.model,
            messages=messages if self.previous_response_id else conversation(messages),
            tools=[] if self.tool_choice == "none" else tools,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p or 1.0,
            reply=self.max_output_tokens or 0,
            session=session,
            previous=(self.previous_response_id or "").removeprefix(PREFIX),
        )


def _messages(body: ResponseBody) -> Iterator[Message]:
    """The input as messages: what an assistant said and called in one turn is one message."""
    if body.instructions:
        yield {"role": "system", "content": body.instructions}
    if isinstance(body.input, str):
        yield {"role": "user", "content": body.input}
        return
    turn: Message | None = None
    for item in body.input:
        if item.type == "function_call" or item.role == "assistant":
            turn = _add(turn or {"role": "assistant", "content": ""}, item)
        elif item.type != "reasoning":
            if turn:
                yield turn
            turn = None
            yield _message(item)
    if turn:
        yield turn


def _add(turn: Message, item: Item) -> Message:
    """An assistant's message with what one more item of it says or calls."""
    if item.type != "function_call":
        return {**turn, "content": turn["content"] + text_of(item.content, _TEXTS)}
    call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
    return {**turn, "tool_calls": [*turn.get("tool_calls", []), call]}


def _message(item: Item) -> Message:
    if item.type == "function_call_output":
        return {"role": "tool", "content": text_of(item.output, _TEXTS), "tool_call_id": item.call_id}
    if item.role is None:
        raise invalid("an item of type message names its role")
    role = "system" if item.role == "developer" else item.role
    return {"role": role, "content": text_of(item.content, _TEXTS)}


def whole(answer: Answer, body: ResponseBody) -> dict[str, Any]:
    """The answer at once."""
    cut = answer.finish == "length"
    said = len(answer.tokens)
    usage = {
        "input_tokens": answer.read, "output_tokens": said, "total_tokens": answer.read + said,
        "input_tokens_details": {"cached_tokens": answer.known, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return _head(answer.id, body, answer.created) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(answer),
        "usage": usage,
    }


async def stream(parts: AsyncGenerator[Part], speaking: Speaking, body: ResponseBody) -> AsyncGenerator[str]:
    """The answer as events."""
    number = 0
    async for kind, data in _events(parts, speaking, body):
        yield f"event: {kind}\n" + event({"type": kind, "sequence_number": number, **data})
        number += 1


async def _events(parts: AsyncGenerator[Part], speaking: Speaking, body: ResponseBody) -> AsyncGenerator[Event]:
    head, item, text = _head(speaking.id, body, int(time.time())), f"msg_{speaking.id}", ""
    yield "response.created", {"response": head}
    yield "response.in_progress", {"response": head}
    place = {"item_id": item, "output_index": 0, "content_index": 0}
    async for part in parts:
        if isinstance(part, str):
            for each in _opened(item, place) if not text else ():
                yield each
            text += part
            yield "response.output_text.delta", place | {"delta": part, "logprobs": []}
            continue
        for each in _closed(part, text, place):
            yield each
        done = whole(part, body)
        yield f"response.{done['status']}", {"response": done}


def _opened(item: str, place: dict[str, Any]) -> Iterator[Event]:
    yield "response.output_item.added", {"output_index": 0, "item": _said(item, "", "in_progress")}
    yield "response.content_part.added", place | {"part": _text("")}


def _closed(answer: Answer, text: str, place: dict[str, Any]) -> Iterator[Event]:
    """What ends the message, and the calls."""
    for number, item in enumerate(_output(answer)):
        if item["type"] == "message":
            if not text:
                yield from _opened(item["id"], place)
            yield "response.output_text.done", place | {"text": answer.text, "logprobs": []}
            yield "response.content_part.done", place | {"part": _text(answer.text)}
        else:
            here = {"item_id": item["id"], "output_index": number}
            yield (
                "response.output_item.added",
                {"output_index": number, "item": item | {"arguments": "", "status": "in_progress"}},
            )
            yield "response.function_call_arguments.delta", here | {"delta": item["arguments"]}
            yield "response.function_call_arguments.done", here | {"arguments": item["arguments"], "name": item["name"]}
        yield "response.output_item.done", {"output_index": number, "item": item}


def _output(answer: Answer) -> list[dict[str, Any]]:
    said = [_said(f"msg_{answer.id}", answer.text, "completed")] if answer.text or not answer.calls else []
    return said + [
        {
            "type": "function_call", "id": f"fc_{number}_{answer.id}", "call_id": call["id"], "status": "completed",
            "name": call["function"]["name"], "arguments": call["function"]["arguments"],
        }
        for number, call in enumerate(answer.calls)
    ]  # fmt: skip


def _said(id: str, text: str, status: str) -> dict[str, Any]:
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": [_text(text)] if text else []}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _head(id: str, body: ResponseBody, created: int) -> dict[str, Any]:
    """A response that nothing is said in yet."""
    same = ("model", "instructions", "temperature", "top_p", "max_output_tokens", "previous_response_id")
    return {name: getattr(body, name) for name in same} | {
        "id": PREFIX + id, "object": "response", "created_at": created, "status": "in_progress", "output": [], "error": None,
        "incomplete_details": None, "metadata": body.metadata or {}, "parallel_tool_calls": True, "usage": None,
        "tool_choice": body.tool_choice or "auto", "tools": [tool.model_dump() for tool in body.tools or ()],
    }  # fmt: skip
