"""Threads -> rows to learn from. A row is a segment with a mask: each sampled token is trained in exactly one row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from trivium.errors import LawError
from trivium.trace.episode import Episode, Segment, Thread

ROUNDING = 1e-6
"""How far below 1 a kept mass may lie without any truncation: it is a sum of float32 probabilities."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the learner sees of one segment; all arrays have the length T of the segment.

    tokens    int32 [T]
    mask      bool [T]       True on the tokens that are trained: sampled here, not carried over
    logprobs  float32 [T]    as recorded when sampled; NaN elsewhere, and on a text-only policy's tokens
    versions  int32 [T]      the speaker's version; -1 where nothing was sampled
    temperature              at which its trained tokens were drawn
    truncated                whether top-p or top-k cut the distribution that any of them was drawn from
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
    `carried`. A segment whose requests were drawn at several temperatures gives a row for each, since a row has one. Raises
    LawError where two spans of a segment claim one token.
    """
    threads = [thread for thread in episode.threads if thread.policy in policies]
    return [row for thread in threads for row in _thread_rows(episode.id, thread)]


def _thread_rows(episode: str, thread: Thread) -> list[Row]:
    return [row for number, segment in enumerate(thread.segments) for row in _segment_rows(episode, thread.id, number, segment)]


def _segment_rows(episode: str, thread: str, number: int, segment: Segment) -> list[Row]:
    masks = _masks(segment, f"episode {episode}, thread {thread}")
    return [_row(episode, thread, number, segment, *each) for each in masks.items()]


def _masks(segment: Segment, where: str) -> dict[float, np.ndarray]:
    """Which tokens were sampled here at each temperature, in the order of their first tokens: bool [T] each."""
    temperatures = np.full(len(segment.tokens), segment.sampling.temperature)
    for part in segment.overrides:
        temperatures[part.start : part.stop] = part.sampling.temperature
    sampled = np.zeros(len(segment.tokens), bool)
    for span in segment.sampled():
        if sampled[span.start : span.stop].any():
            raise LawError(f"{where}: a sampled token stands in two spans")
        sampled[span.start : span.stop] = True
    return {heat: sampled & (temperatures == heat) for heat in dict.fromkeys(temperatures[sampled].tolist())}


def _row(episode: str, thread: str, number: int, segment: Segment, temperature: float, mask: np.ndarray) -> Row:
    versions = np.full(len(segment.tokens), -1, np.int32)
    for stretch in segment.versions:
        versions[stretch.start : stretch.stop] = stretch.version
    return Row(
        episode=episode,
        thread=thread,
        segment=number,
        tokens=np.asarray(segment.tokens, np.int32),
        mask=mask,
        logprobs=np.asarray(segment.logprobs, np.float32),
        versions=versions,
        temperature=temperature,
        truncated=bool((np.asarray(segment.kept)[mask] < 1 - ROUNDING).any()),
    )
