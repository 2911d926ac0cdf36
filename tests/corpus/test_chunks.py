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
