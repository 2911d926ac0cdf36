"""The source of a loop over rollouts: each step's tasks attempted, scored, stored, and handed over as groups."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from trivium.errors import InputError
from trivium.fleet import Rank
from trivium.harness import Harness
from trivium.loops.attempts import Attempts, Flight, Outcome, Slots, Tries, judge
from trivium.loops.plan import Pace, Plan
from trivium.policy import Policy
from trivium.reward import AnyScorer, opinions, refuse_unscored
from trivium.trace import Episode, Score, Store, Task
from trivium.train import Group

COUNTS = (
    "episodes_stored", "episodes_rerun", "episodes_timed_out", "episodes_overtaken", "episodes_lost", "episodes_unscored",
    "episodes_dropped", "publish_failed",
)  # fmt: skip
"""Numbers of a step that are summed over ranks; all others are means, but for the largest `publish_gap`."""

_OURS = {*COUNTS, "publish_gap", "calls", "calls_failed", "rollout_seconds", "learn_seconds", "wait_seconds", "cpu_seconds"}
"""What a step says of itself, in every run or in some."""

Scores = dict[str, float]
Batches = AsyncIterator[tuple[list[Group], Scores]]
"""A step's groups, and the means of their scores."""


@dataclass(slots=True)
class Source:
    """What `rl` learns from: scored groups, step after step, and what it has to know of them.

    `batches` may be anybody's async iterator. `first` is the number of its first step, `rank` the process whose share it
    gives, `max_lag` how many versions old its tokens may be (older ones are dropped). `dataclasses.replace(source,
    batches=...)` puts an iterator of one's own around another source's.
    """

    batches: Batches
    first: int = 0
    rank: Rank = Rank()
    max_lag: int = 0

    def __aiter__(self) -> Source:
        return self

    async def __anext__(self) -> tuple[list[Group], Scores]:
        return await anext(self.batches)

    async def aclose(self) -> None:
        """End the iterator, where it can be ended."""
        if close := getattr(self.batches, "aclose", None):
            await close()


def rollouts(
    harness: Harness,
    tasks: Sequence[Task],
    policy: Policy,
    scorer: Callable[[int], AnyScorer],
    plan: Plan,
    *,
    pace: Pace = Pace(),
    store: Store | None = None,
    rank: Rank = Rank(),
) -> Source:
    """The source: for each step of the plan this rank's share of its tasks, attempted, scored and stored, with their mean
    scores. Tasks are taken in order, around and around.

    `scorer` gives the scorer of a step (a reward may anneal). Ids and random streams follow from (seed, step, task,
    sample), so a resumed run repeats itself; a step that `store` has already is learned from again, not attempted again.

    With `plan.branches`, so many more last turns of each attempt that finished are drawn, from the view in which its own was.
    They are a group of their own: compared with each other alone they tell what a last turn was worth, whatever came before
    it. They are in no mean.

    When step n is asked for, steps up to n + `pace.max_lag` begin: their oldest tokens are of the version that is published
    then, so at most `max_lag` versions old when they are learned from. At most `pace.slots` episodes of this rank are under
    way, older steps first. Steps come in order; the slow episodes of the first are overtaken when `max_lag` whole steps wait
    behind them: cancelled and counted. An attempt has `pace.seconds`; one that used them up is scored as far as it came, and
    counted. One whose policy could not speak, or said not a word in its time (a dead engine or server), is begun anew, up to
    three times, and then left out of its group, counted. `rl`'s `deadline` for a batch is to hold five times
    `seconds` and the pauses between: then a hung attempt is lost and not the run.

    Raises InputError at once where there are no tasks, or two of one step are one task. While it is iterated: PolicyError when
    the policy could speak to the end in no attempt of a step, ScorerError where none of a step could be scored (as where a
    scorer gives no number called reward), InputError where `store` has these ids from another run, or steps with other groups,
    size, sampling or harness. **What a scorer says now is not compared with what it said then**: `episodes_stored` counts what
    comes out of the store with its old scores, and a run that is to begin anew has a new store.
    """
    tasks_of = partial(step_tasks, tasks, plan.groups, rank)
    for step in range(plan.first, plan.first + max(1, min(plan.steps - plan.first, len(tasks)))):
        tasks_of(step)
    slots = pace.slots or max(1, plan.size * len(rank.share(range(plan.groups))))
    attempts = Attempts(harness, policy, plan, pace.seconds, Slots(slots))
    return Source(_batches(attempts, tasks_of, scorer, pace.max_lag, store), plan.first, rank, pace.max_lag)


async def _batches(
    attempts: Attempts,
    tasks_of: Callable[[int], list[Task]],
    scorer: Callable[[int], AnyScorer],
    max_lag: int,
    store: Store | None,
) -> Batches:
    """The steps that the store has, then the others: begun ahead as far as `max_lag` allows, handed over in order."""
    plan = attempts.plan
    coming = plan.first
    if store:
        attempts.pin(store)
    while store and coming < plan.steps and (tries := _stored_step(attempts, tasks_of, coming, store)) is not None:
        await _make_up(tries, coming, scorer(coming), store)
        coming += 1
        yield _batch(tries, plan.size, {"episodes_stored": sum(map(len, tries))})
    flying: deque[Flight] = deque()
    try:
        for step in range(coming, plan.steps):
            while coming < min(plan.steps, step + max_lag + 1):
                flying.append(attempts.begin(coming, tasks_of(coming), scorer(coming)))
                coming += 1
            await _land(flying, max_lag)
            yield _hand_over(flying.popleft(), plan.size, store)
    finally:
        await _cancel(flying)


def _stored_step(attempts: Attempts, tasks_of: Callable[[int], list[Task]], step: int, store: Store) -> Tries | None:
    """What the store has of a step that this run has made before, or None. One whose attempts were all overtaken left nothing,
    and is told by the next: that one was whole by then."""
    tries, after = attempts.stored(step, tasks_of(step), store), step + 1
    if any(tries) or (after < attempts.plan.steps and any(attempts.stored(after, tasks_of(after), store))):
        return tries
    return None


async def _make_up(tries: Tries, step: int, scorer: AnyScorer, store: Store) -> None:
    """Score a stored step of which nothing was scored: that ended the run, so nobody has learned from it."""
    attempts = _flat(tries)
    if not attempts or any(each.scores for each in attempts):
        return
    for part in [*tries, *(each.branches for each in attempts)]:
        await judge(part, scorer)
    _refuse_unscored(attempts, step)
    store.score(_opinions(_with_branches(attempts), scorer))


def step_tasks(tasks: Sequence[Task], groups: int, rank: Rank, step: int) -> list[Task]:
    """This rank's tasks of a step: by rule, so that ranks yield equally often and in one order. InputError for one that comes
    twice: its attempts would be the same attempts; and where there is none."""
    if not tasks:
        raise InputError("there are no tasks to attempt: ask for more of them")
    every = [tasks[(step * groups + number) % len(tasks)] for number in range(groups)]
    if len({task.id for task in every}) < groups:
        raise InputError(
            f"step {step} would attempt a task twice: {groups} groups a step need as many tasks in a row that differ, "
            f"and there are {len({task.id for task in tasks})}: fewer groups, or more tasks"
        )
    return rank.share(every)


async def _land(flying: Sequence[Flight], max_lag: int) -> None:
    """Wait for all attempts of the first flight, or until as many whole flights as the budget allows wait behind it: then
    everything but its last attempts stands still, and they are overtaken."""
    first, *behind = flying
    others = [task for flight in behind for task in flight.tasks]
    if not first.tasks:
        return
    whole = asyncio.ensure_future(asyncio.wait(first.tasks))
    rest = asyncio.ensure_future(asyncio.wait(others)) if max_lag and len(behind) == max_lag and others else whole
    try:
        await asyncio.wait({whole, rest}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        whole.cancel()
        rest.cancel()
    if not all(task.done() for task in first.tasks):
        first.overtake()
        await asyncio.wait(first.tasks)


def _hand_over(flight: Flight, size: int, store: Store | None) -> tuple[list[Group], Scores]:
    """A flight's groups, kept in the store, with its numbers. What could not be scored is kept, too."""
    tries = flight.outcomes()
    numbers = {"episodes_rerun": flight.reruns, "episodes_overtaken": flight.overtaken}
    seconds = asyncio.get_running_loop().time() - flight.began
    batch = _batch(tries, size, numbers | {"rollout_seconds": seconds})  # refuses a score's name before anything is kept
    if store:
        every = _with_branches(_flat(tries))
        store.write([each.episode for each in every], _opinions(every, flight.scorer))
    _refuse_unscored(_flat(tries), flight.step)
    return batch


def _batch(tries: Tries, size: int, numbers: dict[str, float]) -> tuple[list[Group], Scores]:
    """Groups in the order of tasks, each with those of its branches behind it (so that ranks in their order have the order of
    one process), and the means; what was asked for and did not come is counted as lost, what stands in no group as unscored."""
    attempts = _flat(tries)
    if clashes := sorted({name for each in attempts for name in each.scores} & _OURS):
        raise _name_clash(clashes)
    parts = [each for part in tries for each in (part, *(attempt.branches for attempt in part))]
    groups = [group for part in parts if (group := _group(part))]
    scores = [_calls(each.episode) | each.scores for each in attempts]
    counts = {
        "episodes_lost": len(tries) * size - len(attempts) - numbers.get("episodes_overtaken", 0),
        "episodes_unscored": sum(not each.scores for each in attempts),
        "episodes_timed_out": sum(_timed_out(each.episode) for each in attempts),
    }
    return groups, apart(means(scores), numbers | counts)


def _timed_out(episode: Episode) -> bool:
    return episode.agent.stop is not None and episode.agent.stop.reason == "timeout"


def _group(part: Sequence[Outcome]) -> Group | None:
    """Those that were scored, as each other's baseline."""
    scored = [each for each in part if each.scores]
    if not scored:
        return None
    return Group(scored[0].episode.task.id, [each.episode for each in scored], [each.scores["reward"] for each in scored])


def _flat(tries: Tries) -> list[Outcome]:
    return [attempt for part in tries for attempt in part]


def _with_branches(attempts: Sequence[Outcome]) -> list[Outcome]:
    return [*attempts, *(branch for attempt in attempts for branch in attempt.branches)]


def _opinions(attempts: Sequence[Outcome], scorer: AnyScorer) -> list[Score]:
    return opinions([each.episode for each in attempts], [each.scores for each in attempts], scorer)


def _refuse_unscored(attempts: Sequence[Outcome], step: int) -> None:
    refuse_unscored([each.episode for each in attempts], [each.verdict for each in attempts], f"step {step}")


def _calls(episode: Episode) -> dict[str, float]:
    """How many calls an episode made, and how many ended in an error: else nobody would see that a tool has a bug."""
    calls = [call for thread in episode.threads for call in thread.calls]
    return {"calls": float(len(calls)), "calls_failed": float(sum(bool(call.error) for call in calls))}


def apart(scores: dict[str, float], numbers: dict[str, float]) -> dict[str, float]:
    """Both. InputError for a score that has the name of one of our numbers: one of the two would not be seen."""
    if clashes := sorted((scores.keys() & numbers.keys()) - {"reward"}):
        raise _name_clash(clashes)
    return numbers | scores  # the learner's reward is of branches too


def _name_clash(names: Iterable[str]) -> InputError:
    return InputError(f"a scorer gives {', '.join(map(repr, names))}, which a step counts itself: give it another name")


async def _cancel(flying: Sequence[Flight]) -> None:
    """Nothing goes on behind the back of who left the loop."""
    tasks = [task for flight in flying for task in flight.tasks]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def means(scores: Sequence[dict[str, float]], weights: Sequence[int] = ()) -> dict[str, float]:
    """The mean of each named score over the episodes (or ranks, with `weights`) that have it; NaN is to have none."""
    values: dict[str, list[tuple[float, int]]] = {}
    for row, weight in zip(scores, weights or [1] * len(scores), strict=True):
        for name, value in row.items():
            if value == value:
                values.setdefault(name, []).append((value, weight))
    return {
        name: float(np.average([v for v, _ in values[name]], weights=[w for _, w in values[name]])) for name in sorted(values)
    }
