"""How a claim is made: runs of one recipe, or of several, on held-out tasks, against each other and against plain search.

Every number is [mean, low, high] with a 95% interval over tasks; runs of one recipe that differ in their seed are pooled
(`trivium.eval.Pool`), and each is shown alone beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trivium.agents.search.baselines import SEARCHES, Found, fused, judged
from trivium.agents.search.measured import Attempt, Measured, Speaker, Suite, attempt_all, speakers
from trivium.agents.search.pruning import prune_report
from trivium.agents.search.recipe import Search
from trivium.errors import InputError
from trivium.eval import Pool, Result, mean_length
from trivium.harness import Window
from trivium.loops import Run
from trivium.loops.run import Event
from trivium.trace import Task
from trivium.viewer.curve import series

METRICS = (
    "f1", "output_recall", "trajectory_recall", "answer_found", "precision", "returned", "format_valid", "finished", "reward",
    "prune_rate", "prune_accuracy", "turns", "calls_per_turn", "searches", "spent",
)  # fmt: skip
RANKED = ("f1", "output_recall", "answer_found", "precision")
"""What can be said of a ranking, whoever made it."""
GAINS = ("output_recall", "f1", "answer_found")
EFFORT = ("searches", "reads", "turns", "calls_per_turn", "prune_rate", "output_recall")
PRUNING = (
    "prune_rate", "prunes", "prune_streak", "prune_dropped", "prune_wrong", "prune_random", "past_soft", "pruned_fitting",
)  # fmt: skip
TRAINING = (
    "reward", "format_valid", "prune_rate", "past_soft", "searches", "calls_per_turn", "turns", "returned", "entropy",
    "clipped", "no_signal", "staleness", "episodes_dropped", "grad_norm",
)  # fmt: skip
"""What "rl" events tell of how training went."""
LEARNED = (("rl", "sft"), ("rl_greedy", "sft_greedy"), ("rl", "base"), ("rl_greedy", "base_greedy"))
"""What RL is measured against: the warm-up, and the model before any training."""
PAIRS = (*LEARNED, ("rl", "rl_no_prune"), ("rl_greedy", "rl_greedy_no_prune"))
AGENTS = ("rl", "rl_greedy")  # whose number of returned documents plain search is given
APART = ("seed", "workers", "track", "eval_tasks")  # fields in which runs of one recipe may differ

Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """Runs of one recipe, and each policy's results over all of them."""

    label: str
    runs: tuple[Measured, ...]
    pools: dict[str, Pool]

    def of(self, seeds: Sequence[int]) -> dict[str, Pool]:
        """The pools of the runs with these seeds only, in that order."""
        places = [next(n for n, run in enumerate(self.runs) if run.recipe.seed == seed) for seed in seeds]
        return {name: Pool(tuple(pool.results[place] for place in places)) for name, pool in self.pools.items()}


def compare(
    folders: Sequence[str], suite: Suite, rollouts: int, no_prune: bool, workers: int, watch: Callable[[], Any]
) -> Numbers:
    """Measure what is not measured yet, and say all that the runs say. InputError for runs that cannot be compared."""
    runs = [Measured(folder, suite) for folder in folders]
    sides = _sorted(runs)
    for other in list(sides.values())[1:]:
        _shared(other, sides["A"])
    if not suite.corpus:
        _one_set(runs)
    if no_prune and all(run.recipe.without == "pruning" for run in runs):
        raise InputError("all of these were trained --without pruning: there is nothing that --no-prune could refuse")
    wanted = speakers(rollouts, no_prune)
    attempt_all(runs, wanted, workers, watch)
    found = {run.run.folder: results(run, run.speakers(wanted), _plain(run, watch)) for run in runs}
    made = [Side(label, tuple(group), _pools([found[run.run.folder] for run in group])) for label, group in sides.items()]
    between = {f"{b.label} minus {made[0].label}": _between(b, made[0]) for b in made[1:]}
    return {"recipes": [_side(side) for side in made], "between": between}


def histories(folders: Sequence[str]) -> dict[str, list[list[Event]]]:
    """What each recipe's runs told while they trained, by the recipe's label. InputError as `compare`."""
    sides = _sorted([Measured(folder, Suite()) for folder in folders])
    return {label: [run.run.events() for run in group] for label, group in sides.items()}


def _sorted(runs: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Runs by recipe, the first run's first. InputError for one seed twice, which is no second witness."""
    groups: list[list[Measured]] = []
    for run in runs:
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
    """InputError where runs have no questions in common, or documents are not those any more that a run was begun with."""
    first, *others = runs
    for run in others:
        if run.recipe.corpus != first.recipe.corpus:
            told = " and ".join(f"{each.run.folder} ({each.recipe.corpus or 'generated worlds'})" for each in (first, run))
            raise InputError(f"{told} have no questions in common: name a folder to measure both on with --corpus")
    digests: dict[Window, str] = {}  # of the passages, as a window's size cuts them
    for run in filter(lambda run: run.real, runs):
        window = run.parts.window
        if window not in digests:
            digests[window] = run.parts.corpus.digest
        if run.run.changed({"documents": digests[window]}):
            raise InputError(
                f"{run.run.folder} was begun with other documents than {run.recipe.corpus} has now: bring them back, "
                f"or name the folder to measure on with --corpus"
            )


def _alike(one: Search, other: Search) -> bool:
    """Whether two runs are of one recipe. Arms may share their warm-ups with others: a model that is the warm-up of a run
    of the same seed is alike where those two runs are, though each lies in a folder of its own."""
    ours, theirs = _recipe(one), _recipe(other)
    if ours != theirs and (warm := (_warmed(one), _warmed(other))) and all(warm):
        ours["model"], theirs["model"] = map(_recipe, warm)
    return ours == theirs


def _recipe(recipe: Search) -> dict[str, Any]:
    return {name: value for name, value in recipe.fields().items() if name not in APART}


def _warmed(recipe: Search) -> Search | None:
    """The run of the same seed at whose warm-up this one began."""
    folder = Path(recipe.model)
    if folder.name != "model-sft" or not (folder.parent / "recipe.json").is_file():
        return None
    other = Search.of(Run.open(folder.parent).recipe(), str(folder.parent))
    return other if other.seed == recipe.seed else None


def _label(number: int, run: Measured, first: Measured) -> str:
    """A, or B with what it does otherwise."""
    letter, ours, theirs = chr(ord("A") + number), _recipe(run.recipe), _recipe(first.recipe)
    other = ", ".join(f"{name} {ours[name]}" for name in ours if ours[name] != theirs[name])
    return f"{letter} ({other})" if other else letter


def _pools(found: Sequence[dict[str, Result]]) -> dict[str, Pool]:
    return {name: Pool(tuple(results[name] for results in found)) for name in found[0]}


def _plain(run: Measured, watch: Callable[[], Any]) -> dict[str, dict[str, list[Found]]]:
    with watch() as watcher:
        watcher.stage(f"{run.name} plain search", len(run.tasks))
        return run.plain(watcher.advance)


# --- one run's results


def results(run: Measured, wanted: Sequence[Speaker], plain: dict[str, dict[str, list[Found]]]) -> dict[str, Result]:
    """Per task: each policy's scores; each plain search cut to as many documents as an agent returned there, and at least
    one (`bm25@rl`); where there were several rollouts, their fused ranking, cut and whole, and their mean (`rl_fused`,
    `rl_uncut`, `rl_each`)."""
    known = {speaker.name: run.known(speaker) for speaker in wanted}
    tasks = run.tasks
    made = {name: Result.of(name, tasks, [[found[task.id, 0].scores] for task in tasks]) for name, found in known.items()}
    for agent in AGENTS:
        lengths = {task.id: max(1, len(known[agent][task.id, 0].returned)) for task in tasks}
        for search in SEARCHES:
            cut = [[judged(task, plain[task.id][search][: lengths[task.id]])] for task in tasks]
            made[f"{search}@{agent}"] = Result.of(f"{search}@{agent}", tasks, cut)
    for speaker in (speaker for speaker in wanted if speaker.attempts > 1):
        made |= _rollouts(tasks, speaker, known[speaker.name])
    return made


def _rollouts(tasks: Sequence[Task], speaker: Speaker, known: dict[tuple[str, int], Attempt]) -> dict[str, Result]:
    """All rollouts of a task as one answer, of the mean length and of all that any of them returned, at the cost of all; and
    the mean of what each is alone."""
    together, uncut, alone = [], [], []
    for task in tasks:
        each = [known[task.id, sample] for sample in range(speaker.attempts)]
        rankings = [attempt.returned for attempt in each]
        cost = {name: sum(attempt.scores[name] for attempt in each) for name in ("spent", "searches")}
        whole = fused(rankings)
        together.append([judged(task, whole[: mean_length(rankings)]) | cost])
        uncut.append([judged(task, whole) | cost])
        alone.append([{name: attempt.scores[name] for name in (*RANKED, "returned", *cost)} for attempt in each])
    made = {f"{speaker.name}_fused": together, f"{speaker.name}_uncut": uncut, f"{speaker.name}_each": alone}
    return {name: Result.of(name, tasks, attempts) for name, attempts in made.items()}


# --- what a recipe's runs say


def _side(side: Side) -> Numbers:
    pools = side.pools
    policies = [name for name in pools if "@" not in name and not name.endswith(("_fused", "_uncut", "_each"))]
    return {
        "label": side.label,
        "runs": [run.name for run in side.runs],
        "seeds": [run.recipe.seed for run in side.runs],
        "recipe": side.runs[0].recipe.fields(),
        "tasks": len({task.id for run in side.runs for task in run.tasks}),
        "policies": {name: {metric: list(pools[name].interval(metric)) for metric in METRICS} for name in policies},
        "paired": {f"{a} minus {b}": _paired(pools[a], pools[b], METRICS) for a, b in PAIRS if a in pools and b in pools},
        "gains": {f"{a} over {b}": {m: list(pools[a].over(pools[b], m)) for m in GAINS} for a, b in LEARNED},
        "plain": {agent: _against(pools, agent) for agent in AGENTS},
        "rollouts": _fusion(pools),
        "pruning": {name: _pruning(pools[name]) for name in policies if not name.startswith("base")},
        "hops": {name: _by_hops(side, pools[name]) for name in policies if not name.startswith("base")},
        "training": _training(side.runs),
        "cpu_hours": _cpu_hours(side.runs),
        "per_task": [{name: _kept(pool.results[n]) for name, pool in pools.items()} for n in range(len(side.runs))],
    }


def _paired(after: Pool, before: Pool, metrics: Sequence[str]) -> Numbers:
    """Each metric's paired difference over all tasks, for each run alone, and how far the runs lie apart."""
    found: Numbers = {}
    for metric in metrics:
        runs = after.by_run(before, metric)
        means = [run.mean for run in runs]
        spread = float(np.std(means, ddof=1)) if len(means) > 1 else float("nan")
        found[metric] = {"all": list(after.minus(before, metric)), "by_run": [list(run) for run in runs], "sd": spread}
    return found


def _against(pools: dict[str, Pool], agent: str) -> Numbers:
    """Each plain search at the agent's number of documents, and the agent less it."""
    return {
        search: {
            "scores": {metric: list(pools[f"{search}@{agent}"].interval(metric)) for metric in RANKED},
            "agent minus": _paired(pools[agent], pools[f"{search}@{agent}"], RANKED),
        }
        for search in SEARCHES
    }


def _fusion(pools: dict[str, Pool]) -> Numbers:
    if "rl_fused" not in pools:
        return {}
    measures = (*RANKED, "returned", "spent", "searches")
    names = ("rl_fused", "rl_uncut", "rl_each")
    sides = {name: {metric: list(pools[name].interval(metric)) for metric in measures} for name in names}
    pairs = [(a, b) for b in ("rl_each", "rl_greedy") for a in ("rl_fused", "rl_uncut")]
    return {**sides, **{f"{a} minus {b}": _paired(pools[a], pools[b], measures) for a, b in pairs}}


def _pruning(pool: Pool) -> dict[str, list[float]]:
    return {name: list(interval) for name, interval in prune_report({n: pool.values(n) for n in PRUNING}).items()}


def _training(runs: Sequence[Measured]) -> Numbers:
    """How RL went: of each metric the mean over the first eighth of the steps, the last and all, averaged over the runs, and
    the most of any one step. Metrics that no run tells of are left out."""
    events = [run.run.events() for run in runs]
    found: Numbers = {}
    for name in TRAINING:
        told = [values for each in events if len(values := series(each, "rl", name)[1])]
        if told:
            pairs = [(values, max(1, len(values) // 8)) for values in told]
            found[name] = {
                "first": statistics.mean(float(values[:n].mean()) for values, n in pairs),
                "last": statistics.mean(float(values[-n:].mean()) for values, n in pairs),
                "mean": statistics.mean(float(values.mean()) for values in told),
                "most": max(float(values.max()) for values in told),
            }
    return found


def _cpu_hours(runs: Sequence[Measured]) -> Numbers:
    """What the steps of a run took on all its processes together, averaged over the runs: of those stages that told it."""
    found: Numbers = {}
    for kind in ("sft", "rl"):
        told = [seconds for run in runs if len(seconds := series(run.run.events(), kind, "cpu_seconds")[1])]
        if told:
            found[kind] = statistics.mean(float(seconds.sum()) for seconds in told) / 3600
    return found


def _by_hops(side: Side, pool: Pool) -> Numbers:
    """Effort by the hops of the task, of which the agent is told nothing."""
    hops = {task.id: task.truth.get("hops", 1) for run in side.runs for task in run.tasks}
    found: Numbers = {}
    for count in sorted(set(hops.values())):
        part = pool.where(lambda task, count=count: hops[task] == count)
        tasks = sum(each == count for each in hops.values())
        found[str(count)] = {"tasks": tasks, **{metric: list(part.interval(metric)) for metric in EFFORT}}
    return found


def _kept(result: Result) -> Numbers:
    """Per-task scores as a file holds them: four digits."""
    wanted = [name for name in dict.fromkeys((*METRICS, *EFFORT, *PRUNING)) if name in result.scores]
    return {"tasks": result.tasks, **{name: [round(value, 4) for value in result.scores[name]] for name in wanted}}


def _between(ours: Side, first: Side) -> Numbers:
    """One recipe less another, paired on the tasks of the seeds that both were trained with."""
    seeds = _shared(ours.runs, first.runs)
    mine, theirs = ours.of(seeds), first.of(seeds)
    names = [name for name in ("sft", "sft_greedy", "rl", "rl_greedy") if name in mine and name in theirs]
    return {"seeds": seeds, **{name: _paired(mine[name], theirs[name], METRICS) for name in names}}
