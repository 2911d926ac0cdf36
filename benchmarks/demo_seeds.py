"""The demo's table over several seeds: RL over SFT, paired task by task, each seed alone and all together.

    for seed in 0 1 2; do trivium train search --seed $seed --out runs/demo-$seed; done
    python benchmarks/demo_seeds.py runs/demo-0 runs/demo-1 runs/demo-2 --json docs/results/demo_seeds.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from trivium.eval import Result, mean_interval

POLICIES = ("base", "sft", "sft_greedy", "rl", "rl_greedy", "expert")
METRICS = ("f1", "output_recall", "trajectory_recall", "answer_found", "format_valid", "prune_rate", "prune_accuracy", "reward")
PAIRS = (("rl", "sft"), ("rl_greedy", "sft_greedy"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write everything, with per-task scores, to this file")
    arguments = parser.parse_args()
    found = [{name: _result(run, name) for name in POLICIES} for run in arguments.runs]
    print(_means(found))
    print(_differences(found, [run.name for run in arguments.runs]))
    if arguments.json:
        arguments.json.write_text(json.dumps(_everything(found, arguments.runs)) + "\n")


def _result(run: Path, name: str) -> Result:
    return Result(**json.loads((run / "results" / f"{name}.json").read_text()))


def _means(found: list[dict[str, Result]]) -> str:
    lines = ["| metric | " + " | ".join(POLICIES) + " |", "|---|" + "---|" * len(POLICIES)]
    for metric in METRICS:
        cells = [f"{_pooled(found, policy, metric).mean:.3f}" for policy in POLICIES]
        lines.append(f"| {metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _pooled(found: list[dict[str, Result]], policy: str, metric: str):
    values = [value for results in found for value in results[policy].scores.get(metric, [])]
    return mean_interval(values)


def _differences(found: list[dict[str, Result]], names: list[str]) -> str:
    lines = ["| difference | metric | " + " | ".join(names) + " | all |", "|---|---|" + "---|" * (len(names) + 1)]
    for after, before in PAIRS:
        for metric in ("f1", "output_recall", "trajectory_recall", "answer_found", "reward"):
            cells = [_cell(results[after].minus(results[before], metric)) for results in found]
            cells.append(_cell(_all(found, after, before, metric)))
            lines.append(f"| {after} - {before} | {metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _all(found: list[dict[str, Result]], after: str, before: str, metric: str):
    differences = []
    for results in found:
        ours = dict(zip(results[after].tasks, results[after].scores[metric], strict=True))
        theirs = dict(zip(results[before].tasks, results[before].scores[metric], strict=True))
        differences += [ours[task] - theirs[task] for task in ours]
    return mean_interval(differences)


def _cell(interval) -> str:
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _everything(found: list[dict[str, Result]], runs: list[Path]) -> dict:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {"command": "python benchmarks/demo_seeds.py RUN ...", "table_made_at": commit, "runs": list(map(_run, runs, found))}


def _run(run: Path, results: dict[str, Result]) -> dict:
    scores = {name: {"tasks": r.tasks, **{m: r.scores.get(m) for m in METRICS}} for name, r in results.items()}
    return {"summary": json.loads((run / "summary.json").read_text()), "scores": scores}


if __name__ == "__main__":
    main()
