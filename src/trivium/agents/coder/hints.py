"""What a coder should have heeded at a turn that went wrong: small functions of a call and its error, for textual feedback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trivium.agents.coder.todo import open_items
from trivium.trace import Call

if TYPE_CHECKING:
    from trivium.train import Turn


def absent(call: Call) -> str:
    """An edit whose text stands nowhere in the file."""
    return "Copy old letter by letter from the file as it was read." if "is not there" in call.error else ""


def repeated(call: Call) -> str:
    """An edit whose text stands in several places."""
    return "Give more of the text: with the line before it, old stands there once." if "give more of it" in call.error else ""


def unchanged(call: Call) -> str:
    """An edit that puts what was there."""
    return "Write in new what the request asks for, where it differs from old." if "nothing would change" in call.error else ""


def nowhere(call: Call) -> str:
    """A path that leads to no file."""
    return "Use a path that list_files or grep has shown." if "there is no file" in call.error else ""


def unreadable(call: Call) -> str:
    """A call that is no JSON, of no tool, or with arguments that the tool has not."""
    wrong = ("cannot be read", "there is no tool", "must be a JSON object", "Object ", "Expected ")
    if not any(mark in call.error for mark in wrong):
        return ""
    return 'Call a tool as {"name": "read_file", "arguments": {"path": " a.py"}}, with its own arguments.'


CALLS: tuple[Callable[[Call], str], ...] = (absent, repeated, unchanged, nowhere, unreadable)


def hint(turn: Turn) -> str:
    """The hints of a turn: of each of its calls that failed, and of to-dos that its thread's last words left open."""
    every = [advice(call) for call in turn.calls if call.error and call.fault == "arguments"]
    if turn.last and not turn.calls and (left := open_items(turn.thread)):
        every.append("To-dos are still open: " + "; ".join(item.text for item in left) + ".")
    return " ".join(dict.fromkeys(filter(None, every)))


def advice(call: Call) -> str:
    """The first hint that knows this error; else the error itself, as what to avoid."""
    return next((text for of in CALLS if (text := of(call))), f"Avoid this: {call.error}")
