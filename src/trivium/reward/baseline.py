"""What a task of a kind is worth on average: the baseline of traffic, which has no groups.

In training every task is attempted several times, and the attempts are each other's baseline. People ask a question once. A
baseline that does not depend on the episode itself leaves the policy gradient's expectation as it is and takes variance out of
it (Williams 1992, section 6; Greensmith, Bartlett and Baxter 2004). So the baseline of an episode is the mean reward of the
*others* of its kind: those of this window, and those of earlier ones, which fade because the policy was another one then.
A kind of which little is known leans on the mean of all kinds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trivium.errors import InputError
from trivium.trace import Episode

FADE = 0.5
"""What an earlier window counts for when the next one has come."""

LEAN = 4.0
"""Episodes of any kind that a kind's own mean begins with."""


@dataclass(frozen=True, slots=True)
class RunningBaseline:
    """`known`: kind -> (how many episodes, faded; their sum of rewards). Plain JSON, kept in a cycle's record."""

    known: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def of(self, kinds: Sequence[str], rewards: Sequence[float]) -> list[float | None]:
        """The baseline of each episode of a window, which leaves that episode's own reward out. None for one that is alone in
        the world: there is nothing to compare it with."""
        sums = self._with(kinds, rewards, fade=1.0)
        count, total = (sum(column) for column in zip(*sums.values(), strict=True)) if sums else (0.0, 0.0)
        baselines: list[float | None] = []
        for kind, reward in zip(kinds, rewards, strict=True):
            if count <= 1:
                baselines.append(None)
                continue
            overall = (total - reward) / (count - 1)
            own, worth = sums[kind]
            baselines.append((worth - reward + LEAN * overall) / (own - 1 + LEAN))
        return baselines

    def after(self, kinds: Sequence[str], rewards: Sequence[float]) -> RunningBaseline:
        """What is known when this window is an earlier one."""
        return RunningBaseline(self._with(kinds, rewards, FADE))

    def _with(self, kinds: Sequence[str], rewards: Sequence[float], fade: float) -> dict[str, tuple[float, float]]:
        """Counts and sums, those of this window among them. InputError unless each reward has a kind."""
        if len(kinds) != len(rewards):
            raise InputError(f"a baseline needs a kind for each reward, not {len(kinds)} kinds for {len(rewards)} rewards")
        sums = defaultdict(lambda: (0.0, 0.0), {kind: (fade * n, fade * total) for kind, (n, total) in self.known.items()})
        for kind, reward in zip(kinds, rewards, strict=True):
            count, total = sums[kind]
            sums[kind] = (count + 1, total + reward)
        return dict(sums)


def kind_of(episode: Episode) -> str:
    """A kind of task that needs no knowledge of the agent: the word that a request begins with."""
    return (episode.task.prompt.split() or [""])[0].lower()[:24]
