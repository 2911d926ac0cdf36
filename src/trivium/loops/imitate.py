"""Imitation: the same learner, fed with a teacher's episodes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Iterable, Sequence

from trivium.errors import InputError
from trivium.fleet import Rank
from trivium.loops.run import Event
from trivium.trace import Episode
from trivium.train import Batch, Learner


async def sft(
    learner: Learner, episodes: Sequence[Episode], *, steps: int, size: int, seed: int = 0, first: int = 0, rank: Rank = Rank()
) -> AsyncIterator[Event]:
    """`size` episodes a step, `first` to `steps`; epoch after epoch in an order that only the seed decides.

    Raises InputError where there are no episodes, or none in which somebody speaks whom the learner learns from, and for a
    learner whose algorithm compares attempts.
    """
    if not episodes:
        raise InputError("there are no episodes to imitate")
    if not _speaks(learner, episodes):
        raise strangers(learner.policies, episodes)
    for step in range(first, steps):
        part = [episodes[index] for index in _indices(len(episodes), step * size, size, seed)]
        result = await learner.step(Batch.imitate(rank.share(part)))
        if result.metrics["groups_dropped"] == result.metrics["groups"] and _speaks(learner, part):
            raise InputError(f"nothing to learn from: {learner.algorithm.name} has no use for single episodes, SFT() has")
        yield Event("sft", step + 1, result.metrics)


def _speaks(learner: Learner, episodes: Iterable[Episode]) -> bool:
    """Whether somebody speaks in them whom the learner learns from."""
    return any(t.policy in learner.policies and t.turns for episode in episodes for t in episode.threads)


def strangers(policies: Collection[str], episodes: Iterable[Episode]) -> InputError:
    """The error of a learner that knows nobody who spoke."""
    speakers = sorted({thread.policy for episode in episodes for thread in episode.threads if thread.turns})
    these = f"these are by {speakers} (`policies`)" if speakers else "in these nobody says a word"
    return InputError(f"nothing to learn from: the learner learns from {sorted(policies)}, {these}")


def _indices(count: int, start: int, size: int, seed: int) -> list[int]:
    """Places `start` to `start + size` of an endless reading of `count` items, shuffled anew in every epoch."""
    return [_shuffled(count, place // count, seed)[place % count] for place in range(start, start + size)]


def _shuffled(count: int, epoch: int, seed: int) -> list[int]:
    return random.Random(f"sft {seed} {epoch}").sample(range(count), count)
