"""Continuations of an attempt from one point: what it was worth to stand there, and what a choice there was worth.

A snapshot holds tokens, window and place together, so each continuation begins where the attempt stood: same view, same files.

    before = await continuations(harness, snapshot, parent, policy, scorer, count=8)       eight futures of turn t
    after = await continuations(harness, next_snapshot, parent, policy, scorer, count=8)   eight futures behind its choice
    after.value - before.value                                                             the credit of that choice
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from trivium.errors import InputError
from trivium.harness import Event, Harness, Snapshot, TurnEvent, Watch, silence_error, silent
from trivium.loops.attempts import Outcome, judge
from trivium.policy import Policy
from trivium.reward import AnyScorer
from trivium.trace import Episode
from trivium.train import Group


@dataclass(frozen=True, slots=True)
class Continuations:
    """Attempts that go on from one snapshot, each with its scores."""

    snapshot: str
    episodes: list[Episode]
    scores: list[dict[str, float]]

    @property
    def rewards(self) -> list[float]:
        return [scores["reward"] for scores in self.scores]

    @property
    def value(self) -> float:
        """What it was worth to stand there: the mean reward, a Monte Carlo estimate (VinePPO, arXiv:2410.01679)."""
        return sum(self.rewards) / len(self.rewards)

    @property
    def credit(self) -> list[float]:
        """What each continuation's own choice at the branch, and all after it, was worth beside the others': reward - value."""
        return [reward - self.value for reward in self.rewards]

    def group(self) -> Group:
        """The continuations as each other's baseline, to be learned from: their shared prefix is none of their tokens."""
        return Group(self.episodes[0].task.id, self.episodes, self.rewards)


async def continuations(
    harness: Harness, snapshot: Snapshot, parent: Episode, policy: Policy, scorer: AnyScorer, count: int = 8, first: int = 1
) -> Continuations:
    """`count` attempts from `snapshot` of `parent`, at once, as samples `first` and on, which are part of their random streams.

    Those in which the policy could not speak, or whose place broke, are left out. PolicyError or PlaceError where that is all
    of them, what the scorer raised where it failed.
    """
    if count < 2:
        raise InputError(f"continuations are compared with each other: 2 or more, not {count}")
    seed = parent.seed
    branches = [harness.branch(snapshot, parent, policy, sample=first + n, seed=seed) for n in range(count)]
    episodes = await asyncio.gather(*branches)
    attempts = [Outcome(episode) for episode in episodes if not silent(episode)]
    if not attempts:
        raise silence_error(episodes[0])
    await judge(attempts, scorer)
    return Continuations(snapshot.id, [each.episode for each in attempts], _scores(attempts))


def _scores(attempts: Sequence[Outcome]) -> list[dict[str, float]]:
    for attempt in attempts:
        if isinstance(attempt.verdict, Exception):
            raise attempt.verdict
    return [attempt.scores for attempt in attempts]


def every_turn(taken: list[Snapshot]) -> Watch:
    """A watch that takes a snapshot before each turn of the agent, to go on from later."""

    def watch(event: Event) -> None:
        if isinstance(event, TurnEvent) and event.is_agent:
            taken.append(event.snapshot())

    return watch
