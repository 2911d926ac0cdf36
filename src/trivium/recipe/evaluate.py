"""A finished run, or a model that no run trained, on a suite, once: means with 95% intervals, as lines (`trivium eval`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from trivium.errors import InputError, PolicyError
from trivium.eval import Interval, Result, evaluate
from trivium.eval.suite import ScoredEpisode
from trivium.harness import Harness, refuse_gaps, silence
from trivium.policy import Endpoint, Policy
from trivium.recipe.base import Bench, Recipe, Suite
from trivium.recipe.find import opened
from trivium.recipe.outside import Outside, bill
from trivium.recipe.watcher import Watcher, embedding
from trivium.trace import Episode, Sampling, Task

Attempts = Callable[[Harness, str], tuple[Result, list[Episode]]]
"""Attempt the suite in a harness, under the name of a stage."""

AT_ONCE = 8
"""Episodes that a model behind a server lives at once: it has limits of its own."""


def measure(folder: str, suite: Suite, greedy: bool, seed: int, watch: Watcher) -> Iterator[str]:
    """Blocks of lines: the run's scores on `suite`, and what its agent says beside them. InputError for a run without weights,
    or nothing to measure on."""
    from trivium.recipe.memory import fitting_engine
    from trivium.recipe.parts import Parts

    run, recipe = opened(folder)
    parts, comparison = Parts(recipe, run.model()), recipe.comparison()
    recipe.prepare(embedding(watch))
    comparison.check(suite, [recipe], greedy)
    bench = recipe.bench(suite)
    if changed := run.changes(bench.data):
        watch.note(f"{folder} was trained with other {changed[0]} than there are now: these scores are on those of now")
    engine = fitting_engine(run.model(), parts.renderer, parts.window.budget)
    sampling, samples = parts.greedy if greedy else parts.sampling, comparison.attempts(suite)
    exam = _Exam(bench, engine, sampling, samples, seed, watch)
    result, episodes = exam.whole(bench.harness, "evaluate")
    yield _means(result)
    yield from comparison.further_lines(suite, bench, result, episodes, exam.whole)


def measure_outside(
    cls: type[Recipe], outside: Outside, suite: Suite, greedy: bool, seed: int, watch: Watcher
) -> Iterator[str]:
    """The same of a model that no run trained, in the harness of the agent `cls`, and what it cost. Tasks at which it could not
    speak to the end (a cap was reached, its server gone) are left out and counted. Raises as `Outside.open` does, and
    InputError where nothing is left."""
    recipe = outside.recipe(cls)
    comparison = recipe.comparison()
    recipe.prepare(embedding(watch))
    comparison.check(suite, [recipe], greedy)
    bench = recipe.bench(suite)
    policy = outside.open(recipe, bench.harness, AT_ONCE)
    sampling = Sampling(temperature=0.0 if greedy else 1.0, max_tokens=bench.harness.window.reply)
    exam = _Exam(bench, policy, sampling, comparison.attempts(suite), seed, watch)
    attempts, why = exam.within_caps()
    kept = exam.result([part for part in attempts if not _gap(part)])
    episodes = [episode for part in attempts for episode, _ in part]
    why = next(filter(None, map(_gap, attempts)), why)
    if not kept.tasks:
        raise InputError(f"no question was attempted to its end ({why}); {bill(policy, episodes)}")
    if why:
        missing = len(bench.tasks) - len(kept.tasks)
        yield f"{missing} of {len(bench.tasks)} questions are left out, for they were not attempted to their end: {why}"
    yield _means(kept)
    if not why:
        yield from comparison.further_lines(suite, bench, kept, episodes, exam.whole)
    yield bill(policy, episodes)


@dataclass(frozen=True, slots=True)
class _Exam:
    """What a policy is measured on, and how."""

    bench: Bench
    policy: Policy
    sampling: Sampling
    samples: int
    seed: int
    watch: Watcher

    def whole(self, harness: Harness, stage: str) -> tuple[Result, list[Episode]]:
        """Every task attempted to its end. PolicyError or PlaceError where one was not."""
        self.watch.stage(stage, len(self.bench.tasks) * self.samples)
        result, attempts = self._attempt(harness, self.bench.tasks)
        episodes = [episode for episode, _ in attempts]
        refuse_gaps(episodes)
        return result, episodes

    def within_caps(self) -> tuple[list[list[ScoredEpisode]], str]:
        """The attempts at each task that an endpoint's caps do for, and why there are no more of them, "" where all are there.
        PolicyError where the policy could not speak at all."""
        self.watch.stage("evaluate", len(self.bench.tasks) * self.samples)
        attempts: list[list[ScoredEpisode]] = []
        while left := self.bench.tasks[len(attempts) :]:
            if isinstance(self.policy, Endpoint) and self.policy.exhausted:
                return attempts, f"{self.policy.name}: its spending cap is reached"
            try:
                wave = self._attempt(self.bench.harness, left[: self._wave(len(attempts))])[1]
            except PolicyError as error:
                if not attempts:
                    raise
                return attempts, str(error)
            attempts += [wave[at : at + self.samples] for at in range(0, len(wave), self.samples)]
        return attempts, ""

    def _wave(self, done: int) -> int:
        """How many tasks to attempt at once, when so many are done."""
        if not isinstance(self.policy, Endpoint):
            return len(self.bench.tasks)
        return max(1, self.policy.affords(done * self.samples, AT_ONCE) // self.samples)

    def _attempt(self, harness: Harness, tasks: Sequence[Task]) -> tuple[Result, list[ScoredEpisode]]:
        attempting = evaluate(
            harness, tasks, self.policy, self.bench.judge, sampling=self.sampling, samples=self.samples, seed=self.seed,
            progress=self.watch.advance,
        )  # fmt: skip
        return asyncio.run(attempting)

    def result(self, attempts: Sequence[Sequence[ScoredEpisode]]) -> Result:
        """Of the tasks that these are the attempts at."""
        tasks, scores = [part[0][0].task for part in attempts], [[each for _, each in part] for part in attempts]
        return Result.of(self.policy.name, tasks, scores, asdict(self.sampling))


def _gap(attempts: Sequence[ScoredEpisode]) -> str:
    """Why an attempt at a task did not come to its end; "" where all did."""
    return next(filter(None, (silence(episode) for episode, _ in attempts)), "")


def _means(result: Result) -> str:
    unscored = f", {result.episodes_unscored} attempts that could not be scored" if result.episodes_unscored else ""
    return "\n".join([f"{len(result.tasks)} questions{unscored}", *lines(result)])


def lines(result: Result) -> list[str]:
    """A line for each score, by name."""
    return [row(name, result.interval(name)) for name in sorted(result.scores)]


def row(name: str, interval: Interval) -> str:
    """A score with its mean and its interval."""
    return f"{name:20} {interval.mean:8.3f}   [{interval.low:.3f}, {interval.high:.3f}]"
