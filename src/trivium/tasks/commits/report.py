"""What a set of tasks made from commits is like: how large the changes, how long the requests, what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from trivium.trace import Task

ALIKE = 0.5
"""The share of common shingles (Jaccard) from which two changes are near-duplicates."""
_SHINGLE = 5


@dataclass(frozen=True, slots=True)
class Report:
    """Medians over the tasks, and for every commit that became none the reason."""

    tasks: int
    commits: int
    lines: float
    files: float
    letters: float
    tests: float
    left_out: Mapping[str, int]

    def sentences(self) -> list[str]:
        """The report as a person reads it; CursorBench's medians beside ours (Composer 2's report, section 5)."""
        reasons = [f"{count} left out: {reason}" for reason, count in sorted(self.left_out.items(), key=lambda item: -item[1])]
        if not self.tasks:
            return [f"no task from {self.commits} commits", *reasons]
        return [
            f"{self.tasks} tasks from {self.commits} commits",
            f"{self.lines:g} lines changed in {self.files:g} files, at the median (CursorBench: 181 lines)",
            f"{self.letters:g} letters of request (CursorBench: 390), {self.tests:g} tests that fail before and pass after",
            *reasons,
        ]


def report(tasks: Sequence[Task], left_out: Counter[str]) -> Report:
    def middle(values: list[int]) -> float:
        return median(values) if values else 0.0

    return Report(
        len(tasks), len(tasks) + sum(left_out.values()),
        middle([task.truth["lines"] for task in tasks]), middle([len(task.truth["change"]) for task in tasks]),
        middle([len(task.prompt) for task in tasks]), middle([len(task.truth["fixed"]) for task in tasks]), dict(left_out),
    )  # fmt: skip


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """Every run of five words of a text."""
    words = text.split()
    return frozenset(tuple(words[at : at + _SHINGLE]) for at in range(max(1, len(words) - _SHINGLE + 1)))


def alike(first: frozenset, second: frozenset) -> float:
    """Jaccard: the common share of two sets of shingles."""
    return len(first & second) / max(1, len(first | second))
