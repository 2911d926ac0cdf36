"""The cycles of a live loop as a part of a page: what each learned from, what it changed, what the gate and the canary said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trivium.viewer.page.html import chart, render

Record = Mapping[str, Any]
"""A cycle's record, as its file has it."""


def cycles(records: Sequence[Record], looks: Sequence[float] = ()) -> str:
    """The part of a page; "" where nothing was lived yet. `looks` are measures of held-out people, before the first turn that
    learned and after each."""
    if not records:
        return ""
    people = [(record["number"], record["served"]["everybody"]["reward"]) for record in records if record["served"]]
    charts = [_line("what people made of it", people)] if people else []
    charts += [_line("people who are held out, truly", list(enumerate(looks)))] if looks else []
    return render("cycles.html", charts=charts, rows=[_row(record) for record in records])


def _line(title: str, points: Sequence[tuple[int, float]]):
    steps, values = zip(*points, strict=True)
    return chart(title, (np.asarray(steps, float), np.asarray(values, float)), True)


def _row(record: Record) -> dict[str, Any]:
    fates = ", ".join(f"{count} {fate}" for fate, count in sorted(record["fates"].items()) if count)
    heard = ", ".join(f"{name} {each['reward']:+.3f} ({each['episodes']:.0f})" for name, each in record["served"].items())
    return {
        "number": record["number"],
        "base": record["base"],
        "version": record["version"],
        "learned": record["origin"] or f"{len(record['learned'])} episodes ({fates})",
        "people": heard,
        "gate": _said(record["decision"]),
        "canary": _said(record["canary"]),
        "outcome": record["outcome"].replace("_", " ") or f"under way: {record['stage']}",
        "alarms": record["alarms"],
        "seconds": ", ".join(f"{part} {seconds:.0f}" for part, seconds in record["seconds"].items()),
    }


def _said(decision: Mapping[str, Any]) -> str:
    return f"{decision['verdict']}: {decision['reason']}" if "verdict" in decision else ""
