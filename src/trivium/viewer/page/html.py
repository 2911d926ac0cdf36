"""Facts to HTML. Every page stands alone: style and script are inside, and nothing is asked of any other host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trivium.viewer.curve import HEALTH, TITLES, USUAL, Series, series, smooth
from trivium.viewer.page.episode import Sheet
from trivium.viewer.page.index import Entry, Query
from trivium.viewer.panels import Event, Panels, scores_in

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 300, 120, 44, 14
"""Of a chart, and the room for its numbers, in pixels."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The part of a list that one page shows: entries with their addresses, `total` of `known` episodes, those before and
    behind. `names` are the facts there are, `shown` those in the table; `problem` says what was wrong with the query;
    `reading`: more episodes are there, and not read yet."""

    query: Query
    entries: Sequence[tuple[Entry, str]]
    total: int
    known: int
    names: Sequence[str]
    shown: Sequence[str]
    stages: Sequence[str]
    earlier: str = ""
    later: str = ""
    problem: str = ""
    reading: bool = False


def episode_page(sheet: Sheet, home: str = "#", before: str = "", after: str = "", beside: str = "", file: str = "") -> str:
    """The page of an episode. `home`, `before`, `after`, `beside` and `file` are addresses: the list, the episodes around it,
    the same task by other policies, this page as a file; an empty one is no link."""
    links = {"before": before, "after": after, "beside": beside, "file": file}
    return render("episode.html", title=sheet.id, home=home, sheets=[("", sheet)], **links)


def beside_page(title: str, sheets: Sequence[tuple[str, Sheet]], home: str = "#") -> str:
    """Episodes side by side, each below its title."""
    nothing = {"before": "", "after": "", "beside": "", "file": ""}
    return render("episode.html", title=title, home=home, sheets=sheets, **nothing)


def list_page(
    title: str,
    home: str,
    runs: Sequence[tuple[str, str, str]] = (),
    charts: str = "",
    table: str = "",
    growing: bool = False,
    listing: Listing | None = None,
) -> str:
    """Runs (name, address, note), curves (as `curves` draws them), a run's table as text, episodes: those that are there.
    `growing`: a run that still trains, whose curves the page asks for again."""
    episodes: dict[str, Any] = {"episodes": None}
    if listing:
        episodes = {name: getattr(listing, name) for name in Listing.__slots__} | {"episodes": listing.entries}
    return render(
        "list.html", title=title, home=home, runs=runs, curves=Markup(charts), table=table, growing=growing, **episodes
    )


def curves(events: Iterable[Event], panels: Panels = Panels()) -> str:
    """Small charts of a run's numbers, as `learning_curve` chooses them: held-out measures, the training reward, behaviour, the
    learner's health."""
    events = list(events)
    scores = scores_in(events)
    held_out = panels.held_out or tuple(scores[:3]) or ("reward",)
    behaviour = panels.behaviour or tuple([*(name for name in scores if name != "reward"), *USUAL][:4])
    titles = {**TITLES, **panels.titles}
    charts = [chart(f"{name.replace('_', ' ')}, held out", series(events, "rl_eval", name), True) for name in held_out]
    charts += [chart("training reward", series(events, "rl", "reward"), False)]
    for name in dict.fromkeys((*behaviour, *HEALTH)):
        charts.append(chart(titles.get(name, name.replace("_", " ")), series(events, "rl", name), False))
    warm = series(events, "sft", "loss")
    charts += [chart("loss of the warm-up", warm, False)] if len(warm[0]) else []
    return render("curves.html", charts=charts)


@dataclass(frozen=True, slots=True)
class _Chart:
    """A line over steps, in pixels: `line` and `raw` are points of an SVG polyline; `marks` are its own points."""

    title: str
    line: str
    raw: str
    marks: Sequence[tuple[float, float]]
    low: str
    high: str
    first: str
    last: str
    now: str


def chart(title: str, points: Series, held_out: bool) -> _Chart:
    """The chart of a series; held-out measures as they are, others smoothed, with the raw line behind."""
    steps, values = points
    if not len(steps):
        return _Chart(title, "", "", (), "", "", "", "", "no numbers yet")
    low, high = float(values.min()), float(values.max())
    span = (high - low) or max(abs(high), 1.0)
    across = float(steps[-1] - steps[0]) or 1.0
    xs = [_LEFT + (_WIDTH - _LEFT - 6) * float(step - steps[0]) / across for step in steps]

    def ys(numbers: Iterable[float]) -> list[float]:
        return [6 + (_HEIGHT - _BOTTOM - 12) * (1 - (float(number) - low) / span) for number in numbers]

    raw = list(zip(xs, ys(values), strict=True))
    line = raw if held_out else list(zip(xs, ys(smooth(values)), strict=True))
    ends = (f"{low:.2g}", f"{high:.2g}", f"{steps[0]:g}", f"{steps[-1]:g}", f"{values[-1]:.3g}")
    marks = raw if held_out or len(raw) == 1 else ()
    return _Chart(title, _points(line), "" if held_out else _points(raw), marks, *ends)


def _points(pairs: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs if math.isfinite(y))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("trivium.viewer.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _asset(name: str) -> Markup:
    return Markup(files("trivium.viewer.page").joinpath(name).read_text(encoding="utf-8"))  # noqa: S704  (our own file)


def render(template: str, **values: Any) -> str:
    """A template of this room, filled in; style and script go inside."""
    return _environment().get_template(template).render(style=_asset("style.css"), script=_asset("page.js"), **values)
