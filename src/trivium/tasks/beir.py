"""Makes tasks of real questions: a folder in the BEIR layout, with its judgements as gold."""

from __future__ import annotations

from pathlib import Path

from trivium.corpus.documents import Query, read_beir
from trivium.errors import InputError
from trivium.trace.episode import Task


def beir_tasks(folder: str | Path, split: str) -> list[Task]:
    """The questions that `qrels/{split}.tsv` judges, in the order of `queries.jsonl`.

    `truth` holds `gold` (ids of the documents with a positive score, in the judgements' order), and `answer` and `hops`
    where the query's `metadata` has them (else "" and the number of gold documents). Raises InputError naming file and
    line of what is missing or malformed.
    """
    beir = read_beir(folder, split)
    return [_task(query, list(beir.qrels[query.id]), str(folder)) for query in beir.queries]


def _task(query: Query, gold: list[str], where: str) -> Task:
    answer, hops = query.metadata.get("answer", ""), query.metadata.get("hops", len(gold))
    if not isinstance(answer, str) or not isinstance(hops, int) or hops < 1:
        raise InputError(
            f"{where}: query {query.id!r} has answer {answer!r} and hops {hops!r}: give a string and a whole number"
        )
    return Task(query.id, query.text, {"gold": gold, "answer": answer, "hops": hops})
