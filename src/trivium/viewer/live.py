"""Progress while a run trains: one line per stage in a terminal, a plain line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Console
from rich.live import Live as Display
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trivium.errors import InputError

EVERY = 30.0
"""Seconds between two plain lines of a stage that goes on."""


@dataclass(slots=True)
class _Stage:
    """One line. Its time runs only while it is the current one, so an evaluation inside RL does not count as RL."""

    name: str
    total: int
    done: int
    begun: int
    spent: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)

    def remaining(self, spent: float) -> float | None:
        """Seconds at the pace so far; None before the first advance. What a resumed run had done tells no pace."""
        made = self.done - self.begun
        return spent / made * max(0, self.total - self.done) if made > 0 else None

    def said(self) -> str:
        return "  ".join(f"{name} {value:.3g}" for name, value in self.numbers.items())


class Live:
    """Shows stages as they advance.

        with Live() as live:
            live.stage("rl", 60)
            live.advance(reward=0.83, recall=0.7)
            live.note("published version 1")

    On stderr unless told otherwise, as stdout is for what a command finds. On a console that is no terminal a stage gets a
    plain line when it begins, when it is done, and every 30 s between.
    """

    def __init__(self, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True)
        self._now = now
        self._stages: dict[str, _Stage] = {}
        self._current: _Stage | None = None
        self._since = self._told = 0.0
        shown = self._console.is_terminal and not self._console.is_dumb_terminal
        self._display = Display(get_renderable=self._table, console=self._console, refresh_per_second=4) if shown else None

    def __enter__(self) -> Live:
        if self._display:
            self._display.start(refresh=True)
        return self

    def __exit__(self, *_) -> None:
        self._leave()
        if self._display:
            self._display.stop()

    def stage(self, name: str, total: int, done: int = 0) -> None:
        """Begin the stage `name` of `total` steps, `done` of them by an earlier process; or go on with a known one."""
        self._leave()
        known = self._stages.get(name)
        if known is None:
            self._stages[name] = _Stage(name, total, done, begun=done)
        else:
            known.total = total
        self._current = self._stages[name]
        if known is None:
            self._tell()

    def advance(self, n: int = 1, **numbers: float) -> None:
        """`n` more steps of the current stage are done; `numbers` are shown at the right until others replace them."""
        stage = self._current
        if stage is None:
            raise InputError("no stage has begun: call Live.stage(name, total) before Live.advance")
        stage.done += n
        stage.numbers |= numbers
        if stage.done >= stage.total or self._now() - self._told >= EVERY:
            self._tell()

    def note(self, text: str) -> None:
        """A line that stays, above the stages."""
        self._print(text)

    def _leave(self) -> None:
        """Stop the current stage's time."""
        if self._current:
            self._current.spent = self._spent(self._current)
        self._current, self._since = None, self._now()

    def _spent(self, stage: _Stage) -> float:
        return stage.spent + (self._now() - self._since if stage is self._current else 0.0)

    def _tell(self) -> None:
        """The plain line of the current stage, where no display shows it."""
        if self._display or self._current is None:
            return
        self._told, stage = self._now(), self._current
        spent = self._spent(stage)
        left = f", {_time(stage.remaining(spent))} left" if 0 < stage.done < stage.total else ""
        self._print(f"{stage.name} {stage.done}/{stage.total}  {_time(spent)} elapsed{left}  {stage.said()}".rstrip())

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "left", "right", "right", "right"):
            table.add_column(justify=justify, no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for stage in self._stages.values():
            table.add_row(*self._row(stage))
        return table

    def _row(self, stage: _Stage) -> tuple[Text | ProgressBar, ...]:
        spent = self._spent(stage)
        return (
            Text(stage.name, style="bold" if stage is self._current else "dim"),
            ProgressBar(total=max(1, stage.total), completed=stage.done if stage.total else 1, width=24),
            Text(f"{stage.done}/{stage.total}"),
            Text(_time(spent), style="cyan"),
            Text("done" if stage.done >= stage.total else f"{_time(stage.remaining(spent))} left", style="green"),
            Text(stage.said()),
        )


def _time(seconds: float | None) -> str:
    """h:mm:ss, and – for a time that nobody knows."""
    return "–" if seconds is None else str(timedelta(seconds=int(seconds)))
