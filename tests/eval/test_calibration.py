"""Calibration of a judge: the area under the curve by hand, its interval, and what the report counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trivium.errors import InputError
from trivium.eval import calibration
from trivium.eval.calibration import auc


def judged(verified: float, grade: float, rubric: int = 0, malformed: int = 0, **more: float) -> dict[str, float]:
    return {"reward_verified": verified, "grade": grade, "rubric": float(rubric), "malformed": float(malformed), **more}


def test_the_area_is_the_share_of_pairs_that_are_the_right_way_round():
    area, low, high = auc([0.9, 0.5, 0.4], [0.5, 0.1])  # 2 + 1.5 + 1 of 6
    assert area == 4.5 / 6 and 0 <= low < area < high <= 1
    assert auc([1.0, 1.0], [0.0])[0] == 1 and auc([0.0], [1.0])[0] == 0 and auc([0.5] * 3, [0.5] * 2)[0] == 0.5


def test_the_interval_is_hanley_and_mcneils():
    """Their formula with m = n = 20 and A = .875, to which 41 ties are added as half pairs."""
    right, wrong = [1.0] * 10 + [0.5] * 10, [0.5] * 10 + [0.0] * 10
    area, low, high = auc(right, wrong)
    a = (0.875 * 400 + 20.5) / 441
    q1, q2 = a / (2 - a), 2 * a**2 / (1 + a)
    error = 1.96 * math.sqrt((a * (1 - a) + 19 * (q1 - a**2) + 19 * (q2 - a**2)) / 400)
    assert area == 0.875 and (low, high) == pytest.approx((a - error, a + error)) and error == pytest.approx(0.1259, abs=1e-3)


def test_a_perfect_sample_is_not_certain_and_more_of_it_is_more_so():
    few, many = auc([1.0] * 4, [0.0] * 4), auc([1.0] * 100, [0.0] * 100)
    assert few[0] == many[0] == 1 and few[1] < many[1] < 1


def test_it_covers_what_is_true():
    """Normal grades one deviation apart: the true area is Φ(1/√2) = .7602."""
    dice = np.random.default_rng(0)
    intervals = [auc(dice.normal(1, 1, 40), dice.normal(0, 1, 40)) for _ in range(400)]
    assert 0.92 < np.mean([low < 0.7602 < high for _, low, high in intervals]) < 0.98


def test_a_judge_that_is_right_by_one_rubric_and_blind_by_another():
    scores = [judged(n % 2, 0.9 if n % 2 else 0.2, 0) for n in range(20)]
    scores += [judged(n % 2, 0.5, 1, malformed=1, position_bias=0.25) for n in range(10)]
    report = calibration([*scores, {"reward": 1.0}])
    assert (report.right, report.wrong) == (15, 15) and report.grades == pytest.approx((11.5 / 15, 4.5 / 15))
    assert report.by_rubric[0].mean == 1 and report.by_rubric[1].mean == 0.5 and 0.5 < report.auc.mean < 1
    assert report.malformed == pytest.approx(1 / 3) and report.position_bias == 0.25
    lines = report.lines()
    assert lines[0] == "15 right and 15 wrong attempts, mean grades 0.767 and 0.300"
    assert lines[1].startswith("AUC ") and lines[2].startswith("  rubric 0") and lines[-1].endswith("0.250")
    assert len(calibration(scores[:20]).lines()) == 4, "no word of places where nothing was compared in pairs"


def test_where_all_are_right_nothing_is_known():
    report = calibration([judged(1, 0.9), judged(1, 0.1)])
    assert math.isnan(report.auc.mean) and report.wrong == 0
    assert calibration([judged(0.5, 0.9), judged(0.2, 0.1)], right=0.5).auc.mean == 1


def test_attempts_that_nobody_judged_are_refused():
    with pytest.raises(InputError, match="score them with reward.Graded"):
        calibration([{"reward": 1.0}])
