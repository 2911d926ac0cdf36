"""Paired comparisons: the same tasks under two policies, and an interval for the mean difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trivium.errors import InputError

_RESAMPLES = 10_000


class Interval(NamedTuple):
    """A mean and its 95% interval (percentile bootstrap over tasks)."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float | None], seed: int = 0) -> Interval:
    """The mean of one value per task. NaN or None (a task to which the measure does not apply) is left out."""
    known = np.asarray(values, float)  # None becomes NaN
    known = known[~np.isnan(known)]
    if not len(known):
        return Interval(float("nan"), float("nan"), float("nan"))
    draws = np.random.default_rng(seed).integers(0, len(known), (_RESAMPLES, len(known)))
    low, high = np.percentile(known[draws].mean(1), [2.5, 97.5])
    return Interval(float(known.mean()), float(low), float(high))


def paired_interval(after: Sequence[float], before: Sequence[float], seed: int = 0) -> Interval:
    """The mean of after - before, task by task; above zero when `low` is. InputError unless the tasks are the same."""
    if len(after) != len(before):
        raise InputError(f"a paired comparison needs the same tasks on both sides, not {len(after)} and {len(before)}")
    return mean_interval(np.asarray(after, float) - np.asarray(before, float), seed)
