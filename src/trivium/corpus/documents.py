"""Documents in: a folder of text files, a .jsonl file, or a data set in the BEIR layout."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.corpus.base import Document
from trivium.errors import InputError

DOCUMENT = '{"_id": ..., "title": ..., "text": ...}'
QUERY = '{"_id": ..., "text": ...}'
_SUFFIXES = (".md", ".markdown", ".txt")
_HEADING = re.compile(r"^#{1,6}[ \t](.*)$", re.MULTILINE)
_FRONT = r"\A---[ \t]*\n(?=\S).*?^(?:---|\.\.\.)[ \t]*$"
_CODE = r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})[^\n]*(?:\n.*?)??(?:^ {0,3}\1[`~]*[ \t]*$|\Z)"
_NO_PROSE = re.compile(f"{_FRONT}|{_CODE}", re.MULTILINE | re.DOTALL)
"""Front matter and fenced code (CommonMark 4.5), in which a # begins a comment."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question of a data set; `metadata` may hold its answer."""

    id: str
    text: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Beir:
    """A data set in the BEIR layout. `qrels[query_id][doc_id]` is a relevance above 0; only queries of the split are
    kept."""

    documents: list[Document]
    queries: list[Query]
    qrels: dict[str, dict[str, int]]


def read_documents(path: str | Path) -> list[Document]:
    """Whatever `path` is: a BEIR folder (it has a corpus.jsonl), a folder of .txt and .md files, one such file, or a
    .jsonl.

    Raises InputError naming the file (and line) for a path that is missing, holds no document, is no text, lacks a
    field or repeats an id.
    """
    path = _existing(path)
    if path.is_dir():
        beir = path / "corpus.jsonl"
        return read_jsonl(beir) if beir.exists() else read_folder(path)
    if path.suffix.lower() in _SUFFIXES:
        return [_read_text_file(path, path.name)]
    if path.suffix.lower() != ".jsonl":
        raise InputError(f"{path} is none of {', '.join(_SUFFIXES)} and .jsonl, which is what can be read: convert it")
    return read_jsonl(path)


def read_folder(folder: str | Path) -> list[Document]:
    """Every .txt and .md file under `folder`, in order of path; hidden ones are passed over. The id is the path
    inside the folder; the title is the first Markdown heading (not in front matter or code), which the text then does not
    repeat where it began with it, else the file's name without its suffix."""
    folder = _existing(folder)
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
    names = {p.relative_to(folder).as_posix(): p for p in paths}
    documents = [_read_text_file(p, name) for name, p in names.items() if not _hidden(name)]
    return _checked(documents, folder, "put .txt or .md files there")


def passed_over(path: str | Path) -> list[Path]:
    """The files of a folder that `read_documents` does not read, in order; hidden ones aside, and none of a BEIR folder."""
    folder = _existing(path)
    if not folder.is_dir() or (folder / "corpus.jsonl").exists():
        return []
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix.lower() not in _SUFFIXES)
    return [file for file in files if not _hidden(file.relative_to(folder).as_posix())]


def read_jsonl(path: str | Path) -> list[Document]:
    """One document per line: an object with `_id` or `id`, `text`, and optionally `title` and `metadata`; blank lines
    are skipped."""
    path = _existing(path)
    documents = [_document(row, where) for row, where in objects_in(path, DOCUMENT)]
    return _checked(documents, path, "write one JSON object per line")


def read_beir(folder: str | Path, split: str = "test") -> Beir:
    """`corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv` of `folder`. Judgements of 0 are left out.

    Raises InputError naming file and line for what is malformed, and for a judgement of an unknown query or document.
    """
    folder = _existing(folder)
    if not (folder / "corpus.jsonl").exists():
        raise InputError(
            f"{folder} is no folder in the BEIR layout: it needs corpus.jsonl, queries.jsonl and qrels/{split}.tsv"
        )
    documents = read_jsonl(folder / "corpus.jsonl")
    queries = [_query(row, where) for row, where in objects_in(folder / "queries.jsonl", QUERY)]
    if twice := [id for id, count in Counter(query.id for query in queries).items() if count > 1]:
        raise InputError(f"{folder / 'queries.jsonl'} has the id {twice[0]!r} twice: ids must differ")
    qrels = _qrels(_existing(folder / "qrels" / f"{split}.tsv"), {q.id for q in queries}, {d.id for d in documents})
    return Beir(documents, [query for query in queries if query.id in qrels], qrels)


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path")
    return path


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _read_text_file(path: Path, name: str) -> Document:
    text = text_in(path)
    headings = _HEADING.finditer(_NO_PROSE.sub(_blank, text)) if path.suffix.lower() != ".txt" else ()
    heading = next((each for each in headings if _title(each[1])), None)
    if not heading:
        return Document(name, path.stem, text)
    rest = text[heading.end() :].lstrip()
    first = rest and not text[: heading.start()].strip()  # a passage is shown as "title: text"
    return Document(name, _title(heading[1]), rest if first else text)


def _title(heading: str) -> str:
    """What a heading's line says, without the number signs that may close it; "" where it says nothing (CommonMark 4.2)."""
    text = heading.strip()
    open_end = text.rstrip("#")
    closed = not open_end or open_end[-1].isspace()
    return open_end.rstrip() if closed else text


def _blank(prose: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", prose[0])


def text_in(path: Path) -> str:
    """The text of a file; the byte order mark with which some programs begin it is left out. InputError for a file that is
    missing or cannot be read, and for what is no UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start}): save it as UTF-8, or take it out") from error
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: check the path") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check that it is a file you may read") from error
    if "\0" in text:
        raise InputError(f"{path} is no text (it holds a NUL byte): save it as UTF-8, or take it out")
    return text


def objects_in(path: Path, example: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects of a .jsonl file, each with "FILE:LINE" for messages. InputError, with an `example` of what a line should
    be, for a line that is none."""
    for number, line in enumerate(text_in(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # a number or a nesting without end is neither
            raise InputError(f"{path}:{number} is no JSON that can be read ({error}): write one object per line") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number} is no JSON object: write {example}")
        yield row, f"{path}:{number}"


def _document(row: dict[str, Any], where: str) -> Document:
    title, text = _string(row, "title", where, ""), _string(row, "text", where)
    if not title.strip() and not text.strip():
        raise InputError(f"{where}: the document has neither title nor text: remove it or fill it")
    return Document(_id(row, where), title, text, _metadata(row, where))


def _query(row: dict[str, Any], where: str) -> Query:
    return Query(_id(row, where), _string(row, "text", where), _metadata(row, where))


def _id(row: dict[str, Any], where: str) -> str:
    value = row.get("_id", row.get("id"))
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InputError(f'{where}: the field "_id" (or "id") is missing or no string: give every line one of its own')
    return str(value)


def _string(row: dict[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = row.get(key)
    value = default if value is None else value
    if not isinstance(value, str):
        raise InputError(f'{where}: the field "{key}" is {"missing" if value is None else "no string"}: give it a string')
    return value


def _metadata(row: dict[str, Any], where: str) -> dict[str, Any]:
    value = row.get("metadata") or {}
    if not isinstance(value, dict):
        raise InputError(f'{where}: the field "metadata" is no object: give it one or leave it out')
    return value


def _checked(documents: list[Document], path: Path, advice: str) -> list[Document]:
    if not documents:
        raise InputError(f"{path} holds no document: {advice}")
    check_ids(documents, str(path))
    return documents


def check_ids(documents: list[Document], where: str) -> None:
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise InputError(f"{where}: the id {document.id!r} stands twice: give every document one of its own")
        seen.add(document.id)


def _qrels(path: Path, queries: set[str], documents: set[str]) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for number, line in enumerate(text_in(path).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.split("\t")[0] == "query-id"):
            continue
        query, document, score = _judgement(line, f"{path}:{number}")
        for name, known, kind in ((query, queries, "query"), (document, documents, "document")):
            if name not in known:
                raise InputError(f"{path}:{number} judges the unknown {kind} {name!r}: the data set is incomplete")
        if score > 0:
            qrels.setdefault(query, {})[document] = score
    if not qrels:
        raise InputError(f"{path} holds no judgement above 0: check that it is the right split")
    return qrels


def _judgement(line: str, where: str) -> tuple[str, str, int]:
    try:
        query, document, score = line.split("\t")
        return query, document, int(score)
    except ValueError as error:
        raise InputError(f"{where} is no judgement: write query-id, corpus-id and a whole number, parted by tabs") from error
