"""A reward made of parts: the weighted sum of what several scorers say."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trivium.errors import InputError
from trivium.reward.base import AnyScorer, GroupScorer, Verdict, patience, scorer_name, verdicts, version
from trivium.trace import Episode


def compose(**parts: tuple[float, AnyScorer]) -> AnyScorer:
    """A scorer whose `reward` is the weighted sum of its parts' rewards: compose(outcome=(1.0, judge), style=(0.1, rubric)).

    Every score of a part keeps its name behind the part's: `outcome/f1`. Each part has its own patience. With a group scorer
    among the parts it is one itself. InputError for no parts, for one that is no weight and scorer, and when a part gives no
    reward.
    """
    whole = [isinstance(part, tuple) and len(part) == 2 and _is_scorer(part[1]) for part in parts.values()]
    if not (whole and all(whole)):
        raise InputError("compose takes parts by name, each a weight and a scorer: compose(outcome=(1.0, judge))")
    of_parts = " ".join(f"{name}={weight:g}*{scorer_name(part)}({version(part)})" for name, (weight, part) in parts.items())
    if any(isinstance(part, GroupScorer) for _, part in parts.values()):
        return Composed(parts, of_parts)

    async def scorer(episode: Episode) -> dict[str, float]:
        (verdict,) = await _summed([episode], parts)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    scorer.version = of_parts  # ty: ignore[missing-attribute] a function may have any
    return patience(math.inf)(scorer)


def _is_scorer(scorer: Any) -> bool:
    return callable(scorer) or isinstance(scorer, GroupScorer)


class Composed:
    """A group scorer made of others: an episode that one of them leaves unscored is unscored."""

    seconds = math.inf

    def __init__(self, parts: Mapping[str, tuple[float, AnyScorer]], version: str) -> None:
        self.parts, self.version = parts, version

    async def compare(self, episodes: Sequence[Episode]) -> list[Verdict]:
        return await _summed(episodes, self.parts)


async def _summed(episodes: Sequence[Episode], parts: Mapping[str, tuple[float, AnyScorer]]) -> list[Verdict]:
    """The weighted sum of the parts' rewards for each episode, and every part's scores."""
    columns = await asyncio.gather(*(verdicts(episodes, part, need="reward") for _, part in parts.values()))
    return [_sum(row, parts) for row in zip(*columns, strict=True)]


def _sum(row: Sequence[Verdict], parts: Mapping[str, tuple[float, AnyScorer]]) -> Verdict:
    scores: dict[str, float] = {}
    total = 0.0
    for (name, (weight, _)), verdict in zip(parts.items(), row, strict=True):
        if isinstance(verdict, Exception):
            return verdict
        total += weight * verdict["reward"]
        scores |= {f"{name}/{key}": value for key, value in verdict.items()}
    return {"reward": total, **scores}
