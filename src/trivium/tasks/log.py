"""A log of questions as people keep one: a CSV or JSONL file with a column for the question, and perhaps others for its answer,
for the documents that hold the answer, for an id and for a split.

    log = read_log("support.csv")
    log.columns       {"question": "Question", "answer": "Expected answer", "gold": "Doc IDs"}
    log.entries[0]    Entry("support.csv:2", "How do I renew a key?", "trivium keys renew", ("keys.md",))
"""

from __future__ import annotations

import ast
import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.corpus.documents import objects_in, text_in
from trivium.errors import InputError
from trivium.tasks.proof import normal_form

COLUMNS = {
    "question": ("question", "query", "prompt", "user question", "text"),
    "answer": ("answer", "answers", "expected answer", "reference answer", "ground truth"),
    "gold": (
        "gold", "gold documents", "documents", "document", "docs", "doc", "document ids", "document id", "doc ids", "doc id",
        "sources", "source", "urls", "url", "files", "file", "pages", "page",
    ),
    "id": ("id", "question id", "query id", "qid"),
    "split": ("split",),
}  # fmt: skip
"""The usual names of the column for each key, the likeliest first. Case and punctuation do not matter."""

SPLITS = {
    "train": "train", "training": "train", "test": "test", "dev": "test", "valid": "test", "validation": "test", "val": "test",
    "eval": "test", "evaluation": "test", "heldout": "test", "held out": "test",
}  # fmt: skip
"""The names that a log may have for its splits. There are two: one to learn from, and one to be measured on."""

_NAMED_BY = ("id", "_id", "doc_id", "document_id", "source", "url", "path", "file", "title", "metadata")
"""The fields by which an object of a log names a document, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a log. `where` is "FILE:LINE"; `gold` is what the log calls the documents, as it stands there."""

    where: str
    question: str
    answer: str = ""
    gold: tuple[str, ...] = ()
    id: str = ""
    split: str = ""

    @property
    def line(self) -> str:
        """The number of the line on which it begins."""
        return self.where.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Log:
    """The entries in order, and the column of each key of COLUMNS. A key without a column is not there."""

    entries: list[Entry]
    columns: dict[str, str]


def read_log(path: str | Path, columns: Mapping[str, str] | None = None) -> Log:
    """Read a .csv (or .tsv) file with a header, or a .jsonl file.

    `columns` maps a key of COLUMNS to the name that this log has for it. A column that is not there, or "", is looked for by
    the usual names. Raises InputError for a file that is missing, empty, no text or malformed, for one without a question
    column, for a column that was named and is not there, and for a split that is neither train nor test.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".jsonl", ".ndjson"):
        raise InputError(f"{path} is no log that can be read: it must be a .csv with a header, or a .jsonl")
    rows = _csv_rows(path) if suffix in (".csv", ".tsv") else list(objects_in(path, '{"question": ..., "answer": ...}'))
    if not rows:
        raise InputError(f"{path} holds no question: it needs one a line")
    names = _columns(list(dict.fromkeys(name for row, _ in rows for name in row)), columns or {}, path)
    return Log([_entry(where, row, names) for row, where in rows], names)


def _csv_rows(path: Path) -> list[tuple[dict[str, Any], str]]:
    text = text_in(path)
    first = text.lstrip().partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    rows: list[tuple[dict[str, Any], str]] = []
    header: list[str] = []
    try:
        while True:
            where = f"{path}:{reader.line_num + 1}"
            fields = next(reader)
            if not any(field.strip() for field in fields):
                continue
            if not header:
                header = [field.strip() for field in fields]
            elif len(fields) > len(header):
                raise InputError(
                    f"{where} has {len(fields)} fields and the header {len(header)}: put quotes around a field with a comma"
                )
            else:
                rows.append((dict(zip(header, fields, strict=False)), where))
    except StopIteration:
        return rows
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num} is no CSV that can be read ({error}): check its quotes") from error


def _columns(names: list[str], wishes: Mapping[str, str], path: Path) -> dict[str, str]:
    """The name of the column for each key of COLUMNS that has one."""
    by_form = {normal_form(name): name for name in reversed(names)}
    columns = {}
    for key, usual in COLUMNS.items():
        wish = wishes.get(key, "")
        if wish and wish not in names:
            raise InputError(f"{path} has no column {wish!r}: it has {', '.join(names)}")
        column = wish or next((by_form[name] for name in usual if name in by_form), "")
        if column:
            columns[key] = column
    if "question" not in columns:
        has = ", ".join(names[:8])
        raise InputError(f"{path} has no column for the question (it has {has}): name it with --question")
    return columns


def _entry(where: str, row: Mapping[str, Any], columns: Mapping[str, str]) -> Entry:
    cell = {key: row.get(column) for key, column in columns.items()}
    return Entry(
        where,
        question=_line(cell.get("question")),
        answer=_line(cell.get("answer")),
        gold=tuple(_names(cell.get("gold"))),
        id=_line(cell.get("id")),
        split=_split(_line(cell.get("split")), where) if "split" in columns else "",
    )


def _line(value: Any) -> str:
    """A value as one line of text: the first of several answers, the text of an object, an empty line for nothing."""
    value = _parse_list(value)
    if isinstance(value, Mapping):
        value = value.get("text")
    if isinstance(value, list):
        return _line(value[0]) if value else ""
    return "" if value is None else " ".join(str(value).split()).encode(errors="replace").decode()


def _names(value: Any) -> list[str]:
    """The names of documents in a value: a name, a list of names, objects with a name in them, or pairs of a name and a place
    in the document (`["Brennix Holt", 2]`)."""
    value = _parse_list(value)
    if isinstance(value, Mapping):
        return next((_names(value[key]) for key in _NAMED_BY if value.get(key) not in (None, "")), [])
    if isinstance(value, list):
        return [name for item in value for name in _names(item[0] if isinstance(item, list) and item else item)]
    name = "" if value is None else str(value).strip()
    return [name] if name else []


def _parse_list(value: Any) -> Any:
    """The list that stands in a cell as text, in JSON or as Python prints it. Any other value is returned as it is."""
    if not isinstance(value, str) or not value.strip().startswith("["):
        return value
    for parse in (json.loads, ast.literal_eval):
        try:
            items = parse(value.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return items if isinstance(items, list) else value
    return value


def _split(value: str, where: str) -> str:
    if normal_form(value) not in SPLITS:
        raise InputError(f"{where} has the split {value!r}: write train or test, or leave the column out and it is drawn")
    return SPLITS[normal_form(value)]
