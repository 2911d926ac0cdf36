"""Who answers: the incumbent's weights, and for a share of the users a canary's. What chose is written down with what was said.

A user is drawn by a hash, so that every server and every restart draws the same ones, and another canary draws others. A
conversation that began with one deployment stays with it for as long as it is served, whoever would be drawn by now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trivium.errors import InputError
from trivium.policy import Policy
from trivium.trace import people


@dataclass(frozen=True, slots=True)
class Lane:
    """Weights that speak, and what they are called in the episodes that they serve; "" where nothing is deployed by name."""

    deployment: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Choice:
    """Who speaks, and the chance with which it was to be this lane."""

    lane: Lane
    propensity: float


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers those who ask for one model: `canary` for a `share` of the users, `incumbent` for the others."""

    incumbent: Lane
    canary: Lane | None = None
    share: float = 0.0

    def __post_init__(self) -> None:
        """Raises InputError for a share that is none, and for a canary that is told from the incumbent by nothing."""
        if not 0 <= self.share <= 1:
            raise InputError(f"a canary's share is from 0 to 1, not {self.share:g}")
        if self.canary and self.canary.deployment == self.incumbent.deployment:
            raise InputError(f"a canary needs a name of its own, and {self.canary.deployment!r} is the incumbent's")

    @property
    def lanes(self) -> list[Lane]:
        return [self.incumbent, self.canary] if self.canary else [self.incumbent]

    def drawn(self, user: str) -> Choice:
        """Who answers a user, always the same."""
        if self.canary and is_drawn(user, self.canary.deployment, self.share):
            return Choice(self.canary, self.share)
        return Choice(self.incumbent, 1 - self.share if self.canary else 1.0)

    def kept(self, deployment: str, propensity: float) -> Choice | None:
        """Who answered before, where it is still served."""
        return next((Choice(lane, propensity) for lane in self.lanes if lane.deployment == deployment), None)


def is_drawn(user: str, deployment: str, share: float) -> bool:
    """Whether a user is of the `share` that `deployment` answers."""
    return people.is_drawn(f"canary {deployment} {user}", share)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Who is to answer, by the names of deployments: `canary`, "" for none, for a `share` of the users."""

    incumbent: str
    canary: str = ""
    share: float = 0.0


class Record(Protocol):
    """What says which weights serve. Both methods may take a while, and raise a TriviumError or an OSError."""

    def wanted(self) -> Wanted:
        """What it says now."""
        ...

    def load(self, deployment: str) -> Policy:
        """Whoever speaks with a deployment's weights."""
        ...
