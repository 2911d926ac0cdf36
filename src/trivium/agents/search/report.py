"""A comparison (`compare.py`) as tables: for a terminal, and as Markdown for a page."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
SAID = {
    "bm25": "one BM25 search", "dense": "one dense search", "hybrid": "one hybrid search", "two_bm25": "two queries, BM25",
    "two_hybrid": "two queries, hybrid",
    "quoting": "the question and its first passage, hybrid",
}  # fmt: skip
SHOWN = (
    "f1", "output_recall", "trajectory_recall", "answer_found", "format_valid", "prune_rate", "prune_accuracy", "precision",
    "returned", "turns", "calls_per_turn", "reward",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a title; a cell in `**` is one that excludes 0."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


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


def tables(numbers: Numbers) -> list[Table]:
    """All tables, recipe by recipe, then recipes against each other."""
    made = [table for recipe in numbers["recipes"] for table in _recipe(recipe)]
    return made + [_between(label, less) for label, less in numbers["between"].items()]


def _recipe(recipe: Numbers) -> Iterator[Table]:
    yield _means(recipe)
    for pair, less in recipe["paired"].items():
        yield _paired(recipe, pair, less, SHOWN)
    yield _gains(recipe)
    for agent in recipe["plain"]:
        yield _plain(recipe, agent)
    if recipe["rollouts"]:
        yield _rollouts(recipe)
    yield _pruning(recipe)
    yield _hops(recipe)
    if recipe["training"]:
        yield _training(recipe)


def _title(recipe: Numbers, what: str) -> str:
    return f"{recipe['label']}: {what}"


def _means(recipe: Numbers) -> Table:
    names = list(recipe["policies"])
    rows = [(metric, *(_mean(recipe["policies"][name][metric]) for name in names)) for metric in SHOWN]
    seeds = ", ".join(map(str, recipe["seeds"]))
    note = f"{recipe['tasks']} held-out tasks, seeds {seeds}; mean ± half of its 95% interval."
    return Table(_title(recipe, "every policy"), note, ("metric", *names), rows)


def _paired(recipe: Numbers, pair: str, less: Numbers, metrics: Sequence[str]) -> Table:
    header = ("metric", "all", *(f"seed {seed}" for seed in recipe["seeds"]), "sd of seeds")
    rows = [_differences(metric, less[metric]) for metric in metrics]
    note = "Paired by task, 95% intervals over tasks; sd: of the seeds' differences. Bold excludes 0."
    return Table(_title(recipe, pair), note, header, rows)


def _differences(metric: str, less: Numbers) -> tuple[str, ...]:
    return (metric, _less(less["all"]), *map(_less, less["by_run"]), _figure(less["sd"]))


def _gains(recipe: Numbers) -> Table:
    names = list(recipe["gains"])
    metrics = list(recipe["gains"][names[0]])
    report = {"output_recall": "x1.8", "f1": "x1.6", "answer_found": "x1.5"}
    rows = [(m, *(_times(recipe["gains"][name][m]) for name in names), report[m]) for m in metrics]
    note = "Ratio of means on the same tasks, with its 95% interval; beside it the report's gain over its base."
    return Table(_title(recipe, "relative gains"), note, ("metric", *names, "report"), rows)


def _plain(recipe: Numbers, agent: str) -> Table:
    plain = recipe["plain"][agent]
    metrics = list(plain["bm25"]["scores"])
    rows = [(agent, *(_mean(recipe["policies"][agent][metric]) for metric in metrics))]
    for search, found in plain.items():
        rows.append((SAID[search], *(_mean(found["scores"][metric]) for metric in metrics)))
        rows.append((f"{agent} minus it", *(_less(found["agent minus"][metric]["all"]) for metric in metrics)))
    if "expert" in recipe["policies"]:
        rows.append(("perfect script", *(_mean(recipe["policies"]["expert"][metric]) for metric in metrics)))
    note = f"Each search returns as many documents as {agent} returned on that task, and at least one."
    return Table(_title(recipe, f"{agent} and what needs no training"), note, ("who", *metrics), rows)


def _rollouts(recipe: Numbers) -> Table:
    found = recipe["rollouts"]
    pairs = [(made, other) for other in ("each", "greedy") for made in ("fused", "uncut")]
    less = ("fused minus one", "uncut minus one", "fused minus greedy", "uncut minus greedy")
    rows = [
        (
            metric,
            *(_mean(found[name][metric]) for name in ("rl_fused", "rl_uncut", "rl_each")),
            *(_less(found[f"rl_{a} minus rl_{b}"][metric]["all"]) for a, b in pairs),
        )
        for metric in found["rl_fused"]
    ]
    note = (
        "Rankings of sampled rollouts of rl fused by RRF (k = 60) and cut to their mean length, or uncut, beside the mean of "
        "what each is alone and beside the one greedy rollout; spent: tokens read or sampled."
    )
    return Table(_title(recipe, "rollouts fused"), note, ("metric", "fused", "uncut", "one of them", *less), rows)


def _pruning(recipe: Numbers) -> Table:
    names = list(recipe["pruning"])
    measures = list(recipe["pruning"][names[0]])
    rows = [(measure, *(_mean(recipe["pruning"][name][measure]) for name in names)) for measure in measures]
    note = (
        "error: share of pruned chunks that are gold; random_error: had as many been drawn from those in view; "
        "pruned_fitting: of the episodes in which nothing needed pruning; "
        "each: chunks a prune drops; streak: most prunes in a row."
    )
    return Table(_title(recipe, "pruning"), note, ("measure", *names), rows)


def _training(recipe: Numbers) -> Table:
    columns = ("first", "last", "mean", "most")
    rows = [(name, *(f"{told[column]:.3g}" for column in columns)) for name, told in recipe["training"].items()]
    note = (
        "first, last: of an eighth of RL's steps; most: of any one step of any run; clipped: share of the tokens; "
        "no_signal: share of the steps."
    )
    spent = [f"{kind.upper()} {hours:.3g}" for kind, hours in recipe["cpu_hours"].items()]
    note += f" CPU hours a run: {', '.join(spent)}." if spent else ""
    return Table(_title(recipe, "training"), note, ("metric", *columns), rows)


def _hops(recipe: Numbers) -> Table:
    rows = []
    metrics = [name for name in next(iter(recipe["hops"]["rl"].values())) if name != "tasks"]
    for policy, by_hops in recipe["hops"].items():
        for hops, found in by_hops.items():
            rows.append((policy, hops, str(found["tasks"]), *(_mean(found[metric]) for metric in metrics)))
    note = "The agent is not told how many hops a task has."
    return Table(_title(recipe, "effort by hops"), note, ("policy", "hops", "tasks", *metrics), rows)


def _between(label: str, less: Numbers) -> Table:
    policies = [name for name in less if name != "seeds"]
    rows = [(metric, *(_less(less[name][metric]["all"]) for name in policies)) for metric in SHOWN]
    note = f"Paired by task on seeds {', '.join(map(str, less['seeds']))}. Bold excludes 0."
    return Table(label, note, ("metric", *policies), rows)


# --- cells


def _mean(numbers: Sequence[float]) -> str:
    mean, low, high = numbers
    return f"{_figure(mean)} ±{_figure((high - low) / 2)}" if mean == mean else MISSING


def _less(numbers: Sequence[float]) -> str:
    mean, low, high = numbers
    if mean != mean:
        return MISSING
    said = f"{_figure(mean, '+')} [{_figure(low, '+')}, {_figure(high, '+')}]"
    return said if low <= 0 <= high else f"**{said}**"


def _times(numbers: Sequence[float]) -> str:
    mean, low, high = numbers
    return f"x{mean:.2f} [{low:.2f}, {high:.2f}]" if mean == mean else MISSING


def _figure(value: float, sign: str = "") -> str:
    """Three decimals without the zero before the point; from 100 up none."""
    if value != value:
        return MISSING
    return f"{value:{sign}.0f}" if abs(value) >= 100 else re.sub(r"^([+-]?)0\.", r"\1.", f"{value:{sign}.3f}")


# --- on paper


def as_json(numbers: Numbers) -> str:
    """On one line, since most of it is per-task scores; NaN is null."""
    return msgspec.json.encode(numbers).decode() + "\n"


def markdown(numbers: Numbers) -> str:
    """All tables as a page, with what made them at its head."""
    lines = ["# How the claim was made", "", f"    {numbers['command']}", ""]
    said = ", ".join(f"{name} {value}" for name, value in numbers["versions"].items())
    lines += [f"Commit {_short(numbers['commit'])}; {said}. Suite: {_suite(numbers)}.", ""]
    for table in tables(numbers):
        rule = ["---", *["---:"] * (len(table.header) - 1)]
        lines += [f"## {table.title}", "", table.note, "", *map(_line, (table.header, rule, *table.rows)), ""]
    return "\n".join(lines)


def _short(commit: str) -> str:
    return f"{commit[:12]}{' with changes' if commit.endswith('+') else ''}" if commit.strip("+") else "unknown"


def _suite(numbers: Numbers) -> str:
    corpus, hops = numbers["corpus"], numbers["hops"]
    asked = f"{numbers['split']} of {Path(corpus).name}" if corpus else "each run's own held-out questions"
    return f"{asked} of {hops} hops" if hops else asked


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def show(numbers: Numbers, console: Console) -> None:
    """All tables in a terminal, which may be narrow: words wrap, numbers never."""
    for table in tables(numbers):
        shown = Rich(title=Text(table.title), caption=Text(table.note), box=box.SIMPLE_HEAD, show_edge=False)
        shown.title_justify = shown.caption_justify = "left"
        shown.padding = (0, 1, 0, 0)
        shown.add_column(Text(table.header[0]), overflow="fold")
        for name in table.header[1:]:
            shown.add_column(Text(_stacked(name.replace("_", "\n"))), justify="right", no_wrap=True)
        for name, *cells in table.rows:
            said = (Text(_stacked(cell.strip("*")), "bold" if cell.startswith("**") else "") for cell in cells)
            shown.add_row(Text(name.replace("_", " ")), *said)
        console.print(shown)
        console.print()


def _stacked(cell: str) -> str:
    """A number above its interval."""
    return cell.replace(" ±", "\n±").replace(" [", "\n[").replace(" over ", "\nover ")
