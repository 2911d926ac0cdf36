"""The recorded edges of an episode: three cuts inside a thread, two edges between threads, one between episodes.

The harness is their only writer. A cut ends a segment at `before` and begins the next one at `after`: what stands left
of `after.position` in the new segment is context that the op carried over. Edges between threads and episodes cut nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a thread: `position` tokens into its segment number `segment`."""

    thread: str
    segment: int
    position: int


class Op(Struct, frozen=True, kw_only=True):
    """Whose decision it was: `author` a policy's name (or "harness"), `version` that policy's number, -1 for a harness."""

    author: str
    version: int = -1


class Cut(Op, frozen=True, kw_only=True):
    """An op inside one thread, from the end of one segment to the beginning of the next."""

    before: Point
    after: Point


class Prune(Cut, frozen=True, kw_only=True, tag="prune"):
    """Whole chunk spans left the view; nothing was rendered again. `chunks` are their refs."""

    chunks: tuple[str, ...]


class Summarize(Cut, frozen=True, kw_only=True, tag="summarize"):
    """The thread went on from its own summary, which was sampled (and is learned from) in the segment before the cut."""


class Restart(Cut, frozen=True, kw_only=True, tag="restart"):
    """An outside harness, or a template that had to render again, began a new context."""

    reason: str


class Spawn(Op, frozen=True, kw_only=True, tag="spawn"):
    """The call `call` at `at` began the thread `child`."""

    call: str
    at: Point
    child: str


class Join(Op, frozen=True, kw_only=True, tag="join"):
    """What the thread `child` answered came back at `at` as the result of `call`."""

    call: str
    at: Point
    child: str


class Branch(Op, frozen=True, kw_only=True, tag="branch"):
    """This episode began at `snapshot` of the episode `parent`, before its turn number `turn` (stores from before 2026-11-25
    say 0); what stands left of `at` belongs to `parent`."""

    parent: str
    snapshot: str
    at: Point
    turn: int = 0


AnyOp = Prune | Summarize | Restart | Spawn | Join | Branch
