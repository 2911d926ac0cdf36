"""Finding in code: lines by a pattern, and functions and classes by what they say or mean."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator, Mapping
from itertools import pairwise

import re2

from trivium.corpus import Corpus, Document, Embedder
from trivium.harness import ToolError

PASSAGES = 3
LONGEST = 40
"""Lines of a passage that are shown."""

_MEMORY = 1 << 20


def lines_of(text: str) -> list[str]:
    """The lines of a text, without their ends, as Python and editors number them: `str.splitlines` splits at form feeds too."""
    return [line.rstrip("\r\n") for line in io.StringIO(text, newline="")]


def matches(pattern: str, texts: Mapping[str, str]) -> list[str]:
    """`path:line: text` of each line that matches (RE2: linear in the text whatever the pattern). ToolError for no pattern."""
    if not pattern:
        raise ToolError("the pattern is empty.")
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ToolError(f"{pattern!r} is no pattern that can be used here (RE2: no lookaround, no backreference).") from error
    lines = ((path, number, line) for path, text in texts.items() for number, line in enumerate(lines_of(text), 1))
    return [f"{path}:{number}: {line.strip()}" for path, number, line in lines if compiled.search(line)]


def passages(query: str, texts: Mapping[str, str], embedder: Embedder | None) -> list[str]:
    """The functions and classes that a search for `query` ranks first, each under its `path:line`."""
    documents = [Document(f"{path}#{line}", f"{path}:{line}", text) for path, line, text in _definitions(texts)]
    if not documents:
        return []
    hits = Corpus.build(documents, embedder=embedder).search(query, limit=3 * PASSAGES)
    whole = {each.id: each for each in documents}
    found = dict.fromkeys(hit.chunk.doc_id for hit in hits)
    return [f"{whole[id].title}\n{_shortened(whole[id].text)}" for id in list(found)[:PASSAGES]]


def _shortened(text: str) -> str:
    lines = lines_of(text)
    return "\n".join(lines if len(lines) <= LONGEST else [*lines[:LONGEST], f"[{len(lines) - LONGEST} more lines]"])


def _definitions(texts: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    """Path, first line and text of each piece: a function or class of Python, else a file in stretches of LONGEST lines."""
    for path, text in texts.items():
        lines = lines_of(text)
        starts = _starts(text) if path.endswith(".py") else []
        borders = sorted({0, *starts, *range(0, len(lines), LONGEST)} if not starts else {0, *starts})
        for start, stop in pairwise([*borders, len(lines)]):
            if piece := "\n".join(lines[start:stop]).strip("\n"):
                yield path, start + 1, piece


def _starts(text: str) -> list[int]:
    """Where the definitions at a module's top, and those inside its classes, begin; none where it is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    inside = [node for each in tree.body if isinstance(each, ast.ClassDef) for node in each.body]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [_first(node) for node in (*tree.body, *inside) if isinstance(node, kinds)]


def _first(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
