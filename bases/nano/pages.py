"""Pages to read, and questions that they answer: what the nano base that reads passages is trained on besides worlds.

A page is a few sentences of Python's own documentation under an invented title, which it names, as it does other pages at
times. A question names pages by their titles, quotes what they say, or leaves out the name that leads on to the next. Its
pages stand shuffled among those that a search finds as well, so that nothing tells them apart but what they say.
"""

from __future__ import annotations

import ast
import pydoc_data.topics
import random
import re
from collections.abc import Callable, Iterator
from itertools import cycle, islice

from bases.nano.data import Line, Piece, act, keep_call, library_files, line_pieces, response, search_call
from trivium.agents.search.tools import BRIEF, QUOTES
from trivium.corpus import Corpus, Document
from trivium.harness import Window
from trivium.tasks.cloze import cloze_tasks, sentences
from trivium.tasks.names import KINDS, Split
from trivium.tasks.names import name as any_name

WORDS = (6, 28)
"""Words of a sentence that a page may hold."""
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


def prose() -> list[str]:
    """Sentences of the documentation topics and docstrings of Python's standard library, in a fixed order."""
    texts = [text for _, text in sorted(pydoc_data.topics.topics.items())]
    for file in library_files():
        tree = ast.parse(file.read_text(encoding="utf-8", errors="ignore"))
        owners = (n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef)))
        texts += [doc for owner in owners if (doc := ast.get_docstring(owner))]
    paragraphs = (" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text))
    return [sentence for part in paragraphs for sentence in _END.split(part) if _is_prose(sentence)]


def _is_prose(sentence: str) -> bool:
    plain = sum(letter.isalpha() or letter in " ,." for letter in sentence)
    fits = WORDS[0] <= len(sentence.split()) <= WORDS[1]
    return fits and sentence[0].isupper() and sentence.endswith(".") and plain > 0.93 * len(sentence)


def titles(rng: random.Random, split: Split, wanted: int, words: list[str]) -> list[str]:
    """`wanted` different titles: invented names, where they are trained on also of common `words`, some sharing a word."""
    found: dict[str, None] = {}
    while len(found) < wanted:
        title = any_name(rng, rng.choice(KINDS), split)
        if split == "train" and (kind := rng.random()) < 0.5:
            common = [rng.choice(words).capitalize() for _ in range(rng.randrange(1, 4))]
            title = " ".join(common if kind < 0.3 else [title.split()[0], common[0]])
        if found and rng.random() < 0.3:
            title = f"{title.split()[0]} {rng.choice(list(found)[-200:]).split()[-1]}"
        found[title] = None
    return list(found)


def page(rng: random.Random, number: int, names: list[str], text: Iterator[str]) -> Document:
    """A page of the next one to three sentences: the first names it, each names another page at times."""
    title, said = names[number], list(islice(text, rng.randrange(1, 4)))
    first = said[0][0].lower() + said[0][1:]
    said[0] = rng.choice(("{} is {}", "{}, {}", "{} was {}", "In {} {}", "{} {}")).format(title, first)
    for at, sentence in enumerate(said):
        if rng.random() < 0.5 and (other := rng.choice(names)) != title:
            words = sentence.split()
            lowest = len(words) // 2 if at == 0 else 1  # behind its own name
            where = min(len(words) - 1, max(lowest, len(title.split()) + 2))
            words[where:where] = [rng.choice(("of", "with", "by", "and", "in", "from")), other]
            said[at] = " ".join(words)
    return Document(str(number), title, " ".join(said))


class Shelf:
    """`size` pages with a search over them, and endless questions in random order."""

    def __init__(self, seed: int, split: Split, size: int = 5500) -> None:
        self.rng = random.Random(f"shelf {seed} {split}")
        text = prose()
        words = sorted({word for sentence in text for word in re.findall(r"[a-z]{4,}", sentence)})
        names = titles(self.rng, split, size, words)
        shuffled = cycle(self.rng.sample(text, len(text)))
        self.pages = [page(self.rng, number, names, shuffled) for number in range(size)]
        self.corpus, self.text = Corpus.build(self.pages), {each.id: f"{each.title}: {each.text}" for each in self.pages}
        self.asked = self._asked(seed)

    def _asked(self, seed: int) -> list[tuple[str, list[str]]]:
        """Every question with its pages, in hop order: by what a page says (see `tasks.cloze`), and by titles."""
        tasks = cloze_tasks(self.pages, 2 * len(self.pages), seed)
        asked = [(self._worn(task.prompt), task.truth["gold"]) for task in tasks]
        for sentence in sentences(self.pages):
            asked += [self._named(sentence.text, sentence.doc), self._compared(sentence.text, sentence.doc)]
            if sentence.link >= 0:
                gold = [self.pages[sentence.doc], self.pages[sentence.link]]
                hidden = sentence.text.replace(gold[0].title, self.rng.choice(("which", "it", "what")))
                asked.append((f"{hidden.rstrip('.')}?", [each.id for each in gold]))
        return asked

    def _worn(self, question: str) -> str:
        """Half of them without a part of their small words: people do not ask in the words of a page."""
        share = self.rng.choice((0.0, self.rng.random() / 2))
        words = question.removesuffix("?").split()
        return " ".join(word for word in words if not word.islower() or self.rng.random() >= share) + "?"

    def _named(self, text: str, number: int) -> tuple[str, list[str]]:
        """The beginning of a sentence with its page's title."""
        title = self.pages[number].title
        words = (text if title in text else f"{title}, {text}").rstrip(".").split()
        stop = self.rng.randrange(min(len(words), len(title.split()) + 3), len(words) + 1)
        asks = self.rng.choice(("When", "Where", "Who", "In what", "Which"))
        return f"{asks} {' '.join(words[:stop])}?", [self.pages[number].id]

    def _compared(self, text: str, number: int) -> tuple[str, list[str]]:
        """Two titles and a few words of what one of the pages says."""
        pair = [self.pages[number], self.rng.choice(self.pages)]
        said = " ".join(text.replace(pair[0].title, "").rstrip(".").split()[: self.rng.randrange(3, 10)])
        one, two = (each.title for each in self.rng.sample(pair, 2))
        ways = f"Which {said}, {one} or {two}?", f"Are {one} and {two} both {said}?", f"Who {said}, {one} or {two}?"
        return self.rng.choice(ways), list(dict.fromkeys(each.id for each in pair))

    def lines(self, rng: random.Random, question: str, gold: list[str], wanted: int) -> list[Line]:
        """The question's pages among others that a search finds for it and for its first page, `wanted` in all, shuffled."""
        hits = self.corpus.search(question, limit=3 * wanted) + self.corpus.search(self.text[gold[0]], limit=wanted)
        others = list(dict.fromkeys(hit.chunk.doc_id for hit in hits if hit.chunk.doc_id not in gold))
        spare = max(0, wanted - len(gold))
        shown = [*gold, *rng.sample(others[: 2 * wanted], min(spare, len(others)))]
        rng.shuffle(shown)
        return [Line(self.text[doc], doc in gold, self.text[doc].partition(":")[0]) for doc in shown]

    def examples(self, rng: random.Random, widest: Callable[[], int]) -> Iterator[list[Piece]]:
        """One walk for each question, all of them and then again, with 2 to `widest()` pages in view at the end."""
        while True:
            for question, gold in rng.sample(self.asked, len(self.asked)):
                yield walk(rng, question, self.lines(rng, question, gold, rng.randrange(2, widest() + 1)))


def walk(rng: random.Random, question: str, lines: list[Line], prunes: float = 0.3) -> list[Piece]:
    """The question as the query, for half of them then with a passage in view, and the handles of what answers it.

    With chance `prunes` the window is said to be past half full after the first search, and the walk ends with the prune:
    the list of what to keep (the first passage, where none is the question's).
    """
    first = 1 if rng.random() < 0.7 else rng.randrange(2, 12)
    cut = rng.randrange(1, len(lines)) if rng.random() < 0.5 else len(lines)
    gold = [first + at for at, line in enumerate(lines) if line.gold]
    head = f"<|im_start|>system\n{BRIEF}{QUOTES}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    pieces = [Piece(head), act(search_call(" #0"))]
    seen = [handle for handle in gold if handle < first + cut] or [first]
    if rng.random() < prunes:
        return [*pieces, *response(line_pieces(lines[:cut], first), _usage(rng, True)), act(keep_call(seen), seen)]
    pieces += response(line_pieces(lines[:cut], first), _usage(rng, False))
    if cut < len(lines):
        pieces += [act(search_call(f" #0 #{seen[0]}"))]
        pieces += response(line_pieces(lines[cut:], first + cut), _usage(rng, False))
    return [*pieces, act("".join(f" #{handle}" for handle in gold), gold)]


def _usage(rng: random.Random, full: bool) -> str:
    """The usage line in a window of passages, past half of it or not."""
    limit = rng.choice((700, 900, 1280, 2048))
    used = rng.randrange(limit // 2 + 1, limit) if full else rng.randrange(limit // 4, limit // 2 + 1)
    return Window(limit).usage(used, "Prune or answer.")
