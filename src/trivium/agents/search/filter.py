"""Which teacher episodes a warm-up learns from: Context-1's filter (its report).

The report's rules, and where it leaves a number open, ours:

    malformed                                    dropped
    trajectory recall far above output recall    dropped; far = 0.6 or more (ours), so that no episode good enough to
                                                 be kept in full is also dropped
    trajectory > 50% and output > 40%            kept, one episode per query: the best
    no output recall                             at most 5% of what is kept, one per query
    anything between                             kept at a rate that diminishes linearly (ours) with the recall that
                                                 lies further below its threshold
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

TRAJECTORY = 0.5
OUTPUT = 0.4
ZERO_SHARE = 0.05
FAR = 0.6


@dataclass(frozen=True, slots=True)
class Record:
    """An episode as the filter sees it. `query` is what several attempts share; recalls are shares of gold, 0 to 1."""

    id: str
    query: str
    trajectory_recall: float
    output_recall: float
    malformed: bool = False


def keep(episodes: Iterable[Record], seed: int = 0) -> list[Record]:
    """The episodes to learn from, in the order given. Which ones is up to `seed`, never to that order."""
    sound = [e for e in episodes if not e.malformed and e.trajectory_recall - e.output_recall < FAR]
    good = _best([e for e in sound if rate(e) == 1.0], seed)
    partial = {e.id for e in sound if 0 < rate(e) < 1 and _draw(e, seed) < rate(e)}
    chosen = good | partial
    zero = sorted(_best([e for e in sound if rate(e) == 0.0], seed))
    room = int(len(chosen) * ZERO_SHARE / (1 - ZERO_SHARE) + 1e-9)
    chosen |= set(random.Random(f"zero {seed}").sample(zero, min(room, len(zero))))
    return [e for e in sound if e.id in chosen]


def rate(episode: Record) -> float:
    """The chance of being kept by recall alone: 1 above both thresholds, linear to 0 below, 0 without output recall."""
    if episode.trajectory_recall > TRAJECTORY and episode.output_recall > OUTPUT:
        return 1.0
    share = min(episode.trajectory_recall / TRAJECTORY, episode.output_recall / OUTPUT)
    return min(share, 0.999)  # at a threshold is not above it


def _best(episodes: list[Record], seed: int) -> set[str]:
    """The id of one episode per query: highest output recall, then trajectory recall, then by lot."""
    best: dict[str, Record] = {}
    for episode in episodes:
        best[episode.query] = max(best.get(episode.query, episode), episode, key=lambda e: _rank(e, seed))
    return {episode.id for episode in best.values()}


def _rank(episode: Record, seed: int) -> tuple[float, float, float, str]:
    return episode.output_recall, episode.trajectory_recall, _draw(episode, seed), episode.id


def _draw(episode: Record, seed: int) -> float:
    return random.Random(f"filter {seed} {episode.id}").random()
