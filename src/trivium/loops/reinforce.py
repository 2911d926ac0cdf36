"""Reinforcement learning as one straight line over a source of scored groups.

    async for groups, scores in rollouts(harness, tasks, engine, scorer, groups=16, size=8, steps=60):
        step = await learner.step(Batch(groups))
        publish(learner.network, step.version, engine, probe)

With `max_lag` the source samples ahead while the line learns: one code, synchronous at 0 (docs/loop.md).
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from trivium import weights
from trivium.errors import CorruptError, InputError, PolicyError, TriviumError
from trivium.fleet import Rank
from trivium.harness import Harness
from trivium.loops.attempts import Attempts, Flight, Found, Slots
from trivium.loops.imitate import strangers
from trivium.loops.run import Event
from trivium.loops.staleness import attempts_in, fresh
from trivium.policy import Policy
from trivium.reward import Scorer, opinions
from trivium.trace import Episode, Sampling, Store, Task
from trivium.train import Batch, Group, Learner

STALE = 8
"""Steps in a row without one fresh episode, after which the loop ends: the weights do not arrive."""

COUNTS = ("episodes_stored", "episodes_rerun", "episodes_overtaken", "episodes_lost", "episodes_dropped", "publish_failed")
"""Numbers of a step that are summed over ranks; all others are means, but for the largest `publish_gap`."""

_OURS = {*COUNTS, "publish_gap", "calls", "calls_failed", "rollout_seconds", "learn_seconds", "wait_seconds", "cpu_seconds"}
"""What a step says of itself, in every run or in some."""

Source = AsyncIterator[tuple[list[Group], dict[str, float]]]

Publish = Callable[[Any, int, Any, Sequence[int]], float | Awaitable[float]]
"""How weights reach the policy: (network, version, receiver, probe) -> the probe's gap, when the policy speaks with them.
`weights.publish`, or a coroutine function that writes a version somewhere and waits until the subscriber has it."""


async def rollouts(
    harness: Harness,
    tasks: Sequence[Task],
    engine: Policy,
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
    max_lag: int = 0,
    slots: int | None = None,
    seconds: float = 600.0,
    branches: int = 0,
) -> Source:
    """The source: for each step this rank's share of `groups` tasks, `size` attempts of each, scored and stored, with
    their mean scores. Tasks are taken in order, around and around.

    `scorer` gives the scorer of a step (a reward may anneal). Ids and random streams follow from (seed, step, task,
    sample), so a resumed run repeats itself; a step that `store` has already is learned from again, not attempted again.

    With `branches`, so many more last turns of each attempt that finished are drawn, from the view in which its own was. They
    are a group of their own: compared with each other alone they tell what a last turn was worth, whatever came before it.
    They are in no mean.

    When step n is asked for, steps up to n + `max_lag` begin: their oldest tokens are of the version that is published then,
    so at most `max_lag` versions old when they are learned from. At most `slots` episodes of this rank are under way (its
    share of a step unless given), older steps first. Steps come in order; the slow episodes of the first are overtaken when
    `max_lag` whole steps wait behind them: cancelled and counted. An attempt has `seconds`; one that a dead policy or the
    deadline ended is begun anew, up to three times, and then left out of its group, counted. Raises PolicyError when
    the policy could speak to the end in no attempt of a step, InputError where a task stands in one step twice, where the
    scorer gives no number called reward, and where `store` has these ids from another run, or steps with other groups, size,
    sampling or harness. **What a scorer says now is not compared with what it said then**: `episodes_stored` counts what
    comes out of the store with its old scores, and a run that is to begin anew has a new store. `rl`'s `deadline` for a batch
    is to hold five times `seconds` and the pauses between: then a hung attempt is lost and not the run.
    """
    if not tasks:
        raise InputError("there are no tasks to attempt")
    if max_lag < 0:
        raise InputError(f"max_lag counts versions: 0 or more, not {max_lag}")
    if min(groups, size, 1 if slots is None else slots) < 1:
        raise InputError(f"groups, size and slots are at least 1, not {groups}, {size}, {slots}")
    if branches < 0 or branches == 1:
        raise InputError(f"branches are compared with each other: 2 or more, or 0 for none, not {branches}")
    asked = partial(chosen, tasks, groups, rank)
    most = slots or max(1, size * len(rank.share(range(groups))))
    attempts = Attempts(harness, engine, size, seed, sampling, Slots(most), seconds, branches)
    coming = first
    if store:
        attempts.pin(groups, store)
    while store and coming < steps and (kept := _made(attempts, asked, coming, steps, store)) is not None:
        coming += 1
        yield _yielded(kept, size, {"episodes_stored": sum(map(len, kept[0]))})
    flying: deque[Flight] = deque()
    try:
        for step in range(coming, steps):
            while coming < min(steps, step + max_lag + 1):
                flying.append(attempts.begin(coming, asked(coming), scorer(coming)))
                coming += 1
            await _land(flying, max_lag)
            yield _landed(flying.popleft(), size, store)
    finally:
        await _cancel(flying)


def _made(attempts: Attempts, asked: Callable[[int], list[Task]], step: int, steps: int, store: Store):
    """What the store has of a step that this run has made before, or None. One whose attempts were all overtaken left nothing,
    and is told by the next: that one was whole by then."""
    kept = attempts.kept(step, asked(step), store)
    if any(kept[0]) or (step + 1 < steps and any(attempts.kept(step + 1, asked(step + 1), store)[0])):
        return kept
    return None


def chosen(tasks: Sequence[Task], groups: int, rank: Rank, step: int) -> list[Task]:
    """This rank's tasks of a step: by rule, so that ranks yield equally often and in one order. InputError for one that comes
    twice: its attempts would be the same attempts; and where there is none."""
    if not tasks:
        raise InputError("there are no tasks to attempt: ask for more of them")
    chosen = [tasks[(step * groups + number) % len(tasks)] for number in range(groups)]
    if len({task.id for task in chosen}) < groups:
        raise InputError(
            f"step {step} would attempt a task twice: {groups} groups a step need as many tasks in a row that differ, "
            f"and there are {len({task.id for task in tasks})}: fewer groups, or more tasks"
        )
    return rank.share(chosen)


async def _land(flying: Sequence[Flight], max_lag: int) -> None:
    """Wait for all attempts of the first flight, or until as many whole flights as the budget allows wait behind it: then
    everything but its last attempts stands still, and they are overtaken."""
    first, *behind = flying
    others = [attempt for flight in behind for attempt in flight.attempts]
    if not first.attempts:
        return
    whole = asyncio.ensure_future(asyncio.wait(first.attempts))
    rest = asyncio.ensure_future(asyncio.wait(others)) if max_lag and len(behind) == max_lag and others else whole
    try:
        await asyncio.wait({whole, rest}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        whole.cancel()
        rest.cancel()
    if not all(attempt.done() for attempt in first.attempts):
        first.overtake()
        await asyncio.wait(first.attempts)


def _landed(flight: Flight, size: int, store: Store | None):
    """A flight's groups, kept in the store, with its numbers."""
    found = flight.landed()
    numbers = {"episodes_rerun": flight.reruns, "episodes_overtaken": flight.overtaken}
    seconds = asyncio.get_running_loop().time() - flight.began
    made = _yielded(found, size, numbers | {"rollout_seconds": seconds})  # refuses a reward that is none, before it is kept
    if store:
        every = [scored for parts in found for part in parts for scored in part]
        episodes, scores = [episode for episode, _ in every], [scores for _, scores in every]
        store.write(episodes, opinions(episodes, scores, flight.scorer))
    return made


def _yielded(found: Found, size: int, numbers: dict[str, float]):
    """Groups in the order of tasks, each with those of its branches behind it (so that ranks in their order have the order of
    one process), and the means; what was asked for and did not come is counted as lost."""
    tried, branched = found
    if taken := sorted({name for part in tried for _, given in part for name in given} & _OURS):
        raise _taken(taken)
    left = {part[0][0].parent: part for part in branched}
    parts = [each for part in tried if part for each in (part, *(left[e.id] for e, _ in part if e.id in left))]
    groups = [Group(p[0][0].task.id, [e for e, _ in p], [s["reward"] for _, s in p]) for p in parts]
    scores = [_calls(episode) | found for part in tried for episode, found in part]
    lost = len(tried) * size - len(scores) - numbers.get("episodes_overtaken", 0)
    return groups, _apart(means(scores), {**numbers, "episodes_lost": lost})


def _calls(episode: Episode) -> dict[str, float]:
    """How many calls an episode made, and how many ended in an error: else nobody would see that a tool has a bug."""
    calls = [call for thread in episode.threads for call in thread.calls]
    return {"calls": float(len(calls)), "calls_failed": float(sum(bool(call.error) for call in calls))}


def _apart(scores: dict[str, float], numbers: dict[str, float]) -> dict[str, float]:
    """Both. InputError for a score that has the name of one of our numbers: one of the two would not be seen."""
    if taken := sorted((scores.keys() & numbers.keys()) - {"reward"}):
        raise _taken(taken)
    return numbers | scores  # the learner's reward is of branches too


def _taken(names: Iterable[str]) -> InputError:
    return InputError(f"a scorer gives {', '.join(map(repr, names))}, which a step counts itself: give it another name")


async def _cancel(flying: Sequence[Flight]) -> None:
    """Nothing goes on behind the back of who left the loop."""
    attempts = [attempt for flight in flying for attempt in flight.attempts]
    for attempt in attempts:
        attempt.cancel()
    await asyncio.gather(*attempts, return_exceptions=True)


async def rl(
    source: Source,
    learner: Learner,
    engine: weights.Receiver,
    probe: Sequence[int],
    *,
    first: int = 0,
    rank: Rank = Rank(),
    max_lag: int = 0,
    publish: Publish = weights.publish,
    deadline: float = 3600.0,
    publish_seconds: float = 300.0,
) -> AsyncIterator[Event]:
    """Learn from each batch of the source, publish, and say what happened. With the source at lag 0 the next batch is
    sampled from the weights that this one made.

    An episode with a token more than `max_lag` versions older than the learner, or newer, is dropped and counted. A
    publication that does not arrive (a time-out, a lost connection, a torn object) is counted, the policy goes on with its
    old weights and tokens say so, and the next one makes up for it. No wait is longer than `deadline` seconds: then
    TriviumError, as when nothing fresh arrives for STALE steps. First of all the engine is given the learner's weights, which
    may come from a checkpoint; by a `publish` of one's own only where its version is another one. Raises InputError where
    engine and learner share a network, where rewards differ and none of the episodes is by a policy that the learner learns
    from, and for a score that has the name of one of a step's own numbers.
    """
    if getattr(engine, "network", engine) is learner.network:
        raise InputError("the engine speaks with the learner's own network, so no version would be one: load it twice")
    step, stale, why, now = first, 0, "", asyncio.get_running_loop().time
    try:
        if publish is weights.publish:  # here it costs a moment, and equal numbers promise no equal weights
            publish(learner.network, learner.version, engine, probe)
        elif getattr(engine, "version", learner.version) != learner.version:
            _, why = await _publish(publish, learner, learner.version, engine, probe, publish_seconds)
        while True:
            asked = now()
            batch = await _next(source, deadline, step, why)
            if batch is None:
                return
            groups, scores = batch
            began, attempted = now(), attempts_in(groups)
            groups, dropped = fresh(groups, learner.version, max_lag, learner.policies)
            stale = stale + 1 if dropped and not groups else 0
            if stale > STALE:
                raise TriviumError(
                    f"nothing fresh in {stale} steps: the policy does not get new weights ({why or 'unknown why'})"
                )
            done = await in_time(learner.step(Batch(groups)), deadline, f"the learner's step {step}")
            if done.metrics["groups"] > done.metrics["groups_dropped"] and not done.metrics["episodes"]:  # of all ranks
                await _refuse_strangers(rank, learner, groups)
            published, why = await _publish(publish, learner, done.version, engine, probe, publish_seconds)
            seconds = {"learn_seconds": now() - began, "wait_seconds": began - asked}
            scores = await _together(rank, {**scores, "episodes_dropped": dropped, **published}, attempted)
            step += 1
            yield Event("rl", step, _apart(scores, {**done.metrics, **seconds}))
    finally:
        if hasattr(source, "aclose"):
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
    spoke = {thread.policy for episode in episodes for thread in episode.threads}
    if not any(await asyncio.to_thread(rank.gather, bool(spoke & learner.policies))):
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


async def _together(rank: Rank, scores: dict[str, float], episodes: int) -> dict[str, float]:
    """Off the event loop where it waits for others, so that this rank's episodes go on."""
    if rank.size == 1:
        return together(rank, scores, episodes)
    return await asyncio.to_thread(together, rank, scores, episodes)


def means(scores: Sequence[dict[str, float]], weights: Sequence[int] = ()) -> dict[str, float]:
    """The mean of each named score over the episodes (or ranks, with `weights`) that have it; NaN is to have none."""
    known: dict[str, list[tuple[float, int]]] = {}
    for found, weight in zip(scores, weights or [1] * len(scores), strict=True):
        for name, value in found.items():
            if value == value:
                known.setdefault(name, []).append((value, weight))
    return {name: float(np.average([v for v, _ in known[name]], weights=[w for _, w in known[name]])) for name in sorted(known)}


def together(rank: Rank, scores: dict[str, float], episodes: int) -> dict[str, float]:
    """Every rank's means as one, each rank counting as its number of episodes (at least one), and counts summed."""
    said = rank.gather((scores, max(1, episodes)))
    every = [scores for scores, _ in said]
    counted = {name: float(sum(found[name] for found in every if name in found)) for name in COUNTS}
    gaps = [found["publish_gap"] for found in every if "publish_gap" in found]
    return {**means(every, [episodes for _, episodes in said]), **counted, **({"publish_gap": max(gaps)} if gaps else {})}
