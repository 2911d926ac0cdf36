"""How a coder goes on when its window is full: its own summary, and the two ways that it is compared with."""

from __future__ import annotations

from typing import Literal

from trivium.agents.coder.todo import kept
from trivium.harness import SECTIONS, Oldest, Summary

SMALL = 8192
"""Tokens of a window below which all that we say is brief: the prompt holds no schemas, sections have no more than titles."""

REQUEST = "Summarize: what is done, what is left, where. You go on from this summary alone."
"""One sentence, as in Composer 2's report."""

TITLES = (
    "Request", "Intent", "Constraints", "Environment", "Files", "Code",
    "Changes", "Errors", "Findings", "Open", "Current work", "Next step",
)  # fmt: skip
"""Those of SECTIONS."""

BRIEF_SECTIONS = f"Summarize in sections, a line each: {', '.join(TITLES)}. You go on from this summary alone."
"""SECTIONS for a small window, which their explanations alone would half fill."""

REPLIES = {"own": 192, "prompted": 320, "cut": 192}
"""Tokens of a reply in a small window: twelve sections take more."""

AT = 0.55
"""The share of the window past which a summary is asked for."""

Way = Literal["own", "prompted", "cut"]


def compaction(way: Way, window: int = SMALL) -> Summary | Oldest:
    """own: a short request, and the harness' books behind the summary. prompted: twelve fixed sections, the same books.
    cut: nobody is asked, the oldest turns go."""
    if way == "cut":
        return Oldest(AT, keep=AT / 2)
    sections = BRIEF_SECTIONS if window < SMALL else SECTIONS
    return Summary(AT, REQUEST if way == "own" else sections, kept)
