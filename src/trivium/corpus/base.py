"""The words of a corpus: documents in, chunks found, and the two seams a model can stand behind.

Document("apple-10k", "Apple 10-K", "Apple is led by ...\\n\\nIts revenue ...")     what a person has
  -> Chunk("apple-10k:0", "apple-10k", "Apple 10-K", "Apple is led by ...", 0)    what is searched and shown
  -> Chunk("apple-10k:1", "apple-10k", "Apple 10-K", "Its revenue ...", 1)
search("who leads Apple") -> [Hit(Chunk("apple-10k:0", ...), score=0.0328, rank=1), ...]
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from trivium.corpus.words import stems

ORDER = re.compile(r"0|[1-9][0-9]{0,17}")
"""How the id of a chunk ends: one way to write a number, and none that takes long to read."""


@dataclass(frozen=True, slots=True)
class Document:
    """One thing to search in. `id` is unique in its corpus; `metadata` is carried for its owner and never
    searched."""

    id: str
    title: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


def document_of(source: str) -> str:
    """The document of a chunk, by the chunk's id; what is no such id (a passage of somebody's own tool) is a document."""
    name, _, order = source.rpartition(":")
    return name if name and ORDER.fullmatch(order) else source


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage of a document: `text` is an exact substring of the document's, `order` counts from 0, `id` is
    "doc_id:order"."""

    id: str
    doc_id: str
    title: str
    text: str
    order: int

    @property
    def searched(self) -> str:
        """What is indexed and embedded for this chunk: the title before the text."""
        return f"{self.title}\n{self.text}" if self.title.strip() else self.text

    @property
    def line(self) -> str:
        """The chunk as an agent reads it: title and text on one line."""
        return " ".join((f"{self.title}: {self.text}" if self.title.strip() else self.text).split())


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a search found. `rank` counts from 1; `score` is of whatever ranked last and compares within one
    search only."""

    chunk: Chunk
    score: float
    rank: int


class Embedder(Protocol):
    """Texts to vectors of unit length. `name` tells apart whatever gives different vectors: it is written into the
    index. `dim` is the length of a vector."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [len(texts), dim], each row of norm 1, in the order of `texts`."""
        ...

    def embed_query(self, query: str) -> np.ndarray:
        """float32 [dim] of norm 1; apart from `embed` because some models put a prompt before a query."""
        ...


class Reranker(Protocol):
    def rerank(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """The same chunks in a better order, with new scores and ranks."""
        ...


class HashEmbedder:
    """The fake that ships: adds one pseudo-random vector per stem, seeded by its hash. It knows that equal words are
    equal, and nothing else: for tests, where a real model would cost seconds; fused with BM25 it makes searches
    worse."""

    def __init__(self, dim: int = 64) -> None:
        self.dim = dim
        self.name = f"hash-{dim}"
        self._known: dict[str, np.ndarray] = {}

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self.embed_query(text) for text in texts]) if texts else np.zeros((0, self.dim), np.float32)

    def embed_query(self, query: str) -> np.ndarray:
        total = np.sum([self._vector(stem) for stem in stems(query) or [""]], axis=0, dtype=np.float32)
        return np.asarray(total / np.linalg.norm(total))

    def _vector(self, stem: str) -> np.ndarray:
        if stem not in self._known:
            seed = int.from_bytes(hashlib.blake2b(stem.encode(), digest_size=8).digest(), "little")
            self._known[stem] = np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32)
        return self._known[stem]
