"""Tables as answers, after WideSearch: cells, rows, and the whole."""

from __future__ import annotations

import pytest

from trivium.errors import InputError
from trivium.reward import table_scores
from trivium.reward.tables import read_table, same

RIGHT = {"Brennix Holt": ["Mira Tolen", "Varby"], "Zolex Lorbank": ["Kas Dahl", "Danholm"]}


def scores(*lines: str) -> tuple[float, float, float]:
    return tuple(table_scores("\n".join(lines), RIGHT).values())


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Brennix Holt | Mira Tolen | Varby", "Zolex Lorbank | Kas Dahl | Danholm"], (1, 1, 1)),
        (["zolex  lorbank | kas DAHL | Danholm.", "Brennix Holt | Mira Tolen | Varby"], (1, 1, 1)),  # by words, in any order
        (["Brennix Holt | Mira Tolen | Varby", "Zolex Lorbank | Kas Dahl | Varby"], (3 / 4, 1 / 2, 0)),
        (["Brennix Holt | Mira Tolen | Varby", "Zolex Lorbank | ? | -"], (2 * 2 / 6, 2 * 1 / 3, 0)),  # unsaid, not wrong
        (["Brennix Holt | Mira Tolen", "Zolex Lorbank | Kas Dahl | Danholm"], (2 * 3 / 7, 1 / 2, 0)),
        (["Brennix Holt | Varby | Mira Tolen"], (0, 0, 0)),
        (["Brennix Holt | Mira Tolen | Varby", "Zolex Lorbank | Kas Dahl | Danholm", "Danbex | a | b"], (8 / 10, 4 / 5, 0)),
        (["Brennix Holt | Mira Tolen | Varby", "Zolex Lorbank | Kas Dahl | Danholm | more"], (8 / 9, 1, 0)),
        (["It is Mira Tolen."], (0, 0, 0)),
        ([], (0, 0, 0)),
    ],
)
def test_item_f1_row_f1_and_success(lines, expected):
    assert scores(*lines) == pytest.approx(expected)


def test_a_markdown_table_is_one_with_a_head():
    text = "| Company | Chief |\n|---|:-:|\n| Brennix Holt | Mira Tolen |\n| Brennix Holt | again |"
    assert read_table(text) == {"brennix holt": ("Mira Tolen",)}


@pytest.mark.parametrize(
    ("said", "right", "kind", "equal"),
    [
        ("1,004", "1000", "number", True),
        ("1,020", "1000", "number", False),
        ("many", "1000", "number", False),
        ("nan", "1000", "number", False),
        ("3 May 2021", "2021-05-03", "date", True),
        ("May 4, 2021", "2021-05-03", "date", False),
        ("spring", "Spring", "date", True),
        ("www.Example.org/a/", "https://example.org/a", "url", True),
        ("example.org/b", "https://example.org/a", "url", False),
        ("http://[", "https://example.org/a", "url", False),
        ("http://a]b", "HTTP://a]b/", "url", True),
        ("São Paulo", "sao paulo", "exact", True),
    ],
)
def test_a_column_is_compared_by_its_kind(said, right, kind, equal):
    assert same(said, right, kind) is equal


def test_a_kind_that_there_is_not_is_named():
    with pytest.raises(InputError, match="not as 'fuzzy'"):
        table_scores("a | b", {"a": ["b"]}, ["fuzzy"])
