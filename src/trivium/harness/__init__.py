"""How a policy lives: a window with a budget, typed tools, the turn loop, and the ops that cut and join contexts.

The only writer of ops. Knows no model and no particular tool but those that manage the context itself.
"""

from trivium.harness.base import Keep, Limits, Passage, Scene, Subagent, Tool, ToolError, Window, read_usage
from trivium.harness.compaction import SECTIONS, Oldest, Summary
from trivium.harness.context import Context
from trivium.harness.crew import Crew
from trivium.harness.loop import Harness
from trivium.harness.manage import assign_task, prune_chunks
from trivium.harness.place import MemoryPlace, OpenPlace, Place
from trivium.harness.saved import Saved
from trivium.harness.silence import refuse_gaps, refuse_silence, silence, silence_error, silent
from trivium.harness.snapshot import Snapshot
from trivium.harness.tools import FunctionTool, tool
from trivium.harness.watch import CallEvent, CutEvent, Event, SnapshotEvent, TurnEvent, Watch

__all__ = [
    "SECTIONS", "CallEvent", "Context", "Crew", "CutEvent", "Event", "FunctionTool", "Harness", "Keep", "Limits",
    "MemoryPlace", "Oldest", "OpenPlace", "Passage", "Place", "Saved", "Scene", "Snapshot", "SnapshotEvent", "Subagent",
    "Summary", "Tool", "ToolError", "TurnEvent", "Watch", "Window", "assign_task", "prune_chunks", "read_usage",
    "refuse_gaps", "refuse_silence", "silence", "silence_error", "silent", "tool",
]  # fmt: skip
