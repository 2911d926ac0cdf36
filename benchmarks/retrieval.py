"""How long a hybrid search takes: seeded Zipf text and seeded vectors, 200 chunks excluded from every search.

    python benchmarks/retrieval.py --json              the index as it is, from disk
    python benchmarks/retrieval.py --engines           beside it, other engines as the lexical arm: SQLite FTS5,
    tantivy

Prints a table; with --json the last line is one object. Embedding the query is printed beside and not counted;
`hybrid_cpu_ms_p50` does not depend on what else runs. `mib` is the folder's. The 200 excluded chunks are the search's
own first 200, the hardest case: both arms must look behind all of them.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from trivium.corpus import Corpus, Document, MiniLM
from trivium.corpus.search import CANDIDATES
from trivium.corpus.words import STOP_WORDS, query_stems
from trivium.errors import InputError

SEED, DIM, WORDS, VOCABULARY, EXCLUDED = 7, 384, 40, 50_000, 200


class SeededEmbedder:
    """Random unit vectors: the time of an exact search does not depend on what they mean."""

    name, dim = "seeded", DIM

    def __init__(self) -> None:
        self._rng = np.random.default_rng(SEED)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._rng.standard_normal((len(texts), DIM), dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def embed_query(self, query: str) -> np.ndarray:
        return self.embed([query])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--engines", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    documents, queries = synthetic(arguments.chunks, arguments.queries)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(documents, queries, Path(folder) / "index")
        if arguments.engines:
            found |= engines(documents, queries, Path(folder))
    show(found)
    if arguments.json:
        print(json.dumps(found))


def synthetic(chunks: int, queries: int) -> tuple[list[Document], list[str]]:
    """One-chunk documents of 40 words, and queries of 8 words of one of them. Words follow Zipf's law; as in English,
    the most frequent ones are the stop words."""
    rng = np.random.default_rng(SEED)
    vocabulary = np.array([*sorted(STOP_WORDS), *(f"w{n:05d}" for n in range(VOCABULARY - len(STOP_WORDS)))])
    chance = 1 / np.arange(1, VOCABULARY + 1)
    drawn = vocabulary[rng.choice(VOCABULARY, size=(chunks, WORDS), p=chance / chance.sum())]
    documents = [Document(f"d{row}", "", " ".join(said)) for row, said in enumerate(drawn)]
    return documents, [" ".join(rng.choice(drawn[row], 8)) for row in rng.integers(chunks, size=queries)]


def measure(documents: list[Document], queries: list[str], path: Path) -> dict[str, float]:
    embedder = SeededEmbedder()
    index_s, _ = timed(lambda: Corpus.build(documents, path, embedder))
    open_s, corpus = timed(lambda: Corpus.open(path, embedder))
    excluded = {query: [hit.chunk.id for hit in corpus.search(query, EXCLUDED)] for query in queries}
    hybrid = milliseconds(lambda query: corpus.search(query, 10, excluded[query]), queries)
    rows = {query: np.array([corpus.index.row(chunk) for chunk in excluded[query]]) for query in queries}
    busy = milliseconds(lambda query: corpus.search(query, 10, excluded[query]), queries, time.thread_time)
    lexical = milliseconds(lambda query: corpus._lexical(query, rows[query], CANDIDATES), queries, time.thread_time)
    dense = milliseconds(lambda query: corpus._dense(query, rows[query], CANDIDATES), queries, time.thread_time)
    grep = milliseconds(lambda word: corpus.grep(f"{word}[x-z]", timeout=10), [query.split()[0] for query in queries[:10]])
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {
        "chunks": len(corpus),
        "hybrid_ms_p50": percentile(hybrid, 50),
        "hybrid_ms_p95": percentile(hybrid, 95),
        "hybrid_cpu_ms_p50": percentile(busy, 50),
        "lexical_cpu_ms_p50": percentile(lexical, 50),
        "dense_cpu_ms_p50": percentile(dense, 50),
        "grep_all_ms_p50": percentile(grep, 50),
        "index_s": round(index_s, 2),
        "open_s": round(open_s, 2),
        "mib": round(size / 2**20, 1),
    } | query_embedding(queries)


def query_embedding(queries: list[str]) -> dict[str, float]:
    try:
        embedder = MiniLM()
        embedder.embed_query("warm")
    except InputError as error:
        print(f"query embedding not measured: {error}")
        return {}
    return {"minilm_query_ms_p50": percentile(milliseconds(embedder.embed_query, queries[:50]), 50)}


def engines(documents: list[Document], queries: list[str], folder: Path) -> dict[str, float]:
    """The lexical arm alone: 50 best of BM25 with 200 exclusions, on other engines."""
    rng = np.random.default_rng(SEED)
    excluded = {query: set(rng.choice(len(documents), EXCLUDED, replace=False).tolist()) for query in queries}
    found = {}
    for name, build in (("fts5", fts5), ("tantivy", tantivy)):
        seconds, search = timed(lambda build=build, name=name: build(documents, folder / name))
        times = milliseconds(
            lambda query, search=search: search(query_stems(query), excluded[query]), queries, time.thread_time
        )
        found |= {f"{name}_lexical_cpu_ms_p50": percentile(times, 50), f"{name}_index_s": round(seconds, 2)}
    return found


def fts5(documents: list[Document], path: Path) -> Callable:
    database = sqlite3.connect(path)
    database.execute("create virtual table chunks using fts5(text, content='', tokenize='porter unicode61')")
    rows = ((row, document.text) for row, document in enumerate(documents))
    database.executemany("insert into chunks(rowid, text) values (?, ?)", rows)
    database.commit()

    def search(stems: list[str], excluded: set[int]) -> list:
        match = " OR ".join(f'"{stem}"' for stem in stems)
        sql = f"select rowid from chunks where chunks match ? order by rank limit {CANDIDATES + len(excluded)}"
        return [row for (row,) in database.execute(sql, [match]) if row not in excluded][:CANDIDATES]

    return search


def tantivy(documents: list[Document], path: Path) -> Callable:
    import tantivy as engine

    path.mkdir()
    schema = engine.SchemaBuilder().add_integer_field("row", stored=True)
    schema = schema.add_text_field("text", tokenizer_name="en_stem").build()
    index = engine.Index(schema, path=str(path))
    writer = index.writer(heap_size=200_000_000, num_threads=1)
    for row, document in enumerate(documents):
        writer.add_document(engine.Document(row=row, text=document.text))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def search(stems: list[str], excluded: set[int]) -> list:
        hits = searcher.search(index.parse_query(" ".join(stems), ["text"]), CANDIDATES + len(excluded)).hits
        rows = (searcher.doc(address)["row"][0] for _, address in hits)
        return [row for row in rows if row not in excluded][:CANDIDATES]

    return search


def timed(call: Callable, clock: Callable[[], float] = time.perf_counter):
    started = clock()
    result = call()
    return clock() - started, result


def milliseconds(call: Callable[[str], object], queries: list[str], clock=time.perf_counter) -> list[float]:
    for query in queries[:5]:
        call(query)
    return [timed(lambda query=query: call(query), clock)[0] * 1000 for query in queries]


def percentile(times: list[float], percent: int) -> float:
    return round(statistics.quantiles(times, n=100, method="inclusive")[percent - 1], 3)


def show(found: dict[str, float]) -> None:
    for name, value in found.items():
        print(f"{name:24} {value:>12,}")


if __name__ == "__main__":
    main()
