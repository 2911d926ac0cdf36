"""Which documents a question of a log is about: by what the log calls them, or by the answer that stands in them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote

from trivium.corpus import Corpus, Document
from trivium.tasks.proof import folded, says

MOST_HOLDERS = 4
"""In more documents than this an answer stands by chance."""
_ENDINGS = (".md", ".mdx", ".markdown", ".txt", ".rst", ".html", ".htm", ".adoc", ".pdf", ".docx")
_INDEX = re.compile(r"/(?:_?index|readme)$", re.IGNORECASE)
"""The page of a folder, which links call by the folder's name."""

Form = Callable[[Document], str]
_FORMS: tuple[Form, ...] = (
    lambda each: each.id,
    lambda each: each.title,
    lambda each: str(each.metadata.get("url") or each.metadata.get("source") or ""),
    lambda each: _bare(each.id),
    lambda each: _bare(each.id).rpartition("/")[2],
)
"""What people call a document, from what names one and no other to what several may be called."""


class Names:
    """The documents of a folder by what people call them: id, title, address, path or file name with and without the ending;
    as it is written, and then up to case, accents and punctuation."""

    def __init__(self, documents: Sequence[Document], same: Mapping[str, str] | None = None) -> None:
        """`same` maps the id of each document to that of the one that stands for it, where some are copies."""
        self._tables: list[tuple[Callable[[str], str], list[dict[str, list[str]]]]] = []
        for written in (str, folded):
            tables: list[dict[str, dict[str, None]]] = [defaultdict(dict) for _ in _FORMS]
            for each in documents:
                for form, table in zip(_FORMS, tables, strict=True):
                    if name := written(form(each)):
                        table[name][same[each.id] if same else each.id] = None
            self._tables.append((written, [{name: list(ids) for name, ids in table.items()} for table in tables]))

    def find(self, name: str) -> list[str]:
        """The ids of the documents that are called `name`: one, several where it does not tell them apart, or none."""
        return self._first(list(_called(name)))

    def find_all(self, cell: str) -> list[tuple[str, list[str]]]:
        """Each name in a cell of a log with what is called so: the whole cell if that is a name, else its parts between
        semicolons, bars and lines, else those between commas, if each of them is a name."""
        if ids := self._first([cell]):
            return [(cell, ids)]
        if len(parts := _parts(r"[;|\n]", cell)) > 1:
            return [pair for part in parts for pair in self.find_all(part)]
        pairs = [(part, self.find(part)) for part in _parts(",", cell)]
        return pairs if all(ids for _, ids in pairs) else [(cell, [])]

    def _first(self, names: Sequence[str]) -> list[str]:
        """What is called by the first of `names` that something is called by: as it is written, else by its normal form."""
        for written, tables in self._tables:
            for name in map(written, names):
                for table in tables:
                    if ids := table.get(name):
                        return ids
        return []


def _parts(marks: str, cell: str) -> list[str]:
    return [part.strip() for part in re.split(marks, cell) if part.strip()]


def _called(name: str) -> Iterator[str]:
    """A name, then what a path or an address says with less and less before it, with and without its ending."""
    yield name
    path = unquote(re.split(r"[?#]", re.sub(r"^[a-z][a-z0-9+.-]*://[^/]*", "", name))[0]).replace("\\", "/")
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for first in range(len(parts)):
        yield (tail := "/".join(parts[first:]))
        yield _bare(tail)


def _bare(path: str) -> str:
    """A path without its ending, and without the name of a folder's index page."""
    whole = PurePosixPath(path)
    stem = path[: -len(whole.suffix)] if whole.suffix.lower() in _ENDINGS else path
    return _INDEX.sub("", stem)


class Holders:
    """The documents in which an answer stands."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self._corpus: Corpus | None = None

    def find(self, answer: str) -> list[str]:
        """The ids of all documents that state `answer`, as words."""
        return [each.id for each in self._documents if says(f"{each.title}: {each.text}", answer)]

    def likeliest(self, question: str, holders: Sequence[str]) -> str:
        """Of the documents that state an answer the one that a search by words with the question ranks first; "" where it
        finds none of them."""
        self._corpus = self._corpus or Corpus.build(self._documents)
        hits = self._corpus.search(question, limit=50)
        return next((hit.chunk.doc_id for hit in hits if hit.chunk.doc_id in holders), "")
