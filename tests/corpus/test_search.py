"""Search: each arm against a plain re-computation, fusion, exclusion inside the arms, order, odd queries; grep, read,
pack."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.corpus import Chunk, Corpus, Document, HashEmbedder, Hit, PatternError, pack
from trivium.corpus.lexical import K1, B
from trivium.corpus.search import best, fuse
from trivium.corpus.words import query_stems, stems, words
from trivium.errors import InputError

WORDS = ["holt", "valley", "river", "led", "mira", "tolen", "bridge", "oster", "the", "of"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join), min_size=1, max_size=90)
QUERIES = st.lists(st.sampled_from([*WORDS, "unknown"]), min_size=1, max_size=5).map(" ".join)


def corpus_of(texts: list[str], embedder: HashEmbedder | None = None) -> Corpus:
    return Corpus.build([Document(f"d{row}", "", text) for row, text in enumerate(texts)], embedder=embedder)


def bm25(texts: list[str], query: str) -> list[float]:
    """BM25 as one would write it down, chunk by chunk."""
    bags = [Counter(stems(text)) for text in texts]
    mean = sum(map(Counter.total, bags)) / len(bags)
    scores = []
    for bag in bags:
        score = 0.0
        for stem in query_stems(query):
            df = sum(stem in other for other in bags)
            idf = math.log(1 + (len(bags) - df + 0.5) / (df + 0.5))
            score += idf * bag[stem] / (bag[stem] + K1 * (1 - B + B * bag.total() / mean))
        scores.append(score)
    return scores


@given(TEXTS, QUERIES)
def test_the_lexical_arm_is_bm25(texts, query):
    np.testing.assert_allclose(corpus_of(texts).index.lexical.scores(query), bm25(texts, query), rtol=1e-4, atol=1e-6)


@given(TEXTS, QUERIES, st.data())
@settings(max_examples=60)
def test_excluded_chunks_never_appear_and_results_are_full(texts, query, data):
    corpus = corpus_of(texts, HashEmbedder(16))
    excluded = data.draw(st.sets(st.integers(0, len(texts) - 1)))
    limit = data.draw(st.integers(1, 100))
    hits = corpus.search(query, limit, exclude=[f"d{row}:0" for row in excluded])
    rows = [int(hit.chunk.doc_id[1:]) for hit in hits]
    assert not excluded & set(rows)
    assert len(rows) == len(set(rows)) == min(limit, len(texts) - len(excluded))
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    # The answer is that of the arms among what is left, at their full width.
    arms = [corpus.index.lexical.scores(query), corpus.index.vectors @ corpus.embedder.embed_query(query)]
    kept = [row for row in range(len(texts)) if row not in excluded]
    width = max(50, limit)
    ranked = [sorted(kept, key=lambda row, arm=arm: (-arm[row], row)) for arm in arms]
    ranked[0] = [row for row in ranked[0] if arms[0][row] > 0]
    assert rows == [row for row, _ in fuse([arm[:width] for arm in ranked])][:limit]


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0]), min_size=1, max_size=40), st.integers(1, 45))
def test_the_best_come_first_and_equal_ones_in_order(scores, count):
    rows, values = best(np.array(scores, np.float32), count, above=0)
    assert rows == sorted((r for r in range(len(scores)) if scores[r] > 0), key=lambda r: (-scores[r], r))[:count]
    assert values == [scores[row] for row in rows]


def test_fusion_by_hand():
    fused = fuse([[7, 3], [3, 9]])
    assert fused == [(3, 1 / 62 + 1 / 61), (7, 1 / 61), (9, 1 / 62)]
    assert [row for row, _ in fuse([[5], [2]])] == [2, 5]


def test_two_hundred_exclusions_leave_full_results():
    corpus = corpus_of([f"river bridge number {n}" for n in range(400)], HashEmbedder())
    seen = [hit.chunk.id for hit in corpus.search("river bridge", 200)]
    again = corpus.search("river bridge", 50, exclude=seen)
    assert len(again) == 50 and not {hit.chunk.id for hit in again} & set(seen)
    assert corpus.search("river", 10, exclude=[chunk.id for chunk in corpus]) == []


def test_without_an_embedder_only_chunks_that_share_a_word():
    corpus = corpus_of(["the river", "a valley", "the valley"])
    assert [hit.chunk.text for hit in corpus.search("valleys!")] == ["a valley", "the valley"]
    assert corpus.search("unknown") == corpus.search("   ") == corpus.search("?!") == []


@pytest.mark.parametrize(
    "query", ['"river" AND (bridge*', "river:bridge^2 ~", "RIVER's bridge–", "ríver BRIDGE", "\ud800 river\0bridge"]
)
def test_odd_queries_are_cleaned(query):
    corpus = corpus_of(["oster valley", "a bridge over the river"])
    assert corpus.search(query)[0].chunk.doc_id == "d1"


def test_stop_words_count_only_when_there_is_nothing_else():
    corpus = corpus_of(["who is it", "the holt", "mira tolen"])
    assert [hit.chunk.doc_id for hit in corpus.search("who is the holt")] == ["d1"]
    assert [hit.chunk.doc_id for hit in corpus.search("who is the")] == ["d0", "d1"]


def test_titles_are_searched_and_scripts_without_spaces_found():
    corpus = Corpus.build([Document("a", "Brennix", "x"), Document("b", "", "東京の首都"), Document("c", "", "서울")])
    assert [corpus.search(q)[0].chunk.doc_id for q in ("brennix", "首都", "서울")] == ["a", "b", "c"]


def test_a_reranker_sees_fifty_and_decides():
    class Backwards:
        def rerank(self, query, hits):
            assert len(hits) == 50
            return [Hit(hit.chunk, -hit.score, rank) for rank, hit in enumerate(reversed(hits), start=1)]

    texts = [f"river {n}" for n in range(80)]
    plain = corpus_of(texts).search("river", 50)
    turned = Corpus(corpus_of(texts).index, reranker=Backwards()).search("river", 4)
    assert [hit.chunk for hit in turned] == [hit.chunk for hit in plain[::-1][:4]]


def test_a_reranker_sees_fifty_of_both_arms_together():
    """Each arm brings 50 of its own: what they agree on is what is reranked."""
    seen = []

    class Notes:
        def rerank(self, query, hits):
            seen.append(len(hits))
            return list(hits)

    corpus = corpus_of([f"river {n}" for n in range(60)] + [f"rivers {WORDS[n % 5]}" for n in range(60)], HashEmbedder())
    corpus = Corpus(corpus.index, HashEmbedder(), Notes())
    assert len(corpus.search("river 7")) == 10 and len(corpus.search("river 7", 70)) == 70 and seen == [50, 70]


def test_what_is_searched_for_by_default_and_how_it_is_scored():
    corpus = corpus_of(["river"] * 12 + ["river bank"])
    hits = corpus.search("river")
    assert [hit.rank for hit in hits] == list(range(1, 11)) and len(corpus.grep("river")) == 5
    assert [hit.score for hit in hits] == pytest.approx([corpus.index.lexical.scores("river")[0]] * 10)  # BM25's own
    both = corpus_of(["river"] * 12 + ["river bank"], HashEmbedder()).search("river", 1)
    assert both[0].score == pytest.approx(2 / 61)  # first in both arms


def test_wrong_calls_are_refused():
    corpus = corpus_of(["river"])
    for call, message in {
        (lambda: corpus.search("river", 0)): "at least 1",
        (lambda: corpus.search("river", exclude=["d9:0"])): "no chunk 'd9:0'",
        (lambda: corpus.search("river", exclude=["d0:1"])): "no chunk 'd0:1'",
        (lambda: corpus.chunk("d0")): "no chunk 'd0'",
        (lambda: corpus.read("d9")): "no document 'd9'",
        (lambda: Corpus.build([])): "at least one document",
        (lambda: Corpus.build("notes")): "made of Documents, not of str",
        (lambda: Corpus.build([Document("a", "", "x"), Document("a", "", "y")])): "'a' stands twice",
        (lambda: Corpus(corpus.index, HashEmbedder())): "built without an embedder",
    }.items():
        with pytest.raises(InputError, match=message):
            call()


def test_reading_gives_the_chunks_in_order():
    corpus = Corpus.build([Document("a", "", "x"), Document("b", "B", "one two. three four. five six.")], chunk_words=2)
    assert [(chunk.id, chunk.text) for chunk in corpus.read("b")] == [
        ("b:0", "one two."), ("b:1", "three four."), ("b:2", "five six.")
    ]  # fmt: skip
    assert corpus.chunk("b:1") == corpus.read("b")[1] == list(corpus)[2]


@pytest.mark.parametrize("order", ["9" * 5000, "1" * 18, "4", "00", "01", "\u0660", "\u00b2", "-1", "+0", " 0", "0 ", "1_0"])
def test_an_id_that_no_chunk_has_is_not_there(order):
    corpus = Corpus.build([Document("d", "", "one two. " * 20)], chunk_words=10)
    assert "d:0" in corpus and "d:3" in corpus and f"d:{order}" not in corpus
    with pytest.raises(InputError, match="no chunk"):
        corpus.search("one", exclude=[f"d:{order}"])


def test_many_threads_get_the_same_answer():
    corpus = corpus_of([f"{WORDS[n % 7]} {WORDS[n % 5]} {n % 31}" for n in range(300)], HashEmbedder())
    queries = [f"{a} {b}" for a in WORDS for b in WORDS]
    expected = [corpus_of_ids(corpus, query) for query in queries]
    answers: list[list[list[str]]] = [[] for _ in range(6)]

    def run(mine: list[list[str]]) -> None:
        mine += [corpus_of_ids(corpus, query) for query in queries]

    threads = [threading.Thread(target=run, args=(mine,)) for mine in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == expected for mine in answers)


def corpus_of_ids(corpus: Corpus, query: str) -> list[str]:
    return [hit.chunk.id for hit in corpus.search(query)]


def test_grep_finds_in_order_up_to_its_limit():
    corpus = corpus_of(["Form 10-K", "form 10-q", "Form 8-K", "Größe 10", "two\nlines"])
    assert [c.doc_id for c in corpus.grep(r"Form \d+-[KQ]")] == ["d0", "d2"]
    assert [c.doc_id for c in corpus.grep(r"(?i)form", limit=2)] == ["d0", "d1"]
    assert [c.doc_id for c in corpus.grep("Form", exclude=["d0:0"])] == ["d2"]
    assert [c.doc_id for c in corpus.grep(r"\pL\wöße|^lines$|(?m)^lines$")] == ["d3", "d4"]


def test_grep_finds_what_an_agent_reads_on_one_line():
    text = "The founder of the firm is Mira\nTolen,\n\n who lives in Varnholm."
    corpus = Corpus.build(
        [Document("a", "Brennix Holt", text), Document("b", "", "Mira  Tolen"), Document("c", "T", "MiraTolen")]
    )
    for pattern, found in {
        "Mira Tolen": ["a", "b"], "Mira *Tolen": ["a", "b", "c"], "Mira {1,2}Tolen,? who": ["a"], "founder.*Varnholm": ["a"],
        "Brennix Holt": ["a"], "^Brennix Holt: The founder": ["a"], "^T: M": ["c"], r"Mira\ \ Tolen": ["a", "b"],
        re.escape("Mira Tolen"): ["a", "b"], "Mira  *Tolen": ["a", "b"], "Mira  ?Tolen": ["a", "b"],
        r"Mira[[:digit:] ]+Tolen": ["b"], r"\QMira  T\E": ["b"], "[] ]{2}Tolen": ["b"], "[^ ]Tolen": ["a", "c"],
    }.items():  # fmt: skip
        assert [chunk.doc_id for chunk in corpus.grep(pattern)] == found, pattern
    halves = Corpus.build([Document("long", "Holt", "one two. " * 40)], chunk_words=40)
    assert len(halves) > 1 and [chunk.id for chunk in halves.grep("Holt")] == ["long:0"]


@pytest.mark.timeout(60)  # backtracking would take years
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*)*b$", "^(a?){40}a{40}b"])
def test_a_catastrophic_pattern_does_not_hang(pattern):
    corpus = corpus_of(["a" * 16_000 + "!"])
    assert corpus.grep(pattern) == []


@pytest.mark.timeout(60)
def test_a_pattern_whose_classes_do_not_end_is_refused_at_once():
    corpus = Corpus.build([Document("d", "", "a digit 7")])
    began = time.thread_time()
    for pattern in ("[" + r"\d" * 40, "[" + r"\d" * 499, "[[" * 499, "[" + "[:alpha:]" * 100, "[a\\"):
        with pytest.raises(PatternError, match="cannot be used"):
            corpus.grep(pattern)
    assert time.thread_time() - began < 2
    assert corpus.grep(r"[\d\]] *$") and corpus.grep(r"digit[ \]\\]7") and corpus.grep("a[[:space:]]digit")


def test_grep_stops_at_its_time_limit():
    corpus = corpus_of(["abcdefghijklmnop" * 900] * 40)
    with pytest.raises(PatternError, match="more than 1e-06 s"):
        corpus.grep("[a-q][^u-z]{900}x", timeout=1e-6)


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "(?=x)y", r"(a)\1", "((a{1000}){1000}){1000}", "a" * 1001, "\ud800"])
def test_a_bad_pattern_is_refused(pattern):
    with pytest.raises(PatternError):
        corpus_of(["x"]).grep(pattern)


def test_pack_keeps_order_and_limit():
    hits = [Hit(Chunk(f"d:{n}", "d", "T", "x " * n, n), 1.0, n) for n in (3, 9, 2)]
    assert [hit.rank for hit in pack(hits, 9, lambda line: len(line.split()))] == [3, 2]
    assert pack(hits, 0, len) == []


def test_marks_behind_a_name_are_no_letters_of_it():
    assert words("Acme™ ℝ №5 Éire İzmir ﬁne") == ["acme", "r", "no5", "eire", "izmir", "fine"]
    assert [hit.chunk.doc_id for hit in corpus_of(["Acme™ makes anvils."]).search("Acme")]
