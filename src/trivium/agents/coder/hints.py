"""What a coder should have heeded at a turn that went wrong, for textual feedback: small functions of a call, its error, and
what the policy had seen by then.

Where it copied wrong, the hint quotes what it meant to copy. A small base does nothing with advice: hints that only said "copy
letter by letter" made it break more calls, not fewer (docs/log.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from trivium.agents.coder.todo import open_items
from trivium.trace import Call

if TYPE_CHECKING:
    from trivium.train import Turn

PATH = re.compile(r"[\w./-]+\.\w+")
"""What looks like a file's path."""


def absent(call: Call, seen: str) -> str:
    """An edit whose text stands nowhere in the file."""
    if "is not there" not in call.error:
        return ""
    return _meant(call, "old", map(str.strip, seen.splitlines())) or "Copy old letter by letter from the file as it was read."


def repeated(call: Call, seen: str) -> str:
    """An edit whose text stands in several places."""
    return "Give more of the text: with the line before it, old stands there once." if "give more of it" in call.error else ""


def unchanged(call: Call, seen: str) -> str:
    """An edit that puts what was there."""
    return "Write in new what the request asks for, where it differs from old." if "nothing would change" in call.error else ""


def nowhere(call: Call, seen: str) -> str:
    """A path that leads to no file."""
    if "there is no file" not in call.error:
        return ""
    return _meant(call, "path", PATH.findall(seen)) or "Use a path that list_files or grep has shown."


def unreadable(call: Call, seen: str) -> str:
    """A call that is no JSON, of no tool, or with arguments that the tool has not."""
    wrong = ("cannot be read", "there is no tool", "must be a JSON object", "Object ", "Expected ")
    if not any(mark in call.error for mark in wrong):
        return ""
    return 'Call a tool as {"name": "read_file", "arguments": {"path": " a.py"}}, with its own arguments.'


CALLS: tuple[Callable[[Call, str], str], ...] = (absent, repeated, unchanged, nowhere, unreadable)


def hint(turn: Turn) -> str:
    """The hints of a turn: of each of its calls that failed as none did before, and of to-dos that its thread's last words left
    open. Who repeats a call that failed goes on with it whatever a hint says, and would learn from its own repetitions."""
    seen, failed = _seen(turn), {call.error for call in turn.thread.calls if call.turn < _begun(turn)}
    every = [advice(call, seen) for call in turn.calls if call.fault == "arguments" and call.error not in failed]
    if turn.last and not turn.calls and (left := open_items(turn.thread)):
        every.append("To-dos are still open: " + "; ".join(item.text for item in left) + ".")
    return " ".join(dict.fromkeys(filter(None, every)))


def advice(call: Call, seen: str) -> str:
    """The first hint that knows this error; else the error itself, as what to avoid."""
    return next((text for of in CALLS if (text := of(call, seen))), f"Avoid this: {call.error}")


def _seen(turn: Turn) -> str:
    """The request, and what calls had shown before this turn."""
    earlier = (call for call in turn.thread.calls if call.turn < _begun(turn) and not call.error)
    return "\n".join([turn.task.prompt, *(piece.text for call in earlier for piece in call.pieces)])


def _begun(turn: Turn) -> int:
    return turn.calls[0].turn if turn.calls else 0


def _meant(call: Call, argument: str, seen: Iterable[str]) -> str:
    """The argument as it should have been written: with what is most like its first line of all that was seen; "" without."""
    said = str(call.arguments.get(argument) or "")
    near = get_close_matches(said.strip().partition("\n")[0], seen, 1)
    space = said[: len(said) - len(said.lstrip())]
    return f'Write "{argument}": {json.dumps(space + near[0])}.' if near else ""
