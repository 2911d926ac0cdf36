"""The canary's stopping rule: its errors, and what a block is."""

from __future__ import annotations

import numpy as np
import pytest

from trivium.errors import InputError
from trivium.eval import Canary
from trivium.eval.canary import block_differences


def visits(seed: int, count: int, share: float, candidate: float, incumbent: float = 0.6) -> list[tuple[bool, float]]:
    """Visits of people who are content or not; `share` of them, drawn by lot, are served by the candidate."""
    rng = np.random.default_rng(seed)
    served = rng.random(count) < share
    content = rng.random(count) < np.where(served, candidate, incumbent)
    return list(zip(served.tolist(), content.astype(float).tolist(), strict=True))


def test_a_block_ends_when_it_has_both_kinds():
    came = [(False, 1.0), (False, 0.0), (True, 1.0), (True, 0.25), (True, 0.75), (False, 0.5), (True, 1.0)]
    assert list(block_differences(came)) == [0.5, 0.0]


def test_a_bad_candidate_is_rolled_back_early_and_a_good_one_promoted():
    bad = Canary().decide(visits(0, 1200, 0.2, candidate=0.2))
    assert bad.verdict == "reject" and "less content" in bad.reason and bad.evidence["live"].fails
    assert Canary(margin=0.1).decide(visits(0, 3000, 0.5, candidate=0.7)).verdict == "promote"
    assert Canary().decide(visits(0, 40, 0.2, candidate=0.5)).verdict == "hold"


def test_nothing_is_known_of_nothing():
    assert Canary().decide([]).verdict == "hold"


def test_where_both_are_shown_it_is_rolled_back():
    """A loss that is certain and within the margin."""
    came = [(number % 2 == 0, 0.5 if number % 2 else 0.48) for number in range(2000)]
    assert Canary(margin=0.05).decide(came).verdict == "reject"


def test_the_errors_are_those_that_are_stated():
    """Looked at four times each; at the two borders."""
    canary, looks = Canary(margin=0.2), range(60, 331, 90)

    def ever(verdict: str, candidate: float) -> float:
        runs = [visits(seed, 330, 0.4, candidate) for seed in range(60)]
        return np.mean([any(canary.decide(each[:look]).verdict == verdict for look in looks) for each in runs])

    assert ever("reject", candidate=0.6) <= 0.05
    assert ever("promote", candidate=0.4) <= 0.05
    assert ever("reject", candidate=0.2) > 0.9


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan")])
def test_a_satisfaction_out_of_range_is_an_error(value):
    with pytest.raises(InputError, match="not in .0, 1."):
        Canary().decide([(True, value)])


def test_a_canary_that_could_not_decide_is_refused():
    with pytest.raises(InputError, match="margin is in"):
        Canary(margin=0.0)
