"""OpenAI's chat completions: the body of a request, and the answer, whole or in pieces."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from typing import Any, Literal

from pydantic import Field

from trivium.policy import Renderer
from trivium.policy.message import Message
from trivium.serve.ask import Answer, Ask
from trivium.serve.body import Body, Count, Heat, Loose, Name, Seed, Share, Stop, Stops, function, refuse, text_of
from trivium.serve.errors import invalid
from trivium.serve.speaking import Part


class Function(Loose):
    name: Name
    arguments: str = "{}"


class ToolCall(Loose):
    id: Name
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(Loose):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class Definition(Body):
    name: Name
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Definition


class StreamOptions(Body):
    include_usage: bool | None = False
    include_obfuscation: bool | None = None


class ChatBody(Body):
    """A request. What stands below `logit_bias` is taken and changes nothing."""

    model: Name
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    temperature: Heat | None = None
    top_p: Share | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stop: Stop | Stops | None = None
    seed: Seed | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = Field(None, max_length=256)
    store: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def ask(self, session: str) -> Ask:
        """What is asked. ApiError for an option that cannot be honoured."""
        refuse(self, n=(None, 1), top_logprobs=(None, 0), frequency_penalty=(None, 0), presence_penalty=(None, 0))
        refuse(self, logit_bias=(None, {}), response_format=(None, {"type": "text"}), parallel_tool_calls=(None, True))
        refuse(self, tool_choice=(None, "auto", "none"))
        tools = [function(t.function.name, t.function.description, t.function.parameters) for t in self.tools or ()]
        return Ask(
            model=self.model,
            messages=conversation([message_of(message) for message in self.messages]),
            tools=[] if self.tool_choice == "none" else tools,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p or 1.0,
            reply=self.max_completion_tokens or self.max_tokens or 0,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            seed=self.seed,
            session=session,
        )


def conversation(messages: list[Message]) -> list[Message]:
    """`messages`, where a model can be asked to go on from them; else an ApiError."""
    if messages[-1]["role"] == "assistant":
        raise invalid("the last message is the assistant's: there is nothing to reply to")
    for number, message in enumerate(messages):
        if message["role"] == "system" and number:
            raise invalid("a system message stands first, and alone")
        if message["role"] == "tool" and not message.get("tool_call_id"):
            raise invalid("a message of role tool names the call that it answers, in tool_call_id")
    if all(message["role"] == "system" for message in messages):
        raise invalid("there is no message of role user")
    return messages


def message_of(message: ChatMessage) -> Message:
    """A message as a template reads it. ApiError for content that is not text."""
    role = "system" if message.role == "developer" else message.role
    found: Message = {"role": role, "content": text_of(message.content, ("text", "refusal"))}
    if message.tool_calls and role == "assistant":
        found["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if role == "tool" and message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


def whole(answer: Answer, body: ChatBody, renderer: Renderer) -> dict[str, Any]:
    """The answer at once."""
    message = {**answer.message, "content": answer.text or None if answer.calls else answer.text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": answer.finish, "logprobs": None}
    if body.logprobs:
        choice["logprobs"] = logprobs(answer, renderer)
    return _head(answer, "chat.completion") | {"choices": [choice], "usage": usage(answer)}


async def stream(parts: AsyncGenerator[Part], id: str, body: ChatBody, renderer: Renderer) -> AsyncGenerator[str]:
    """The answer in pieces, as events of a stream."""
    head = {"id": f"chatcmpl-{id}", "object": "chat.completion.chunk", "created": int(time.time()), "model": body.model}
    yield event(head | {"choices": [_choice({"role": "assistant", "content": ""})]})
    async for part in parts:
        if isinstance(part, str):
            yield event(head | {"choices": [_choice({"content": part})]})
            continue
        if thoughts := part.message.get("reasoning_content"):
            yield event(head | {"choices": [_choice({"reasoning_content": thoughts})]})
        for number, call in enumerate(part.calls):
            yield event(head | {"choices": [_choice({"tool_calls": [{"index": number, **call}]})]})
        last = _choice({}, part.finish) | ({"logprobs": logprobs(part, renderer)} if body.logprobs else {})
        yield event(head | {"choices": [last]})
        if body.stream_options and body.stream_options.include_usage:
            yield event(head | {"choices": [], "usage": usage(part)})
    yield "data: [DONE]\n\n"


def event(data: dict[str, Any]) -> str:
    """One event of a stream."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def usage(answer: Answer) -> dict[str, Any]:
    said = len(answer.tokens)
    counts = {"prompt_tokens": answer.read, "completion_tokens": said, "total_tokens": answer.read + said}
    return counts | {"prompt_tokens_details": {"cached_tokens": answer.known}}


def logprobs(answer: Answer, renderer: Renderer) -> dict[str, Any]:
    """The logprob of each token as it was sampled, those of control tokens too."""
    content = []
    for token, logprob in zip(answer.tokens, answer.logprobs, strict=False):  # a policy of text has none
        text = renderer.decode([token])
        content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": content, "refusal": None}


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": answer.model}


def _choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
