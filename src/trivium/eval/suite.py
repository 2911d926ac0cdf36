"""A suite: tasks, each attempted once or more, scored, and kept per task so that any two results can be paired."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np

from trivium.errors import InputError
from trivium.eval.paired import Interval, mean, mean_interval
from trivium.harness import Harness, refuse_silence
from trivium.policy import Policy
from trivium.reward import AnyScorer, refuse_unscored, verdicts
from trivium.trace import Episode, Sampling, Task

T = TypeVar("T")


@dataclass(slots=True)
class Result:
    """Scores of one policy on one suite: `scores[name][i]` belongs to `tasks[i]`, NaN where the measure does not apply.
    `episodes_unscored` are attempts that no scorer could judge: they are in no mean. `suite`: the digest of a pinned suite."""

    policy: str
    tasks: list[str]
    scores: dict[str, list[float]]
    sampling: dict = field(default_factory=dict)
    episodes_unscored: int = 0
    suite: str = ""

    @classmethod
    def of(
        cls, policy: str, tasks: Sequence[Task], attempts: Sequence[Sequence[Mapping[str, float]]], sampling: dict | None = None
    ) -> Result:
        """A task's score is the mean of those of its attempts that have it; an attempt without scores is unscored."""
        names = sorted({name for each in attempts for row in each for name in row})
        scores = {name: [mean([row.get(name) for row in each]) for each in attempts] for name in names}
        unscored = sum(not row for each in attempts for row in each)
        return cls(policy, [task.id for task in tasks], scores, sampling or {}, unscored)

    def means(self) -> dict[str, float]:
        """The mean of each score over the tasks that have it, NaN where none has."""
        return {name: mean(values) for name, values in self.scores.items()}

    def interval(self, name: str) -> Interval:
        return mean_interval(self.scores[name])

    def values(self, name: str) -> dict[str, float]:
        """Task -> score, NaN throughout where there is no such score."""
        known = self.scores.get(name) or [None] * len(self.tasks)
        return dict(zip(self.tasks, np.asarray(known, float).tolist(), strict=True))  # None, as JSON has it, is NaN

    def paired(self, other: Result, name: str) -> dict[str, tuple[float, float]]:
        """Task -> this policy's score and the other's. InputError unless both attempted the same tasks of the same suite."""
        _refuse_another([self, other])
        if set(self.tasks) != set(other.tasks):
            raise InputError(f"{self.policy} and {other.policy} were measured on different tasks and cannot be paired")
        theirs = other.values(name)
        return {task: (score, theirs[task]) for task, score in self.values(name).items()}

    def minus(self, other: Result, name: str) -> Interval:
        """Paired: this policy's score less the other's, task by task. Raises as `paired` does."""
        return mean_interval([ours - theirs for ours, theirs in self.paired(other, name).values()])

    @classmethod
    def merge(cls, parts: Sequence[Result]) -> Result:
        """Parts of one suite, attempted apart, as one result in the order of the parts. InputError where two have one task:
        what several runs say of it is for `Pool`. InputError also where a pinned suite changed between two parts."""
        _refuse_another(parts)
        if twins := [task for task, times in Counter(task for part in parts for task in part.tasks).items() if times > 1]:
            raise InputError(f"task {twins[0]} is in two parts of one suite: pool results of several runs with eval.Pool")
        names = sorted({name for part in parts for name in part.scores})
        scores = {name: [v for p in parts for v in p.scores.get(name, [float("nan")] * len(p.tasks))] for name in names}
        tasks, unscored = [task for part in parts for task in part.tasks], sum(part.episodes_unscored for part in parts)
        return cls(parts[0].policy, tasks, scores, parts[0].sampling, unscored, parts[0].suite)


def _refuse_another(results: Sequence[Result]) -> None:
    """InputError for results of pinned suites that are not one."""
    if len({result.suite for result in results}) > 1:
        policies = " and ".join(sorted({result.policy for result in results}))
        raise InputError(f"the suite changed between two results of {policies}: measure both on the suite as it is now")


def refuse_twins(tasks: Sequence[Task]) -> None:
    """InputError for an id that two tasks have: they would be counted twice and paired once."""
    if twins := [id for id, times in Counter(task.id for task in tasks).items() if times > 1]:
        raise InputError(f"{len(twins)} tasks share their id with another, {twins[0]} first: every question needs its own")


ScoredEpisode = tuple[Episode, dict[str, float]]
"""An attempt and its scores; no scores where it is unscored."""


async def evaluate(
    harness: Harness,
    tasks: Sequence[Task],
    policy: Policy,
    scorer: AnyScorer,
    *,
    sampling: Sampling | None = None,
    samples: int = 1,
    seed: int = 0,
    prefix: str = "eval",
    at_once: int = 64,
    progress: Callable[[int], None] | None = None,
) -> tuple[Result, list[ScoredEpisode]]:
    """Attempt every task `samples` times and score it: the result, and every attempt with its scores, task by task.

    A task's scores are means over its attempts, those in which the policy could not speak to the end among them
    (`harness.refuse_gaps` refuses such episodes). A group scorer compares the attempts at one task. An attempt that the scorer
    fails on is unscored: it is counted, and in no mean.

    At most `at_once` episodes live at a time; `progress` hears of each that ended. Raises PolicyError when the policy could
    not speak at all, ScorerError, which holds the episodes, when none could be scored, InputError where nothing is asked, and
    where two tasks have one id. What an attempt itself raises ends the others.
    """
    if not tasks or samples < 1 or at_once < 1:
        raise InputError(f"there is nothing to evaluate: {len(tasks)} tasks, {samples} samples, {at_once} at once")
    refuse_twins(tasks)
    sampling, gate = sampling or Sampling(), asyncio.Semaphore(at_once)

    async def attempt(task: Task, sample: int) -> Episode:
        async with gate:
            id = f"{prefix}/{task.id}/{sample}"
            episode = await harness.run(task, policy, sample=sample, seed=seed, id=id, sampling=sampling)
        if progress:
            progress(1)
        return episode

    episodes = await _gather([attempt(task, sample) for task in tasks for sample in range(samples)])
    refuse_silence(episodes)
    results = await verdicts(episodes, scorer)
    refuse_unscored(episodes, results, "the suite")
    scores = [{} if isinstance(verdict, Exception) else verdict for verdict in results]
    attempts = [scores[at : at + samples] for at in range(0, len(scores), samples)]
    return Result.of(policy.name, tasks, attempts, asdict(sampling)), list(zip(episodes, scores, strict=True))


async def _gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of them at once, in order. Where one fails none goes on behind the back of who hears of it."""
    running = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*running))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
