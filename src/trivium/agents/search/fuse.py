"""Several rollouts, one answer: rankings fused by reciprocal rank (Context-1's report; Cormack, Clarke & Büttcher 2009)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from trivium.errors import InputError
from trivium.harness import Harness, refuse_silence, silent
from trivium.policy import Policy
from trivium.trace import Episode, Sampling, Task

T = TypeVar("T", bound=Hashable)


def fuse(rankings: Sequence[Sequence[T]], k: int = 60) -> list[T]:
    """One ranking of everything ranked: by the sum over rankings of 1 / (k + rank), ranks from 1, best first; what is
    equal stays in order of first appearance. A thing that a ranking names twice counts where it stands first.

    fuse([["a", "b"], ["b", "c"]]) -> ["b", "a", "c"]
    """
    scores: dict[T, float] = {}
    for ranking in rankings:
        for rank, thing in enumerate(dict.fromkeys(ranking), start=1):
            scores[thing] = scores.get(thing, 0.0) + 1 / (k + rank)
    return sorted(scores, key=lambda thing: -scores[thing])


def mean_length(rankings: Sequence[Sequence[T]]) -> int:
    """The length to cut a fused ranking to, so that it returns as much as one of its rankings does: their mean, rounded
    half up, and at least 1 where any of them holds something."""
    total = sum(len(set(ranking)) for ranking in rankings)
    return max(1, int(total / len(rankings) + 0.5)) if total else 0


@dataclass(frozen=True, slots=True)
class Fused:
    """What several rollouts answer together: `ranking` is the fused one, cut to their mean length."""

    ranking: list[str]
    episodes: list[Episode]


async def attempt_fused(
    harness: Harness,
    task: Task,
    policy: Policy,
    ranking: Callable[[Episode], Sequence[str]],
    *,
    count: int = 4,
    seed: int = 0,
    sampling: Sampling | None = None,
) -> Fused:
    """Attempt `task` `count` times at once and fuse what each attempt returned, as `ranking` reads it off an episode; one in
    which the policy could not speak to the end returned nothing, and makes the others' ranking no shorter.

    Raises InputError for greedy sampling, where all attempts would be one, and PolicyError when none could speak.
    """
    sampling = sampling or Sampling()
    check_rollouts(count, sampling)
    attempts = (harness.run(task, policy, sample=n, seed=seed, sampling=sampling) for n in range(count))
    episodes = list(await asyncio.gather(*attempts))
    refuse_silence(episodes)
    rankings = [list(ranking(episode)) for episode in episodes if not silent(episode)]
    return Fused(fuse(rankings)[: mean_length(rankings)], episodes)


def check_rollouts(count: int, sampling: Sampling) -> None:
    """InputError for no rollouts, or for several that would all be the same one."""
    if count < 1:
        raise InputError(f"{count} rollouts answer nothing: give at least 1")
    if count > 1 and sampling.temperature == 0:
        raise InputError(f"{count} greedy rollouts are one and the same: sample them")
