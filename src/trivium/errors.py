"""The tree of errors.

    TriviumError
    ├── InputError      a person gave something unusable: says what, where, and what to do
    │   └── PatternError  a pattern for grep that is none, or took too long (corpus/search.py)
    ├── CorruptError    a file of ours is torn or foreign: names it; nothing was changed
    ├── Unsupported     an option that a part cannot honour (law 7): names both
    ├── PolicyError     a policy could not speak: a dead server, a refused request, a spent cap
    ├── PlaceError      where an episode acts broke: a dead sandbox, a lost snapshot
    ├── Unreachable     a store of weights did not answer in time, or refused (weights/store.py)
    └── LawError        an invariant of the design is broken: a bug in Trivium, never the user's doing

What a policy does wrong (broken JSON, an unknown tool, a full window) is no exception: it is data on the trace (law 8).
"""

from __future__ import annotations

PASSING = frozenset({408, 409, 429, 500, 502, 503, 504})
"""HTTP statuses of a server that is busy or gone for a moment: what was asked is asked again, and only then an error."""


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
    """Where an episode acts is gone or broken: it ends there, by no doing of its policy's."""


class LawError(TriviumError):
    """A law of the design is broken; a bug report should carry this message."""
