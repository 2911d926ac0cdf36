"""The picture of several runs: training under one recipe and under another, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trivium.viewer.curve import STYLE, USUAL, Series, save, series, smooth
from trivium.viewer.panels import Event, Panels, scores_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#1f4e79", "#c8553d", "#3a8f5c", "#8a6fb0", "#c79a2b", "#4aa3b5", "#7a7a7a", "#b04a7a")

_WIDTH, _HANDLE = 220, 8  # letters that a line of the legend has room for, and those that a label's own line takes

Runs = Mapping[str, Sequence[Sequence[Event]]]
"""The events of each recipe's runs, by the recipe's label."""


def learning_curves(runs: Runs, path: str | Path, panels: Panels = Panels()) -> None:
    """Write a PNG of 2000 x 900.

    The upper row shows measures of held-out tasks while training ("rl_eval" events), the lower row the policy's behaviour in
    training ("rl" events, smoothed). A recipe has one colour; its runs are thin lines, their mean a thick one. The file is the
    old one or the new one, never half of it.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scores = scores_in(event for group in runs.values() for events in group for event in events)
    held_out, behaviour = panels.arms
    rows = (held_out or scores[:5], behaviour or [*(name for name in scores if name != "reward"), *USUAL][:5])
    with rc_context(STYLE):
        figure = Figure(figsize=(2000 / 120, 900 / 120), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, max(1, *map(len, rows)), sharex=True, squeeze=False)
        for row, kind, names in zip(axes, ("rl_eval", "rl"), rows, strict=True):
            for panel, name in zip(row, names, strict=False):
                _panel(panel, runs, kind, name)
            for panel in row[len(names) :]:
                panel.set_visible(False)
        lines, labels = axes[0, 0].get_legend_handles_labels()
        columns = _WIDTH // (_HANDLE + max(map(len, labels), default=1))
        figure.legend(lines, labels, loc="outside lower center", ncols=max(1, min(6, columns)))
        save(figure, path)


def _panel(axes: Axes, runs: Runs, kind: str, name: str) -> None:
    held_out = kind == "rl_eval"
    axes.set_title(f"{name.replace('_', ' ')}, {'held out' if held_out else 'in training'}", fontsize=10)
    for colour, (label, group) in zip(_colours(), runs.items(), strict=False):
        points = [series(events, kind, name) for events in group]
        lines = [(steps, values if held_out else smooth(values)) for steps, values in points if len(steps)]
        for steps, values in lines if len(lines) > 1 else ():
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
        if lines:
            axes.plot(*_mean(lines), "o-" if held_out else "-", color=colour, markersize=4, label=label)
    axes.locator_params("x", integer=True)
    if not held_out:
        axes.set_xlabel("RL step")


def _colours() -> Iterable[str]:
    while True:
        yield from COLOURS


def _mean(lines: Sequence[Series]) -> Series:
    """The steps [N] that all runs have, and their mean [N] there."""
    steps = sorted(set.intersection(*(set(steps) for steps, _ in lines)))
    rows = [[dict(zip(own_steps, values, strict=True))[step] for step in steps] for own_steps, values in lines]
    return np.array(steps), np.mean(rows, axis=0)
