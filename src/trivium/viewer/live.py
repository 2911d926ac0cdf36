"""Progress while a run trains: one line for each stage in a terminal, a plain line now and then in a log."""

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
    """One line. Its time runs only while it is the current one, so an evaluation inside RL does not count as RL.

    `count` steps are done, `start` of them by an earlier process; `seconds` were spent on the others.
    """

    name: str
    total: int
    count: int
    start: int
    seconds: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.count >= self.total

    def remaining(self, seconds: float) -> float | None:
        """Seconds still needed at the pace so far; None before the first step of this process."""
        steps = self.count - self.start
        return seconds / steps * max(0, self.total - self.count) if steps > 0 else None

    def text(self) -> str:
        return "  ".join(f"{name} {value:.3g}" for name, value in self.numbers.items())


class Live:
    """Shows stages as they advance.

        with Live() as live:
            live.stage("rl", 60)
            live.advance(reward=0.83, recall=0.7)
            live.note("published version 1")

    They are shown on stderr by default, as stdout is for a command's results. On a console that is no terminal a stage gets
    a plain line when it begins, when it is complete, and every 30 s between.
    """

    def __init__(self, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True)
        self._now = now
        self._stages: dict[str, _Stage] = {}
        self._current: _Stage | None = None
        self._since = self._last_line = 0.0
        screen = self._console.is_terminal and not self._console.is_dumb_terminal
        self._display = Display(get_renderable=self._table, console=self._console, refresh_per_second=4) if screen else None

    def __enter__(self) -> Live:
        if self._display:
            self._display.start(refresh=True)
        return self

    def __exit__(self, *_) -> None:
        self._leave()
        if self._display:
            self._display.stop()

    def stage(self, name: str, total: int, done: int = 0) -> None:
        """Begin the stage `name` of `total` steps, `done` of them by an earlier process; or go on with an earlier stage."""
        self._leave()
        earlier = self._stages.get(name)
        if earlier is None:
            self._stages[name] = _Stage(name, total, done, start=done)
        else:
            earlier.total = total
        self._current = self._stages[name]
        if earlier is None:
            self._report()

    def advance(self, n: int = 1, **numbers: float) -> None:
        """Count `n` more steps of the current stage. `numbers` are shown at the right until others replace them."""
        stage = self._current
        if stage is None:
            raise InputError("no stage has begun: call Live.stage(name, total) before Live.advance")
        stage.count += n
        stage.numbers |= numbers
        if stage.complete or self._now() - self._last_line >= EVERY:
            self._report()

    def note(self, text: str) -> None:
        """Print a line that stays, above the stages."""
        self._print(text)

    def _leave(self) -> None:
        """Stop the current stage's time."""
        if self._current:
            self._current.seconds = self._seconds(self._current)
        self._current, self._since = None, self._now()

    def _seconds(self, stage: _Stage) -> float:
        return stage.seconds + (self._now() - self._since if stage is self._current else 0.0)

    def _report(self) -> None:
        """Print the plain line of the current stage, where no display shows it."""
        if self._display or self._current is None:
            return
        self._last_line, stage = self._now(), self._current
        seconds = self._seconds(stage)
        rest = f", {_time(stage.remaining(seconds))} left" if 0 < stage.count < stage.total else ""
        self._print(f"{stage.name} {stage.count}/{stage.total}  {_time(seconds)} elapsed{rest}  {stage.text()}".rstrip())

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
        seconds = self._seconds(stage)
        return (
            Text(stage.name, style="bold" if stage is self._current else "dim"),
            ProgressBar(total=max(1, stage.total), completed=stage.count if stage.total else 1, width=24),
            Text(f"{stage.count}/{stage.total}"),
            Text(_time(seconds), style="cyan"),
            Text("done" if stage.complete else f"{_time(stage.remaining(seconds))} left", style="green"),
            Text(stage.text()),
        )


def _time(seconds: float | None) -> str:
    """A time as h:mm:ss, and – for one that is not known."""
    return "–" if seconds is None else str(timedelta(seconds=int(seconds)))
