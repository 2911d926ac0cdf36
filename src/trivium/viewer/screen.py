"""Where people read."""

from __future__ import annotations

from rich.console import Console


def screen() -> Console:
    """A console that prints what it is given: brackets in questions, documents and paths are theirs, and no markup of ours."""
    return Console(markup=False, highlight=False)
