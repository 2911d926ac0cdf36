"""What is told of an episode while it goes on: one event for each turn, call and cut, of the agent and of its sub-agents.

    def watch(event: Event) -> None:
        if isinstance(event, CallEvent):
            print(event.call.name, event.call.error or event.call.pieces)

    episode = await harness.run(task, policy, watch=watch)

An event holds no copy of a context: what it refers to is the episode's own, and is not to be changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trivium.errors import InputError
from trivium.harness.snapshot import Snapshot
from trivium.trace import Call, Cut, Episode


@dataclass(slots=True)
class TurnEvent:
    """Turn number `turn` of a thread is about to begin; `used` tokens are in view."""

    thread: str
    turn: int
    used: int
    _snapshot: Snapshot | None = None
    wanted: bool = False

    @property
    def is_agent(self) -> bool:
        """Whether the thread is the agent's, and no sub-agent's."""
        return self._snapshot is not None

    def snapshot(self) -> Snapshot:
        """The context as it stands, to branch from with `Harness.branch`. Ask while the event is handed out: a snapshot of the
        episode's place is then taken before the turn goes on. Raises InputError for the turn of a sub-agent."""
        if self._snapshot is None:
            raise InputError(
                f"turn {self.turn} of thread {self.thread} is a sub-agent's: only the agent's can be branched from"
            )
        self.wanted = True
        return self._snapshot


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A call of a thread has come to its end, and what the policy is shown of it stands in its pieces."""

    thread: str
    call: Call


@dataclass(frozen=True, slots=True)
class CutEvent:
    """A thread goes on in another context: a prune, a summary, or a template that had to begin anew."""

    thread: str
    cut: Cut


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """A snapshot that was asked for is whole: that of the place is in it. `episode` stands as it stood there, until its turn
    begins."""

    snapshot: Snapshot
    episode: Episode


Event = TurnEvent | CallEvent | CutEvent | SnapshotEvent

Watch = Callable[[Event], None]


@dataclass(slots=True)
class Teller:
    """Tells a watch what happens. One that raises hears no more, and its error is kept for whoever began the episode: raised
    where a sub-agent lives, it would be taken for its policy's."""

    watch: Watch | None = None
    error: Exception | None = None

    def tell(self, event: Event) -> None:
        if self.watch is None or self.error is not None:
            return
        try:
            self.watch(event)
        except Exception as error:
            self.error = error

    def check(self) -> None:
        """Raises what the watch raised."""
        if self.error is not None:
            raise self.error
