"""The whole line of any agent: warm-up, RL, evaluation, comparison, estimate, and the verbs of the command line.

An agent is a subclass of Recipe (recipe/base.py). Importing this room imports no torch.
"""

from __future__ import annotations

from importlib import import_module

_HOME = {
    "Bench": "trivium.recipe.base", "Comparison": "trivium.recipe.comparison", "Recipe": "trivium.recipe.base",
    "Speaker": "trivium.recipe.comparison", "Suite": "trivium.recipe.base", "train": "trivium.recipe.line",
}  # fmt: skip

__all__ = ["Bench", "Comparison", "Recipe", "Speaker", "Suite", "train"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'trivium.recipe' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
