"""Reinforcement learning as one straight line over a source of scored groups.

    async for groups, scores in rollouts(harness, tasks, engine, scorer, groups=16, size=8, steps=60):
        step = await learner.step(Batch(groups))
        publish(learner.network, step.version, engine, probe)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np

from trivium.engine import Engine
from trivium.fleet import Rank
from trivium.harness import Harness, refuse_silence
from trivium.loops.run import Event
from trivium.reward import Scorer, opinions, score
from trivium.trace import Sampling, Store, Task
from trivium.train import Batch, Group, Learner
from trivium.weights import publish


async def rollouts(
    harness: Harness,
    tasks: Sequence[Task],
    engine: Engine,
    scorer: Callable[[int], Scorer],
    *,
    groups: int,
    size: int,
    steps: int,
    first: int = 0,
    seed: int = 0,
    sampling: Sampling | None = None,
    store: Store | None = None,
    rank: Rank = Rank(),
) -> AsyncIterator[tuple[list[Group], dict[str, float]]]:
    """The source: for each step this rank's share of `groups` tasks, `size` attempts of each, scored and stored, with
    their mean scores. Tasks are taken in order, around and around.

    `scorer` gives the scorer of a step (a reward may anneal). Ids and random streams follow from (seed, step, task,
    sample), so a resumed run repeats itself. Raises PolicyError when the policy could not speak at all.
    """
    for step in range(first, steps):
        started = time.perf_counter()
        chosen = rank.share([tasks[(step * groups + number) % len(tasks)] for number in range(groups)])
        attempts = [
            harness.run(
                task, engine, sample=sample, seed=seed * 1_000_003 + step, id=f"rl/{step}/{task.id}/{sample}", sampling=sampling
            )
            for task in chosen
            for sample in range(size)
        ]
        episodes = await asyncio.gather(*attempts)
        refuse_silence(episodes)
        current = scorer(step)
        scores = await score(episodes, current)
        if store:
            named = getattr(current, "__name__", type(current).__name__)
            store.write(episodes, [s for e, found in zip(episodes, scores, strict=True) for s in opinions(e.id, found, named)])
        made = [
            Group(task.id, episodes[at : at + size], [s["reward"] for s in scores[at : at + size]])
            for task, at in zip(chosen, range(0, len(episodes), size), strict=True)
        ]
        yield made, {**means(scores), "rollout_seconds": time.perf_counter() - started}


async def rl(
    source: AsyncIterator[tuple[list[Group], dict[str, float]]],
    learner: Learner,
    engine: Engine,
    probe: Sequence[int],
    *,
    first: int = 0,
    rank: Rank = Rank(),
) -> AsyncIterator[Event]:
    """Learn from each batch of the source, publish, and say what happened. Lag 0: the next batch is sampled from the
    weights that this one made."""
    step = first
    async for groups, scores in source:
        started = time.perf_counter()
        done = await learner.step(Batch(groups))
        gap = publish(learner.network, done.version, engine, probe)
        step += 1
        seconds = {"learn_seconds": time.perf_counter() - started, "publish_gap": gap}
        yield Event("rl", step, {**together(rank, scores), **done.metrics, **seconds})


def means(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each named score over the episodes that have it."""
    names = sorted({name for found in scores for name in found})
    return {name: float(np.mean([found[name] for found in scores if name in found])) for name in names}


def together(rank: Rank, scores: dict[str, float]) -> dict[str, float]:
    """Every rank's means as one."""
    return means(rank.gather(scores))
