"""The statistics of a claim: what is paired, what is pooled, and what an interval is of."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trivium.errors import InputError
from trivium.eval import Pool, Result, mean_interval, ratio_interval

NAN = float("nan")


def result(policy: str, **scores: float) -> Result:
    """A result of one score `f1`, by task."""
    return Result(policy, list(scores), {"f1": list(scores.values())})


def test_an_interval_is_the_percentile_bootstrap_of_the_mean():
    values = np.random.default_rng(3).normal(size=40)
    draws = np.random.default_rng(0).integers(0, 40, (10_000, 40))
    expected = (values.mean(), *np.percentile(values[draws].mean(1), [2.5, 97.5]))
    np.testing.assert_allclose(mean_interval(list(values)), expected, rtol=1e-12)


def test_what_does_not_apply_is_left_out():
    assert mean_interval([1.0, None, NAN, 3.0]).mean == 2.0
    assert math.isnan(mean_interval([None, NAN]).low)


def test_a_ratio_is_of_sums_over_the_tasks_that_have_both():
    assert ratio_interval([1, 2, 9, NAN], [2, 4, NAN, 9]) == (0.5, 0.5, 0.5)
    above, below = np.random.default_rng(1).random((2, 30))
    draws = np.random.default_rng(0).integers(0, 30, (10_000, 30))
    expected = np.percentile(above[draws].sum(1) / below[draws].sum(1), [2.5, 97.5])
    found = ratio_interval(list(above), list(below))
    np.testing.assert_allclose(found, (above.sum() / below.sum(), *expected), rtol=1e-12)


def test_a_ratio_to_nothing_is_unknown():
    assert math.isnan(ratio_interval([1.0, 2.0], [0.0, 0.0]).mean)


def test_two_lengths_are_refused():
    with pytest.raises(InputError, match="same tasks"):
        ratio_interval([1.0], [1.0, 2.0])


def test_runs_with_tasks_of_their_own_pool_as_independent_tasks():
    after = Pool((result("rl", a=1.0, b=0.5), result("rl", c=0.8)))
    before = Pool((result("sft", b=0.5, a=0.0), result("sft", c=0.4)))
    assert after.minus(before, "f1") == mean_interval([1.0, 0.0, 0.4])
    assert [round(each.mean, 9) for each in after.by_run(before, "f1")] == [0.5, 0.4]
    assert after.over(before, "f1").mean == pytest.approx(2.3 / 0.9)
    assert after.interval("f1") == mean_interval([1.0, 0.5, 0.8])


def test_a_ratio_counts_a_task_in_those_runs_that_have_both():
    ours, theirs = (result("rl", a=NAN), result("rl", a=1.0)), (result("sft", a=4.0), result("sft", a=1.0))
    assert Pool(ours).over(Pool(theirs), "f1").mean == 1.0 and Pool(ours).minus(Pool(theirs), "f1").mean == 0.0


def test_a_task_that_runs_share_counts_once():
    """Three runs on the same two questions are no six questions: the interval is that of two."""
    after = Pool((result("rl", q=1.0, p=0.0), result("rl", q=0.5, p=0.2), result("rl", q=0.0, p=0.4)))
    before = Pool((result("sft", q=0.0, p=0.0),) * 3)
    assert after.minus(before, "f1") == pytest.approx(mean_interval([0.5, 0.2]))
    assert after.interval("f1") == pytest.approx(mean_interval([0.5, 0.2]))


def test_what_one_run_lacks_the_others_say():
    pool = Pool((result("rl", q=NAN), result("rl", q=0.6)))
    assert pool.values("f1") == [0.6]
    assert math.isnan(pool.interval("nowhere").mean)


def test_other_tasks_cannot_be_paired():
    with pytest.raises(InputError, match="different tasks"):
        Pool((result("rl", a=1.0),)).minus(Pool((result("sft", b=1.0),)), "f1")
    with pytest.raises(InputError, match="cannot be paired"):
        Pool((result("rl", a=1.0),)).minus(Pool((result("sft", a=1.0),) * 2), "f1")


def test_parts_of_a_suite_share_no_task():
    parts = [result("p", a=1.0, b=0.0), result("p", c=0.5)]
    assert Result.merge(parts).tasks == ["a", "b", "c"]
    with pytest.raises(InputError, match="task b is in two parts"):
        Result.merge([*parts, result("p", b=1.0)])


def test_a_part_of_the_tasks():
    pool = Pool((result("rl", a=1.0, b=0.0), result("rl", c=0.5)))
    assert pool.where(lambda task: task != "b").values("f1") == [1.0, 0.5]
