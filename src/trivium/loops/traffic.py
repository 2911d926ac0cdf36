"""What of the store's tail may be learned from: fresh, of users who are not held out, of this learner's own line, unmarked."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from trivium.errors import InputError
from trivium.loops.staleness import versions
from trivium.trace import Episode, Store
from trivium.trace.people import SERVED, is_drawn, user_of

LEARNED, HELDOUT = "learned", "heldout"
"""Two of the fates of an episode (`Window`)."""

_PART = 256


@dataclass(frozen=True, slots=True)
class Rules:
    """Which episodes may be learned from.

    hours      the oldest that is learned from
    versions   how many versions back, in the learner's own line, a token may have been spoken
    holdout    the share of users who are never learned from, so that something is left to measure on
    settle     seconds that people get to say what they think; a younger episode waits for the next cycle
    most       episodes that a cycle learns from; what lies behind them waits. Those that may not be learned from do not count:
               where people say more than is learned, a backlog of stale ones is passed over, and does not stop the loop
    """

    hours: float = 24.0
    versions: int = 2
    holdout: float = 0.1
    settle: float = 0.0
    most: int = 4096

    def __post_init__(self) -> None:
        if not self.hours > 0 or self.versions < 0 or self.settle < 0 or self.most < 1:
            raise InputError(f"nothing could be learned by {self}: hours above 0, versions and settle from 0, most from 1")
        if not 0 <= self.holdout < 1:
            raise InputError(
                f"--holdout is the share of users who are not learned from, from 0 and below 1, not {self.holdout}"
            )


@dataclass(slots=True)
class Window:
    """Episodes behind number `after` up to `until`. `fresh` may be learned from; `fates` counts those and all others:

    learned      fresh, as yet
    heldout      of a user who is held out
    old          ended more than `hours` ago
    stale        a token of a version too far back in the learner's line
    foreign      a token of a version of another line, such as a candidate that was rejected
    unsampled    nothing that a policy gradient could use: greedy, or without logprobs
    """

    after: int
    until: int
    fresh: list[Episode] = field(default_factory=list)
    every: list[Episode] = field(default_factory=list)
    fates: Counter[str] = field(default_factory=Counter)

    def add(self, episode: Episode, fate: str) -> None:
        self.every.append(episode)
        self.fates[fate] += 1
        if fate == LEARNED:
            self.fresh.append(episode)


def held_out(user: str, share: float) -> bool:
    """Whether a user is among the `share` who are never learned from."""
    return is_drawn(f"holdout {user}", share)


AGENT = frozenset({"agent"})
"""Whose words are learned from: what a served run's model is called."""


def extend(window: Window, store: Store, rules: Rules, line: Sequence[int], now: float | None = None) -> None:
    """Add to a window what lies behind it, as far as people had their time to speak. `line` is the learner's version and those
    that it came from. The store may be written to meanwhile: its numbers rise in the order of commits, so nothing slips in
    below."""
    now = now or time.time()
    while room := rules.most - len(window.fresh):
        part = store.tail(window.until, min(_PART, room))
        for number, episode in part:
            if now - rules.settle < episode.ended <= now:
                return
            window.until = number
            if episode.id.startswith(SERVED):
                window.add(episode, _fate(episode, rules, line, now))
        if not part:
            return


def _fate(episode: Episode, rules: Rules, line: Sequence[int], now: float) -> str:
    if held_out(user_of(episode.account, episode.session), rules.holdout):
        return HELDOUT
    if episode.ended and now - episode.ended > 3600 * rules.hours:
        return "old"
    spoken = versions(episode, AGENT)
    if any(version not in line for version in spoken):
        return "foreign"
    if any(version not in line[: rules.versions + 1] for version in spoken):
        return "stale"
    return LEARNED if spoken and _sampled(episode) else "unsampled"


def _sampled(episode: Episode) -> bool:
    """Whether all that was said was drawn from the policy's whole distribution, with its logprobs."""
    for segment in (segment for thread in episode.threads if thread.policy in AGENT for segment in thread.segments):
        for span in segment.sampled():
            how = segment.sampling_at(span.start)
            whole = how.temperature > 0 and how.top_p == 1 and not how.top_k
            if not whole or math.isnan(segment.logprobs[span.start]):
                return False
    return True
