"""The seam: a scorer is any async function of an episode. A judge behind an endpoint is one too."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, SupportsFloat

from trivium.errors import InputError
from trivium.trace import Episode, Score

Scorer = Callable[[Episode], Awaitable[Mapping[str, float]]]
"""Named scores of one episode. The one called `reward` is what training maximises; the others are its visible parts."""


async def score(episodes: Sequence[Episode], scorer: Scorer) -> list[dict[str, float]]:
    """The scores of each episode, all asked for at once. InputError for what is no mapping of names to numbers."""
    asked = [scorer(episode) for episode in episodes]
    if not all(map(inspect.isawaitable, asked)):
        raise InputError(f"the scorer {named(scorer)} is no async function: write `async def`")
    return [_numbers(found, scorer) for found in await asyncio.gather(*asked)]


def _numbers(found: Any, scorer: Scorer) -> dict[str, float]:
    if not isinstance(found, Mapping) or not all(isinstance(n, str) and isinstance(v, SupportsFloat) for n, v in found.items()):
        raise InputError(f"the scorer {named(scorer)} gives {found!r}; it is to give numbers by name, as {{'reward': 1.0}}")
    return {name: float(value) for name, value in found.items()}


def named(scorer: Scorer) -> str:
    """What a scorer is called: a function by its name, an object by its class."""
    return getattr(scorer, "__name__", type(scorer).__name__)


def version(scorer: Scorer) -> str:
    """Which version of a scorer speaks: what its attribute `version` says, "1" where it has none. So a store tells apart the
    scores of a reward that changes over a run, or was mended."""
    return str(getattr(scorer, "version", "1"))


def compose(**parts: tuple[float, Scorer]) -> Scorer:
    """A scorer whose `reward` is the weighted sum of its parts' rewards: compose(outcome=(1.0, judge), style=(0.1, rubric)).

    Every score of a part keeps its name behind the part's: `outcome/f1`. InputError for no parts, for one that is no weight
    and scorer, and when a part gives no reward.
    """
    whole = [isinstance(part, tuple) and len(part) == 2 and callable(part[1]) for part in parts.values()]
    if not (whole and all(whole)):
        raise InputError("compose takes parts by name, each a weight and a scorer: compose(outcome=(1.0, judge))")

    async def scorer(episode: Episode) -> dict[str, float]:
        found = await asyncio.gather(*(score([episode], part) for _, part in parts.values()))
        scores: dict[str, float] = {}
        total = 0.0
        for (name, (weight, _)), (part,) in zip(parts.items(), found, strict=True):
            if "reward" not in part:
                raise InputError(f"the scorer {name!r} gives no 'reward', only {sorted(part)}")
            total += weight * part["reward"]
            scores |= {f"{name}/{key}": value for key, value in part.items()}
        return {"reward": total, **scores}

    of_parts = (f"{name}={weight:g}*{named(part)}({version(part)})" for name, (weight, part) in parts.items())
    scorer.version = " ".join(of_parts)  # ty: ignore[unresolved-attribute] a function may have any
    return scorer


def opinions(episodes: Sequence[Episode], scores: Sequence[Mapping[str, float]], scorer: Scorer) -> list[Score]:
    """The scores that `scorer` gave each episode as the store keeps them, with its name and version."""
    pairs, by = zip(episodes, scores, strict=True), (named(scorer), version(scorer))
    return [Score(episode.id, name, float(value), *by) for episode, numbers in pairs for name, value in numbers.items()]
