"""Questions that a corpus asks of itself: a sentence is asked for, and its page is what answers (the inverse cloze task).

Real questions are few, and a warm-up on two hundred of them learns those by heart. Any folder of documents has thousands of
sentences. Two hops come from links: where a page names another, the question hides that name, so that the second page
can only be found by reading the first.
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
"""Words of a sentence that makes a question: fewer say too little, more are longer than what people ask."""
LETTERS = 400
"""Letters at most: such a sentence of more is a list of links, or no text. Of the passages we know none has 300."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'])")
_WORD = re.compile(r"\S+?(?=[,;:.!?\"')]*(?:\s|$))")
_ASKS = ("What", "Which", "Who or what")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of document `doc`; `link` is another document that it names, or -1."""

    text: str
    doc: int
    link: int = -1


def plain(title: str) -> str:
    """A title as texts write it, without what tells it from its namesakes: Holes (film)."""
    return title.partition(" (")[0]


def cloze_tasks(documents: Sequence[Document], count: int, seed: int = 0) -> list[Task]:
    """`count` questions, of one hop and of two in turn as long as there are links; equal arguments give equal questions.

    `truth` holds `gold` (the page of the sentence, then the page it names), `answer` (the hidden name; "" for one hop), `hops`
    and `sentence`, by which two questions that ask for one thing are known. Raises InputError where the documents have no
    titles or no sentence of a fitting length.
    """
    found = sentences(documents)
    rng = random.Random(f"cloze {seed}")
    kinds = [rng.sample(kind, len(kind)) for hops in (1, 2) if (kind := [s for s in found if (s.link >= 0) == (hops == 2)])]
    if not kinds:
        raise InputError("training on passages needs documents with a title and a sentence of 8 to 28 words: here is none")
    picked = [kinds[n % len(kinds)][n // len(kinds) % len(kinds[n % len(kinds)])] for n in range(count)]
    return [_task(number, sentence, documents, rng) for number, sentence in enumerate(picked)]


def sentences(documents: Sequence[Document]) -> list[Sentence]:
    """Those of a fitting length, in order."""
    pages, found = _pages(documents), []
    for number, document in enumerate(documents):
        own = plain(document.title)
        for text in _SENTENCE.split(document.text) if own else ():
            if WORDS[0] <= len(text.split()) <= WORDS[1] and len(text) <= LETTERS:
                others = text.replace(own, "\0" * len(own))  # a page's own name, or a part of it, names no other page
                link = _link(others, number, pages)
                hides = link >= 0 and _hides(text, own, plain(documents[link].title))
                found.append(Sentence(text, number, link if hides else -1))
    return found


def _hides(text: str, own: str, name: str) -> bool:
    """Whether a question can leave a name out: neither the page's own name has it, nor a longer word."""
    return name not in own and name not in _hidden(text, name, "")


def _pages(documents: Sequence[Document]) -> dict[str, int]:
    """What a name stands for: the one page so titled, else the one page so called with more behind it; -1 where several are."""
    exact, called = (Counter(name(each.title) for each in documents) for name in (str, plain))
    pages = {plain(each.title): number if called[plain(each.title)] == 1 else -1 for number, each in enumerate(documents)}
    return pages | {each.title: number for number, each in enumerate(documents) if exact[each.title] == 1}


def _hidden(text: str, name: str, by: str) -> str:
    """The text with `by` for a name, where that is no part of a word."""
    return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", by, text)


def _link(text: str, number: int, pages: dict[str, int]) -> int:
    """The first other page that the text names by a title of 2 to 5 words, the longest where several begin at one word; -1
    for none, and where nobody knows which page that name means."""
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
        text = _hidden(text, answer, rng.choice(("what", "which", "that")))
    name = plain(page.title)
    asked = f"{rng.choice(_ASKS)}{text[len(name) :]}?" if text.startswith(name) else f"{text}?"
    truth = {"gold": gold, "answer": answer, "hops": len(gold), "sentence": sentence.text}
    return Task(f"cloze/{number}", asked, truth)
