"""BM25 over postings in plain arrays: the lexical arm.

Weights are computed when the index is built, so a query adds up one run of numbers per stem. Measured beside two
engines as the lexical arm of our search (100,000 chunks, 8 words, 200 exclusions; `benchmarks/retrieval.py
--engines`): this 1.2 ms of CPU, SQLite FTS5 4.1, tantivy 0.7, of 12.6 for the whole search; quality is the same. Half
a millisecond did not buy tantivy's 43 MB, exclusion by fetching too much, and a second store beside the vectors. Here
exclusion is exact, equal scores come in the order of the chunks, and threads and processes share one read-only memory
map without a lock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trivium.corpus.words import query_stems, stem, words

K1, B = 1.2, 0.75


@dataclass(frozen=True)
class Lexical:
    """The postings of one corpus: stem `terms[t]` occurs in chunks `rows[stops[t]:stops[t + 1]]` with those
    `weights`.

    terms: V strings; stops: int64 [V + 1]; rows: int32 [P], rising within a stem; weights: float32 [P]; size: chunks.
    """

    terms: list[str]
    stops: np.ndarray
    rows: np.ndarray
    weights: np.ndarray
    size: int

    @classmethod
    def build(cls, texts: Iterable[str]) -> Lexical:
        terms, tokens, lengths = _tokens(texts)
        size = len(lengths)
        owners = np.repeat(np.arange(size, dtype=np.int64), lengths)
        pairs, counts = np.unique(tokens * max(size, 1) + owners, return_counts=True)
        term_of, rows = np.divmod(pairs, max(size, 1))
        stops = np.searchsorted(term_of, np.arange(len(terms) + 1))
        weights = _bm25(counts, lengths[rows], lengths.mean() if size else 1.0, np.diff(stops)[term_of], size)
        return cls(terms, stops.astype(np.int64), rows.astype(np.int32), weights.astype(np.float32), size)

    def scores(self, query: str) -> np.ndarray:
        """BM25 of every chunk for `query`: float32 [size], 0 where no stem of it occurs."""
        scores = np.zeros(self.size, np.float32)
        for term in query_stems(query):
            at = self._numbers.get(term)
            if at is not None:
                run = slice(self.stops[at], self.stops[at + 1])
                scores[self.rows[run]] += self.weights[run]
        return scores

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {term: number for number, term in enumerate(self.terms)}


def _tokens(texts: Iterable[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Stems in order of first appearance; the stem number of every word: int64 [words]; words per text: int64
    [texts]."""
    numbers: dict[str, int] = {}
    known: dict[str, int] = {}
    tokens, lengths = array("q"), array("q")
    for text in texts:
        in_order = words(text)
        for word in in_order:
            if word not in known:
                known[word] = numbers.setdefault(stem(word), len(numbers))
        tokens.extend([known[word] for word in in_order])
        lengths.append(len(in_order))
    return list(numbers), np.frombuffer(tokens, np.int64), np.frombuffer(lengths, np.int64)


def _bm25(counts: np.ndarray, lengths: np.ndarray, mean: float, document_counts: np.ndarray, size: int) -> np.ndarray:
    """BM25 with Lucene's idf, which is never negative (Robertson & Zaragoza 2009, eq. 3.15 without the factor k1 +
    1)."""
    idf = np.log1p((size - document_counts + 0.5) / (document_counts + 0.5))
    return idf * counts / (counts + K1 * (1 - B + B * lengths / mean))
