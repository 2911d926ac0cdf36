"""Rejection-sampling fine-tuning: does a second stage, warmed up on what the first did well, get there in fewer steps?

    python -m benchmarks.harvest --out runs/harvest --json docs/results/harvest.json     (about 5 CPU minutes a seed)

Stage one is examples/agent.py as it is. Stage two is the same recipe, from the same base, with `--warmup-from` stage one in
place of the log. A stage's score is its reward in training, as a mean of three steps; what stage one had at its end is what
both are asked to reach.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from examples.agent import Staff
from trivium.loops import Run
from trivium.loops.run import read_json, write_json
from trivium.recipe import train
from trivium.viewer import Live

WIDTH = 3


def curve(run: Run) -> list[float]:
    """The reward in training, each a mean of WIDTH steps."""
    rewards = [event.metrics["reward"] for event in run.events() if event.kind == "rl"]
    return [float(np.mean(rewards[at : at + WIDTH])) for at in range(len(rewards) - WIDTH + 1)]


def steps_to(score: float, rewards: list[float]) -> int | None:
    """Steps of RL after which `score` was reached; None where it never was."""
    return next((at + WIDTH for at, reward in enumerate(rewards) if reward >= score), None)


def compare(first: Run, second: Run) -> dict:
    final = curve(first)[-1]
    lessons = read_json(second.folder / "warmup-from.json")
    stages = {
        name: {"begins": curve(run)[0], "ends": curve(run)[-1], "steps": steps_to(final, curve(run))}
        for name, run in (("first", first), ("second", second))
    }
    return {**stages, "lessons": len(lessons["episodes"]), "left_out": lessons["left_out"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/harvest")
    parser.add_argument("--json", default="")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    numbers = {}
    for seed in range(args.seeds):
        out, same = Path(args.out), {"seed": seed, "workers": args.workers}
        first = train(Staff(out=str(out / f"first-{seed}"), **same), Live)
        second = train(Staff(out=str(out / f"second-{seed}"), warmup_from=str(first.folder), **same), Live)
        numbers[f"seed {seed}"] = compare(first, second)
    print(json.dumps(numbers, indent=1))
    if args.json:
        write_json(Path(args.json), numbers)


if __name__ == "__main__":
    main()
