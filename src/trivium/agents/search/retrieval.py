"""Measures of what was retrieved, and Context-1's price of small prunes. Pure functions; lists are of document ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def recall(retrieved: Collection[str], gold: Collection[str]) -> float:
    """Share of `gold` that was found; 1 where nothing was to be found."""
    return len(set(retrieved) & set(gold)) / len(set(gold)) if gold else 1.0


def precision(retrieved: Collection[str], gold: Collection[str]) -> float:
    """Share of what was found that is gold; 0 where nothing was found."""
    return len(set(retrieved) & set(gold)) / len(set(retrieved)) if retrieved else 0.0


def f_beta(retrieved: Collection[str], gold: Collection[str], beta: float = 1.0) -> float:
    """(1 + b²) P R / (b² P + R): recall counts b² times as much as precision (Context-1's report: b from 4 to 2)."""
    p, r = precision(retrieved, gold), recall(retrieved, gold)
    return (1 + beta**2) * p * r / (beta**2 * p + r) if p and r else 0.0


def streak_penalty(is_prune: Iterable[bool], free: int = 3, each: float = 0.1, cap: float = 0.5) -> float:
    """0.1 for each prune beyond a streak of three in a row, at most 0.5 (Context-1's report). One flag per call, in order."""
    streak = beyond = 0
    for flag in is_prune:
        streak = streak + 1 if flag else 0
        beyond += streak > free
    return min(cap, each * beyond)
