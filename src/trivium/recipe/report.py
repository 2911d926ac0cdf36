"""A comparison (`recipe/compare.py`) as tables: for a terminal, and as Markdown for a page."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table as Rich
from rich.text import Text

Numbers = dict[str, Any]

MISSING = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a title; a cell in `**` is one that excludes 0."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def provenance(folders: Sequence[str]) -> Numbers:
    """What made these numbers: the command (a run named by its folder's own name), the commit, the versions."""
    words = [Path(word).name if word in folders else word for word in sys.argv[1:]]
    names = ("trivium", "torch", "transformers", "numpy")
    versions = {"python": platform.python_version()} | {name: version(name) for name in names}
    return {"command": " ".join(["trivium", *words]), "commit": _commit(), "versions": versions}


def _commit() -> str:
    """Of the source this runs from, with a + where files differ from it; "" where it is not in git."""
    here = Path(__file__)

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(here.parent), *words], capture_output=True, text=True).stdout.strip()

    if not shutil.which("git") or not git("ls-files", here.name):  # installed in somebody else's repository: not its commit
        return ""
    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


More = Callable[[Numbers], Iterator[Table]]
"""The tables that an agent adds to those of its runs (`Comparison.tables`)."""


def tables(numbers: Numbers, more: More) -> list[Table]:
    """All tables, recipe by recipe, then recipes against each other."""
    every = [table for recipe in numbers["recipes"] for table in _recipe(recipe, more)]
    return every + [_between(label, less) for label, less in numbers["between"].items()]


def _recipe(recipe: Numbers, more: More) -> Iterator[Table]:
    yield _means(recipe)
    for pair, less in recipe["paired"].items():
        yield _paired(recipe, pair, less)
    yield from more(recipe)
    if recipe["training"]:
        yield _training(recipe)


def title(recipe: Numbers, what: str) -> str:
    """A table's title: of which runs, and what."""
    return f"{recipe['label']}: {what}"


def _means(recipe: Numbers) -> Table:
    names = list(recipe["policies"])
    rows = [(metric, *(mean(recipe["policies"][name][metric]) for name in names)) for metric in recipe["policies"][names[0]]]
    seeds = ", ".join(map(str, recipe["seeds"]))
    note = f"{recipe['tasks']} held-out tasks, seeds {seeds}; mean ± half of its 95% interval."
    return Table(title(recipe, "every policy"), note, ("metric", *names), rows)


def _paired(recipe: Numbers, pair: str, less: Numbers) -> Table:
    header = ("metric", "all", *(f"seed {seed}" for seed in recipe["seeds"]), "sd of seeds")
    rows = [_differences(metric, less[metric]) for metric in less]
    note = "Paired by task, 95% intervals over tasks; sd: of the seeds' differences. Bold excludes 0."
    return Table(title(recipe, pair), note, header, rows)


def _differences(metric: str, less: Numbers) -> tuple[str, ...]:
    return (metric, difference(less["all"]), *map(difference, less["by_run"]), _figure(less["sd"]))


def _training(recipe: Numbers) -> Table:
    columns = ("first", "last", "mean", "most")
    rows = [(name, *(f"{summary[column]:.3g}" for column in columns)) for name, summary in recipe["training"].items()]
    note = (
        "first, last: of an eighth of RL's steps; most: of any one step of any run; clipped: share of the tokens; "
        "no_signal: share of the steps."
    )
    spent = [f"{kind.upper()} {hours:.3g}" for kind, hours in recipe["cpu_hours"].items()]
    note += f" CPU hours a run: {', '.join(spent)}." if spent else ""
    return Table(title(recipe, "training"), note, ("metric", *columns), rows)


def _between(label: str, less: Numbers) -> Table:
    policies = [name for name in less if name != "seeds"]
    rows = [(metric, *(difference(less[name][metric]["all"]) for name in policies)) for metric in less[policies[0]]]
    note = f"Paired by task on seeds {', '.join(map(str, less['seeds']))}. Bold excludes 0."
    return Table(label, note, ("metric", *policies), rows)


# --- cells


def mean(numbers: Sequence[float]) -> str:
    """A mean and half of its interval."""
    mean, low, high = numbers
    return f"{_figure(mean)} ±{_figure((high - low) / 2)}" if mean == mean else MISSING


def difference(numbers: Sequence[float]) -> str:
    """A difference with its interval, in ** where that excludes 0."""
    mean, low, high = numbers
    if mean != mean:
        return MISSING
    text = f"{_figure(mean, '+')} [{_figure(low, '+')}, {_figure(high, '+')}]"
    return text if low <= 0 <= high else f"**{text}**"


def ratio(numbers: Sequence[float]) -> str:
    """A ratio with its interval."""
    mean, low, high = numbers
    return f"x{mean:.2f} [{low:.2f}, {high:.2f}]" if mean == mean else MISSING


def _figure(value: float, sign: str = "") -> str:
    """Three decimals without the zero before the point; from 100 up none."""
    if value != value:
        return MISSING
    return f"{value:{sign}.0f}" if abs(value) >= 100 else re.sub(r"^([+-]?)0\.", r"\1.", f"{value:{sign}.3f}")


# --- on paper


def as_json(numbers: Numbers) -> str:
    """On one line, without the scores of single tasks, which `compare.db` has; NaN is null."""
    recipes = [{name: part for name, part in recipe.items() if name != "per_task"} for recipe in numbers["recipes"]]
    return msgspec.json.encode({**numbers, "recipes": recipes}).decode() + "\n"


def markdown(numbers: Numbers, more: More) -> str:
    """All tables as a page, with what made them at its head."""
    lines = ["# How the claim was made", "", f"    {numbers['command']}", ""]
    text = ", ".join(f"{name} {value}" for name, value in numbers["versions"].items())
    lines += [f"Commit {_short(numbers['commit'])}; {text}. Suite: {numbers['suite']}.", ""]
    for table in tables(numbers, more):
        rule = ["---", *["---:"] * (len(table.header) - 1)]
        lines += [f"## {table.title}", "", table.note, "", *map(_line, (table.header, rule, *table.rows)), ""]
    return "\n".join(lines)


def _short(commit: str) -> str:
    return f"{commit[:12]}{' with changes' if commit.endswith('+') else ''}" if commit.strip("+") else "unknown"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def show(numbers: Numbers, more: More, console: Console) -> None:
    """All tables in a terminal, which may be narrow: words wrap, numbers never."""
    for table in tables(numbers, more):
        shown = Rich(title=Text(table.title), caption=Text(table.note), box=box.SIMPLE_HEAD, show_edge=False)
        shown.title_justify = shown.caption_justify = "left"
        shown.padding = (0, 1, 0, 0)
        shown.add_column(Text(table.header[0]), overflow="fold", min_width=9)
        for name in table.header[1:]:
            shown.add_column(Text(_stacked(name.replace("_", "\n"))), justify="right", no_wrap=True)
        for name, *cells in table.rows:
            text = (Text(_stacked(cell.strip("*")), "bold" if cell.startswith("**") else "") for cell in cells)
            shown.add_row(Text(name.replace("_", " ")), *text)
        console.print(shown)
        console.print()


def _stacked(cell: str) -> str:
    """A number above its interval."""
    return cell.replace(" ±", "\n±").replace(" [", "\n[").replace(" over ", "\nover ")
