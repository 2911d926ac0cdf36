"""What needs no training: one search with the question, and a script of two; judged as an agent's answer is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trivium.agents.search.citation import cited, documents
from trivium.agents.search.fuse import fuse
from trivium.agents.search.reward import answers, of_ranking, shows, states
from trivium.corpus import Corpus
from trivium.corpus.search import CANDIDATES, best
from trivium.trace import Episode, Task

SEARCHES = ("bm25", "dense", "hybrid", "two_bm25", "two_hybrid", "quoting")
"""One search with the question by words, by meaning, by both; the script of two queries by words and by both; and what
`search_corpus("#0 #1")` finds after `search_corpus("#0")`: one search with the question and its first passage, by both."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document in a ranking, and whether a passage that stands for it there states the answer."""

    doc: str
    states: bool = False


def plain_rankings(corpus: Corpus, task: Task) -> dict[str, list[Ranked]]:
    """The documents that each of `SEARCHES` ranks for the task's question, best first, each by its best passage.

    The script searches with the question, then with the question and the title of the first passage found, and fuses both
    (RRF, as Context-1 has it). A dense search needs a corpus with an embedder.
    """
    words, both = _by_words(corpus, task.prompt), _by_both(corpus, task.prompt)
    rows = {"bm25": words, "dense": _by_meaning(corpus, task.prompt), "hybrid": both}
    rows["two_bm25"] = fuse([words, _by_words(corpus, _second(corpus, task, words))])
    rows["two_hybrid"] = fuse([both, _by_both(corpus, _second(corpus, task, both))])
    rows["quoting"] = _by_both(corpus, f"{task.prompt} {corpus.index.chunk(both[0]).line}") if both else []
    return {name: _documents(corpus, task, rows[name]) for name in SEARCHES}


def _by_words(corpus: Corpus, query: str) -> list[int]:
    return best(corpus.index.lexical.scores(query), CANDIDATES, above=0)[0]


def _by_meaning(corpus: Corpus, query: str) -> list[int]:
    assert corpus.embedder is not None and corpus.index.vectors is not None
    return best(corpus.index.vectors @ corpus.embedder.embed_query(query), CANDIDATES, above=-np.inf)[0]


def _by_both(corpus: Corpus, query: str) -> list[int]:
    return [corpus.index.row(hit.chunk.id) for hit in corpus.search(query, CANDIDATES)]


def _second(corpus: Corpus, task: Task, rows: Sequence[int]) -> str:
    return f"{task.prompt} {corpus.index.chunk(rows[0]).title}" if rows else task.prompt


def _documents(corpus: Corpus, task: Task, rows: Sequence[int]) -> list[Ranked]:
    ranking: dict[str, Ranked] = {}
    for row in rows:
        chunk = corpus.index.chunk(row)
        ranking.setdefault(chunk.doc_id, Ranked(chunk.doc_id, states(chunk.line, task)))
    return list(ranking.values())


def returned(episode: Episode) -> list[Ranked]:
    """What an episode's answer returned, as a ranking; a document by all its passages that are cited."""
    known = documents(episode.agent, episode.task)
    stating = {piece.ref for piece in episode.agent.passages if shows(piece, episode.task)}
    ranking: dict[str, bool] = {}
    for ref in (ref for ref in cited(episode.agent) if ref in known):
        ranking[known[ref]] = ranking.get(known[ref], False) or ref in stating
    return [Ranked(doc, stated) for doc, stated in ranking.items()]


def fused(rankings: Sequence[Sequence[Ranked]]) -> list[Ranked]:
    """Rankings of several rollouts as one of all that they hold; a document states what it stated in any of them."""
    stated = {each.doc for ranking in rankings for each in ranking if each.states}
    return [Ranked(doc, doc in stated) for doc in fuse([[each.doc for each in ranking] for ranking in rankings])]


def judged(task: Task, ranking: Sequence[Ranked]) -> dict[str, float]:
    """The measures of a ranking, under the names that an episode's have (`reward.measures`)."""
    gold, docs = task.truth["gold"], [each.doc for each in ranking]
    return {
        **of_ranking(docs, gold),
        "answer_found": float(answers(task, docs, any(each.states for each in ranking))),
    }
