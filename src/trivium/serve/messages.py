"""Anthropic's messages: the body of a request, and the answer, whole or as events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Literal

from pydantic import Field

from trivium.policy.message import Message
from trivium.serve.ask import Answer, Ask
from trivium.serve.body import Body, Count, Loose, Name, Share, Stops, function, refuse, text_of
from trivium.serve.chat import conversation, event
from trivium.serve.errors import invalid
from trivium.serve.speaking import Part, Speaking

_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Block(Loose):
    """A text, a call, the result of one, or a thought, which the model has in its tokens already."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str = ""
    content: str | list[dict[str, Any]] | None = None


class Turn(Loose):
    role: Literal["user", "assistant"]
    content: str | list[Block]


class Tool(Loose):
    name: Name
    description: str = ""
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None


class Choice(Body):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Metadata(Loose):
    user_id: str | None = Field(None, max_length=256)


class CountBody(Body):
    """A conversation whose tokens are to be counted."""

    model: Name
    messages: list[Turn] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    thinking: dict[str, Any] | None = None

    def ask(self, session: str = "") -> Ask:
        """What is asked. ApiError for an option that cannot be honoured."""
        refuse(self, thinking=(None, {"type": "disabled"}))
        choice = self.tool_choice or Choice(type="auto")
        if choice.type not in ("auto", "none") or choice.disable_parallel_tool_use:
            raise invalid("tool_choice is auto or none here, with parallel calls: no other can be honoured")
        tools = [function(tool.name, tool.description, tool.input_schema) for tool in self.tools or ()]
        system: list[Message] = [{"role": "system", "content": text_of(self.system, ("text",))}] if self.system else []
        messages = [*system, *(message for turn in self.messages for message in _messages(turn))]
        return Ask(self.model, conversation(messages), [] if choice.type == "none" else tools, session=session)


class MessageBody(CountBody):
    """A request. What stands below `stream` is taken and changes nothing."""

    max_tokens: Count
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: Share | None = None
    top_k: int | None = Field(None, ge=0, le=1_000_000)
    stop_sequences: Stops | None = None
    stream: bool | None = False
    metadata: Metadata | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None

    def ask(self, session: str = "") -> Ask:
        ask = super().ask(session)
        return Ask(
            model=ask.model,
            messages=ask.messages,
            tools=ask.tools,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p or 1.0,
            top_k=self.top_k or 0,
            reply=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
            session=session,
        )

    @property
    def user(self) -> str:
        return (self.metadata.user_id if self.metadata else None) or ""


def _messages(turn: Turn) -> Iterator[Message]:
    """A turn as messages: results of tools first, each one of its own, then what the user says."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
        return
    text = "".join(block.text for block in turn.content if block.type == "text")
    if turn.role == "assistant":
        calls = [_called(block) for block in turn.content if block.type == "tool_use"]
        yield {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
        return
    results = [block for block in turn.content if block.type == "tool_result"]
    for block in results:
        yield {"role": "tool", "content": text_of(block.content, ("text",)), "tool_call_id": block.tool_use_id}
    if text or not results:
        yield {"role": "user", "content": text}


def _called(block: Block) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def whole(answer: Answer) -> dict[str, Any]:
    """The answer at once."""
    head = _head(answer.id, answer.model, answer.read, answer.known)
    usage = head["usage"] | {"output_tokens": len(answer.tokens)}
    return head | {"content": _blocks(answer), "stop_reason": _FINISH[answer.finish], "usage": usage}


async def stream(parts: AsyncGenerator[Part], speaking: Speaking, model: str) -> AsyncGenerator[str]:
    """The answer as events."""
    head, text = _head(speaking.id, model, speaking.read, speaking.known), ""
    yield _event("message_start", message=head)
    async for part in parts:
        if isinstance(part, str):
            if not text:
                yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            text += part
            yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": part})
            continue
        if text:
            yield _event("content_block_stop", index=0)
        for number, block in enumerate(_blocks(part)):
            if block["type"] == "tool_use":
                for each in _call_events(number, block):
                    yield each
        delta = {"stop_reason": _FINISH[part.finish], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage={"output_tokens": len(part.tokens)})
        yield _event("message_stop")


def _call_events(number: int, block: dict[str, Any]) -> Iterator[str]:
    """A tool call as events."""
    yield _event("content_block_start", index=number, content_block=block | {"input": {}})
    delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
    yield _event("content_block_delta", index=number, delta=delta)
    yield _event("content_block_stop", index=number)


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\n" + event({"type": kind, **data})


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    said = [{"type": "text", "text": answer.text}] if answer.text else []
    return said + [
        {"type": "tool_use", "id": c["id"], "name": c["function"]["name"], "input": json.loads(c["function"]["arguments"])}
        for c in answer.calls
    ]


def _head(id: str, model: str, read: int, known: int) -> dict[str, Any]:
    """A message that nothing is said in yet. What an earlier exchange had is told as read from a cache."""
    usage = {
        "input_tokens": read - known,
        "cache_read_input_tokens": known,
        "cache_creation_input_tokens": 0,
        "output_tokens": 0,
    }
    return {
        "id": f"msg_{id}", "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": usage,
    }  # fmt: skip
