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
    _said: int = 0

    def __post_init__(self) -> None:
        said = () if callable(self.script) else self.script
        if other := next((message for message in said if message.get("role") != "assistant"), None):
            raise InputError(f"a script is what the assistant said, and not the {other.get('role')!r}: leave out {other!r:.80}")

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        if callable(self.script):
            return Reply(message=self.script(view))
        if self._said == len(self.script):
            raise PolicyError(f"the script of {self.name!r} has ended after {self._said} messages")
        self._said += 1
        return Reply(message=self.script[self._said - 1])


def say(text: str) -> Message:
    """A text-only reply: the end of an episode."""
    return {"role": "assistant", "content": text}


def call(*calls: tuple[str, dict], text: str = "") -> Message:
    """A reply that calls tools: `call(("search", {"query": " x"}), ...)`."""
    asked = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text, "tool_calls": asked}
