"""Chunks: exact substrings, in order, that together hold everything; none too long; borders where a reader would put
them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus import Document, split
from trivium.corpus.chunks import MOST_BYTES, chunk_spans
from trivium.corpus.words import count_words
from trivium.errors import InputError

TEXTS = st.text(st.sampled_from("ab1é漢.!?\"' \n\t-"), max_size=300)


@given(TEXTS, st.integers(1, 12))
def test_chunks_are_substrings_that_cover_the_text(text, limit):
    spans = chunk_spans(text, limit)
    covered = "".join(text[start:stop] for start, stop in spans)
    assert "".join(covered.split()) == "".join(text.split())
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    for start, stop in spans:
        part = text[start:stop]
        assert part == part.strip() != ""
        assert count_words(part) <= limit


@given(TEXTS)
def test_what_fits_stays_whole(text):
    assert len(chunk_spans(text, limit=300)) == (1 if text.strip() else 0)


def test_a_long_word_is_cut_by_bytes():
    spans = chunk_spans("漢x" * 20_000 + "y" * 40_000, limit=10**6)
    assert spans[-1][1] == 80_000 and sum(stop - start for start, stop in spans) == 80_000
    assert max(len(("漢x" * 20_000 + "y" * 40_000)[a:b].encode()) for a, b in spans) <= MOST_BYTES


def test_borders_are_paragraphs_then_sentences_then_words():
    def cut(text, limit):
        return [text[start:stop] for start, stop in chunk_spans(text, limit)]

    assert cut("a b c. d e.\n\nf g. h i j.", 5) == ["a b c. d e.", "f g. h i j."]
    assert cut("a b c. d e f.", 4) == ["a b c.", "d e f."]
    assert cut('He said "no." Then he left', 4) == ['He said "no."', "Then he left"]
    assert cut("a b c d", 2) == ["a b", "c d"]
    crumb = "x\n\n" + "a b c d e f g. h i j k l m n."
    assert cut(crumb, 8) == ["x\n\na b c d e f g.", "h i j k l m n."]


def parts(text: str, limit: int) -> list[str]:
    """The chunks of a text whose length is that of its letters."""
    return [text[start:stop] for start, stop in chunk_spans(text, limit, count=len)]


def test_a_cut_is_where_the_best_border_of_the_middle_half_is():
    """40 letters, so that a border from 10 to 30 is in the middle half and 20 is the middle."""
    worse = {".": "a. a. a. a.", " ": "a a a a a a", "\n": "a\na\na\na\na\na"}  # the borders of a kind, nearer to the middle
    text = lambda head, border, middle: f"{head}{border}{middle}".ljust(40, "z")  # noqa: E731
    assert parts(text("x" * 8, "\n\n", worse["\n"]), 30)[0] == "x" * 8  # a paragraph's end at 10 before lines that end nearer
    assert parts(text("x" * 9, "\n", worse["."]), 30)[0] == "x" * 9  # a line's before a sentence's
    assert parts(text("x" * 8, ". ", worse[" "]), 30)[0] == "x" * 8 + "."  # a sentence's before a word's
    assert parts(text("x" * 9, " ", ""), 30)[0] == "x" * 9  # a word's before none
    assert parts("x" * 40, 30) == ["x" * 20] * 2  # and without any in the middle


@pytest.mark.parametrize("border", ["\n\n", "\n", ". ", " "])
@pytest.mark.parametrize("at, inside", [(9, False), (10, True), (30, True), (32, False)])
def test_a_border_outside_the_middle_half_is_none(border, at, inside):
    """It would leave a crumb. A border is where what parts two pieces ends."""
    text = f"{'x' * (at - len(border))}{border}".ljust(40, "y")
    assert len(parts(text, 39)[0]) == (len(text[:at].rstrip()) if inside else 20)


def test_of_two_borders_the_one_nearer_to_the_middle_is_taken_and_of_equals_the_first():
    for left, right, taken in ((19, 22, 19), (17, 22, 22), (18, 22, 18)):
        text = list("x" * 40)
        text[left - 1] = text[right - 1] = " "
        assert len(parts("".join(text), 30)[0]) == taken - 1


@pytest.mark.parametrize(
    "border, kept",
    [
        ("\n \t\n", ""),  # a line of blanks is an empty one
        ("! ", "!"),
        ("?' ", "?'"),
        (".\u201d ", ".\u201d"),
        (".) ", ".)"),
        ("\u3002", "\u3002"),  # Chinese and Japanese write no space behind a sentence
        ("\uff01", "\uff01"),
        ("\uff1f", "\uff1f"),
    ],
)
def test_what_ends_a_paragraph_or_a_sentence(border, kept):
    """At 12 of 40, where a word ends at 20."""
    text = f"{'x' * (12 - len(border))}{border}yyyyyyy".ljust(40, "z")
    assert parts(f"{text[:19]} {text[20:]}", 30)[0] == "x" * (12 - len(border)) + kept


def test_a_point_inside_a_word_ends_no_sentence():
    assert parts(f"{'x' * 9}.{'y' * 9} {'z' * 20}", 30)[0] == f"{'x' * 9}.{'y' * 9}"


def test_a_chunk_is_as_long_as_its_limit_and_no_longer():
    assert parts("x" * 30, 30) == ["x" * 30] and parts("x" * 31, 30) == ["x" * 15, "x" * 16]
    assert [chunk.text for chunk in split(Document("d", "", "a b"), limit=1)] == ["a", "b"]
    assert len(split(Document("d", "", "x " * 400))) == 1 and len(split(Document("d", "", "x " * 401))) == 2


def test_no_chunk_has_more_bytes_than_an_index_stores_in_one():
    assert MOST_BYTES == 16_384
    assert [stop - start for start, stop in chunk_spans("\u00e9" * 8_192, 10**6)] == [8_192]
    assert [stop - start for start, stop in chunk_spans("\u00e9" * 8_192 + "x", 10**6)] == [4_096, 4_097]


def test_a_letter_is_never_cut_however_long_it_counts():
    assert chunk_spans("ab c", 5, count=lambda text: 9 * len(text)) == [(0, 1), (1, 2), (3, 4)]


def test_white_space_around_a_chunk_belongs_to_none():
    assert chunk_spans("  a b \n\n c d\t", 2) == [(2, 5), (9, 12)] and chunk_spans(" \n ", 2) == chunk_spans("", 2) == []
    (chunk,) = split(Document("d", "Title", " \n"))
    assert (chunk.id, chunk.text, chunk.order) == ("d:0", "", 0)


def test_ids_and_titles():
    chunks = split(Document("d:1", "T", "a b. c d."), limit=2)
    assert [(c.id, c.doc_id, c.title, c.text, c.order) for c in chunks] == [
        ("d:1:0", "d:1", "T", "a b.", 0),
        ("d:1:1", "d:1", "T", "c d.", 1),
    ]
    assert [c.searched for c in split(Document("e", "Only a title", " "))] == ["Only a title\n"]


def test_another_measure_counts():
    assert len(split(Document("d", "", "aaaa bbbb"), limit=5, count=len)) == 2


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(InputError, match="neither title nor text"):
        split(Document("d", " ", "\n"))
    with pytest.raises(InputError, match="at least 1"):
        split(Document("d", "", "x"), limit=0)
    with pytest.raises(InputError, match="half a character"):
        split(Document("d", "", "\ud800"))
