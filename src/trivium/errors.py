"""The tree of errors.

    TriviumError
    ├── InputError      a person's input cannot be used; the message says what, where, and what to do
    │   └── PatternError  a pattern for grep is none, or took too long (corpus/search.py)
    ├── CorruptError    a file of ours is torn or foreign; the message names it, and nothing was changed
    ├── Unsupported     a part cannot honour an option (law 7); the message names both
    ├── PolicyError     a policy could not speak: a dead server, a refused request, a spent cap
    ├── PlaceError      the place where an episode acts broke: a dead sandbox, a lost snapshot
    ├── Unreachable     a store of weights did not answer in time, or refused (weights/store.py)
    └── LawError        an invariant of the design is broken: a bug in Trivium, never the user's doing

What a policy does wrong (broken JSON, an unknown tool, a full window) is no exception: it is data on the trace (law 8).
"""

from __future__ import annotations

TRANSIENT = frozenset({408, 409, 429, 500, 502, 503, 504})
"""HTTP statuses of a server that is busy or gone for a moment. A request is sent again, and only then an error."""


class TriviumError(Exception):
    """The root of everything Trivium raises on purpose."""


class InputError(TriviumError):
    """A bad input from a person: one sentence naming the thing and what to do about it."""


class CorruptError(TriviumError):
    """A file of ours is torn, truncated or of another schema; the message names it."""


class Unsupported(TriviumError):
    """An option that a part cannot honour; the message names the option and the part."""


class PolicyError(TriviumError):
    """A policy could not speak; recorded on its thread, it never cancels a sibling."""


class PlaceError(TriviumError):
    """The place where an episode acts is gone or broken. The episode ends there, through no fault of its policy."""


class LawError(TriviumError):
    """A law of the design is broken; a bug report should carry this message."""
