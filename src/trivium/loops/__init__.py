"""Straight lines: sft and rl. The only place where engine, learner, publisher and scorer meet."""

from trivium.loops.rl import rl, rollouts
from trivium.loops.run import Event, Run
from trivium.loops.sft import sft

__all__ = ["Event", "Run", "rl", "rollouts", "sft"]
