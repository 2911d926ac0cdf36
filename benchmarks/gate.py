"""How often the gate is wrong: simulated candidates whose truth is known, each tried until it is decided.

    python -m benchmarks.gate --json docs/results/gate.json     (about 2 CPU minutes)

Every candidate is measured on one target and two guarded suites, `BATCH` tasks of each at a time and `BUDGET` in all, and the
gate is asked after each batch. A candidate is

    null     at the border of what must not be promoted: no better on the target, or worse by the margin on a guarded one
    worse    inside it: worse on the target, or by twice the margin on a guarded one
    better   to be promoted: better on the target, and elsewhere the same, or half a margin worse
    equal    at the border of what must not be rejected: a hair better on the target, a hair above the margin elsewhere

`false_promotion` is the share of null and worse candidates that were promoted, `false_rejection` that of better and equal ones
that were rejected; neither may be above the gate's error. Differences are those of tasks that are right or wrong (three
values), of rewards in between (a Beta distribution around each task's own mean), or of rewards nearly alike.

Beside the gate are a paired t-test once, at the end of the same budget, and the same t-test after every batch, which is what
people do who look at a running evaluation.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trivium.eval import Decision, Gate
from trivium.eval.gate import Verdict
from trivium.loops.run import write_json

GATE = Gate(("target",), {"guarded": 0.1, "other": 0.1})
MARGIN = 0.1
BATCH, BUDGET = 32, 512
HAIR = 0.001
NORMAL = 1.6449  # one-sided 5%, as the t-test's bound at these counts of tasks

Numbers = np.ndarray
Differences = dict[str, Numbers]
Draw = Callable[[np.random.Generator, int, float], Numbers]


def right_or_wrong(rng: np.random.Generator, count: int, mean: float) -> Numbers:
    """Tasks that are solved or not; a third of them by one policy alone."""
    more, less = (1 / 3 + mean) / 2, (1 / 3 - mean) / 2
    dice = rng.random(count)
    return np.where(dice < more, 1.0, np.where(dice < more + less, -1.0, 0.0))


def graded(rng: np.random.Generator, count: int, mean: float) -> Numbers:
    """Rewards in [0, 1] around a mean of each task's own, which the policies share but for `mean` on average."""
    base = rng.uniform(0.3, 0.7, count)
    theirs, ours = (rng.beta(4 * m, 4 * (1 - m)) for m in (base - mean / 2, base + mean / 2))
    return ours - theirs


def alike(rng: np.random.Generator, count: int, mean: float) -> Numbers:
    """Rewards of nearly the same answers: most differences are 0, the others small, with this mean all told."""
    return np.where(rng.random(count) < 0.4, np.clip(rng.normal(mean / 0.4, 0.12, count), -1, 1), 0.0)


KINDS: tuple[Draw, ...] = (right_or_wrong, graded, alike)
MEANS: dict[str, Sequence[tuple[float, float, float]]] = {
    "null": ((0.0, 0.0, 0.0), (0.2, -MARGIN, 0.0)),
    "worse": ((-0.1, 0.0, 0.0), (0.2, -2 * MARGIN, 0.0)),
    "better": ((0.1, 0.0, 0.0), (0.2, 0.0, -MARGIN / 2)),
    "equal": ((HAIR, HAIR - MARGIN, HAIR - MARGIN),),
}
"""The true means on target, guarded and other suite, by kind of candidate."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate: what each test made of it, and the tasks that the gate took, of all suites together."""

    kind: str
    verdict: Verdict
    tasks: int
    once: Verdict
    peeking: Verdict


def attempt(kind: str, number: int) -> Tried:
    rng = np.random.default_rng([number, sum(map(ord, kind))])
    means = MEANS[kind][number % len(MEANS[kind])]
    draw = KINDS[number // len(MEANS[kind]) % len(KINDS)]
    differences = {name: draw(rng, BUDGET, mean) for name, mean in zip(GATE.margins, means, strict=True)}
    decision, tasks = decided(differences)
    looks = [t_test(differences, count) for count in range(BATCH, BUDGET + 1, BATCH)]
    return Tried(kind, decision.verdict, tasks, looks[-1], next((each for each in looks if each != "hold"), "hold"))


def decided(differences: Differences) -> tuple[Decision, int]:
    """What the gate says at the first batch at which it does, or in the end; and the tasks that it took. A suite that is passed
    is asked no more, as in `eval.trial`."""
    taken = dict.fromkeys(differences, 0)
    decision = Decision("hold", "")
    while decision.verdict == "hold" and min(taken.values()) < BUDGET:
        passed = {name for name, each in decision.evidence.items() if each.passes}
        open_ = [name for name in taken if name not in passed and taken[name] < BUDGET]
        if not open_:
            break
        taken |= {name: taken[name] + BATCH for name in open_}
        decision = GATE.judge({name: each[: taken[name]].tolist() for name, each in differences.items()})
    return decision, sum(taken.values())


def t_test(differences: Differences, count: int) -> Verdict:
    """The paired t-test on the first `count` tasks: the same demands, and the same error for one look."""
    demands = [(each[:count] + GATE.margins[name]) for name, each in differences.items()]
    scaled = [each.mean() / max(each.std(ddof=1) / np.sqrt(count), 1e-9) for each in demands]
    if min(scaled) < -2.128:  # 5% over three suites
        return "reject"
    return "promote" if min(scaled) > NORMAL else "hold"


def summary(tried: Sequence[Tried]) -> dict:
    """The errors of each test, and what became of each kind of candidate."""
    bad = [each for each in tried if each.kind in ("null", "worse")]
    good = [each for each in tried if each.kind in ("better", "equal")]

    def errors(verdict: Callable[[Tried], Verdict]) -> dict[str, float]:
        return {
            "false_promotion": share(bad, lambda each: verdict(each) == "promote"),
            "false_rejection": share(good, lambda each: verdict(each) == "reject"),
            "better_promoted": share([e for e in good if e.kind == "better"], lambda each: verdict(each) == "promote"),
        }

    return {
        "candidates": len(tried),
        "error": GATE.error,
        **errors(lambda each: each.verdict),
        "tasks": {"budget": BUDGET * len(GATE.margins), **{kind: median(tried, kind) for kind in MEANS}},
        "verdicts": {kind: dict(Counter(each.verdict for each in tried if each.kind == kind)) for kind in MEANS},
        "t_test_once": errors(lambda each: each.once),
        "t_test_after_every_batch": errors(lambda each: each.peeking),
        "settings": {"batch": BATCH, "margin": MARGIN, "suites": len(GATE.margins), "by_kind": worst(tried)},
    }


def share(tried: Sequence[Tried], true: Callable[[Tried], bool]) -> float:
    return sum(map(true, tried)) / len(tried)


def median(tried: Sequence[Tried], kind: str) -> float:
    return float(np.median([each.tasks for each in tried if each.kind == kind]))


def worst(tried: Sequence[Tried]) -> dict[str, float]:
    """The share of wrong decisions in each kind of candidate alone: an average over kinds would hide one."""
    wrong = {"null": "promote", "worse": "promote", "better": "reject", "equal": "reject"}
    return {
        kind: share([e for e in tried if e.kind == kind], lambda e, bad=bad: e.verdict == bad) for kind, bad in wrong.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    kinds = list(MEANS)
    numbers = summary([attempt(kinds[number % len(kinds)], number // len(kinds)) for number in range(args.candidates)])
    print(json.dumps(numbers, indent=1))
    if args.json:
        write_json(Path(args.json), numbers)


if __name__ == "__main__":
    main()
