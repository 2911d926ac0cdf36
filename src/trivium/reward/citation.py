"""What an answer cites: the handles of passages, `#1`, `#2`, as the tools showed them."""

from __future__ import annotations

import re

from trivium.trace import Thread

_HANDLE = re.compile(r"#\d+")


def handles(thread: Thread) -> dict[str, str]:
    """Every handle shown to a thread -> its source."""
    return {piece.ref: piece.source for piece in thread.passages}


def cited(thread: Thread) -> list[str]:
    """The handles in a thread's answer, best first, those that were never shown included. An answer ends where it repeats
    itself: a loop of handles would else go on for nothing until it names one more document (docs/log.md)."""
    found: dict[str, None] = {}
    for handle in _HANDLE.findall(thread.answer):
        if handle in found:
            break
        found[handle] = None
    return list(found)


def repeated(thread: Thread) -> int:
    """Handles that an answer says after it has ended by repeating itself, the first repetition included."""
    return len(_HANDLE.findall(thread.answer)) - len(cited(thread))
