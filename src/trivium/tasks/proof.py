"""Proves a task before anybody is trained on it: the documents support it, and the question gives nothing away.

Quotes are matched tier by tier, as in Context-1's data generation (its report): the same text up to case, then up to white
space, links, and punctuation and Unicode form. The loosest tier looks for the quote's first five long words in order. An answer
is never matched loosely: its words must stand there, as words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from trivium.corpus.base import Document
from trivium.trace.episode import Task

_LINK = re.compile(r"\[([^\[\]]*)\]\([^)]{0,2000}\)|https?://\S+")
OPINIONS = frozenset({"yes", "no"})


def prove(task: Task, documents: Iterable[Document]) -> list[str]:
    """The faults of `task`, a sentence each; empty when it is proven.

    Of every task each gold document exists and stands once, and the answer stands in one of them (but for yes and no, which
    are opinions on two documents). Of a task with a `chain` the answer stands in the last document; each link's document, and
    no other, names both its subject and its object; each link begins where an earlier one ends; the question leaks no name.
    """
    texts = {document.id: f"{document.title}: {document.text}" for document in documents}
    gold, chain = list(task.truth.get("gold", ())), task.truth.get("chain", [])
    faults = [f"{task.id}: gold document {id!r} does not exist" for id in gold if id not in texts]
    if not gold or len(set(gold)) != len(gold):
        faults.append(f"{task.id}: gold documents must be there, each once, got {gold}")
    if faults:
        return faults
    answer = str(task.truth.get("answer", ""))
    holders = gold[-1:] if chain else gold
    if answer and answer.lower() not in OPINIONS and not any(mentions(texts[id], answer) for id in holders):
        faults.append(f"{task.id}: {' and '.join(map(repr, holders))} hold no answer {answer!r}")
    if chain:
        faults += _links(task, texts) + [f"{task.id}: the question says {name!r}" for name in leaks(task.prompt, chain)]
    return faults


def _links(task: Task, texts: dict[str, str]) -> list[str]:
    chain, faults = task.truth["chain"], []
    if [link["doc"] for link in chain] != task.truth["gold"]:
        faults.append(f"{task.id}: the chain's documents are not the gold documents in hop order")
    for link in chain:
        subject, object = link["subject"], link["object"]
        sources = [id for id, text in texts.items() if mentions(text, subject) and mentions(text, object)]
        if sources != [link["doc"]]:
            faults.append(f"{task.id}: {subject} and {object} should meet in {link['doc']!r} only, found {sources}")
        if link["after"] >= 0 and chain[link["after"]]["object"] != subject:
            faults.append(f"{task.id}: no link leads to {subject}")
        if link["after"] < 0 and not mentions(task.prompt, subject):
            faults.append(f"{task.id}: the question does not name {subject}")
    return faults


def leaks(prompt: str, chain: Sequence[dict[str, Any]]) -> list[str]:
    """The names that `prompt` should not mention but does: every object of `chain`, bridges and answers alike."""
    return [link["object"] for link in chain if mentions(prompt, link["object"])]


def mentions(text: str, name: str) -> bool:
    """Whether `name` stands in `text` as whole words, up to case, white space, punctuation and Unicode form."""
    plain = normal_form(name)
    return bool(plain) and f" {plain} " in f" {normal_form(text)} "


def contains_quote(text: str, quote: str) -> bool:
    """Whether `text` holds `quote` by one of the five tiers of Context-1's data generation, strictest first."""
    tiers = (str.lower, _one_line, lambda t: _one_line(_LINK.sub(r"\1", t)), normal_form)
    if not quote.strip():
        return False
    if any((form := tier(quote)) and form in tier(text) for tier in tiers):
        return True
    words, rest = [word for word in normal_form(quote).split() if len(word) > 3][:5], iter(normal_form(text).split())
    return len(words) == 5 and all(word in rest for word in words)  # in their order, with others between


def _one_line(text: str) -> str:
    """The text in lower case, with single spaces."""
    return " ".join(text.lower().split())


@lru_cache(maxsize=1 << 16)
def normal_form(text: str) -> str:
    """The words of a text alone, without case, punctuation and accents."""
    letters = unicodedata.normalize("NFKD", text).lower()
    return " ".join(re.findall(r"[^\W_]+", "".join(c for c in letters if not unicodedata.combining(c))))
