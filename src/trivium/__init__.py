"""Trivium: train agents with reinforcement learning inside the harness that serves them.

A **trace** records what happened when a policy, living in a **harness**, spoke and acted on a **corpus** or in a sandbox.
**Rewards** say what it was worth; **train** turns that into better **weights**, which travel to the **engine**; **eval**
decides whether they may be used; **tasks** are made and proven; **loops** never stop.

Floors (a folder imports only from lower ones; tests/test_floors.py):

    0  errors, files, clock, trace   what happened
    1  policy, corpus, nn, fleet     who speaks; what can be searched; the network; equal processes
    2  harness, reward, engine, weights
    3  train, eval, tasks
    4  loops, viewer
    5  recipe                        the whole line of any agent
    6  agents                        search: Context-1; swarm: Kimi K2.5
    7  cli
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "trivium.trace": ("Episode", "Sampling", "Score", "Store", "Task", "rows"),
    "trivium.policy": ("Endpoint", "Policy", "Renderer", "Scripted"),
    "trivium.corpus": ("Corpus", "read_documents"),
    "trivium.nn": ("Network",),
    "trivium.harness": (
        "Crew", "Harness", "Limits", "Passage", "Subagent", "ToolError", "Window", "assign_task", "prune_chunks", "tool",
    ),
    "trivium.reward": ("GroupScorer", "Scorer", "compose", "patience", "score"),
    "trivium.engine": ("Engine",),
    "trivium.weights": ("publish",),
    "trivium.train": (
        "CISPO", "DAPO", "GRPO", "GSPO", "RFT", "SFT", "AdamW", "Batch", "Composer2", "Compute", "DrGRPO", "Group",
        "Kimi", "Learner",
    ),
    "trivium.eval": ("evaluate",),
    "trivium.loops": ("Journal", "Pace", "Plan", "Source", "rl", "rollouts", "run_loop", "sft"),
    "trivium.viewer": ("Panels",),
    "trivium.recipe": ("Recipe",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    """Public names come from their homes when first asked for: `import trivium` imports no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'trivium' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
