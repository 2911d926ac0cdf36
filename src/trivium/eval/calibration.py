"""What a judge's grades are worth: whether they tell right attempts from wrong ones, where that is verified."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trivium.errors import InputError
from trivium.eval.paired import UNKNOWN, Interval


@dataclass(frozen=True, slots=True)
class Calibration:
    """`auc`: the chance that a right attempt has a higher grade than a wrong one, half where they are equal, with its 95%
    interval; 0.5 is a judge that knows nothing. `by_rubric`: the same for each rubric, by number. `right` and `wrong`: how many
    attempts, and `grades` their mean grades. `malformed`: answers of the judge that could not be read, to each that could.
    `position_bias`: NaN where nothing was compared in pairs."""

    auc: Interval
    by_rubric: Mapping[int, Interval]
    right: int
    wrong: int
    grades: tuple[float, float]
    malformed: float
    position_bias: float

    def lines(self) -> list[str]:
        """The report, for a person."""
        rubrics = [f"  rubric {number:<14} {_said(auc)}" for number, auc in sorted(self.by_rubric.items())]
        bias = [] if math.isnan(self.position_bias) else [f"position bias           {self.position_bias:.3f}"]
        return [
            f"{self.right} right and {self.wrong} wrong attempts, mean grades {self.grades[0]:.3f} and {self.grades[1]:.3f}",
            f"AUC                     {_said(self.auc)}",
            *rubrics,
            f"malformed answers       {self.malformed:.3f} to each that could be read",
            *bias,
        ]


def calibration(scores: Sequence[Mapping[str, float]], right: float = 1.0) -> Calibration:
    """Of attempts that `reward.Graded` or `reward.Pairwise` scored: their `grade` against whether `reward_verified` is at least
    `right`. InputError where none was judged."""
    judged = [each for each in scores if "grade" in each and "reward_verified" in each]
    if not judged:
        raise InputError("none of these attempts has a grade beside a verified reward: score them with reward.Graded")
    good = [each["grade"] for each in judged if each["reward_verified"] >= right]
    bad = [each["grade"] for each in judged if each["reward_verified"] < right]
    rubrics = {int(each["rubric"]) for each in judged}
    return Calibration(
        auc=auc(good, bad),
        by_rubric={number: _of_rubric(judged, number, right) for number in rubrics},
        right=len(good),
        wrong=len(bad),
        grades=(_mean(good), _mean(bad)),
        malformed=sum(each["malformed"] for each in judged) / len(judged),
        position_bias=_mean([each["position_bias"] for each in judged if "position_bias" in each]),
    )


def _of_rubric(judged: Sequence[Mapping[str, float]], number: int, right: float) -> Interval:
    mine = [each for each in judged if each["rubric"] == number]
    good = [each["grade"] for each in mine if each["reward_verified"] >= right]
    return auc(good, [each["grade"] for each in mine if each["reward_verified"] < right])


def auc(right: Sequence[float], wrong: Sequence[float]) -> Interval:
    """The area under the ROC curve, which is the Mann-Whitney statistic over all pairs, and its 95% interval; UNKNOWN where one
    side is empty.

    The interval is Hanley and McNeil's (Radiology 143, 1982), of m right and n wrong attempts:

        se² = (A (1 - A) + (m - 1) (Q1 - A²) + (n - 1) (Q2 - A²)) / (m n),     Q1 = A / (2 - A),  Q2 = 2 A² / (1 + A)

    where A has a right and a wrong attempt added that tie with all others, so that a perfect sample is not certain (as Agresti
    and Coull do for a share; ours). Attempts at one task count as independent.
    """
    m, n = len(right), len(wrong)
    if not m or not n:
        return UNKNOWN
    less = np.asarray(right, float)[:, None] - np.asarray(wrong, float)[None, :]
    won = float((less > 0).sum() + (less == 0).sum() / 2)
    area, a = won / (m * n), (won + (m + n + 1) / 2) / ((m + 1) * (n + 1))
    q1, q2 = a / (2 - a), 2 * a * a / (1 + a)
    error = 1.96 * math.sqrt((a * (1 - a) + (m - 1) * (q1 - a * a) + (n - 1) * (q2 - a * a)) / (m * n))
    return Interval(area, min(area, max(0.0, a - error)), max(area, min(1.0, a + error)))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _said(interval: Interval) -> str:
    return f"{interval.mean:.3f}   [{interval.low:.3f}, {interval.high:.3f}]"
