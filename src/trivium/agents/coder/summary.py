"""How a coder goes on when its window is full: its own summary, and the two ways that it is compared with."""

from __future__ import annotations

from typing import Literal

from trivium.agents.coder.todo import kept
from trivium.harness import SECTIONS, Oldest, Summary

REQUEST = "Summarize: what is done, what is left, where. You go on from this summary alone."
"""One sentence, as in Composer 2's report."""

AT = 0.6
"""The share of the window past which a summary is asked for."""

Way = Literal["own", "prompted", "cut"]


def compaction(way: Way) -> Summary | Oldest:
    """own: a short request, and the harness' books behind the summary. prompted: twelve fixed sections, the same books.
    cut: nobody is asked, the oldest turns go."""
    if way == "cut":
        return Oldest(AT, keep=AT / 2)
    return Summary(AT, REQUEST if way == "own" else SECTIONS, kept)
