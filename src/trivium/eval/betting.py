"""Tests that may be looked at after every task: evidence about the mean of differences in [-1, 1], as the capital of a gambler.

Somebody who believes that a mean is at most `bound` sells bets on d - bound at a fair price. Who buys them cannot expect to
gain where that is true; a gambler who became rich has refuted it. With n differences and D bets of constant size,

    E_n(bound) = 1/D  sum_j  prod_i (1 + l_j (d_i - bound)),     l_j = j / ((D + 1) (1 + bound)),   j = 1 .. D

Every factor is positive and has a mean of at most 1 while the mean is at most `bound`, so E is a supermartingale that begins
at 1, and by Ville's inequality P(E_n >= 1/error for any n) <= error: however often one looks, and whenever one stops. This is
Waudby-Smith and Ramdas's test by betting (arXiv:2010.09686, JRSS B 86, 2024) with their diversified Kelly bets on a grid; D and
the grid are ours: of five mixtures and aGRAPA it needed the fewest tasks, or hardly more, on five kinds of differences. E does
not depend on the order of the differences. It assumes that each one's mean, given those before, is at most `bound`:
independent tasks of one kind in an order drawn by lot.

The bounds that are not refuted are a confidence sequence (Howard et al., arXiv:1810.08240): an interval that holds at all times
at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BETS = 20
_STEPS = 24  # halvings of an interval of length 2: far below any difference that matters


def log_evidence(differences: Sequence[float], bound: float) -> float:
    """ln E: evidence against the mean of `differences`, each in [-1, 1], being at most `bound` (above -1). 0 of none."""
    sizes = np.arange(1, BETS + 1) / ((BETS + 1) * (1 + bound))
    values, times = np.unique(np.asarray(differences, float), return_counts=True)  # tasks that are right or wrong have three
    capital = times @ np.log1p(np.multiply.outer(values - bound, sizes))  # [bets]
    most = capital.max()
    return float(most + math.log(np.exp(capital - most).mean()))


def lower_bound(differences: Sequence[float], error: float) -> float:
    """The largest bound that is refuted: the mean is above it, but for the chance `error` of ever having said so wrongly. -1
    where nothing is refuted. E falls in the bound, since (d - bound) / (1 + bound) does, so it is found by halving."""
    low, high = -1.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        refuted = log_evidence(differences, middle) >= -math.log(error)
        low, high = (middle, high) if refuted else (low, middle)
    return low


def upper_bound(differences: Sequence[float], error: float) -> float:
    """The smallest bound that the mean is below, with the same promise; 1 where nothing is refuted."""
    return -lower_bound([-each for each in differences], error)
