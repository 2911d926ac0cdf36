"""One policy over several runs that differ in their seed, as one result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan

from trivium.errors import InputError
from trivium.eval.paired import Interval, mean, mean_interval, ratio_interval
from trivium.eval.suite import Result

Values = dict[str, float]  # task -> value


@dataclass(frozen=True, slots=True)
class Pool:
    """Results of one policy, one per run. Each task counts once: what several runs say of it is averaged first.

    In generated worlds every run has held-out tasks of its own, so they pool as independent tasks; questions that all runs
    share are not counted as if each run had brought others. The intervals are over tasks; `by_run` shows the runs' spread.
    """

    results: tuple[Result, ...]

    def values(self, name: str) -> list[float]:
        """One value per task, NaN where the score does not apply."""
        return list(_merge([result.values(name) for result in self.results]).values())

    def interval(self, name: str) -> Interval:
        return mean_interval(self.values(name))

    def minus(self, other: Pool, name: str) -> Interval:
        """Paired: the mean difference over all tasks, each run against its own partner in `other`."""
        return mean_interval(list(_merge(self._differences(other, name)).values()))

    def by_run(self, other: Pool, name: str) -> list[Interval]:
        """The same for each run alone."""
        return [mean_interval(list(each.values())) for each in self._differences(other, name)]

    def over(self, other: Pool, name: str) -> Interval:
        """This policy's mean as a multiple of the other's, on the same tasks: in each run those that both have a score of."""
        runs = self._paired(other, name)
        pairs = [{task: both for task, both in pair.items() if not any(map(isnan, both))} for pair in runs]
        above = _merge([{task: a for task, (a, _) in pair.items()} for pair in pairs])
        below = _merge([{task: b for task, (_, b) in pair.items()} for pair in pairs])
        return ratio_interval(list(above.values()), list(below.values()))

    def where(self, test: Callable[[str], bool]) -> Pool:
        """The same on some of the tasks only."""
        return Pool(tuple(_only(result, test) for result in self.results))

    def _differences(self, other: Pool, name: str) -> list[Values]:
        return [{task: a - b for task, (a, b) in pair.items()} for pair in self._paired(other, name)]

    def _paired(self, other: Pool, name: str) -> list[dict[str, tuple[float, float]]]:
        if len(self.results) != len(other.results):
            raise InputError(f"{len(self.results)} runs cannot be paired with {len(other.results)}")
        return [ours.paired(theirs, name) for ours, theirs in zip(self.results, other.results, strict=True)]


def _merge(runs: Sequence[Values]) -> Values:
    """Each task's mean over the runs that know it."""
    values_of: dict[str, list[float]] = {}
    for values in runs:
        for task, value in values.items():
            values_of.setdefault(task, []).append(value)
    return {task: mean(values) for task, values in values_of.items()}


def _only(result: Result, test: Callable[[str], bool]) -> Result:
    places = [place for place, task in enumerate(result.tasks) if test(task)]
    scores = {name: [values[place] for place in places] for name, values in result.scores.items()}
    return Result(result.policy, [result.tasks[place] for place in places], scores, result.sampling)
