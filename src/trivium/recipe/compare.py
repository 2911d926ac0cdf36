"""How a claim is made: runs of one recipe, or of several, on held-out tasks, against each other.

Every number is [mean, low, high] with a 95% interval over tasks; runs of one recipe that differ in their seed are pooled
(`trivium.eval.Pool`), and each is shown alone beside it. What an agent says beside that is its Comparison's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trivium.errors import InputError
from trivium.eval import Pool, Result
from trivium.loops.run import Event
from trivium.recipe.base import Recipe, Suite
from trivium.recipe.comparison import Comparison
from trivium.recipe.find import opened
from trivium.recipe.measured import Measured, attempt_all
from trivium.viewer.curve import series

APART = ("seed", "workers", "track", "eval_tasks")  # fields in which runs of one recipe may differ
TRAINING = ("reward", "calls", "calls_failed", "entropy", "clipped", "no_signal", "staleness", "episodes_dropped", "grad_norm")
BETWEEN = ("sft", "sft_greedy", "rl", "rl_greedy")
"""Which policies of one recipe are paired with another's."""

Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """Runs of one recipe, and each policy's results over all of them."""

    label: str
    runs: tuple[Measured, ...]
    pools: dict[str, Pool]

    @property
    def comparison(self) -> Comparison:
        return self.runs[0].comparison

    @property
    def policies(self) -> list[str]:
        """Those of its pools that are a policy's, attempt by attempt."""
        return [speaker.name for speaker in self.runs[0].speakers() if speaker.name in self.pools]

    def metrics(self) -> tuple[str, ...]:
        """The scores that there are tables of: those that the agent names, or all."""
        scores = {name for policy in self.policies for result in self.pools[policy].results for name in result.scores}
        return self.comparison.metrics() or tuple(sorted(scores, key=lambda name: (name != "reward", name)))

    def of(self, seeds: Sequence[int]) -> dict[str, Pool]:
        """The pools of the runs with these seeds only, in that order."""
        places = [next(n for n, run in enumerate(self.runs) if run.recipe.seed == seed) for seed in seeds]
        return {name: Pool(tuple(pool.results[place] for place in places)) for name, pool in self.pools.items()}


def compare(folders: Sequence[str], suite: Suite, workers: int, watch: Callable[[], Any]) -> Numbers:
    """Measure what is not measured yet, and say all that the runs say. InputError for runs that cannot be compared."""
    runs = [Measured(folder, suite) for folder in folders]
    groups = _sorted(runs)
    for other in list(groups.values())[1:]:
        _shared(other, groups["A"])
    runs[0].comparison.check(suite, [run.recipe for run in runs])
    _one_set(runs)
    attempt_all(runs, workers, watch)
    results = {run.run.folder: _results(run, watch) for run in runs}
    sides = [Side(label, tuple(group), _pools([results[run.run.folder] for run in group])) for label, group in groups.items()]
    between = {f"{b.label} minus {sides[0].label}": _between(b, sides[0]) for b in sides[1:]}
    return {"recipes": [_side(side) for side in sides], "between": between}


def histories(folders: Sequence[str], suite: Suite) -> dict[str, list[list[Event]]]:
    """What each recipe's runs told while they trained, by the recipe's label. InputError as `compare`."""
    groups = _sorted([Measured(folder, suite) for folder in folders])
    return {label: [run.run.events() for run in group] for label, group in groups.items()}


def _results(run: Measured, watch: Callable[[], Any]) -> dict[str, Result]:
    """Per task: each policy's scores, and what the agent says beside them."""
    speakers, tasks = run.speakers(), run.tasks
    outcomes = {speaker.name: run.known(speaker) for speaker in speakers}
    results = {name: Result.of(name, tasks, [[known[task.id, 0].scores] for task in tasks]) for name, known in outcomes.items()}
    with watch() as watcher:
        watcher.stage(f"{run.name} beside", len(tasks))
        return results | run.comparison.further(run, speakers, outcomes, watcher.advance)


def _sorted(runs: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Runs by recipe, the first run's first. InputError for another agent's, and for one seed twice, no second witness."""
    groups: list[list[Measured]] = []
    for run in runs:
        if type(run.recipe) is not type(runs[0].recipe):
            raise InputError(f"{runs[0].run.folder} and {run.run.folder} are runs of different agents: compare those of one")
        like = next((group for group in groups if _alike(group[0].recipe, run.recipe)), None)
        if like is None:
            groups.append([run])
        elif run.recipe.seed in [other.recipe.seed for other in like]:
            raise InputError(f"{run.run.folder} is another run of seed {run.recipe.seed}: compare runs of different seeds")
        else:
            like.append(run)
    return {_label(number, group[0], groups[0][0]): group for number, group in enumerate(groups)}


def _shared(ours: Sequence[Measured], theirs: Sequence[Measured]) -> list[int]:
    """The seeds that two recipes were both trained with. InputError where there is none."""
    seeds = [run.recipe.seed for run in theirs if run.recipe.seed in [other.recipe.seed for other in ours]]
    if not seeds:
        raise InputError(f"{ours[0].run.folder} and {theirs[0].run.folder} share no seed to be paired on: train both with one")
    return seeds


def _one_set(runs: Sequence[Measured]) -> None:
    """InputError where runs have no tasks in common, or their data are not those any more that a run was begun with."""
    first, *others = runs
    for run in others:
        if (theirs := run.source) != (ours := first.source):
            names = f"{first.run.folder} ({ours}) and {run.run.folder} ({theirs})"
            raise InputError(f"{names} have no questions in common: name a folder to measure both on with --corpus")
    for run in runs:
        if changed := run.run.changes(run.bench.data):
            raise InputError(
                f"{run.run.folder} was begun with other {changed[0]} than {run.source} has now: bring them back, "
                f"or name the folder to measure on with --corpus"
            )


def _alike(one: Recipe, other: Recipe) -> bool:
    """Whether two runs are of one recipe. Arms may share their warm-ups with others: a model that is the warm-up of a run
    of the same seed is alike where those two runs are, though each lies in a folder of its own."""
    ours, theirs = _recipe(one), _recipe(other)
    if ours != theirs and (warm := _warmed(one)) and (other_warm := _warmed(other)):
        ours["model"], theirs["model"] = _recipe(warm), _recipe(other_warm)
    return ours == theirs


def _recipe(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.fields().items() if name not in APART}


def _warmed(recipe: Recipe) -> Recipe | None:
    """The run of the same seed at whose warm-up this one began."""
    folder = Path(recipe.model)
    if folder.name != "model-sft" or not (folder.parent / "recipe.json").is_file():
        return None
    _, other = opened(str(folder.parent))
    return other if other.seed == recipe.seed else None


def _label(number: int, run: Measured, first: Measured) -> str:
    """A, or B with what it does otherwise."""
    letter, ours, theirs = chr(ord("A") + number), _recipe(run.recipe), _recipe(first.recipe)
    other = ", ".join(f"{name} {ours[name]}" for name in ours if ours[name] != theirs[name])
    return f"{letter} ({other})" if other else letter


def _pools(runs: Sequence[dict[str, Result]]) -> dict[str, Pool]:
    """Of what all runs have: one that outlived the model it began with has no base any more."""
    names = [name for name in runs[0] if all(name in results for results in runs)]
    return {name: Pool(tuple(results[name] for results in runs)) for name in names}


# --- what a recipe's runs say


def _side(side: Side) -> Numbers:
    pools, metrics, comparison = side.pools, side.metrics(), side.comparison
    pairs = [(a, b) for a, b in comparison.pairs if a in pools and b in pools]
    return {
        "label": side.label,
        "runs": [run.name for run in side.runs],
        "seeds": [run.recipe.seed for run in side.runs],
        "recipe": side.runs[0].recipe.fields(),
        "tasks": len({task.id for run in side.runs for task in run.tasks}),
        "policies": {name: {metric: list(pools[name].interval(metric)) for metric in metrics} for name in side.policies},
        "paired": {f"{a} minus {b}": paired(pools[a], pools[b], metrics) for a, b in pairs},
        **comparison.sections(side),
        "training": _training(side.runs, comparison.training() or TRAINING),
        "cpu_hours": _cpu_hours(side.runs),
        "per_task": [{name: _by_task(pool.results[n]) for name, pool in pools.items()} for n in range(len(side.runs))],
    }


def _by_task(result: Result) -> Numbers:
    return {"tasks": result.tasks, **result.scores}


def paired(after: Pool, before: Pool, metrics: Sequence[str]) -> Numbers:
    """Each metric's paired difference over all tasks, for each run alone, and how far the runs lie apart."""
    numbers: Numbers = {}
    for metric in metrics:
        runs = after.by_run(before, metric)
        means = [run.mean for run in runs]
        spread = float(np.std(means, ddof=1)) if len(means) > 1 else float("nan")
        numbers[metric] = {"all": list(after.minus(before, metric)), "by_run": [list(run) for run in runs], "sd": spread}
    return numbers


def _training(runs: Sequence[Measured], names: Sequence[str]) -> Numbers:
    """How RL went: of each metric the mean over the first eighth of the steps, the last and all, averaged over the runs, and
    the most of any one step. Metrics that no run tells of are left out."""
    events = [run.run.events() for run in runs]
    numbers: Numbers = {}
    for name in names:
        curves = [values for each in events if len(values := series(each, "rl", name)[1])]
        if curves:
            pairs = [(values, max(1, len(values) // 8)) for values in curves]
            numbers[name] = {
                "first": statistics.mean(float(values[:n].mean()) for values, n in pairs),
                "last": statistics.mean(float(values[-n:].mean()) for values, n in pairs),
                "mean": statistics.mean(float(values.mean()) for values in curves),
                "most": max(float(values.max()) for values in curves),
            }
    return numbers


def _cpu_hours(runs: Sequence[Measured]) -> Numbers:
    """What the steps of a run took on all its processes together, averaged over the runs: of those stages that told it."""
    hours: Numbers = {}
    for kind in ("sft", "rl"):
        spent = [seconds for run in runs if len(seconds := series(run.run.events(), kind, "cpu_seconds")[1])]
        if spent:
            hours[kind] = statistics.mean(float(seconds.sum()) for seconds in spent) / 3600
    return hours


def _between(ours: Side, first: Side) -> Numbers:
    """One recipe less another, paired on the tasks of the seeds that both were trained with."""
    seeds = _shared(ours.runs, first.runs)
    mine, theirs = ours.of(seeds), first.of(seeds)
    names, metrics = [name for name in BETWEEN if name in mine and name in theirs], first.metrics()
    return {"seeds": seeds, **{name: paired(mine[name], theirs[name], metrics) for name in names}}
