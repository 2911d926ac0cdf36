"""nDCG@10 and recall@10 of BM25, vectors and their fusion on data sets in the BEIR layout.

    python benchmarks/retrieval_quality.py DATA/scifact DATA/hotpotqa --json

Prints a Markdown table; with --json the last line is one object. Without --split every judged question of a folder
counts: nothing here is trained. A document ranks where its best chunk does.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from trivium.corpus import Beir, Corpus, open_embedder, read_beir
from trivium.corpus.search import CANDIDATES, best

DEPTH = 10
Ranker = Callable[[str], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--split", help="test, train, ...: default all")
    parser.add_argument("--embedder", default="minilm", help="minilm, a sentence-transformers folder, or a URL")
    parser.add_argument("--model", default="", help="the model, where the embedder is a URL")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    embedder = open_embedder(arguments.embedder, arguments.model, progress=_progress)
    results = {folder.name: measure(folder, arguments.split, embedder) for folder in arguments.folders}
    print(table(results))
    if arguments.json:
        print(json.dumps({"embedder": embedder.name, "depth": DEPTH, "sets": results}))


def measure(folder: Path, split: str | None, embedder) -> dict[str, float]:
    splits = [split] if split else sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))
    sets = [read_beir(folder, name) for name in splits]
    started = time.perf_counter()
    corpus = Corpus.build(sets[0].documents, embedder=embedder)
    seconds = time.perf_counter() - started
    found: dict[str, float] = {"documents": len(sets[0].documents), "chunks": len(corpus)}
    found["questions"] = sum(len(data.qrels) for data in sets)
    found["index_s"] = round(seconds, 2)
    for name, rank in rankers(corpus).items():
        ndcg, recall = score(rank, sets)
        found |= {f"{name}_ndcg": round(ndcg, 4), f"{name}_recall": round(recall, 4)}
    return found


def rankers(corpus: Corpus) -> dict[str, Ranker]:
    index = corpus.index
    lexical = Corpus(replace(index, vectors=None, embedder=None))

    def dense(query: str) -> list[str]:
        rows, _ = best(index.vectors @ corpus.embedder.embed_query(query), CANDIDATES, above=-math.inf)
        return documents(index.chunk(row).doc_id for row in rows)

    def searched(which: Corpus) -> Ranker:
        return lambda query: documents(hit.chunk.doc_id for hit in which.search(query, CANDIDATES))

    return {"bm25": searched(lexical), "dense": dense, "hybrid": searched(corpus)}


def documents(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(ids))[:DEPTH]


def score(rank: Ranker, sets: Iterable[Beir]) -> tuple[float, float]:
    """Mean nDCG@10 (gain = judgement, discount log2(rank + 1), as trec_eval and BEIR) and mean recall@10 over all
    questions."""
    ndcgs, recalls = [], []
    for data in sets:
        for query in data.queries:
            gold, found = data.qrels[query.id], rank(query.text)
            ideal = _gain(sorted(gold.values(), reverse=True)[:DEPTH])
            ndcgs.append(_gain([gold.get(doc_id, 0) for doc_id in found]) / ideal)
            recalls.append(sum(doc_id in gold for doc_id in found) / len(gold))
    return statistics.fmean(ndcgs), statistics.fmean(recalls)


def _gain(judgements: list[int]) -> float:
    return sum(judgement / math.log2(rank + 1) for rank, judgement in enumerate(judgements, start=1))


def table(results: dict[str, dict[str, float]]) -> str:
    lines = ["| set | documents | questions | BM25 | dense | hybrid |", "| --- | --- | --- | --- | --- | --- |"]
    for name, found in results.items():
        cells = [f"{found[f'{arm}_ndcg']:.3f} / {found[f'{arm}_recall']:.3f}" for arm in ("bm25", "dense", "hybrid")]
        lines.append(f"| {name} | {found['documents']:,} | {found['questions']} | {' | '.join(cells)} |")
    return "\n".join(["nDCG@10 / recall@10", "", *lines])


def _progress(done: int, total: int) -> None:
    print(f"embedded {done} of {total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
