"""Finds the documents that a question of a log is about: by what the log calls them, or by the answer that they state."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote

from trivium.corpus import Corpus, Document
from trivium.tasks.proof import mentions, normal_form

MOST_HOLDERS = 4
"""An answer that stands in more documents than this stands there by chance."""
_ENDINGS = (".md", ".mdx", ".markdown", ".txt", ".rst", ".html", ".htm", ".adoc", ".pdf", ".docx")
_INDEX = re.compile(r"/(?:_?index|readme)$", re.IGNORECASE)
"""The index page of a folder, which links call by the folder's name."""

Form = Callable[[Document], str]
_FORMS: tuple[Form, ...] = (
    lambda document: document.id,
    lambda document: document.title,
    lambda document: str(document.metadata.get("url") or document.metadata.get("source") or ""),
    lambda document: _bare(document.id),
    lambda document: _bare(document.id).rpartition("/")[2],
)
"""The names that people use for a document, first those that name one document only, last those that may name several."""


class Names:
    """The documents of a folder by what people call them: id, title, address, path or file name, with and without the ending.
    A name is looked up as it is written, and then up to case, accents and punctuation."""

    def __init__(self, documents: Sequence[Document], same: Mapping[str, str] | None = None) -> None:
        """`same` maps the id of each document to that of the one that stands for it, where some are copies."""
        self._tables: list[tuple[Callable[[str], str], list[dict[str, list[str]]]]] = []
        for spelling in (str, normal_form):
            tables: list[dict[str, dict[str, None]]] = [defaultdict(dict) for _ in _FORMS]
            for document in documents:
                for form, table in zip(_FORMS, tables, strict=True):
                    if name := spelling(form(document)):
                        table[name][same[document.id] if same else document.id] = None
            self._tables.append((spelling, [{name: list(ids) for name, ids in table.items()} for table in tables]))

    def find(self, name: str) -> list[str]:
        """The ids of the documents that are called `name`: one, several where it does not tell them apart, or none."""
        return self._first(list(_variants(name)))

    def find_all(self, cell: str) -> list[tuple[str, list[str]]]:
        """Each name in a cell of a log with the ids of the documents that are called so. A name is the whole cell if that is
        one, else a part between semicolons, bars and lines, else a part between commas, if each of these is a name."""
        if ids := self._first([cell]):
            return [(cell, ids)]
        if len(parts := _parts(r"[;|\n]", cell)) > 1:
            return [pair for part in parts for pair in self.find_all(part)]
        pairs = [(part, self.find(part)) for part in _parts(",", cell)]
        return pairs if all(ids for _, ids in pairs) else [(cell, [])]

    def _first(self, names: Sequence[str]) -> list[str]:
        """The ids of the documents that the first of `names` names: as it is written, else by its normal form."""
        for spelling, tables in self._tables:
            for name in map(spelling, names):
                for table in tables:
                    if ids := table.get(name):
                        return ids
        return []


def _parts(marks: str, cell: str) -> list[str]:
    return [part.strip() for part in re.split(marks, cell) if part.strip()]


def _variants(name: str) -> Iterator[str]:
    """A name, then, of a path or an address, its shorter and shorter ends, with and without the file's ending."""
    yield name
    path = unquote(re.split(r"[?#]", re.sub(r"^[a-z][a-z0-9+.-]*://[^/]*", "", name))[0]).replace("\\", "/")
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for first in range(len(parts)):
        yield (tail := "/".join(parts[first:]))
        yield _bare(tail)


def _bare(path: str) -> str:
    """A path without its ending, and without the name of a folder's index page."""
    suffix = PurePosixPath(path).suffix
    stem = path[: -len(suffix)] if suffix.lower() in _ENDINGS else path
    return _INDEX.sub("", stem)


class Holders:
    """The documents in which an answer stands."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self._corpus: Corpus | None = None

    def find(self, answer: str) -> list[str]:
        """The ids of all documents that state `answer`, as words."""
        return [document.id for document in self._documents if mentions(f"{document.title}: {document.text}", answer)]

    def likeliest(self, question: str, holders: Sequence[str]) -> str:
        """The one of `holders` that a search by words with the question ranks first; "" where it finds none of them."""
        self._corpus = self._corpus or Corpus.build(self._documents)
        hits = self._corpus.search(question, limit=50)
        return next((hit.chunk.doc_id for hit in hits if hit.chunk.doc_id in holders), "")
