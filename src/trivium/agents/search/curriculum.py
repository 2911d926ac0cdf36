"""Easy questions first: Context-1's curriculum by hops (its report)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trivium.errors import InputError
from trivium.trace.episode import Task


def two_phases(tasks: Sequence[Task], skew: float = 0.75, seed: int = 0) -> tuple[list[Task], list[Task]]:
    """Every task once, in two halves: the first with a share `skew` of the easy ones, the second with that of the hard.

    Easy is the half with fewer `truth["hops"]`. Within a phase the order is random: the report skews the mixture, it
    does not sort. Its split points and skew are not given; ours are the middle and 3 to 1.
    """
    if not 0.5 <= skew <= 1:
        raise InputError(f"skew is the easy share of the first phase, from 0.5 to 1, not {skew}")
    if bare := next((task.id for task in tasks if "hops" not in task.truth), None):
        raise InputError(f"task {bare} does not say how many hops it has: truth['hops']")
    rng = random.Random(f"phases {seed}")
    ranked = sorted(rng.sample(list(tasks), len(tasks)), key=lambda task: task.truth["hops"])
    middle = (len(ranked) + 1) // 2
    easy, hard = rng.sample(ranked[:middle], middle), rng.sample(ranked[middle:], len(ranked) - middle)
    early, late = round(skew * len(easy)), round((1 - skew) * len(hard))
    first, second = easy[:early] + hard[:late], easy[early:] + hard[late:]
    rng.shuffle(first)
    rng.shuffle(second)
    return first, second
