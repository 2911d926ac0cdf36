"""What trying costs: penalties that any agent's reward may take off. Pure functions of numbers."""

from __future__ import annotations


def turn_penalty(turns: float, start: int = 64, end: int = 128, cap: float = 0.5) -> float:
    """0 up to `start` turns, then rising on a line to `cap` at `end` (Context-1's report)."""
    return cap * min(1.0, max(0, turns - start) / (end - start))


def effort_penalty(effort: float, k: float = 0.5, q: float = 2.0) -> float:
    """((1 + k x)^(1 - q) - 1) / (k (1 - q)) of x, the effort: each bit more costs less than the one before, so that short tasks
    are kept short and long ones may be long (Composer 2's report, which gives neither k nor q: ours). q is not 1."""
    return ((1 + k * effort) ** (1 - q) - 1) / (k * (1 - q))
