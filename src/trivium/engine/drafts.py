"""Guesses at what a reply says next, so that one forward pass may check several tokens of it.

A guess is a place to compute ahead, never a token: every token is drawn from the network's own distribution by the number
that its request was born with, and the first that differs from its guess ends the pass. So, up to rounding, nothing is said
that would not have been said without guesses, and no probability has to be corrected. What agents say repeats: the form of
a call, the names that a group's rollouts ask for. One table of trigrams, filled by all replies as they are drawn, is all
there is.
"""

from __future__ import annotations

from collections.abc import Sequence

_ORDER = 3  # tokens that a guess goes by
_ENTRIES = 100_000  # what is remembered; the oldest goes first


class Drafts:
    """What followed the last `_ORDER` tokens when they were last said; `guessed`, `right`: tokens, ever."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self.guessed = self.right = 0

    def clear(self) -> None:
        """As new: like the cache, a guess may not depend on what was said before a resumed run's engine began."""
        self._next.clear()

    def hear(self, tokens: Sequence[int]) -> None:
        """The last of these tokens was said after those before it."""
        self._next[tuple(tokens[-_ORDER - 1 : -1])] = tokens[-1]
        if len(self._next) > _ENTRIES:
            del self._next[next(iter(self._next))]

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most `most` tokens that may follow."""
        last, found = tuple(tokens[-_ORDER:]), []
        while len(found) < most and (token := self._next.get(last)) is not None:
            found.append(token)
            last = (*last[1:], token)
        self.guessed += len(found)
        return found
