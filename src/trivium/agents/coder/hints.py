"""What a coder should have heeded at a turn that went wrong, for textual feedback: small functions of a call and its error,
of the request (`asked`), and of what calls had `shown` the policy by then.

Where it copied wrong, the hint quotes what it meant to copy, and nothing else is quoted: a small base does little with advice
and copies what stands last.
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

WORD = re.compile(r"[\w./-]+")
"""What a file's path is one of."""


def absent(call: Call, asked: str, shown: str) -> str:
    """An edit whose text stands nowhere in the file."""
    if "is not there" not in call.error:
        return ""
    if not shown:
        return "Read the file first."
    return _meant(call, "old", map(str.strip, shown.splitlines())) or "Copy old letter by letter from the file as it was read."


def repeated(call: Call, asked: str, shown: str) -> str:
    """An edit whose text stands in several places."""
    return "Give more of the text: with the line before it, old stands there once." if "give more of it" in call.error else ""


def unchanged(call: Call, asked: str, shown: str) -> str:
    """An edit that puts what was there."""
    return "Write in new what the request asks for, where it differs from old." if "nothing would change" in call.error else ""


def nowhere(call: Call, asked: str, shown: str) -> str:
    """A path that leads to no file."""
    if "there is no file" not in call.error:
        return ""
    paths = (word for each in WORD.findall(f"{asked}\n{shown}") if "." in (word := each.rstrip(".")))
    return _meant(call, "path", paths) or "Use a path that list_files or grep has shown."


def unreadable(call: Call, asked: str, shown: str) -> str:
    """A call that is no JSON, of no tool, or with arguments that the tool has not."""
    wrong = ("cannot be read", "there is no tool", "must be a JSON object", "Object ", "Expected ")
    if not any(mark in call.error for mark in wrong):
        return ""
    return "Write the call as one JSON object, its name and its own arguments alone, and close it."


CALLS: tuple[Callable[[Call, str, str], str], ...] = (absent, repeated, unchanged, nowhere, unreadable)


def hint(turn: Turn) -> str:
    """The hints of a turn: of each of its calls that failed as none did before, and of to-dos that its thread's last words left
    open. Who repeats a call that failed goes on with it whatever a hint says, and would learn from its own repetitions."""
    earlier = [call for call in turn.thread.calls if turn.calls and call.turn < turn.calls[0].turn]
    shown = "\n".join(piece.text for call in earlier if not call.error for piece in call.pieces)
    failed = {call.error for call in earlier}
    wrong = [call for call in turn.calls if call.fault == "arguments" and call.error not in failed]
    every = [advice(call, turn.task.prompt, shown) for call in wrong]
    if turn.last and not turn.calls and (left := open_items(turn.thread)):
        every.append("To-dos are still open: " + "; ".join(item.text for item in left) + ".")
    return " ".join(dict.fromkeys(filter(None, every)))


def advice(call: Call, asked: str, shown: str) -> str:
    """The first hint that knows this error; else the error itself, as what to avoid."""
    return next((text for of in CALLS if (text := of(call, asked, shown))), f"Avoid this: {call.error}")


def told(turn: Turn) -> str:
    """The hint that a turn which went well would have followed: what it wrote. "" for one without calls, or that went wrong."""
    if not turn.calls or any(call.error for call in turn.calls):
        return ""
    known = turn.calls[0].arguments
    return next((_write(name, str(known[name]).partition("\n")[0]) for name in ("old", "path") if name in known), "")


def _meant(call: Call, argument: str, seen: Iterable[str]) -> str:
    """The argument as it should have been written: with what is most like its first line of all that was seen; "" without."""
    said = str(call.arguments.get(argument) or "")
    near = get_close_matches(said.strip().partition("\n")[0], seen, 1)
    space = said[: len(said) - len(said.lstrip())]
    return _write(argument, space + near[0]) if near else ""


def _write(argument: str, value: str) -> str:
    return f'Write "{argument}": {json.dumps(value)}.'
