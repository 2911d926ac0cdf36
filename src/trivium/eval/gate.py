"""The gate: may this candidate replace the incumbent? Paired tasks, several suites at once, a test of stated error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trivium.errors import CorruptError, InputError
from trivium.eval.betting import lower_bound, upper_bound
from trivium.eval.paired import mean
from trivium.eval.suite import Result

Verdict = Literal["promote", "hold", "reject"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one comparison says: the mean difference, candidate less incumbent, over `tasks`, and bounds that hold at all times.

    The candidate passes when `low` is above `-margin`, and fails when `high` is below it; a margin of 0 asks it to be better.
    """

    tasks: int
    mean: float
    low: float
    high: float
    margin: float

    @classmethod
    def of(cls, differences: Sequence[float], margin: float, error: float, failing: float) -> Evidence:
        """Of differences in [-1, 1]: `error` is the chance of ever passing wrongly, `failing` that of ever failing wrongly."""
        low, high = lower_bound(differences, error), upper_bound(differences, failing)
        return cls(len(differences), mean(differences), low, high, margin)

    @property
    def passes(self) -> bool:
        return self.low > -self.margin

    @property
    def fails(self) -> bool:
        return self.high < -self.margin

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}] after {self.tasks}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Promote, hold or reject, with the reason in one sentence and the evidence of each suite."""

    verdict: Verdict
    reason: str
    evidence: Mapping[str, Evidence] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The same for a file of JSON."""
        return {"verdict": self.verdict, "reason": self.reason, "evidence": {k: asdict(v) for k, v in self.evidence.items()}}


@dataclass(frozen=True, slots=True)
class Gate:
    """Asks a candidate to be better than the incumbent on every suite of `targets`, and on every suite of `guarded` not worse
    by more than its margin. Without targets it only keeps harm away: then something else has to ask for what is better.

    `error` bounds two chances, however often one looks. That a candidate is ever promoted which is not better on some target,
    or too much worse on some guarded suite: all suites must pass, so each is tested with the whole `error` (the
    intersection-union test, Berger, Technometrics 24, 1982). And that a candidate which is good on all of them is ever
    rejected: one failure is enough, so each suite has an equal share of `error` (Bonferroni).

    `score` is the one that is compared. Scores of one task may differ by at most 1: those in [0, 1] do.
    """

    targets: tuple[str, ...] = ()
    guarded: Mapping[str, float] = field(default_factory=dict)
    error: float = 0.05
    score: str = "reward"

    def __post_init__(self) -> None:
        if not self.margins:
            raise InputError("a gate without a suite would promote anything: name one that is to improve, or one to guard")
        if twins := set(self.targets) & self.guarded.keys():
            raise InputError(f"suite {min(twins)} is a target and guarded: a target asks for more, so leave it there alone")
        for name, margin in self.guarded.items():
            if not 0 < margin < 1:
                raise InputError(f"the margin of suite {name} must be between 0 and 1, not {margin}: no test shows a loss of 0")
        if not 0 < self.error < 0.5:
            raise InputError(f"the gate's error must be between 0 and 0.5, not {self.error}")

    @property
    def margins(self) -> dict[str, float]:
        """Each suite with the loss that it allows, 0 on a target."""
        return dict.fromkeys(self.targets, 0.0) | dict(self.guarded)

    def check(self, name: str, result: Result) -> None:
        """Raise InputError if what one policy has on suite `name` can be no part of a comparison: the score is missing, of some
        task no number, or outside of [0, 1]. The scores that would do are named."""
        fit = [each for each, values in result.scores.items() if values and all(0 <= value <= 1 for value in values)]
        if self.score not in fit:
            values = result.scores.get(self.score, [])
            why = f"is from {min(values):.3g} to {max(values):.3g}" if values else "is given to no attempt"
            why = why if all(map(math.isfinite, values)) else "is no number for some tasks"
            others = f"scores from 0 to 1: {', '.join(fit)}" if fit else "scores from 0 to 1, and there is none"
            raise InputError(f"{self.score!r} on {name} {why}; a gate compares {others}")

    def decide(self, candidate: Mapping[str, Result], incumbent: Mapping[str, Result]) -> Decision:
        """The decision from what both have on the same tasks, so far or in all: it may be asked for after every task.

        A score of the candidate that is no number rejects it by name. Attempts that no scorer could judge, and an incumbent
        without a score, are held: leaving them out would pay for failing. InputError where a suite was not measured, where the
        tasks differ, and for scores that differ by more than 1.
        """
        for name in self.margins:
            if early := self._unfit(name, _result(candidate, name, "candidate"), _result(incumbent, name, "incumbent")):
                return early
        pairs = {name: candidate[name].paired(incumbent[name], self.score).values() for name in self.margins}
        return self.judge({name: [ours - theirs for ours, theirs in each] for name, each in pairs.items()})

    def _unfit(self, name: str, candidate: Result, incumbent: Result) -> Decision | None:
        """The decision where a score is missing. InputError for one that nobody gives: that is a name misspelt."""
        known = sorted(candidate.scores.keys() | incumbent.scores.keys())
        if known and self.score not in known:
            raise InputError(f"no attempt on {name} has a score {self.score!r}: there are {', '.join(known)}")
        for result, who in ((candidate, "candidate"), (incumbent, "incumbent")):
            task = next((task for task, value in result.values(self.score).items() if not math.isfinite(value)), None)
            if task is None and not result.episodes_unscored:
                continue
            if result.episodes_unscored:
                count = result.episodes_unscored
                return Decision("hold", f"{count} attempts of the {who} on {name} could not be scored: measure them again")
            if who == "candidate":
                return Decision("reject", f"the candidate's {self.score} of task {task} on {name} is no number")
            return Decision("hold", f"the incumbent's {self.score} of task {task} on {name} is no number: measure it again")
        return None

    def judge(self, differences: Mapping[str, Sequence[float]]) -> Decision:
        """The decision from the paired differences of each suite, candidate less incumbent. InputError outside [-1, 1]."""
        share = self.error / len(self.margins)
        evidence = {}
        for name, margin in self.margins.items():
            if any(not abs(each) <= 1 for each in differences[name]):
                raise InputError(f"scores on {name} differ by more than 1, or by no number: scale {self.score} to [0, 1]")
            evidence[name] = Evidence.of(differences[name], margin, self.error, share)
        return _verdict(evidence)


def _result(results: Mapping[str, Result], name: str, who: str) -> Result:
    if name not in results:
        raise InputError(f"the gate asks for suite {name}, on which the {who} was not measured: measure it, or leave it out")
    return results[name]


def _verdict(evidence: Mapping[str, Evidence]) -> Decision:
    """Reject what failed anywhere, promote what passed everywhere, hold the rest."""
    failed = [f"{_demand(name, each)}, which is refuted: {each}" for name, each in evidence.items() if each.fails]
    if failed:
        return Decision("reject", f"it had to be {'; '.join(failed)}", evidence)
    open_ = [f"{_demand(name, each)}: {each}" for name, each in evidence.items() if not each.passes]
    if open_:
        return Decision("hold", f"not shown to be {'; '.join(open_)}", evidence)
    return Decision("promote", "; ".join(f"{_demand(name, each)}: {each}" for name, each in evidence.items()), evidence)


def _demand(name: str, each: Evidence) -> str:
    return f"less than {each.margin:g} worse on {name}" if each.margin else f"better on {name}"


def refuse_weights(folder: str | Path) -> Decision | None:
    """The rejection of weights that cannot speak: torn, missing, or with a number that is none; None where they are sound. To
    be asked before anything is measured."""
    from trivium.weights.finite import not_finite  # brings torch

    try:
        names = not_finite(folder)
    except (CorruptError, InputError) as error:
        return Decision("reject", str(error))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Decision("reject", f"the candidate's weights are not finite: {names[0]}{more}") if names else None
