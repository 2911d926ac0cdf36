"""Critical steps (Kimi K2.5's report, section 3): how long an episode takes when what runs side by side counts once.

    critical steps = sum over stages of ( S_main + the longest branch ),  a branch's length being its own critical steps

Read off the trace alone: which calls began a thread stands in its Spawns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivium.trace.episode import Call, Episode, Thread
from trivium.trace.ops import AnyOp, Spawn


@dataclass(frozen=True, slots=True)
class Stage:
    """One reply of a thread and what it set going. `main` is its own steps: one, or as many calls as it made itself, for those
    run one after the other where nobody else does them. `branches` are the threads that it began, each with its steps."""

    turn: int
    main: int
    branches: tuple[tuple[str, int], ...] = ()

    @property
    def longest(self) -> int:
        """The steps of its longest branch."""
        return max((steps for _, steps in self.branches), default=0)

    @property
    def steps(self) -> int:
        return self.main + self.longest


def stages(thread: Thread, threads: Sequence[Thread], ops: Sequence[AnyOp], inherited: int = 0) -> list[Stage]:
    """The stages of `thread` in order. `threads` and `ops` are the record that holds whom it called, and `inherited` its turns
    that a branch took over (`Episode.inherited`). A reply without calls (an answer, a summary) is a stage of one step."""
    by_turn: dict[int, list[Call]] = {}
    for call in thread.calls:
        by_turn.setdefault(call.turn, []).append(call)
    children: dict[str, list[str]] = {}
    for op in ops:
        if isinstance(op, Spawn):
            children.setdefault(op.call, []).append(op.child)
    lives = {each.id: each for each in threads}

    def length(id: str) -> int:
        return sum(stage.steps for stage in stages(lives[id], threads, ops))

    replies = [
        Stage(
            turn,
            max(1, sum(_is_step(call) and call.id not in children for call in calls)),
            tuple((id, length(id)) for call in calls for id in children.get(call.id, ()) if id in lives),
        )
        for turn, calls in sorted(by_turn.items())
    ]
    silent = inherited + thread.turns - len(replies)
    last = replies[-1].turn if replies else -1
    return replies + [Stage(last + 1 + number, 1) for number in range(silent)]


def critical_steps(episode: Episode) -> int:
    """The critical steps of a whole episode."""
    return sum(stage.steps for stage in episode_stages(episode))


def episode_stages(episode: Episode) -> list[Stage]:
    """The stages of the agent's own thread."""
    return stages(episode.agent, episode.threads, episode.ops, episode.inherited)


def _is_step(call: Call) -> bool:
    """Whether a call reached anything; one that could not be read, or was refused, cost no more than its reply."""
    return call.fault != "arguments"
