"""Documents into chunks: halved again and again at the best border near the middle until each part fits (reports
3.8).

    chunk_spans("A b c.\\n\\nD e f. G h i.", limit=4)  ->  [(0, 6), (8, 14), (15, 21)]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from trivium.corpus.base import Chunk, Document
from trivium.corpus.words import count_words
from trivium.errors import InputError

MOST_BYTES = 16_384
# From the best place to cut to the worst; a border is where the match ends.
_BORDERS = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?][\"')\]\u201d\u2019]*\s+|[\u3002\uff01\uff1f]"),
    re.compile(r"\s+"),
)


def split(document: Document, limit: int = 400, count: Callable[[str], int] = count_words) -> list[Chunk]:
    """The chunks of `document` in order, each at most `limit` long as `count` measures it (400 words are about 512
    tokens) and at most 16,384 bytes. Each is an exact substring; together they hold everything but the white space
    between them.

    Raises InputError for a limit below 1 or a document with neither title nor text.
    """
    if limit < 1:
        raise InputError(f"a chunk of at most {limit} words cannot hold anything: give a limit of at least 1")
    if not document.title.strip() and not document.text.strip():
        raise InputError(f"document {document.id!r} has neither title nor text: remove it or fill it")
    check_unicode(document)
    spans = chunk_spans(document.text, limit, count) or [(0, 0)]
    return [
        Chunk(f"{document.id}:{order}", document.id, document.title, document.text[start:stop], order)
        for order, (start, stop) in enumerate(spans)
    ]


def check_unicode(document: Document) -> None:
    """InputError for a document with half a character (a lone surrogate), which no tokenizer takes and no file holds."""
    try:
        f"{document.id}{document.title}{document.text}".encode()
    except UnicodeEncodeError as error:
        raise InputError(f"document {document.id!r} holds half a character ({error.reason}): clean its text") from error


def chunk_spans(text: str, limit: int, count: Callable[[str], int] = count_words) -> list[tuple[int, int]]:
    """(start, stop) of each chunk in `text`, in order, without white space at the ends; none of a blank text."""
    return list(_halve(text, 0, len(text), limit, count))


def _halve(text: str, start: int, stop: int, limit: int, count: Callable[[str], int]) -> Iterator[tuple[int, int]]:
    todo = [(start, stop)]
    while todo:
        (start, stop) = _stripped(text, *todo.pop())
        part = text[start:stop]
        if len(part) <= 1 or (count(part) <= limit and len(part.encode()) <= MOST_BYTES):
            if part:
                yield start, stop
        else:
            middle = start + _border(part)
            todo += [(middle, stop), (start, middle)]


def _stripped(text: str, start: int, stop: int) -> tuple[int, int]:
    part = text[start:stop]
    start += len(part) - len(part.lstrip())
    return start, max(start, start + len(part.strip()))


def _border(part: str) -> int:
    """Where to cut: the border nearest the middle, of the best kind that has one in the middle half. A border further
    out would leave crumbs."""
    middle = len(part) / 2
    low, high = len(part) / 4, len(part) * 3 / 4
    for kind in _BORDERS:
        inside = [m.end() for m in kind.finditer(part) if low <= m.end() <= high]
        if inside:
            return min(inside, key=lambda at: abs(at - middle))
    return len(part) // 2
