"""A corpus that can be searched: BM25 and exact vectors, fused; grep; read (Context-1's report).

    corpus = Corpus.build(read_documents("notes/"), "notes.index", embedder=open_embedder("minilm"))
    hits   = corpus.search("who leads Brennix Holt", limit=10, exclude=seen)
    corpus.grep(r"10-K|10-Q")           corpus.read(hits[0].chunk.doc_id)           pack(hits, 4096, count)

Every call is synchronous, and safe from many threads: nothing is written after the build.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import re2

from trivium.corpus.base import Chunk, Document, Embedder, Hit, Reranker
from trivium.corpus.chunks import split
from trivium.corpus.documents import check_ids
from trivium.corpus.index import Index
from trivium.errors import InputError

CANDIDATES = 50
LONGEST_PATTERN = 1_000
_PATTERN_MEMORY = 1 << 20
RRF_K = 60
_SPACES = re.compile(
    r"(\\Q.*?(?:\\E|\Z)|\\[^ ]|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\])|(?:\\? )+(?=\\? [*?{])|(?:\\? )+", re.DOTALL
)
"""Spaces of a pattern, escaped or not, the last one by itself where it is repeated; first whatever holds some that are not
to be touched: quotes, other escapes and classes."""
_WHITE = r"(?:[\s\v\x{1c}-\x{1f}\x{85}\pZ]+)"


class PatternError(InputError):
    """A pattern for grep that is no regular expression, or one that took too long."""


class Corpus:
    """Chunks that can be searched. Make one with `build` or `open`."""

    def __init__(self, index: Index, embedder: Embedder | None = None, reranker: Reranker | None = None) -> None:
        _check_embedder(index, embedder)
        self.index, self.embedder, self.reranker = index, embedder, reranker
        self._embed_query = lru_cache(maxsize=1024)(embedder.embed_query) if embedder else None

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        path: str | Path | None = None,
        embedder: Embedder | None = None,
        reranker: Reranker | None = None,
        chunk_words: int = 400,
    ) -> Corpus:
        """Index `documents`: in memory, or with a `path` in that folder, replacing the index that was there all at
        once. Without an embedder a search is BM25 alone. Raises InputError for no documents, two of one id, an empty
        one, or a foreign folder."""
        documents = list(documents)
        if not documents:
            raise InputError("a corpus needs at least one document")
        if wrong := next((each for each in documents if not isinstance(each, Document)), None):
            raise InputError(
                f"a corpus is made of Documents, not of {type(wrong).__name__}: read_documents(path) reads a folder's"
            )
        check_ids(documents, "corpus")
        chunks = [chunk for document in documents for chunk in split(document, chunk_words)]
        index = Index.build(chunks, embedder)
        if path is None:
            return cls(index, embedder, reranker)
        index.save(path)
        return cls.open(path, embedder, reranker)

    @classmethod
    def open(cls, path: str | Path, embedder: Embedder | None = None, reranker: Reranker | None = None) -> Corpus:
        """A built index, memory-mapped: many processes share its pages. Raises InputError where none is or where
        `embedder` is not the one it was built with, CorruptError where a file is torn."""
        return cls(Index.load(path), embedder, reranker)

    @property
    def digest(self) -> str:
        """What tells this corpus from any other: a digest of its chunks' ids, titles and texts."""
        return self.index.digest

    def __len__(self) -> int:
        return len(self.index)

    def __contains__(self, chunk_id: str) -> bool:
        return self.index.has(chunk_id)

    def __iter__(self) -> Iterator[Chunk]:
        return (self.index.chunk(row) for row in range(len(self.index)))

    def chunk(self, chunk_id: str) -> Chunk:
        """Raises InputError for an unknown id."""
        return self.index.chunk(self.index.row(chunk_id))

    def read(self, doc_id: str) -> list[Chunk]:
        """The chunks of a document in order. Raises InputError for an unknown one."""
        return [self.index.chunk(row) for row in self.index.rows_of(doc_id)]

    def search(self, query: str, limit: int = 10, exclude: Iterable[str] = ()) -> list[Hit]:
        """The best chunks, best first: the first 50 of each arm, fused by reciprocal rank, reranked if there is a
        reranker.

        Chunks in `exclude` (ids) are kept out inside each arm, so that excluding many still leaves full results. BM25
        alone finds only chunks that share a word with the query, and then `score` is its own; equal scores come in
        the order of the chunks. Raises InputError for a limit below 1 or an unknown id.
        """
        if limit < 1:
            raise InputError(f"a search for {limit} chunks finds nothing: give a limit of at least 1")
        query = query.encode(errors="replace").decode().strip()
        if not query:
            return []
        excluded = np.fromiter((self.index.row(chunk_id) for chunk_id in exclude), np.int64)
        width = max(CANDIDATES, limit)
        arms = [self._lexical(query, excluded, width)]
        if self._embed_query:
            arms.append(self._dense(self._embed_query(query), excluded, width))
        ranked = fuse([rows for rows, _ in arms]) if len(arms) > 1 else list(zip(*arms[0], strict=True))
        if self.reranker is None:
            return self._hits(ranked[:limit])
        return self.reranker.rerank(query, self._hits(ranked[:width]))[:limit]

    def grep(self, pattern: str, limit: int = 5, timeout: float = 1.0, exclude: Iterable[str] = ()) -> list[Chunk]:
        """The first chunks, in order, whose text matches the regular expression (RE2: linear in the text whatever the
        pattern, so no backreferences and no lookaround); before a document's first chunk stands its title. As agents read a
        chunk on one line, a space matches any white space and a dot a line's end. Raises PatternError for a pattern that is
        malformed, too large or not done in `timeout` seconds."""
        compiled = _compiled(pattern)
        excluded = {self.index.row(chunk_id) for chunk_id in exclude}
        chunks: list[Chunk] = []
        deadline = time.monotonic() + timeout
        for row in range(len(self.index)):
            if len(chunks) >= limit:
                break
            if time.monotonic() > deadline:
                raise PatternError(f"the pattern {pattern!r} took more than {timeout:g} s: make it more specific")
            if row not in excluded and compiled.search(self.index.titled(row)):
                chunks.append(self.index.chunk(row))
        return chunks

    def _lexical(self, query: str, excluded: np.ndarray, width: int) -> tuple[list[int], list[float]]:
        scores = self.index.lexical.scores(query)
        scores[excluded] = 0
        return best(scores, width, above=0)

    def _dense(self, query: np.ndarray, excluded: np.ndarray, width: int) -> tuple[list[int], list[float]]:
        scores = self.index.vectors @ query
        scores[excluded] = -np.inf
        return best(scores, width, above=-np.inf)

    def _hits(self, ranked: Sequence[tuple[int, float]]) -> list[Hit]:
        return [Hit(self.index.chunk(row), score, rank) for rank, (row, score) in enumerate(ranked, start=1)]


def best(scores: np.ndarray, count: int, above: float) -> tuple[list[int], list[float]]:
    """The rows of the `count` highest scores over `above`, highest first, equal ones by row; and their scores.

    best([1, 3, 0, 3], 2, above=0) -> ([1, 3], [3, 3])
    """
    if count < len(scores):
        edge = np.partition(scores, len(scores) - count)[len(scores) - count]
        rows = np.flatnonzero((scores >= edge) & (scores > above))
    else:
        rows = np.flatnonzero(scores > above)
    rows = rows[np.argsort(-scores[rows], kind="stable")[:count]]
    return rows.tolist(), scores[rows].tolist()


def fuse(arms: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Reciprocal rank fusion, the sum over arms of 1 / (60 + rank) with ranks from 1 (Cormack, Clarke & Büttcher
    2009; Context-1's report, whose code counts from 0): (row, score), best first, equal ones by row."""
    scores: dict[int, float] = {}
    for arm in arms:
        for rank, row in enumerate(arm, start=1):
            scores[row] = scores.get(row, 0.0) + 1 / (RRF_K + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def pack(hits: Iterable[Hit], limit: int, count: Callable[[str], int]) -> list[Hit]:
    """The hits, in their order, that fit together into `limit`; one too long for what is left is passed over. `count`
    measures a chunk's line."""
    fitting, left = [], limit
    for hit in hits:
        size = count(hit.chunk.line)
        if size <= left:
            fitting.append(hit)
            left -= size
    return fitting


def _check_embedder(index: Index, embedder: Embedder | None) -> None:
    opened = embedder.name if embedder else None
    if index.embedder != opened:
        built = f"with the embedder {index.embedder}" if index.embedder else "without an embedder"
        raise InputError(
            f"the index was built {built} and is opened with {opened or 'none'}: pass the same one, or build it again"
        )


def _compiled(pattern: str) -> re2._Regexp:
    """RE2 with 1 MiB for its automaton: with it the worst pattern we found holds one chunk (16 KiB) for 0.3 s."""
    if len(pattern) > LONGEST_PATTERN:
        raise PatternError(f"the pattern is {len(pattern):,} characters long: use at most {LONGEST_PATTERN:,}")
    options = re2.Options()
    options.log_errors, options.max_mem, options.dot_nl = False, _PATTERN_MEMORY, True
    try:
        return re2.compile(_SPACES.sub(lambda match: match[1] or _WHITE, pattern), options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        advice = "RE2 syntax has no lookaround and no backreference"
        raise PatternError(f"the pattern {pattern!r} cannot be used ({reason}): {advice}") from error
