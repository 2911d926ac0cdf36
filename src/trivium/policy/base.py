"""The seam between a harness and whoever speaks in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from trivium.policy.message import Message
from trivium.policy.render import Renderer
from trivium.trace import Sampling


@dataclass(frozen=True, slots=True)
class View:
    """What a policy sees before it speaks: the same context as tokens and as messages.

    `tools` are the schemas of all tools on offer, whether or not the template shows them. `stream` names this request's
    random stream, (seed, task, sample, thread, turn); equal streams draw equal numbers (law 11).
    """

    tokens: Sequence[int]
    messages: Sequence[Message]
    tools: Sequence[Message]
    stream: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a policy said.

    A policy made of tokens fills `tokens`, and per token `logprobs` (at the sampling temperature, untruncated), `versions`
    and `kept` (probability mass that truncation left). A text-only policy fills `message`, which the harness renders, and says
    with `complete` whether it came to its end.
    """

    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    versions: Sequence[int] = ()
    kept: Sequence[float] = ()
    message: Message | None = None
    complete: bool = True


class Policy(Protocol):
    """`name` is what a run names to learn from or freeze it; `renderer` writes its dialect; `version` numbers its weights."""

    name: str
    renderer: Renderer
    version: int

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        """One reply to `view`. Raises PolicyError when it cannot speak at all."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """A policy that can be heard while it speaks."""

    def stream(self, view: View, sampling: Sampling) -> AsyncGenerator[Reply]:
        """One reply in parts that together are what `speak` would return. Who closes it stops the speaker."""
        ...
