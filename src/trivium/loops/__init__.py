"""Straight lines: sft and rl. The only place where engine, learner, publisher and scorer meet.

Importing this room imports no torch; its names bring it when they are first asked for. No file here bears the name of
what it holds: a module that is imported takes that name in its package, and `from trivium.loops import rl` got the module.
"""

from __future__ import annotations

from importlib import import_module

from trivium.loops.run import Event, Run

_HOME = {
    "Continuations": "trivium.loops.futures", "continuations": "trivium.loops.futures", "every_turn": "trivium.loops.futures",
    "Deployment": "trivium.loops.deploy", "Deployments": "trivium.loops.deploy", "Release": "trivium.loops.deploy",
    "Withdrawn": "trivium.loops.deploy", "surviving": "trivium.loops.killed", "Journal": "trivium.loops.own",
    "Pace": "trivium.loops.plan",
    "Plan": "trivium.loops.plan",
    "Source": "trivium.loops.source", "fresh": "trivium.loops.staleness", "rl": "trivium.loops.reinforce",
    "rollouts": "trivium.loops.source", "run_loop": "trivium.loops.own", "sft": "trivium.loops.imitate",
    "through": "trivium.loops.published", "timed": "trivium.loops.cost",
}  # fmt: skip

__all__ = [
    "Continuations",
    "Deployment",
    "Deployments",
    "Event",
    "Journal",
    "Pace",
    "Plan",
    "Release",
    "Run",
    "Source",
    "Withdrawn",
    "continuations",
    "every_turn",
    "fresh",
    "rl",
    "rollouts",
    "run_loop",
    "sft",
    "surviving",
    "through",
    "timed",
]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'trivium.loops' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
