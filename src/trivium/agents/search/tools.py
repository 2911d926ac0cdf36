"""The tools of a search agent (Context-1's report): search, grep and read. Pruning belongs to the harness."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import dropwhile
from typing import Annotated

from msgspec import Meta

from trivium.corpus import Chunk, Corpus, document_of
from trivium.corpus.search import CANDIDATES, PatternError
from trivium.harness import Passage, Scene, Tool, ToolError, prune_chunks, tool
from trivium.trace import Task

BRIEF = (
    "Find the documents that answer the question. Tools: search_corpus(query), grep_corpus(pattern), "
    "read_document(doc_id), prune_chunks(keep). Finish with the handles of the documents, best first."
)
"""The system prompt of a nano model, which learns the tools' use from its warm-up."""

BRIEF_UNPRUNED = BRIEF.replace(", prune_chunks(keep)", "")
"""The same for an agent that cannot prune."""

PROMPT = """\
You are a search agent. Find the documents that together answer the question; do not answer it yourself.
List the concepts in the question and plan several searches that do not overlap. Search in parallel where you can.
After each round ask yourself: what do I know, what is missing, what may be pruned, is it enough?
Every result line ends in its handle, such as #3. Your context is a budget: the usage line shows what is left of it; \
prune what does not help before it is full. When you have enough, reply in plain text with the handles of the \
documents that answer the question, best first, each once, with a sentence that says why."""
"""The system prompt of a model that reads instructions (what to ask itself: Context-1's report; the words are ours)."""

QUOTES = " In a query #0 stands for the question and #1 for passage #1."
"""What the system prompt says besides where queries may quote, and the description of the search tool with it."""

GREP_LIMIT = 5
_QUOTE = re.compile(r"(?<!\S)#\d+(?!\S)")


def search_tools(
    corpus: Corpus | Callable[[Task], Corpus], results: int = 4, pruning: bool = True, quoting: bool = False
) -> list[Tool]:
    """The tools of one agent on `corpus` (or on the corpus of each task, where worlds differ); a search returns up to
    `results` passages that were not seen before. Without `pruning` it has no tool for that.

    With `quoting`, which suits passages that people wrote, a word such as #3 in a query stands for passage #3 (its title
    and text), #0 for the question: a model that copies badly says in two tokens what it would garble in fifty. And a
    search lists new documents first, one passage each.
    """

    def of(scene: Scene) -> Corpus:
        return corpus if isinstance(corpus, Corpus) else corpus(scene.task)

    @tool
    def search_corpus(scene: Scene, query: Annotated[str, Meta(description="what to look for, in words")]) -> list[Passage]:
        """Search the corpus by words and meaning. Returns passages not seen before, best first."""
        if not query.strip():
            raise ToolError("the query is empty")
        if quoting:
            return _fitting(scene, _new_documents_first(scene, of(scene), expanded(scene, of(scene), query))[:results])
        hits = of(scene).search(query.strip(), limit=results, exclude=_of_corpus(of(scene), scene.seen))
        return _fitting(scene, (hit.chunk for hit in hits))

    @tool
    def grep_corpus(scene: Scene, pattern: Annotated[str, Meta(description="a regular expression")]) -> list[Passage]:
        """Find passages whose text matches a regular expression."""
        try:
            in_view = _of_corpus(of(scene), scene.handles.values())
            return _fitting(scene, of(scene).grep(pattern.strip(), limit=GREP_LIMIT, exclude=in_view))
        except PatternError as error:
            raise ToolError(str(error)) from error

    @tool
    def read_document(scene: Scene, doc_id: Annotated[str, Meta(description="a handle of one passage")]) -> list[Passage]:
        """Read on in the document to which a passage belongs, from there, as far as the budget allows."""
        source = _source(scene, of(scene), doc_id.strip())
        return _fitting(scene, dropwhile(lambda chunk: chunk.id != source, of(scene).read(document_of(source))))

    search = replace(search_corpus, description=search_corpus.description + QUOTES) if quoting else search_corpus
    return [search, grep_corpus, read_document, *([prune_chunks] if pruning else [])]


def expanded(scene: Scene, corpus: Corpus, query: str) -> str:
    """A query with what its handles stand for. Only whole words are handles; what they stand for is not read again.
    Raises ToolError for one that is not in view, or stands for a passage of another tool."""

    def quoted(word: re.Match[str]) -> str:
        return scene.task.prompt if word[0] == "#0" else corpus.chunk(_source(scene, corpus, word[0])).line

    return _QUOTE.sub(quoted, query.strip())


def _source(scene: Scene, corpus: Corpus, handle: str) -> str:
    if handle not in scene.handles:
        raise ToolError(f"{handle} is not in view; in view are {' '.join(scene.handles) or 'no passages'}")
    if scene.handles[handle] not in corpus:
        raise ToolError(f"{handle} is no passage of this corpus, but of another tool")
    return scene.handles[handle]


def _of_corpus(corpus: Corpus, sources: Iterable[str]) -> list[str]:
    """Those of `sources` that are its passages: an agent may have other tools that show some."""
    return [source for source in sources if source in corpus]


def _new_documents_first(scene: Scene, corpus: Corpus, query: str) -> list[Chunk]:
    """What a query finds and nobody saw: the best passage of each new document, then the other passages."""
    chunks = [hit.chunk for hit in corpus.search(query, limit=CANDIDATES, exclude=_of_corpus(corpus, scene.seen))]
    seen, first = {document_of(source) for source in scene.seen}, {}
    for chunk in chunks:
        if chunk.doc_id not in seen:
            first.setdefault(chunk.doc_id, chunk)
    return [*first.values(), *(chunk for chunk in chunks if first.get(chunk.doc_id) is not chunk)]


def _fitting(scene: Scene, chunks: Iterable[Chunk]) -> list[Passage]:
    """Passages in order that are not in view, as many as the room left in the window takes; the first in any case: where it
    takes none, the harness says so."""
    fitting, room, in_view = [], scene.room, set(scene.handles.values())
    for chunk in (chunk for chunk in chunks if chunk.id not in in_view):
        room -= scene.count(chunk.line)
        if room < 0 and fitting:
            break
        fitting.append(Passage(chunk.id, chunk.line))
    return fitting
