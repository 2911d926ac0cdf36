"""A policy that follows a script: the fake that ships, the teacher of a warm-up, and the ceiling of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trivium.errors import InputError, PolicyError
from trivium.policy.base import Reply, View
from trivium.policy.message import Message
from trivium.policy.render import Renderer
from trivium.trace import Sampling

Script = Callable[[View], Message] | Sequence[Message]


@dataclass(slots=True)
class Scripted:
    """Says what `script` says: a function of the view, or a list of messages said in order.

    A message is {"role": "assistant", "content": str, "tool_calls": [...]} as the OpenAI API has it. Raises InputError for a
    list with what others said: results come from the harness's tools, and a question from the task.
    """

    script: Script
    renderer: Renderer
    name: str = "script"
    version: int = 0
    _count: int = 0

    def __post_init__(self) -> None:
        messages = self.script if isinstance(self.script, Sequence) else ()
        if other := next((message for message in messages if message.get("role") != "assistant"), None):
            raise InputError(f"a script is what the assistant said, and not the {other.get('role')!r}: leave out {other!r:.80}")

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        if not isinstance(self.script, Sequence):
            return Reply(message=self.script(view))
        if self._count == len(self.script):
            raise PolicyError(f"the script of {self.name!r} has ended after {self._count} messages")
        self._count += 1
        return Reply(message=self.script[self._count - 1])


def say(text: str) -> Message:
    """A text-only reply: the end of an episode."""
    return {"role": "assistant", "content": text}


def call(*calls: tuple[str, dict], text: str = "") -> Message:
    """A reply that calls tools: `call(("search", {"query": " x"}), ...)`."""
    tool_calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text, "tool_calls": tool_calls}
