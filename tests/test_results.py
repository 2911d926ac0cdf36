"""What the documents claim was measured: every interval they quote stands in a file of docs/results, which is small."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_NUMBER = r"[-+]?x?\d*\.\d+"
_INTERVAL = re.compile(rf"({_NUMBER}) ?\*{{0,2}} \[({_NUMBER}), ({_NUMBER})\]")
_ELSEWHERE = re.compile(r"git show|\(log\.md|\blog\b|commit|by hand|\(#[a-z-]*session")
"""A sentence that says where else its numbers are from."""


def intervals(found) -> Iterator[list[float]]:
    """Every [mean, low, high] of a results file."""
    if isinstance(found, dict):
        for value in found.values():
            yield from intervals(value)
    elif isinstance(found, list):
        if len(found) == 3 and all(isinstance(value, float) for value in found):
            yield found
        else:
            for value in found:
                yield from intervals(value)


def written(values: list[float], places: int) -> tuple[str, ...]:
    return tuple(f"{round(value, places) + 0.0:.{places}f}" for value in values)


@pytest.fixture(scope="module")
def measured() -> set[tuple[str, ...]]:
    found = [each for path in ROOT.glob("docs/results/*.json") for each in intervals(json.loads(path.read_text()))]
    found += [[-mean, -high, -low] for mean, low, high in found]  # A less B is B less A
    return {written(values, places) for values in found for places in (2, 3)}


def checked_lines(page: Path) -> Iterator[tuple[int, str]]:
    """A page's numbered lines. Of the log only the sections "In full": its diary quotes runs that were not kept."""
    diary = page.name == "log.md"
    for number, line in enumerate(page.read_text().split("\n"), 1):
        if page.name == "log.md" and line.startswith("## "):
            diary = not line.startswith("## In full: ")
        if not diary:
            yield number, line


def quoted(page: Path) -> list[tuple[int, str, tuple[str, ...]]]:
    """The intervals of a page with their lines, but for those of a sentence that names another source."""
    found = []
    for number, line in checked_lines(page):
        for sentence in re.split(r"(?<=[.;]) ", line):
            if not _ELSEWHERE.search(sentence):
                for match in _INTERVAL.finditer(sentence):
                    places = len(match[1].partition(".")[2])
                    found.append(
                        (number, match[0], written([float(value.replace("x", "")) for value in match.groups()], places))
                    )
    return found


PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
QUOTES = {page: found for page in PAGES if (found := quoted(page))}


@pytest.mark.parametrize("page", QUOTES, ids=lambda page: page.name)
def test_every_interval_was_measured(page, measured):
    unknown = [f"{page.name}:{number}: {text}" for number, text, values in QUOTES[page] if values not in measured]
    assert not unknown, "\n".join(["these intervals stand in no file of docs/results:", *unknown])


def test_an_interval_that_was_not_measured_is_seen(measured):
    """The check above would pass if it found nothing, or if what was measured held any number."""
    found = [values for quotes in QUOTES.values() for _, _, values in quotes]
    assert len(found) > 200
    other = [(mean, low, f"{float(high) + 0.017:.3f}") for mean, low, high in found]
    assert sum(values in measured for values in other) < 0.05 * len(other)


RESULTS = ROOT / "docs" / "results"


def test_the_results_are_small():
    size = sum(path.stat().st_size for path in RESULTS.iterdir())
    assert size <= 4_000_000, f"docs/results holds {size:,} bytes: keep means and intervals, leave out single questions"


def longest(values) -> int:
    """The length of the longest list in a results file."""
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    return max([len(values) if isinstance(values, list) else 0, *map(longest, inner)])


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_results_hold_no_scores_of_single_questions(path):
    """No comparison has fewer than 36 questions, and none has so many recipes, seeds or versions."""
    assert longest(json.loads(path.read_text())) < 36


def test_every_picture_is_shown_by_a_page():
    shown = {name for page in PAGES for name in re.findall(r"!\[[^\]]*\]\([^)]*?([\w.-]+\.png)\)", page.read_text())}
    assert {path.name for path in RESULTS.parent.rglob("*.png")} == shown
