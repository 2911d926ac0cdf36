"""What a run of rollouts attempts, and how far ahead and how long it may: the grouped arguments of `rollouts`."""

from __future__ import annotations

from dataclasses import dataclass, field

from trivium.errors import InputError
from trivium.trace import Sampling


@dataclass(frozen=True, slots=True)
class Plan:
    """What is attempted: in each step from `first` up to `steps`, `groups` tasks, `size` attempts at each.

    groups     tasks a step, over all ranks; they are taken in order, around and around
    size       attempts at a task; they share a baseline
    first      the step to begin at: that of the checkpoint, in a run that goes on
    seed       of the random streams; equal seeds repeat equal attempts
    branches   more last turns of each attempt that finished, compared with each other alone (0, or 2 and more)
    sampling   temperature and the most tokens of a reply
    """

    groups: int
    size: int
    steps: int
    first: int = 0
    seed: int = 0
    branches: int = 0
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if min(self.groups, self.size) < 1:
            raise InputError(f"groups and size are at least 1, not {self.groups} and {self.size}")
        if self.branches < 0 or self.branches == 1:
            raise InputError(f"branches are compared with each other: 2 or more, or 0 for none, not {self.branches}")


@dataclass(frozen=True, slots=True)
class Pace:
    """How far sampling may run ahead of learning, and how long an attempt may take.

    max_lag   the staleness budget, in versions: 0 samples each batch from the newest weights
    slots     the most episodes of this rank that are under way at once; None: its share of a step
    seconds   for one attempt
    """

    max_lag: int = 0
    slots: int | None = None
    seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.max_lag < 0:
            raise InputError(f"max_lag counts versions: 0 or more, not {self.max_lag}")
        if self.slots is not None and self.slots < 1:
            raise InputError(f"slots are at least 1, not {self.slots}")
        if not self.seconds > 0:
            raise InputError(f"an attempt has more than 0 seconds, not {self.seconds:g}")
