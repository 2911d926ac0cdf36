"""What is asked of an agent: a question, the conversation before it, and the truth to judge an answer by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trivium.errors import InputError


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked, and what is needed to judge it.

    The policy is shown `messages`, a conversation that stands before the question, and then `prompt` as the next message of the
    user. A prompt may be empty where the conversation itself ends with a user's message. Messages are written as the OpenAI
    chat API has them: a role, a content that is text, an assistant's `tool_calls`, a tool's `tool_call_id`.
    `tools` names the tools that this task offers; where it is empty, all tools of the harness are offered.
    `truth` is JSON-like and never shown to a policy; search tasks keep `gold` (document ids in hop order), `answer`, `hops`.
    """

    id: str
    prompt: str
    truth: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises InputError that names the task and what is wrong with it."""
        if not isinstance(self.id, str) or not isinstance(self.prompt, str) or not self.id:
            raise InputError(f"a task's id and prompt are text, not {self.id!r} and {self.prompt!r}")
        if not isinstance(self.truth, dict) or not all(isinstance(name, str) for name in self.truth):
            raise InputError(f"task {self.id}: its truth is a dict by names, as {{'answer': ...}}, not {self.truth!r:.80}")
        if not isinstance(self.tools, list) or not all(isinstance(name, str) for name in self.tools):
            raise InputError(f"task {self.id}: its tools are a list of names, not {self.tools!r:.80}")
        if not isinstance(self.messages, list):
            raise InputError(f"task {self.id}: its messages are a list, not {self.messages!r:.80}")
        for number, message in enumerate(self.messages):
            if fault := _fault(message):
                raise InputError(f"task {self.id}: {fault}, and its message {number} is {message!r:.80}")
        if self.messages and not self.prompt and self.messages[-1]["role"] != "user":
            raise InputError(f"task {self.id} has no prompt, so its messages must end with one of role user")


_ROLES = ("system", "user", "assistant", "tool")


def _fault(message: Any) -> str:
    """The rule that `message` breaks, or "" for a message as the OpenAI chat API has it."""
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        return f"a message is a dict with a role of {', '.join(_ROLES)}"
    role, calls = message["role"], message.get("tool_calls")
    if calls is not None and (role != "assistant" or not isinstance(calls, list) or not all(map(_is_call, calls))):
        return "tool_calls are an assistant's list of {'id': ..., 'function': {'name': ..., 'arguments': ...}}"
    if not isinstance(message.get("content"), str) and not (calls and message.get("content") is None):
        return "the content of a message is text"
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        return "a message of role tool names the call that it answers, in tool_call_id"
    return ""


def _is_call(call: Any) -> bool:
    """Whether `call` has an id and a function's name and arguments; they may be a dict, or JSON as the API has them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(call.get("id"), str):
        return False
    return isinstance(function.get("name"), str) and isinstance(function.get("arguments"), dict | str)
