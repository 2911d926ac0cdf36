"""Sub-agents as lanes over critical steps: what ran beside what, and which lane everybody waited for.

An agent of two turns whose first turn began a and b; each box is one step, drawn where it stood:

    agent   [turn 1]            [turn 2]
    a               [1][2]                  b was longer
    b               [1][2][3]               critical: the agent waited for it
    step    0       1           4      5    five critical steps (`trace.critical_steps`)
"""

from __future__ import annotations

from dataclasses import dataclass

from trivium.trace import Episode, Thread, stages


@dataclass(frozen=True, slots=True)
class Bar:
    """One turn of a thread: from step `start` on, `size` steps long."""

    start: int
    size: int
    turn: int


@dataclass(frozen=True, slots=True)
class Lane:
    """A thread's turns over critical steps, up to step `stop`. `critical`: it is on the path that everybody waited for."""

    thread: str
    policy: str
    depth: int
    bars: tuple[Bar, ...]
    stop: int
    critical: bool

    @property
    def size(self) -> int:
        """How many steps it took itself, whatever it waited for."""
        return sum(bar.size for bar in self.bars)


def lanes(episode: Episode) -> list[Lane]:
    """The lanes of an episode's threads, the agent's first, each sub-agent's below the one that spawned it."""
    return _lanes(episode, episode.agent, start=0, depth=0, critical=True)


def _lanes(episode: Episode, thread: Thread, start: int, depth: int, critical: bool) -> list[Lane]:
    bars, below, at = [], [], start
    inherited = episode.inherited if thread is episode.agent else 0
    for stage in stages(thread, episode.threads, episode.ops, inherited):
        bars.append(Bar(at, stage.main, stage.turn))
        at += stage.main
        slowest = next((id for id, steps in stage.branches if steps == stage.longest), "")
        for id, _ in stage.branches:
            below += _lanes(episode, episode.thread(id), at, depth + 1, critical and id == slowest)
        at += stage.longest
    return [Lane(thread.id, thread.policy, depth, tuple(bars), at, critical), *below]
