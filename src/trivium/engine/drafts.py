"""Guesses at what a reply says next, so that one forward pass may check several tokens of it.

A guess is a place to compute ahead, never a token. Every token is drawn from the network's own distribution, by the random
number that its request began with, and the first one that differs from its guess ends the pass. So, up to rounding, replies
are those of an engine without guesses, and no probability has to be corrected. What agents say repeats: the form of a call,
the names that a group's rollouts ask for. One table of trigrams, filled by all replies as they are drawn, is all there is.
"""

from __future__ import annotations

from collections.abc import Sequence

_ORDER = 3  # how many tokens a guess depends on
_ENTRIES = 100_000  # size of the table; the oldest entry goes first


class Drafts:
    """A table of what followed each `_ORDER` tokens when a reply last had them.

    `guesses` counts the tokens that were guessed, `hits` those that came true.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self.guesses = self.hits = 0

    def clear(self) -> None:
        """Make the table as new: like the cache, a guess may not depend on what came before a resumed run's engine."""
        self._next.clear()

    def record(self, tokens: Sequence[int]) -> None:
        """Note that the last of these tokens followed those before it."""
        self._next[tuple(tokens[-_ORDER - 1 : -1])] = tokens[-1]
        if len(self._next) > _ENTRIES:
            del self._next[next(iter(self._next))]

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most `most` tokens that may follow."""
        last, guesses = tuple(tokens[-_ORDER:]), []
        while len(guesses) < most and (token := self._next.get(last)) is not None:
            guesses.append(token)
            last = (*last[1:], token)
        self.guesses += len(guesses)
        return guesses
