"""How a person reads a coder's episode, and which of its numbers: handed to the viewer, which knows no agent."""

from __future__ import annotations

from trivium.trace import Task
from trivium.viewer import Labels, Panels


def _change(task: Task) -> str:
    """The true change in short."""
    edits = task.truth.get("edits") or []
    return "; ".join(f"{edit['path']}: {edit['old'].strip()} -> {edit['new'].strip()}" for edit in edits)


LABELS = Labels(answer=_change, maxima={"reward": 1.5})

PANELS = Panels(
    table=("solved", "fixed", "broken", "broken_calls", "unfinished", "summaries", "summary_tokens", "turns", "edits"),
    held_out=("reward", "solved", "fixed"),
    behaviour=("broken_calls", "turns", "edits", "unfinished"),
    arms=(("reward", "solved", "fixed", "broken_calls"), ("turns", "edits", "summaries", "entropy")),
    shares=frozenset({"solved", "fixed", "broken", "unfinished"}),
    titles={"solved": "all hidden tests pass", "fixed": "tests that the change fixes pass", "broken": "tests broken"},
    progress={"reward": "reward", "solved": "solved"},
)
