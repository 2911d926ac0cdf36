"""What an agent hands to the viewer: which of its numbers a person looks at, and how its episodes are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trivium.trace import Task, Thread


class Event(Protocol):
    """An event of a loop: `loops.run.Event`, or anything with these fields."""

    @property
    def kind(self) -> str: ...

    @property
    def step(self) -> int: ...

    @property
    def metrics(self) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class Panels:
    """Names of numbers; where none are named, those that the scorer gives, `reward` first.

    table      rows of a run's table
    held_out   curves of held-out tasks: three in the picture of a run
    behaviour  small curves of training: four in the picture of a run
    arms       the upper and the lower row of the picture of several runs, up to five each
    shares     those that lie between 0 and 1
    titles     what a curve is called, where its name does not say it
    progress   what the line of progress shows: number -> label
    """

    table: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    behaviour: tuple[str, ...] = ()
    arms: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    shares: frozenset[str] = frozenset()
    titles: Mapping[str, str] = field(default_factory=dict)
    progress: Mapping[str, str] = field(default_factory=lambda: {"reward": "reward"})


def scores_in(events: Iterable[Event]) -> list[str]:
    """The names of a scorer's numbers on held-out tasks, in a run's events: `reward` first, the others in order."""
    names = {name for event in events if event.kind == "rl_eval" for name in event.metrics}
    return sorted(names, key=lambda name: (name != "reward", name))


def _truth(task: Task) -> str:
    return ", ".join(f"{name}: {value}" for name, value in task.truth.items())


@dataclass(frozen=True, slots=True)
class Labels:
    """What an agent knows of its episodes and a trace does not say. Without labels an episode is shown as it is.

    answer     the right answer, as text; by default the task's truth as it stands
    gold       ids of the documents that a task asks for
    document   the document that a passage's source counts as
    citations  the handles in a thread's answer, best first, with those that were never shown
    maxima     the largest value that a score can have, by its name
    """

    answer: Callable[[Task], str] = _truth
    gold: Callable[[Task], Sequence[str]] = lambda task: ()
    document: Callable[[str, Task], str] = lambda source, task: source
    citations: Callable[[Thread], Sequence[str]] = lambda thread: ()
    maxima: Mapping[str, float] = field(default_factory=dict)

    def documents(self, thread: Thread, task: Task) -> dict[str, str]:
        """Every handle shown to a thread -> the document that its source counts as."""
        return {piece.ref: self.document(piece.source, task) for piece in thread.passages}
