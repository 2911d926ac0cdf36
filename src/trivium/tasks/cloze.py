"""Questions that a corpus asks of itself: a sentence is asked for, and its page is what answers (the inverse cloze task).

Real questions are few, and a warm-up on two hundred of them learns those by heart. Any folder of documents has thousands of
sentences. Two hops come from links: where a page names another, the question hides that name, so that the second page
can only be found by reading the first.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trivium.corpus import Document
from trivium.errors import InputError
from trivium.trace.episode import Task

WORDS = (8, 28)
"""Words of a sentence that makes a question: fewer say too little, more are longer than what people ask."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'])")
_WORD = re.compile(r"\S+?(?=[,;:.!?\"')]*(?:\s|$))")
_ASKS = ("What", "Which", "Who or what")


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence of document `doc`; `link` is another document that it names, or -1."""

    text: str
    doc: int
    link: int = -1


def plain(title: str) -> str:
    """A title as texts write it, without what tells it from its namesakes: Holes (film)."""
    return title.partition(" (")[0]


def cloze_tasks(documents: Sequence[Document], count: int, seed: int = 0) -> list[Task]:
    """`count` questions, of one hop and of two in turn as long as there are links; equal arguments give equal questions.

    `truth` holds `gold` (the page of the sentence, then the page it names), `answer` (the hidden name; "" for one hop) and
    `hops`. Raises InputError where the documents have no titles or no sentence of a fitting length.
    """
    sentences = _sentences(documents)
    rng = random.Random(f"cloze {seed}")
    kinds = [rng.sample(kind, len(kind)) for hops in (1, 2) if (kind := [s for s in sentences if (s.link >= 0) == (hops == 2)])]
    if not kinds:
        raise InputError("training on passages needs documents with a title and a sentence of 8 to 28 words: here is none")
    picked = [kinds[n % len(kinds)][n // len(kinds) % len(kinds[n % len(kinds)])] for n in range(count)]
    return [_task(number, sentence, documents, rng) for number, sentence in enumerate(picked)]


def _sentences(documents: Sequence[Document]) -> list[_Sentence]:
    pages: dict[str, int] = {}
    for number, document in enumerate(documents):
        pages.setdefault(plain(document.title), number)
    found = []
    for number, document in enumerate(documents):
        own = plain(document.title)
        for text in _SENTENCE.split(document.text) if own else ():
            if WORDS[0] <= len(text.split()) <= WORDS[1]:
                others = text.replace(own, "\0" * len(own))  # a page's own name, or a part of it, names no other page
                found.append(_Sentence(text, number, _link(others, number, pages)))
    return found


def _link(text: str, number: int, pages: dict[str, int]) -> int:
    """The first other page that the text names by a title of 2 to 5 words, the longest where several begin at one word; -1."""
    words = list(_WORD.finditer(text))
    for first in range(len(words)):
        for last in range(min(first + 5, len(words)) - 1, first, -1):
            page = pages.get(text[words[first].start() : words[last].end()], number)
            if page != number:
                return page
    return -1


def _task(number: int, sentence: _Sentence, documents: Sequence[Document], rng: random.Random) -> Task:
    page, text = documents[sentence.doc], sentence.text.strip().rstrip(".!?")
    gold, answer = [page.id], ""
    if sentence.link >= 0:
        other = documents[sentence.link]
        gold, answer = [page.id, other.id], plain(other.title)
        text = text.replace(answer, rng.choice(("what", "which", "that")))
    name = plain(page.title)
    asked = f"{rng.choice(_ASKS)}{text[len(name) :]}?" if text.startswith(name) else f"{text}?"
    return Task(f"cloze/{number}", asked, {"gold": gold, "answer": answer, "hops": len(gold)})
