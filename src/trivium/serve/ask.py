"""A request to a model, and its answer, in no API's dialect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trivium.policy.message import Message


@dataclass(frozen=True, slots=True)
class Ask:
    """`messages` and `tools` as OpenAI's chat API has them. `reply` is the most tokens of a reply, 0 where nothing is said.
    `session` is what the request names as its own, and `previous` the exchange that it says it goes on from."""

    model: str
    messages: list[Message]
    tools: list[Message] = field(default_factory=list)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    reply: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    session: str = ""
    previous: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said, in the exchange `id`. `message` has a role, content, tool_calls and, from a model that thinks,
    reasoning_content; `finish` is stop, length or tool_calls. `read` counts the tokens of the prompt, `known` those of them
    that an earlier exchange had already."""

    id: str
    session: str
    model: str
    message: Message
    finish: str
    read: int
    known: int
    tokens: list[int]
    logprobs: list[float]
    created: int

    @property
    def text(self) -> str:
        return self.message["content"]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Its tool calls, as the chat API has them."""
        return self.message.get("tool_calls", [])
