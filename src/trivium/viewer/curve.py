"""The picture of a run: the measures of learning, the policy's behaviour, and the health of the learner."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.files import swap
from trivium.viewer.panels import Event, Panels, scores_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f4e79", "#c8553d", "#3a8f5c")
HEALTH = ("clipped", "entropy", "grad_norm", "gap")
REFERENCES = {"base": ("base sampled", "-."), "sft": ("SFT sampled", ":"), "sft_greedy": ("SFT greedy", "--")}
INK, GRID = "#333333", "#e6e6e6"

Series = tuple[np.ndarray, np.ndarray]


def learning_curve(
    events: Iterable[Event],
    summary: dict[str, Any] | None,
    path: str | Path,
    panels: Panels = Panels(),
    tasks: int = 0,
) -> None:
    """Write a PNG of 1600 x 900 of the numbers that `panels` names.

    It shows held-out measures ("rl_eval" events, sampled, of so many `tasks` at most) beside those of `summary` ({policy:
    {metric: mean}}, policies base, sft and sft_greedy), training reward, behaviour and the learner's health ("rl" events). A
    panel without numbers says so. The file is the old one or the new one, never half of it.
    """
    from matplotlib import rc_context

    events = list(events)
    with rc_context(STYLE):
        save(_Picture(events, summary or {}, panels, scores_in(events), tasks).draw(), path)


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as a PNG. The file is the old one or the new one, never half of it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    swap(Path(path), buffer.getvalue())


STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.edgecolor": "#999999", "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "axes.axisbelow": True,
    "legend.frameon": False, "lines.linewidth": 1.8, "lines.solid_capstyle": "round",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Picture:
    """The picture of one run; `scores` are the numbers that its scorer gave."""

    events: Sequence[Event]
    summary: dict[str, Any]
    panels: Panels
    scores: Sequence[str]
    tasks: int = 0

    @property
    def held_out(self) -> dict[str, str]:
        """The measures of held-out tasks, each with its colour."""
        return dict(zip(self.panels.held_out or self.scores or ("reward",), COLOURS, strict=False))

    @property
    def behaviour(self) -> tuple[str, ...]:
        terms = [name for name in self.scores if name != "reward"]
        return self.panels.behaviour or tuple([*terms, *USUAL][:4])

    def draw(self) -> Figure:
        """Draw two large panels above, and two groups of four small ones below."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
        figure = Figure(figsize=(1600 / 120, 900 / 120), dpi=120, layout=layout)
        FigureCanvasAgg(figure)
        above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.15, 1), hspace=0.04).flat
        held_out, training = above.subplots(1, 2)
        self._held_out(held_out)
        self._training(training)
        halves, titles = below.subfigures(1, 2, wspace=0.03), ("Behaviour in training", "The learner")
        for part, names, title in zip(halves, (self.behaviour, HEALTH), titles, strict=True):
            part.suptitle(title, x=0.02, ha="left", fontsize=11, fontweight="bold")
            for axes, name in zip(part.subplots(2, 2, sharex=True).flat, names, strict=False):
                self._small(axes, name)
        return figure

    def _held_out(self, axes: Axes) -> None:
        count = f"{self.tasks} held-out tasks, sampled" if self.tasks else "Held-out tasks, sampled"
        axes.set(title=count, ylabel="mean over tasks")
        curves = {name: series(self.events, "rl_eval", name) for name in self.held_out}
        references = {policy: self._reference(policy) for policy in REFERENCES}
        if not any(len(steps) for steps, _ in curves.values()) and not any(references.values()):
            return _empty(axes)
        for name, (steps, values) in curves.items():
            axes.plot(steps, values, "o-", color=self.held_out[name], markersize=4, label=name.replace("_", " "))
        for policy, (label, style) in REFERENCES.items():
            for name, value in references[policy].items():
                axes.axhline(value, linestyle=style, color=self.held_out[name], linewidth=1.1, alpha=0.75)
            if references[policy]:
                axes.plot([], [], style, color="#888888", label=label)
        axes.set_ylim(bottom=0)
        _steps(axes, self.events)
        axes.legend(ncols=3, loc="lower right", fontsize=8, columnspacing=1.2, handlelength=2.2)

    def _reference(self, policy: str) -> dict[str, float]:
        """A policy's means of the measures that are shown, where it has them: the horizontal lines from which RL began."""
        means = self.summary.get(policy) or {}
        return {name: means[name] for name in self.held_out if means.get(name) is not None and np.isfinite(means[name])}

    def _training(self, axes: Axes) -> None:
        axes.set(title="Training reward", ylabel="mean reward of the batch")
        steps, values = series(self.events, "rl", "reward")
        if not len(steps):
            return _empty(axes)
        axes.plot(steps, values, ".-", color=COLOURS[0], alpha=0.35, linewidth=1, markersize=5, label="each step")
        axes.plot(steps, smooth(values), color=COLOURS[0], linewidth=2.4, label="smoothed")
        _steps(axes, self.events)
        axes.legend(loc="lower right")

    def _small(self, axes: Axes, name: str) -> None:
        steps, values = series(self.events, "rl", name)
        title = {**TITLES, **self.panels.titles}.get(name, name.replace("_", " "))
        axes.set_title(title, fontsize=9, fontweight="normal", pad=6)
        axes.tick_params(labelsize=8)
        if not len(steps):
            return _empty(axes)
        colour = "#6b5b95" if name in HEALTH else "#2a7f9e"
        axes.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
        axes.plot(steps, smooth(values), color=colour, linewidth=1.8, marker="" if len(steps) > 1 else "o")
        axes.yaxis.set_major_formatter("{x:g}")
        if name in self.panels.shares:
            axes.set_ylim(-0.03, 1.03)
        _steps(axes, self.events)


USUAL = ("calls", "calls_failed", "no_signal", "groups_dropped")
"""Behaviour that every run has numbers of."""
TITLES = {
    "calls": "calls per episode",
    "calls_failed": "failed calls per episode",
    "no_signal": "steps without signal",
    "groups_dropped": "groups whose attempts earn the same",
    "clipped": "clipped share of tokens",
    "entropy": "entropy (nats)",
    "grad_norm": "gradient norm",
    "gap": "gap |learner − engine| of logprobs",
}


def _steps(axes: Axes, events: Sequence[Event]) -> None:
    """Let the panel span the same whole steps as every other, from 0 to the last one."""
    last = max([1, *(event.step for event in events if event.kind in ("rl", "rl_eval"))])
    axes.set_xlim(-0.02 * last, 1.02 * last)
    axes.locator_params("x", integer=True)
    place = axes.get_subplotspec()
    if place is not None and place.is_last_row():
        axes.set_xlabel("RL step")


def _empty(axes: Axes) -> None:
    axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)  # the locators are shared with full panels
    axes.grid(False)
    axes.text(0.5, 0.5, "no numbers yet", transform=axes.transAxes, ha="center", va="center", color="#999999")


def series(events: Iterable[Event], kind: str, name: str) -> Series:
    """Steps [N] and values [N] of one metric in order of steps. The last of two events of one step (a resumed run) counts.
    A value that is no finite number is left out."""
    values = {event.step: event.metrics.get(name) for event in events if event.kind == kind}
    points = sorted((step, value) for step, value in values.items() if value is not None and np.isfinite(value))
    return np.array([step for step, _ in points], float), np.array([value for _, value in points], float)


def smooth(values: np.ndarray) -> np.ndarray:
    """Centred means [N] over about a tenth of the run and at least five steps. The window shrinks at both ends."""
    half = max(2, len(values) // 20)
    return np.array([values[max(0, at - half) : at + half + 1].mean() for at in range(len(values))])
