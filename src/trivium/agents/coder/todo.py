"""A coder's to-do list and the files it touched, read off the calls on record: a policy cannot get its books wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trivium.trace import Call, Thread


@dataclass(slots=True)
class Item:
    """One thing to do, by its number in order of adding."""

    number: int
    text: str
    done: bool = False

    def __str__(self) -> str:
        return f"{self.number} [{'x' if self.done else ' '}] {self.text}"


def items(calls: Iterable[Call]) -> list[Item]:
    """The list as the calls of `todo` among `calls` left it; those that failed changed nothing."""
    every: list[Item] = []
    for call in calls:
        if call.name != "todo" or call.error:
            continue
        add(every, call.arguments.get("add") or ())
        tick(every, call.arguments.get("done") or ())
    return every


def add(every: list[Item], texts: Iterable[str]) -> None:
    for text in texts:
        every.append(Item(len(every) + 1, " ".join(text.split())))


def tick(every: list[Item], numbers: Iterable[int]) -> None:
    for item in every:
        item.done = item.done or item.number in numbers


def open_items(thread: Thread) -> list[Item]:
    """What is still to be done."""
    return [item for item in items(thread.calls) if not item.done]


def touched(thread: Thread) -> list[str]:
    """The files that a thread changed, in order of its first change."""
    changes = [call for call in thread.calls if call.name in ("edit_file", "write_file") and not call.error]
    return list(dict.fromkeys(str(call.arguments.get("path", "")).strip() for call in changes))


def kept(thread: Thread) -> list[str]:
    """The lines that stand behind each of its summaries."""
    tasks, files = open_items(thread), touched(thread)
    lines = ["Open to-dos: " + "; ".join(f"{item.number} {item.text}" for item in tasks)] if tasks else []
    return [*lines, *(["Files touched: " + ", ".join(files)] if files else [])]
