"""What can be asked of ten thousand episodes at once: their facts in memory, read once, and what came since.

index = Index(store)
index.refresh(seconds=0.5)      # False where more is left to read: ask again
index.find(Query(text="Brennix", where=("f1<0.5",), order="reward"))
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from trivium.trace import Episode, Store
from trivium.viewer.where import Condition, Fact, facts

_PART = 200
"""Episodes and scores read at once."""


@dataclass(slots=True)
class Entry:
    """One episode in the list. `words` is what a search looks through, in lower case."""

    id: str
    task: str
    question: str
    facts: Mapping[str, Fact]
    words: str

    @property
    def reward(self) -> float | None:
        """Its reward, or None where it was never scored."""
        value = self.facts.get("reward")
        return value if isinstance(value, float) else None


@dataclass(frozen=True, slots=True)
class Query:
    """Which episodes: those whose id begins so, that hold all words of `text` (in id, task, question or answer), and for which
    all conditions of `where` hold ("f1<0.5"); in the order of a fact, the highest first or, from "-NAME", the lowest."""

    prefix: str = ""
    text: str = ""
    where: tuple[str, ...] = ()
    order: str = ""


class Index:
    """The facts of every episode of a store, as `viewer.facts` has them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clear()

    def _clear(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._scores: dict[str, dict[str, Fact]] = {}
        self._names: set[str] = set()
        self._episode = self._score = 0

    def __len__(self) -> int:
        return len(self._entries)

    def refresh(self, seconds: float) -> bool:
        """Read on for about so many seconds; whether all that is there has been read. It begins anew where episodes were
        deleted, so that nothing of them stays. Raises as `Store.tail`."""
        deadline = time.monotonic() + seconds
        while self._read_episodes() | self._read_scores() or self._forget():
            if time.monotonic() > deadline:
                return False
        return True

    def _forget(self) -> bool:
        """Drop all where, with everything read, more is known than there is; whether it did. Before that, what came since makes
        up for what was deleted."""
        deleted = self._store.count() < len(self._entries)
        if deleted:
            self._clear()
        return deleted

    def _read_episodes(self) -> bool:
        part = self._store.tail(self._episode, _PART)
        for number, episode in part:
            entry = _entry(episode, self._scores.setdefault(episode.id, {}))
            self._entries[episode.id] = entry
            self._names |= entry.facts.keys()
            self._episode = number
        return bool(part)

    def _read_scores(self) -> bool:
        """The oldest opinion of each name on a whole episode counts, as in `Store.first_scores`."""
        part = self._store.tail_scores(self._score, 20 * _PART)
        for number, score in part:
            self._score = number
            if not score.thread:
                self._scores.setdefault(score.episode, {}).setdefault(score.name, score.value)
                self._names.add(score.name)
        return bool(part)

    def find(self, query: Query) -> list[Entry]:
        """The episodes that a query asks for, in the order they were written where it names none. InputError for a condition
        that is none, is about what no episode has, or compares a word with a number."""
        conditions = [Condition.of(text) for text in query.where]
        for condition in conditions if self._entries else ():
            condition.check(self.names())
        words = query.text.lower().split()
        hits = [
            entry
            for entry in list(self._entries.values())  # another thread may read on meanwhile
            if entry.id.startswith(query.prefix)
            and all(word in entry.words for word in words)
            and all(condition.holds(entry.facts) for condition in conditions)
        ]
        return _ordered(hits, query.order)

    def names(self) -> list[str]:
        """The names of all facts there are."""
        return sorted(self._names.copy())

    def stages(self) -> list[str]:
        """How the ids of the episodes begin: rl/, eval/sft/, ..., each once, in the order they were written."""
        return list(dict.fromkeys(map(_stage, list(self._entries))))

    def neighbours(self, id: str, query: Query) -> tuple[str, str]:
        """The ids before and after an episode among those that a query asks for; "" where there is none."""
        ids = [entry.id for entry in self.find(query)]
        at = ids.index(id) if id in ids else -1
        if at < 0:
            return "", ""
        return (ids[at - 1] if at else ""), next(islice(ids, at + 1, None), "")


def _entry(episode: Episode, scores: dict[str, Fact]) -> Entry:
    """`scores` may grow later."""
    question = " ".join(episode.task.prompt.split())
    words = " ".join((episode.id, episode.task.id, question, episode.agent.answer)).lower()
    return Entry(episode.id, episode.task.id, question, ChainMap(scores, facts(episode, {})), words)


def _ordered(entries: Sequence[Entry], order: str) -> list[Entry]:
    """Those that lack the fact, or have a word or NaN there, come last."""
    if not order:
        return list(entries)
    name, sign = order.removeprefix("-"), 1 if order.startswith("-") else -1

    def key(entry: Entry) -> tuple[bool, float]:
        value = entry.facts.get(name)
        known = isinstance(value, int | float) and value == value
        return (not known, sign * value if known else 0.0)

    return sorted(entries, key=key)


def _stage(id: str) -> str:
    """eval/sft/... is of the stage eval/sft/; rl/12/... of rl/."""
    parts = id.split("/")
    return "/".join(parts[: 2 if parts[0] == "eval" else 1]) + "/" if len(parts) > 1 else ""
