"""What happened: episodes, the operations that cut and join them, rows to learn from, bytes, and a store.

Knows no model, no network and no loop. Facts only: what an episode was *worth* is a `Score`, kept beside it.
"""

from trivium.trace.codec import decode, encode
from trivium.trace.episode import (
    Call,
    Episode,
    Fault,
    Override,
    Piece,
    Sampling,
    Score,
    Segment,
    Span,
    Stop,
    Thread,
)
from trivium.trace.feedback import Feedback, FeedbackKind, in_order
from trivium.trace.ops import Branch, Cut, Join, Op, Point, Prune, Restart, Spawn, Summarize
from trivium.trace.rows import Row, rows
from trivium.trace.steps import Stage, critical_steps, episode_stages, stages
from trivium.trace.store import Store
from trivium.trace.task import Task

__all__ = [
    "Branch", "Call", "Cut", "Episode", "Fault", "Feedback", "FeedbackKind", "Join", "Op", "Override", "Piece", "Point",
    "Prune", "Restart", "Row", "Sampling", "Score", "Segment", "Span", "Spawn", "Stage", "Stop", "Store", "Summarize",
    "Task", "Thread", "critical_steps", "decode", "encode", "episode_stages", "in_order", "rows", "stages",
]  # fmt: skip
