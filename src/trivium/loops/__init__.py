"""Straight lines: sft and rl. The only place where engine, learner, publisher and scorer meet.

Importing this room imports no torch; its names bring it when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module

from trivium.loops.run import Event, Run

_HOME = {"rl": "trivium.loops.rl", "rollouts": "trivium.loops.rl", "sft": "trivium.loops.sft"}

__all__ = ["Event", "Run", "rl", "rollouts", "sft"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'trivium.loops' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
