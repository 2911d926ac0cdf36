"""Threads -> rows to learn from. A row is a segment with a mask: each sampled token is trained in exactly one row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from trivium.errors import LawError
from trivium.trace.episode import Episode, Segment, Thread


@dataclass(frozen=True, slots=True)
class Row:
    """What the learner sees of one segment; all arrays have the length T of the segment.

    tokens    int32 [T]
    mask      bool [T]       True on the tokens that are trained: sampled here, not carried over
    logprobs  float32 [T]    as recorded when sampled; NaN elsewhere, and on a text-only policy's tokens
    versions  int32 [T]      the speaker's version; -1 where nothing was sampled
    truncated                whether top-p or top-k cut the distribution that any of its tokens was drawn from
    """

    episode: str
    thread: str
    segment: int
    tokens: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    temperature: float = 1.0
    truncated: bool = False

    @property
    def trained(self) -> int:
        return int(self.mask.sum())


def rows(episode: Episode, policies: Collection[str]) -> list[Row]:
    """The rows of the threads that `policies` spoke; other policies are frozen and yield none (law 5).

    That each sampled token stands in one row follows from the data: only the segment that grew by it holds it right of
    `carried`. Raises LawError where two spans of a segment claim one token.
    """
    chosen = [thread for thread in episode.threads if thread.policy in policies]
    return [row for thread in chosen for row in _thread_rows(episode.id, thread)]


def _thread_rows(episode: str, thread: Thread) -> list[Row]:
    found = [_row(episode, thread.id, number, segment) for number, segment in enumerate(thread.segments)]
    return [row for row in found if row.trained]


def _row(episode: str, thread: str, number: int, segment: Segment) -> Row:
    length = len(segment.tokens)
    mask = np.zeros(length, bool)
    versions = np.full(length, -1, np.int32)
    for span in segment.sampled():
        if mask[span.start : span.stop].any():
            raise LawError(f"episode {episode}, thread {thread}: a sampled token stands in two spans")
        mask[span.start : span.stop] = True
    for run in segment.versions:
        versions[run.start : run.stop] = run.version
    return Row(
        episode=episode,
        thread=thread,
        segment=number,
        tokens=np.asarray(segment.tokens, np.int32),
        mask=mask,
        logprobs=np.asarray(segment.logprobs, np.float32),
        versions=versions,
        temperature=segment.sampling.temperature,
        truncated=any(min(segment.kept[s.start : s.stop]) < 1 - 1e-6 for s in segment.sampled()),
    )
