"""What the runs of benchmarks/swarm.sh say: each arm against the swarm, from what every run measured at its end.

    bash benchmarks/swarm.sh OUT          # trains, then calls this
    python -m benchmarks.swarm OUT        # again, of whatever is finished

Runs are paired by their seeds, and within a run by its held-out tasks; intervals are over tasks (`eval.Pool`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trivium.agents.swarm.recipe import Swarm
from trivium.eval import Pool, Result
from trivium.loops import Run
from trivium.loops.run import read_json, write_json
from trivium.viewer import learning_curves

ARMS = {
    "swarm": "the swarm",
    "alone": "a single agent",
    "no-parallel": "without r_parallel",
    "no-finish": "without r_finish",
    "no-anneal": "without the anneal",
}
SCORES = ("wide/item_f1", "wide/split", "wide/steps", "simple/item_f1", "simple/split", "simple/steps", "r_finish", "success")
POLICIES = ("sft", "sft_greedy", "rl", "rl_greedy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="the folder of the runs")
    out = parser.parse_args().out
    runs = {arm: finished(out, arm) for arm in ARMS}
    numbers = {"arms": {arm: means(of) for arm, of in runs.items() if of}, "swarm minus": dict(differences(runs))}
    write_json(out / "swarm.json", numbers)
    (out / "swarm.md").write_text(page(numbers))
    learning_curves(
        {ARMS[arm]: [run.events() for run in of.values()] for arm, of in runs.items() if of}, out / "swarm.png", Swarm.panels
    )
    print(page(numbers))


def finished(out: Path, arm: str) -> dict[int, Run]:
    """The arm's runs that came to their end, by their seeds."""
    folders = [folder for folder in sorted(out.glob(f"{arm}-*")) if folder.name.removeprefix(f"{arm}-").isdigit()]
    runs = [Run(folder) for folder in folders if (folder / "summary.json").exists()]
    return {run.recipe()["seed"]: run for run in runs}


def pool(runs: dict[int, Run], seeds: list[int], policy: str) -> Pool:
    return Pool(tuple(Result(**read_json(runs[seed].result(policy))) for seed in seeds))


def means(runs: dict[int, Run]) -> dict[str, Any]:
    """Each policy's mean scores over its runs, with intervals."""
    seeds = sorted(runs)
    policies = {policy: pool(runs, seeds, policy) for policy in POLICIES}
    return {"seeds": seeds, **{name: {score: list(of.interval(score)) for score in SCORES} for name, of in policies.items()}}


def differences(runs: dict[str, dict[int, Run]]) -> Iterator[tuple[str, Any]]:
    """The trained swarm less its own warm-up and each trained arm, task by task, over the seeds that both have, and for each
    seed."""
    swarm = runs["swarm"]
    if swarm:
        yield "sft", _difference(swarm, swarm, "sft")
    for arm in list(ARMS)[1:]:
        if swarm.keys() & runs[arm].keys():
            yield arm, _difference(swarm, runs[arm], "rl")


def _difference(ours: dict[int, Run], theirs: dict[int, Run], stage: str) -> dict[str, Any]:
    """RL of one arm less a stage of another, sampled and greedy."""
    seeds = sorted(ours.keys() & theirs.keys())
    numbers: dict[str, Any] = {"seeds": seeds}
    for greedy in ("", "_greedy"):
        after, before = pool(ours, seeds, f"rl{greedy}"), pool(theirs, seeds, f"{stage}{greedy}")
        numbers[f"rl{greedy}"] = {
            score: {"mean": list(after.minus(before, score)), "by_seed": [list(e) for e in after.by_run(before, score)]}
            for score in SCORES
        }
    return numbers


def page(numbers: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    lines = [
        "# The swarm, its arms, and a single agent",
        "",
        "`bash benchmarks/swarm.sh OUT`; means over held-out tables, 95% intervals over tables.",
        "",
    ]
    lines += [f"| arm, policy (seeds) | {' | '.join(SCORES)} |", f"|---|{'---|' * len(SCORES)}"]
    for arm, of in numbers["arms"].items():
        for policy in POLICIES:
            cells = [f"{of[policy][score][0]:.3f}" for score in SCORES]
            lines.append(f"| {ARMS[arm]}, {policy} ({', '.join(map(str, of['seeds']))}) | {' | '.join(cells)} |")
    for policy, how in (("rl_greedy", "greedy"), ("rl", "sampled")):
        lines += [
            "",
            f"The swarm after RL less its warm-up and each arm, {how}, paired:",
            "",
            f"| less | {' | '.join(SCORES)} |",
            f"|---|{'---|' * len(SCORES)}",
        ]
        for arm, of in numbers["swarm minus"].items():
            cells = ["{:+.3f} [{:+.3f}, {:+.3f}]".format(*of[policy][score]["mean"]) for score in SCORES]
            lines.append(f"| {ARMS.get(arm, 'its warm-up')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
