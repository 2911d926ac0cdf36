"""What textual feedback does to a coder that learns, beside RL alone: the runs of benchmarks/coder.sh.

    bash benchmarks/coder.sh OUT             # trains, then calls this
    python -m benchmarks.feedback OUT        # again, of whatever is finished

Runs `alone-SEED` and `feedback-SEED` begin at the same weights and attempt the same tasks in the same steps of RL. A task of a
step is a pair, of the means of its attempts; a held-out task is one, too. Intervals are over tasks.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import fmean

from benchmarks.swarm import finished, pool
from trivium.eval import mean_interval
from trivium.loops import Run
from trivium.loops.run import write_json
from trivium.trace import Store

SCORES = ("broken_calls", "reward", "solved")
ARMS = ("alone", "feedback")
POLICIES = {"rl": "held out, sampled", "rl_greedy": "held out, greedy"}

Row = tuple[list[float], list[float]]
"""One value a task, of each arm."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="the folder of the runs")
    out = parser.parse_args().out
    runs = [finished(out, arm) for arm in ARMS]
    seeds = sorted(runs[0].keys() & runs[1].keys())
    if not seeds:
        parser.error(f"{out} has no seed of which both runs are finished: alone-SEED and feedback-SEED")
    numbers = {when: dict(summed(rows)) for when, rows in measured(runs, seeds)}
    write_json(out / "coder_feedback.json", {"seeds": seeds, **numbers})
    (out / "coder_feedback.md").write_text(page(numbers, seeds))
    print(page(numbers, seeds))


def measured(runs: list[dict[int, Run]], seeds: list[int]) -> Iterator[tuple[str, dict[str, Row]]]:
    """When, and each score of both arms, task by task."""
    steps = runs[0][seeds[0]].recipe()["steps"]
    tasks = [{key: value for seed in seeds for key, value in attempted(of[seed], seed).items()} for of in runs]
    for when, first, last in (("first half of RL", 0, steps // 2), ("second half of RL", steps // 2, steps), ("RL", 0, steps)):
        keys = [key for key in sorted(tasks[0].keys() & tasks[1].keys()) if first <= key[1] < last]
        yield when, {name: ([tasks[0][key][name] for key in keys], [tasks[1][key][name] for key in keys]) for name in SCORES}
    for policy, when in POLICIES.items():
        alone, beside = (pool(of, seeds, policy) for of in runs)
        yield when, {name: (alone.values(name), beside.values(name)) for name in SCORES}


def attempted(run: Run, seed: int) -> dict[tuple[int, int, str], dict[str, float]]:
    """The mean scores of each task of each step of RL."""
    found: dict[tuple[int, int, str], list[dict[str, float]]] = defaultdict(list)
    with closing(Store(run.folder / "episodes.db")) as store:
        for episode in store.select(prefix="rl/"):
            scores = {each.name: each.value for each in store.scores(episode.id)}
            found[seed, int(episode.id.split("/")[1]), episode.task.id].append(scores)
    return {key: {name: fmean(each[name] for each in of) for name in SCORES} for key, of in found.items()}


def summed(rows: dict[str, Row]) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Each arm's mean and the difference, with intervals."""
    for name, (alone, beside) in rows.items():
        gain = [b - a for a, b in zip(alone, beside, strict=True)]
        parts = {"alone": alone, "feedback": beside, "feedback minus alone": gain}
        yield name, {part: list(mean_interval(values)) for part, values in parts.items()}


def page(numbers: dict[str, dict[str, dict[str, list[float]]]], seeds: list[int]) -> str:
    lines = [
        f"Seeds {' '.join(map(str, seeds))}.\n",
        "| when | score | RL alone | with feedback | difference, 95% |",
        "|---|---|---|---|---|",
    ]
    for when, scores in numbers.items():
        for name, parts in scores.items():
            mean, low, high = parts["feedback minus alone"]
            told = f"{mean:+.3f} [{low:.3f}, {high:.3f}]"
            lines.append(f"| {when} | {name} | {parts['alone'][0]:.3f} | {parts['feedback'][0]:.3f} | {told} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
