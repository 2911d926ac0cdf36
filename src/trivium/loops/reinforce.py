"""Reinforcement learning as one straight line over a source of scored groups.

    async for groups, scores in rollouts(harness, tasks, engine, scorer, Plan(groups=16, size=8, steps=60)):
        step = await learner.step(Batch(groups))
        publish(learner.network, step.version, engine, probe)

With `Pace(max_lag=1)` the source samples ahead while the line learns: one code, synchronous at 0 (docs/loop.md).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from trivium import weights
from trivium.errors import CorruptError, InputError, PolicyError, TriviumError
from trivium.fleet import Rank
from trivium.loops.imitate import strangers
from trivium.loops.run import Event
from trivium.loops.source import COUNTS, Batches, Source, apart, means
from trivium.loops.staleness import attempts_in, fresh
from trivium.train import Batch, Group, Learner

STALE = 8
"""Steps in a row without one fresh episode, after which the loop ends: the weights do not arrive."""

Publish = Callable[[Any, int, Any, Sequence[int]], float | Awaitable[float]]
"""How weights reach the policy: (network, version, receiver, probe) -> the probe's gap, when the policy speaks with them.
`weights.publish`, or a coroutine function that writes a version somewhere and waits until the subscriber has it."""


async def rl(
    source: Source | Batches,
    learner: Learner,
    engine: weights.Receiver,
    probe: Sequence[int],
    *,
    publish: Publish = weights.publish,
    deadline: float = 3600.0,
    publish_seconds: float = 300.0,
) -> AsyncIterator[Event]:
    """Learn from each batch of the source, publish, and say what happened. With the source at lag 0 the next batch is
    sampled from the weights that this one made. An iterator of one's own is a source from step 0, alone and at lag 0.

    An episode with a token more than the source's `max_lag` versions older than the learner, or newer, is dropped and counted.
    A publication that does not arrive (a time-out, a lost connection, a torn object) is counted, the policy goes on with its
    old weights and tokens say so, and the next one makes up for it. No wait is longer than `deadline` seconds: then
    TriviumError, as when nothing fresh arrives for STALE steps. First of all the engine is given the learner's weights, which
    may come from a checkpoint; by a `publish` of one's own only where its version is another one. Raises InputError where
    engine and learner share a network, where rewards differ and none of the episodes is by a policy that the learner learns
    from, and for a score that has the name of one of a step's own numbers.
    """
    if getattr(engine, "network", engine) is learner.network:
        raise InputError("the engine speaks with the learner's own network, so no version would be one: load it twice")
    source = source if isinstance(source, Source) else Source(source)
    rank, step, stale, why, now = source.rank, source.first, 0, "", asyncio.get_running_loop().time
    try:
        if publish is weights.publish:  # here it costs a moment, and equal numbers promise no equal weights
            publish(learner.network, learner.version, engine, probe)
        elif getattr(engine, "version", learner.version) != learner.version:
            _, why = await _publish(publish, learner, learner.version, engine, probe, publish_seconds)
        while True:
            before = now()
            batch = await _next(source, deadline, step, why)
            if batch is None:
                return
            groups, scores = batch
            began, attempted = now(), attempts_in(groups)
            groups, dropped = fresh(groups, learner.version, source.max_lag, learner.policies)
            stale = stale + 1 if dropped and not groups else 0
            if stale > STALE:
                raise TriviumError(
                    f"nothing fresh in {stale} steps: the policy does not get new weights ({why or 'unknown why'})"
                )
            result = await in_time(learner.step(Batch(groups)), deadline, f"the learner's step {step}")
            if result.metrics["groups"] > result.metrics["groups_dropped"] and not result.metrics["episodes"]:  # of all ranks
                await _refuse_strangers(rank, learner, groups)
            published, why = await _publish(publish, learner, result.version, engine, probe, publish_seconds)
            seconds = {"learn_seconds": now() - began, "wait_seconds": began - before}
            scores = await _over_ranks(rank, {**scores, "episodes_dropped": dropped, **published}, attempted)
            step += 1
            yield Event("rl", step, apart(scores, {**result.metrics, **seconds}))
    finally:
        await source.aclose()


async def _next(source: Source, deadline: float, step: int, why: str):
    """The next batch, None at the end. A policy that died after a publication did not arrive may have died of that."""
    try:
        return await in_time(anext(source, None), deadline, f"the batch of step {step}")
    except PolicyError as error:
        if why:
            raise PolicyError(f"{error} (the last publication did not arrive: {why})") from error
        raise


async def _refuse_strangers(rank: Rank, learner: Learner, groups: Sequence[Group]) -> None:
    """The error, on all ranks, of a step that nobody spoke in whom the learner learns from. Where somebody did, the algorithm
    rejected all of it, which is its right."""
    episodes = [episode for group in groups for episode in group.episodes]
    speakers = {thread.policy for episode in episodes for thread in episode.threads}
    if not any(await asyncio.to_thread(rank.gather, bool(speakers & learner.policies))):
        raise strangers(learner.policies, episodes)


async def _publish(publish: Publish, learner: Learner, version: int, engine, probe, seconds: float):
    """The probe's gap, or why it did not arrive. The engine goes on meanwhile. LawError, for wrong weights, ends the run."""
    try:
        async with asyncio.timeout(seconds):
            gap = publish(learner.network, version, engine, probe)
            return {"publish_gap": await gap if inspect.isawaitable(gap) else gap, "publish_failed": 0.0}, ""
    except (OSError, CorruptError, PolicyError, weights.Unreachable) as error:  # a time-out is an OSError
        return {"publish_failed": 1.0}, str(error) or f"no answer in {seconds:g} s"


async def in_time(awaited: Awaitable, seconds: float, what: str) -> Any:
    """What is awaited, or TriviumError naming it when `seconds` have passed."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await awaited
    except TimeoutError as error:
        if deadline.expired():
            raise TriviumError(f"{what} took longer than {seconds:g} s") from error
        raise


async def _over_ranks(rank: Rank, scores: dict[str, float], episodes: int) -> dict[str, float]:
    """Off the event loop where it waits for others, so that this rank's episodes go on."""
    if rank.size == 1:
        return over_ranks(rank, scores, episodes)
    return await asyncio.to_thread(over_ranks, rank, scores, episodes)


def over_ranks(rank: Rank, scores: dict[str, float], episodes: int) -> dict[str, float]:
    """Every rank's means as one, each rank counting as its number of episodes (at least one), and counts summed."""
    reports = rank.gather((scores, max(1, episodes)))
    every = [scores for scores, _ in reports]
    counts = {name: float(sum(row[name] for row in every if name in row)) for name in COUNTS}
    gaps = [row["publish_gap"] for row in every if "publish_gap" in row]
    return {**means(every, [episodes for _, episodes in reports]), **counts, **({"publish_gap": max(gaps)} if gaps else {})}
