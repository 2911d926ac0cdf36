"""Where people read."""

from __future__ import annotations

from rich.console import Console


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """Who read us has left: said as Python says it, where rich would end the process with 1."""
        raise BrokenPipeError


def screen() -> Console:
    """A console that prints what it is given: brackets in questions, documents and paths are theirs, and no markup of ours."""
    return _Screen(markup=False, highlight=False)
