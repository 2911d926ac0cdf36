"""What the documents name exists, and what they must name is named."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import trivium
from trivium.agents.search.recipe import Search
from trivium.train import TABLE

ROOT = Path(__file__).parents[1]
OFFERED = get_args(get_type_hints(Search)["algorithm"])
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HOMES = r"src/trivium|tests|examples|benchmarks|bases|agents|trace|loops|harness|train|corpus|fleet|tasks|nn|engine"
_FILE = re.compile(rf"`((?:{_HOMES})/[\w/.]+)`")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The places in a page that a link can name, as GitHub spells them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_relative_link_leads_somewhere(page):
    for link in _LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)} links to {link}"
        assert not place or place in anchors(target), f"{named(page)} links to {link}, which has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_that_is_named_exists(page):
    for name in _FILE.findall(page.read_text()):
        found = (ROOT / name).exists() or (ROOT / "src" / "trivium" / name).exists()
        assert found, f"{named(page)} names {name}"


def test_the_pages_name_many_files():
    """The check above would pass if its pattern found nothing."""
    assert len({name for page in PAGES for name in _FILE.findall(page.read_text())}) > 20


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_blocks_compile(page):
    for language, code in _FENCED.findall(page.read_text()):
        if language == "python":
            compile(code, named(page), "exec", flags=0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def test_the_agent_that_is_shown_is_the_example():
    """A newcomer copies it from the page."""
    shown = next(
        code for language, code in _FENCED.findall((ROOT / "docs" / "your-agent.md").read_text()) if language == "python"
    )
    assert shown == (ROOT / "examples" / "agent.py").read_text()


def test_names_that_python_blocks_import_from_trivium_exist():
    for page in PAGES:
        for language, code in _FENCED.findall(page.read_text()):
            if language == "python":
                for line in re.findall(r"^from trivium[\w.]* import .+$", code, re.MULTILINE):
                    exec(line, {})


def test_every_algorithm_is_documented():
    rows = (ROOT / "docs" / "algorithms.md").read_text()
    assert {row.name for row in TABLE} >= set(OFFERED)
    told = {maker.lower() for maker in re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)}
    assert {row.name.replace("_", "") for row in TABLE} <= told


def test_every_field_of_the_recipe_is_documented():
    page = (ROOT / "docs" / "search.md").read_text()
    table = page.partition("## The recipe's fields")[2].partition("\n## ")[0]
    told = {name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
    assert told == {field.name for field in fields(Search)}


@pytest.mark.parametrize("algorithm", OFFERED)
def test_every_algorithm_of_the_recipe_is_offered_in_its_page(algorithm):
    assert f"`{algorithm}`" in (ROOT / "docs" / "search.md").read_text()


@pytest.mark.parametrize("name", trivium.__all__)
def test_every_public_name_has_a_docstring(name):
    thing = getattr(trivium, name)
    written = thing.description if name == "prune_chunks" else thing.__doc__
    assert written and not written.startswith(f"{name}("), f"trivium.{name} has no docstring"


GUIDES = sorted(ROOT.glob("docs/*.md"))


@pytest.mark.parametrize("page", GUIDES, ids=named)
def test_a_page_begins_with_what_its_reader_wants(page):
    _, begins, *_ = page.read_text().split("\n\n")
    assert begins.startswith(("You want ", "You have ", "You read ")), f"{named(page)} begins with {begins[:80]!r}"


@pytest.mark.parametrize(("page", "most"), [("README.md", 120), ("docs/learning.md", 150)])
def test_a_stranger_reads_it_to_the_end(page, most):
    assert len((ROOT / page).read_text().splitlines()) <= most


def test_the_readme_decides_by_few_numbers():
    assert len(re.findall(r"\d*\.\d+", (ROOT / "README.md").read_text())) <= 25


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "log.md" and page.parent.name != "results"], ids=named)
def test_lines_are_of_a_normal_length(page):
    """Tables and code need their width; the log is a diary."""
    lines = [line for line in prose(page).split("\n") if not line.startswith(("|", "    ", "![", "#"))]
    assert max(map(len, lines)) <= 220, max(lines, key=len)


def test_no_document_names_a_machine():
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(work|home|root|tmp)/", page.read_text()), named(page)
