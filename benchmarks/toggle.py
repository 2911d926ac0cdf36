"""Toggle on a wordy agent: are its answers as right with fewer tokens?

    python -m benchmarks.toggle --out runs/toggle --json docs/results/toggle.json     (about 8 CPU minutes)

A staff directory whose log looks everybody up twice in every other conversation. The agent is trained without a price on
tokens; then two runs go on from its weights with one seed: one as before, one under Toggle. Budgets are a percentile of the
lengths of right attempts by the weights that both begin with. Both are measured on held-out questions, sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import trivium as tv
from examples.agent import Staff
from trivium.engine import Engine
from trivium.eval import Result, evaluate
from trivium.eval.suite import ScoredEpisode
from trivium.loops import Run
from trivium.loops.run import read_json, write_json
from trivium.policy import Renderer
from trivium.policy.scripted import call, say
from trivium.recipe import train
from trivium.reward import Toggle, budgets, sampled_tokens
from trivium.viewer import Live

PERCENTILE = 25.0
EVERY, ACCURACY = 2, 0.75
SAMPLES = 4


@dataclass(frozen=True)
class Wordy(Staff):
    """Staff, whose log looks up twice in every other conversation."""

    budgets: str = ""
    """a file of tokens by task, for Toggle; default: tokens are free"""

    def harness(self) -> tv.Harness:
        plain = super().harness()
        return tv.Harness(plain.tools.values(), tv.Window(320, reply=40), limits=tv.Limits(turns=5), specs=False)

    def lessons(self) -> tv.Policy:
        def script(view):
            _, person, *_ = view.stream
            dice = random.Random(person)
            wrong, again = dice.random() > 0.6, dice.random() < 0.5
            calls = sum(message["role"] == "tool" for message in view.messages)
            if calls < 1 + again:
                return call(("look_up", {"person": f" {person}"}))
            return say(f" {self.staff[person][not wrong]}")

        return tv.Scripted(script, self.renderer, "log")

    def scorer(self, step: int):
        async def right(episode: tv.Episode) -> dict[str, float]:
            correct = float(episode.agent.answer.strip() == episode.task.truth["city"])
            return {"reward": correct, "tokens_sampled": float(sampled_tokens(episode))}

        return Toggle(right, self._budgets, step, EVERY, ACCURACY) if self.budgets else right

    def judge(self):
        return Wordy().scorer(0)

    @cached_property
    def _budgets(self) -> dict[str, float]:
        return read_json(Path(self.budgets))


def attempt(recipe: Wordy, model: Path, tasks: Sequence[tv.Task], samples: int) -> tuple[Result, list[ScoredEpisode]]:
    """`tasks` attempted by the weights in `model`, sampled."""
    harness = recipe.harness()
    engine = Engine(model, renderer=Renderer.load(model), context=harness.window.budget)
    sampling = tv.Sampling(temperature=1.0, max_tokens=harness.window.reply)
    return asyncio.run(evaluate(harness, tasks, engine, recipe.judge(), sampling=sampling, samples=samples, seed=7))


def trained(recipe: Wordy) -> Run:
    print(f"{recipe.out} ...", flush=True)
    return train(recipe, Live)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/toggle")
    parser.add_argument("--json", default="")
    parser.add_argument("--steps", type=int, default=24, help="steps of each of the three runs")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    out, same = Path(args.out), {"steps": args.steps, "workers": args.workers}

    start = trained(Wordy(out=str(out / "start"), **same))
    going_on = {**same, "model": str(start.model()), "sft_steps": 0, "seed": 1}
    begins = Wordy(out=str(out / "plain"), **going_on)
    path = out / "budgets.json"
    if not path.exists():
        tasks = list(begins.rl_tasks())[: args.steps * begins.groups]
        write_json(path, budgets(attempt(begins, start.model(), tasks, 8)[1], PERCENTILE))
    plain = trained(begins)
    toggled = trained(Wordy(out=str(out / "toggle"), budgets=str(path.absolute()), **going_on))

    models = {"start": start, "plain": plain, "toggle": toggled}
    results = {name: attempt(begins, run.model(), begins.tasks("heldout"), SAMPLES)[0] for name, run in models.items()}
    numbers = summary(results, args.steps)
    print(json.dumps(numbers, indent=1))
    if args.json:
        write_json(Path(args.json), numbers)


def summary(results: dict[str, Result], steps: int) -> dict:
    """Accuracy and tokens of each arm, and Toggle less the plain arm, paired by task; all with 95% intervals."""
    scores = {"accuracy": "reward", "tokens": "tokens_sampled"}
    arms = {name: {say: list(result.interval(score)) for say, score in scores.items()} for name, result in results.items()}
    less = {say: list(results["toggle"].minus(results["plain"], score)) for say, score in scores.items()}
    share = less["tokens"][0] / arms["plain"]["tokens"][0]
    settings = {"percentile": PERCENTILE, "every": EVERY, "accuracy": ACCURACY, "samples": SAMPLES, "steps": steps}
    return {**arms, "toggle_minus_plain": less, "tokens_share": share, "settings": settings}


if __name__ == "__main__":
    main()
