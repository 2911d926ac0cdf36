"""Real questions as tasks: a folder in the BEIR layout (`queries.jsonl`, `qrels/SPLIT.tsv`)."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from trivium.errors import InputError
from trivium.trace.episode import Task


def beir_tasks(folder: str | Path, split: str) -> list[Task]:
    """The questions that `qrels/{split}.tsv` judges, in its order.

    `truth` holds `gold` (ids of the documents with a positive score, in the file's order), and `answer` and `hops`
    where the query's `metadata` has them (else "" and the number of gold documents). Raises InputError naming file and
    line.
    """
    root = Path(folder)
    gold = _gold(_there(root / "qrels" / f"{split}.tsv", root))
    queries = _queries(_there(root / "queries.jsonl", root))
    if missing := [id for id in gold if id not in queries]:
        raise InputError(f"{root}: qrels/{split}.tsv judges query {missing[0]!r}, which queries.jsonl does not have")
    return [_task(queries[id], documents) for id, documents in gold.items() if documents]


def _task(query: dict[str, Any], gold: list[str]) -> Task:
    metadata = query.get("metadata") or {}
    truth = {"gold": gold, "answer": str(metadata.get("answer", "")), "hops": int(metadata.get("hops", len(gold)))}
    return Task(query["_id"], query["text"], truth)


def _gold(path: Path) -> dict[str, list[str]]:
    gold: dict[str, list[str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file, delimiter="\t"), 1):
            if number == 1 and row[:1] == ["query-id"]:
                continue
            try:
                query, document, score = row
                gold.setdefault(query, []).extend([document] if float(score) > 0 else [])
            except ValueError:
                raise InputError(f"{path} line {number}: expected query-id, corpus-id and a score, got {row}") from None
    return gold


def _queries(path: Path) -> dict[str, dict[str, Any]]:
    queries = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                query = json.loads(line)
                queries[query["_id"]] = {**query, "text": query["text"]}
            except (json.JSONDecodeError, KeyError, TypeError):
                raise InputError(f"{path} line {number}: expected a JSON object with `_id` and `text`") from None
    return queries


def _there(path: Path, root: Path) -> Path:
    if not path.is_file():
        splits = sorted(file.stem for file in root.glob("qrels/*.tsv"))
        have = f"splits here: {', '.join(splits)}" if splits else "a BEIR folder has queries.jsonl and qrels/SPLIT.tsv"
        raise InputError(f"there is no {path}; {have}")
    return path
