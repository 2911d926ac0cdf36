"""What can be searched: documents cut into chunks, found by BM25 and vectors, by regular expression, or read in
order.

    from trivium.corpus import Corpus, read_documents
    corpus = Corpus.build(read_documents("notes/"))
    for hit in corpus.search("who leads Brennix Holt", limit=4):
        print(hit.rank, hit.chunk.title, hit.chunk.text)
"""

from __future__ import annotations

from trivium.corpus.base import Chunk, Document, Embedder, HashEmbedder, Hit, Reranker, document_of
from trivium.corpus.chunks import split
from trivium.corpus.documents import Beir, Query, read_beir, read_documents, read_folder, read_jsonl
from trivium.corpus.embed import CachedEmbedder, open_embedder
from trivium.corpus.endpoint import EndpointEmbedder
from trivium.corpus.local import LocalEmbedder, MiniLM
from trivium.corpus.search import Corpus, PatternError, pack

__all__ = [
    "Beir",
    "CachedEmbedder",
    "Chunk",
    "Corpus",
    "Document",
    "Embedder",
    "EndpointEmbedder",
    "HashEmbedder",
    "Hit",
    "LocalEmbedder",
    "MiniLM",
    "PatternError",
    "Query",
    "Reranker",
    "document_of",
    "open_embedder",
    "pack",
    "read_beir",
    "read_documents",
    "read_folder",
    "read_jsonl",
    "split",
]
