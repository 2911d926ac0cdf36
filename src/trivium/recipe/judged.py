"""Judging what was lived before, perhaps by a process that is gone."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.reward import AnyScorer, Verdict, scorer_name, verdicts
from trivium.reward.base import version
from trivium.trace import Episode, Store


async def judged(episodes: Sequence[Episode], scorer: AnyScorer, store: Store) -> list[Verdict]:
    """The verdict of `scorer` on each episode, anew, so that a scorer that was mended is heard.

    What an episode left in a place is gone with the process that held it, and nobody can judge it again. Such an episode has
    the scores that `store` keeps of this scorer in this version.
    """
    kept = [_kept(episode, scorer, store) if episode.snapshots else {} for episode in episodes]
    fresh = iter(await verdicts([e for e, scores in zip(episodes, kept, strict=True) if not scores], scorer))
    return [scores or next(fresh) for scores in kept]


def _kept(episode: Episode, scorer: AnyScorer, store: Store) -> dict[str, float]:
    by = (scorer_name(scorer), version(scorer))
    return {each.name: each.value for each in store.scores(episode.id) if (each.scorer, each.version) == by and not each.thread}
