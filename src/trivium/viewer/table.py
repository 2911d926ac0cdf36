"""The table of a run: every policy's means, and the paired differences between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from trivium.errors import CorruptError

POLICIES = {
    "base": "base",
    "sft": "SFT",
    "sft_greedy": "SFT greedy",
    "rl": "RL",
    "rl_greedy": "RL greedy",
    "expert": "expert",
}
PAIRED = {"rl_minus_sft": "RL − SFT", "rl_greedy_minus_sft_greedy": "RL − SFT, greedy"}
MISSING = "–"

Summary = dict[str, Any]


def summary_table(summary: Summary, metrics: Sequence[str] = ()) -> Table:
    """The table of `summary` for a terminal, a row for each of `metrics` (default: all there are, `reward` first).

    A difference is green where its 95% interval is above 0, and red where it is below. Raises CorruptError for a summary that
    is no mapping.

    `summary` maps a policy (base, sft, sft_greedy, rl, rl_greedy, expert; those absent have no column) to
    {metric: mean}, "intervals" to {policy: {metric: [mean, low, high]}}, and "paired" to {rl_minus_sft |
    rl_greedy_minus_sft_greedy: {metric: [mean, low, high]}}. NaN, None and what is absent are shown as –.
    """
    if not isinstance(summary, dict):
        raise CorruptError("the summary of this run is torn: train it on with its command, which writes it anew")
    caption = "mean ± half of its 95% interval; differences paired by task"
    wide = len(_header(summary)) > 7  # closer together, so that all columns fit on 80
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 0 if wide else 1, 0, 0),
        caption=caption,
        caption_justify="left",
    )
    for name in _header(summary):
        words = name == "metric"  # the only column that wraps where the terminal is narrow
        justify = "left" if words else "right"
        table.add_column(name.replace(" greedy", "\ngreedy"), justify=justify, no_wrap=not words, overflow="fold")
    for metric in metrics or _metrics(summary):
        differences = (_paired(summary, pair, metric) for pair in _pairs(summary))
        means = (_two_lines(_mean(summary, policy, metric)) for policy in _policies(summary))
        table.add_row(metric.replace("_", " "), *means, *(_two_lines(_difference(d), _colour(d)) for d in differences))
    return table


def _metrics(summary: Summary) -> list[str]:
    names = {name for policy in _policies(summary) for name in summary[policy]}
    return sorted(names, key=lambda name: (name != "reward", name))


def _two_lines(cell: str, style: str = "") -> Text:
    """A number, and its interval below it."""
    number, _, interval = cell.partition(" ")
    return Text(number, style).append(f"\n{interval}", "dim" if not style else "")


def _header(summary: Summary) -> list[str]:
    names = [*(POLICIES[p] for p in _policies(summary)), *(PAIRED[p] for p in _pairs(summary))]
    if not summary.get("base"):  # there was no warm-up: RL began with the model as it was
        names = [name.replace("SFT", "before") for name in names]
    return ["metric", *names]


def _policies(summary: Summary) -> list[str]:
    return [policy for policy in POLICIES if summary.get(policy)]


def _pairs(summary: Summary) -> list[str]:
    return [pair for pair in PAIRED if summary.get("paired", {}).get(pair)]


def _mean(summary: Summary, policy: str, metric: str) -> str:
    mean = summary[policy].get(metric)
    if not _is_number(mean):
        return MISSING
    interval = summary.get("intervals", {}).get(policy, {}).get(metric)
    half = f" ±{_figure((interval[2] - interval[1]) / 2)}" if _is_interval(interval) else ""
    return f"{_figure(mean)}{half}"


def _paired(summary: Summary, pair: str, metric: str) -> Sequence[float] | None:
    interval = summary["paired"][pair].get(metric)
    return interval if _is_interval(interval) else None


def _difference(interval: Sequence[float] | None) -> str:
    if interval is None:
        return MISSING
    mean, low, high = (_figure(value, "+") for value in interval)
    return f"{mean} [{low}, {high}]"


def _figure(value: float, sign: str = "") -> str:
    """Three decimals, no zero before the point: .125, +.125, 1.250."""
    return re.sub(r"^([+-]?)0\.", r"\1.", f"{value:{sign}.3f}")


def _colour(interval: Sequence[float] | None) -> str:
    """Green where all of the interval is above 0, red where all of it is below, and no colour where 0 lies in it."""
    if interval is None or interval[1] <= 0 <= interval[2]:
        return ""
    return "green" if interval[1] > 0 else "red"


def _is_interval(interval: Sequence[float | None] | None) -> bool:
    return interval is not None and all(_is_number(value) for value in interval)


def _is_number(value: float | None) -> bool:
    """Whether a value is a number: neither None nor NaN."""
    return value is not None and value == value
