"""Questions that a corpus asks of itself: each is a sentence of a page, and the page is its answer (the inverse cloze task).

Real questions are few, and a warm-up on two hundred of them learns those by heart. Any folder of documents has thousands of
sentences. Two hops come from links. Where a page names another, the question hides that name, so that the second page can only
be found by reading the first.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trivium.corpus import Document
from trivium.errors import InputError
from trivium.trace.episode import Task

WORDS = (8, 28)
"""How many words a sentence has that makes a question: fewer say too little, and people ask nothing longer."""
LETTERS = 400
"""How many letters it has at most. With more it is a list of links, or no text: of the passages we know none has 300."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'])")
_WORD = re.compile(r"\S+?(?=[,;:.!?\"')]*(?:\s|$))")
_QUESTION_WORDS = ("What", "Which", "Who or what")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of document `doc`; `link` is another document that it names, or -1."""

    text: str
    doc: int
    link: int = -1


def plain(title: str) -> str:
    """A title as texts write it, without the part that tells namesakes apart: "Holes" of "Holes (film)"."""
    return title.partition(" (")[0]


def cloze_tasks(documents: Sequence[Document], count: int, seed: int = 0) -> list[Task]:
    """`count` questions, of one hop and of two in turn as long as there are links. Equal arguments give equal questions.

    `truth` holds `gold` (the page of the sentence, then the page it names), `answer` (the hidden name; "" for one hop), `hops`
    and `sentence`, which is equal in two questions that ask for one thing. Raises InputError where the documents have no
    titles or no sentence of a fitting length.
    """
    pool = sentences(documents)
    rng = random.Random(f"cloze {seed}")
    kinds = [rng.sample(kind, len(kind)) for hops in (1, 2) if (kind := [s for s in pool if (s.link >= 0) == (hops == 2)])]
    if not kinds:
        raise InputError("training on passages needs documents with a title and a sentence of 8 to 28 words: here is none")
    sample = [kinds[n % len(kinds)][n // len(kinds) % len(kinds[n % len(kinds)])] for n in range(count)]
    return [_task(number, sentence, documents, rng) for number, sentence in enumerate(sample)]


def sentences(documents: Sequence[Document]) -> list[Sentence]:
    """The sentences of a fitting length, in the order of the documents."""
    pages, result = _pages(documents), []
    for number, document in enumerate(documents):
        title = plain(document.title)
        for text in _SENTENCE.split(document.text) if title else ():
            if WORDS[0] <= len(text.split()) <= WORDS[1] and len(text) <= LETTERS:
                others = text.replace(title, "\0" * len(title))  # a page's own name, or a part of it, names no other page
                link = _link(others, number, pages)
                hides = link >= 0 and _hides(text, title, plain(documents[link].title))
                result.append(Sentence(text, number, link if hides else -1))
    return result


def _hides(text: str, title: str, name: str) -> bool:
    """Whether a question can leave out `name`: neither the page's own title contains it, nor a longer word of the text."""
    return name not in title and name not in _replace(text, name, "")


def _pages(documents: Sequence[Document]) -> dict[str, int]:
    """The page that a name stands for: the only one so titled, else the only one with this plain title; -1 for several."""
    exact, short = (Counter(form(document.title) for document in documents) for form in (str, plain))
    names = [plain(document.title) for document in documents]
    pages = {name: number if short[name] == 1 else -1 for number, name in enumerate(names)}
    return pages | {document.title: number for number, document in enumerate(documents) if exact[document.title] == 1}


def _replace(text: str, name: str, by: str) -> str:
    """The text with `by` in place of a name, where that is no part of a word."""
    return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", by, text)


def _link(text: str, number: int, pages: dict[str, int]) -> int:
    """The first other page that the text names by a title of 2 to 5 words, the longest where several begin at one word.

    -1 if there is none, or the name stands for several pages.
    """
    words = list(_WORD.finditer(text))
    for first in range(len(words)):
        for last in range(min(first + 5, len(words)) - 1, first, -1):
            page = pages.get(text[words[first].start() : words[last].end()], number)
            if page != number:
                return page
    return -1


def _task(number: int, sentence: Sentence, documents: Sequence[Document], rng: random.Random) -> Task:
    page, text = documents[sentence.doc], sentence.text.strip().rstrip(".!?")
    gold, answer = [page.id], ""
    if sentence.link >= 0:
        other = documents[sentence.link]
        gold, answer = [page.id, other.id], plain(other.title)
        text = _replace(text, answer, rng.choice(("what", "which", "that")))
    name = plain(page.title)
    question = f"{rng.choice(_QUESTION_WORDS)}{text[len(name) :]}?" if text.startswith(name) else f"{text}?"
    truth = {"gold": gold, "answer": answer, "hops": len(gold), "sentence": sentence.text}
    return Task(f"cloze/{number}", question, truth)
