"""What an answer cites: the handles of passages, `#1`, `#2`, as the tools showed them."""

from __future__ import annotations

import re

from trivium.corpus import document_of
from trivium.trace import Task, Thread

_HANDLE = re.compile(r"#\d+")


def handles(thread: Thread) -> dict[str, str]:
    """Every handle shown to a thread -> its source."""
    return {piece.ref: piece.source for piece in thread.passages}


def gold_of(task: Task) -> list[str]:
    """The documents that a task asks for; none where its truth has no list of names under `gold`."""
    named = task.truth.get("gold", ())
    listed = isinstance(named, list | tuple | set) and all(isinstance(each, str) for each in named)
    return list(dict.fromkeys(named)) if listed else []


def documents(thread: Thread, task: Task) -> dict[str, str]:
    """Every handle shown to a thread -> the document that its source counts as."""
    return {ref: counts_as(source, task) for ref, source in handles(thread).items()}


def counts_as(source: str, task: Task) -> str:
    """The document that a source counts as. Where gold names lines of a file (file.py:12, of somebody's own tool) and not the
    file, each line of that file is a document."""
    gold, document = gold_of(task), document_of(source)
    lines = document not in gold and any(document_of(each) == document for each in gold)
    return source if lines else document


def cited(thread: Thread) -> list[str]:
    """The handles in a thread's answer, best first, those that were never shown included. An answer ends where it repeats
    itself: a loop of handles would else go on for nothing until it names one more document (docs/log.md)."""
    handles: dict[str, None] = {}
    for handle in _HANDLE.findall(thread.answer):
        if handle in handles:
            break
        handles[handle] = None
    return list(handles)


def quoted(thread: Thread, task: Task) -> str:
    """The passages that an answer cites, best first, each below its handle and its document."""
    shown = {piece.ref: piece for piece in thread.passages}
    found = [shown[ref] for ref in cited(thread) if ref in shown]
    return "\n\n".join(f"{piece.ref} {counts_as(piece.source, task)}\n{piece.shown}" for piece in found)


def repetition(answer: str) -> int | None:
    """The letters of an answer before the first handle that it says again; None where it says none again. For
    `Harness(ending=)`: loops of handles, heard to their end, taught policies not to say a fourth one (docs/log.md)."""
    before = set()
    for handle in _HANDLE.finditer(answer):
        if handle[0] in before:
            return len(answer[: handle.start()].rstrip())
        before.add(handle[0])
    return None
