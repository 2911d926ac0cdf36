"""The index of a corpus: chunks, postings and vectors as plain arrays, the same in memory and memory-mapped from a
folder."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from trivium.corpus import folder
from trivium.corpus.base import ORDER, Chunk, Embedder
from trivium.corpus.lexical import Lexical
from trivium.errors import CorruptError, InputError


@dataclass(frozen=True)
class Index:
    """Everything a search reads; nothing in it changes after the build.

    Chunks are numbered by row; the chunks of one document are neighbours. doc_ids, titles: per document; firsts: its
    first row, and at the end the number of rows; text: uint8, all chunk texts as UTF-8; stops: int64 [rows + 1],
    where each begins and the last ends; vectors: float32 [rows, dim] or None; embedder: the name of what made them.
    """

    doc_ids: list[str]
    titles: list[str]
    firsts: list[int]
    text: np.ndarray
    stops: np.ndarray
    lexical: Lexical
    vectors: np.ndarray | None = None
    embedder: str | None = None

    @classmethod
    def build(cls, chunks: Sequence[Chunk], embedder: Embedder | None) -> Index:
        """`chunks` of one document must be neighbours, in order from 0."""
        begins = [row for row, chunk in enumerate(chunks) if chunk.order == 0]
        texts = [chunk.text.encode() for chunk in chunks]
        return cls(
            doc_ids=[chunks[row].doc_id for row in begins],
            titles=[chunks[row].title for row in begins],
            firsts=[*begins, len(chunks)],
            text=np.frombuffer(b"".join(texts), np.uint8),
            stops=np.cumsum([0, *map(len, texts)], dtype=np.int64),
            lexical=Lexical.build(chunk.searched for chunk in chunks),
            vectors=_vectors(chunks, embedder) if embedder else None,
            embedder=embedder.name if embedder else None,
        )

    def __len__(self) -> int:
        return self.firsts[-1]

    def chunk(self, row: int) -> Chunk:
        document = bisect_right(self.firsts, row) - 1
        order, doc_id = row - self.firsts[document], self.doc_ids[document]
        return Chunk(f"{doc_id}:{order}", doc_id, self.titles[document], self.text_of(row).decode(), order)

    def text_of(self, row: int) -> bytes:
        return self._bytes[self.stops[row] : self.stops[row + 1]].tobytes()

    def titled(self, row: int) -> bytes:
        """The text of a chunk, for a document's first one after the title."""
        title = self._titles.get(row, "")
        return f"{title}: ".encode() + self.text_of(row) if title.strip() else self.text_of(row)

    def rows_of(self, doc_id: str) -> range:
        """The rows of a document's chunks. Raises InputError for an unknown one."""
        document = self._documents.get(doc_id)
        if document is None:
            raise InputError(f"the corpus has no document {doc_id!r}: use a doc_id that a search has shown")
        return range(self.firsts[document], self.firsts[document + 1])

    def row(self, chunk_id: str) -> int:
        """The row of a chunk. Raises InputError for an unknown one."""
        if (row := self._row(chunk_id)) is None:
            raise InputError(f"the corpus has no chunk {chunk_id!r}: use an id that a search of this corpus has shown")
        return row

    def has(self, chunk_id: str) -> bool:
        """Whether a chunk has this id."""
        return self._row(chunk_id) is not None

    def _row(self, chunk_id: str) -> int | None:
        doc_id, _, order = chunk_id.rpartition(":")
        document = self._documents.get(doc_id)
        if document is None or not ORDER.fullmatch(order):
            return None
        row = self.firsts[document] + int(order)
        return row if row < self.firsts[document + 1] else None

    @cached_property
    def digest(self) -> str:
        """What tells this corpus from any other: a digest of its chunks' ids, titles and texts."""
        hashed = hashlib.blake2b(json.dumps([self.doc_ids, self.titles, self.firsts]).encode(), digest_size=16)
        hashed.update(np.ascontiguousarray(self.stops).data)
        hashed.update(np.ascontiguousarray(self.text).data)
        return hashed.hexdigest()

    def save(self, path: str | Path) -> None:
        arrays = {
            "documents": _from_json([self.doc_ids, self.titles, self.firsts]),
            "terms": _from_json(self.lexical.terms),
            "text": self.text,
            "text_stops": self.stops,
            "posting_stops": self.lexical.stops,
            "posting_rows": self.lexical.rows,
            "posting_weights": self.lexical.weights,
        }
        if self.vectors is not None:
            arrays["vectors"] = self.vectors
        folder.save(path, arrays, {"embedder": self.embedder, "chunks": len(self), "content": self.digest})

    @classmethod
    def load(cls, path: str | Path) -> Index:
        """Memory-mapped from `path`. Raises InputError where no index is, CorruptError where it is torn."""
        arrays, meta = folder.load(path)
        try:
            doc_ids, titles, firsts = _to_json(arrays["documents"])
            postings = (arrays[f"posting_{name}"] for name in ("stops", "rows", "weights"))
            lexical = Lexical(_to_json(arrays["terms"]), *postings, firsts[-1])
            vectors = arrays.get("vectors")
            return cls(doc_ids, titles, firsts, arrays["text"], arrays["text_stops"], lexical, vectors, meta["embedder"])
        except (KeyError, ValueError) as error:
            raise CorruptError(f"the index {path} lacks a part ({error}): build it again") from error

    @cached_property
    def _documents(self) -> dict[str, int]:
        return {doc_id: number for number, doc_id in enumerate(self.doc_ids)}

    @cached_property
    def _titles(self) -> dict[int, str]:
        return dict(zip(self.firsts, self.titles, strict=False))  # firsts ends with the number of rows

    @cached_property
    def _bytes(self) -> memoryview:
        return self.text.data


def _vectors(chunks: Sequence[Chunk], embedder: Embedder) -> np.ndarray:
    vectors = np.ascontiguousarray(embedder.embed([chunk.searched for chunk in chunks]), dtype=np.float32)
    if vectors.shape != (len(chunks), embedder.dim):
        raise InputError(
            f"embedder {embedder.name} gave vectors of shape {vectors.shape} for {len(chunks)} chunks of {embedder.dim}"
        )
    norms = np.linalg.norm(vectors, axis=1)
    if not np.allclose(norms, 1, atol=1e-2):
        raise InputError(f"embedder {embedder.name} gave a vector of length {norms[np.abs(norms - 1).argmax()]:.3f}, not 1")
    return vectors


def _from_json(value: object) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _to_json(array: np.ndarray) -> list:
    return json.loads(array.tobytes())
