"""Paired comparisons: the same tasks under two policies, and an interval for the mean difference or the ratio."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from trivium.errors import InputError

_RESAMPLES = 10_000


class Interval(NamedTuple):
    """A mean and its 95% interval (percentile bootstrap over tasks)."""

    mean: float
    low: float
    high: float


UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))
"""The interval of nothing."""


def mean(values: Sequence[float | None]) -> float:
    """The mean of what is known: NaN and None are left out; NaN of nothing."""
    known = np.asarray(values, float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else float("nan")


def mean_interval(values: Sequence[float | None], seed: int = 0) -> Interval:
    """The mean of one value per task. NaN or None (a task to which the measure does not apply) is left out."""
    known = np.asarray(values, float)  # None becomes NaN
    known = known[~np.isnan(known)]
    if not len(known):
        return UNKNOWN
    low, high = np.percentile(_sums(known, seed) / len(known), [2.5, 97.5])
    return Interval(float(known.mean()), float(low), float(high))


def ratio_interval(above: Sequence[float | None], below: Sequence[float | None], seed: int = 0) -> Interval:
    """The sum of `above` over the sum of `below`, both of the same resampled tasks; those that lack either are left out.

    With scores of two policies it is a relative gain; with counts, a share. NaN where nothing is below the line; its bounds are
    NaN where a resample has nothing below and above it. InputError unless the tasks are the same.
    """
    if len(above) != len(below):
        raise InputError(f"a ratio needs the same tasks above and below, not {len(above)} and {len(below)}")
    pairs = np.asarray([above, below], float)
    pairs = pairs[:, ~np.isnan(pairs).any(0)]
    if not pairs[1].sum():
        return UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.percentile(_sums(pairs[0], seed) / _sums(pairs[1], seed), [2.5, 97.5])
    return Interval(float(pairs[0].sum() / pairs[1].sum()), float(low), float(high))


def _sums(values: np.ndarray, seed: int) -> np.ndarray:
    """The sum of each resample of `values`, float64 [resamples]."""
    return np.concatenate([part.astype(float) @ values for part in np.array_split(_drawn(len(values), seed), 20)])


@lru_cache(maxsize=4)
def _drawn(count: int, seed: int) -> np.ndarray:
    """How often each of `count` tasks was drawn, uint16 [resamples, count]: drawn once, it serves every measure of them."""
    rows = np.random.default_rng(seed).integers(0, count, (_RESAMPLES, count))
    return np.stack([np.bincount(row, minlength=count).astype(np.uint16) for row in rows])
