"""A finished run on a suite, once: means with 95% intervals, as lines of text (`trivium eval`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from trivium.engine import Engine
from trivium.eval import Interval, Result, evaluate
from trivium.harness import Harness, refuse_gaps
from trivium.recipe.base import Suite
from trivium.recipe.find import opened
from trivium.recipe.parts import Parts
from trivium.recipe.watcher import Watcher, embedding
from trivium.trace import Episode

Attempts = Callable[[Harness, str], tuple[Result, list[Episode]]]
"""Attempt the suite in a harness, under the name of a stage."""


def measure(folder: str, suite: Suite, greedy: bool, seed: int, watch: Watcher) -> Iterator[str]:
    """Blocks of lines: the run's scores on `suite`, and what its agent says beside them. InputError for a run without weights,
    or nothing to measure on."""
    run, recipe = opened(folder)
    parts, comparison = Parts(recipe, run.model()), recipe.comparison()
    recipe.prepare(embedding(watch))
    sampling = parts.greedy if greedy else parts.sampling
    comparison.check(suite, [recipe], greedy)
    bench = recipe.bench(suite)
    if changed := run.changes(bench.data):
        watch.note(f"{folder} was trained with other {changed[0]} than there are now: these scores are on those of now")
    engine = Engine(run.model(), renderer=parts.renderer, context=parts.window.budget)
    samples = comparison.attempts(suite)

    def attempt(harness: Harness, stage: str) -> tuple[Result, list[Episode]]:
        watch.stage(stage, len(bench.tasks) * samples)
        attempting = evaluate(
            harness, bench.tasks, engine, bench.judge, sampling=sampling, samples=samples, seed=seed, progress=watch.advance
        )
        result, attempts = asyncio.run(attempting)
        episodes = [episode for episode, _ in attempts]
        refuse_gaps(episodes)
        return result, episodes

    result, episodes = attempt(bench.harness, "evaluate")
    unscored = f", {result.episodes_unscored} attempts that could not be scored" if result.episodes_unscored else ""
    yield "\n".join([f"{len(result.tasks)} questions{unscored}", *lines(result)])
    yield from comparison.further_lines(suite, bench, result, episodes, attempt)


def lines(result: Result) -> list[str]:
    """A line for each score, by name."""
    return [row(name, result.interval(name)) for name in sorted(result.scores)]


def row(name: str, interval: Interval) -> str:
    """A score with its mean and its interval."""
    return f"{name:20} {interval.mean:8.3f}   [{interval.low:.3f}, {interval.high:.3f}]"
