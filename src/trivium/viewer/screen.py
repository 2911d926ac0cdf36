"""The console that people read."""

from __future__ import annotations

from rich.console import Console


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """Who read us has left: said as Python says it, where rich would end the process with 1."""
        raise BrokenPipeError


def screen() -> Console:
    """A console that prints texts as they are: brackets in questions, documents and paths are no markup."""
    return _Screen(markup=False, highlight=False)
