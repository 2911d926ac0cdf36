"""Proving a task before anybody is trained on it: the documents support it, and the question gives nothing away.

Quotes are matched as in Context-1's data generation (its report): tier by tier, from the same text up to case, over
white space and links, to punctuation and Unicode form; the loosest tier asks for the quote's first five long words in
order. An answer is never matched loosely: its words must stand there, as words.
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
    """What is wrong with `task`, a sentence each; empty when it is proven.

    Every task: each gold document exists once, and the answer stands in one of them (yes and no need not: they are
    opinions on two documents). A task with a `chain` also: the answer stands in the last; each link's document, and no
    other, names both its subject and its object; the next link begins where it should; the question leaks no name on the way.
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
    if answer and answer.lower() not in OPINIONS and not any(says(texts[id], answer) for id in holders):
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
        stated = [id for id, text in texts.items() if says(text, subject) and says(text, object)]
        if stated != [link["doc"]]:
            faults.append(f"{task.id}: {subject} and {object} should meet in {link['doc']!r} only, found {stated}")
        if link["after"] >= 0 and chain[link["after"]]["object"] != subject:
            faults.append(f"{task.id}: no link leads to {subject}")
        if link["after"] < 0 and not says(task.prompt, subject):
            faults.append(f"{task.id}: the question does not name {subject}")
    return faults


def leaks(prompt: str, chain: Sequence[dict[str, Any]]) -> list[str]:
    """The names that `prompt` should not say but does: every object of `chain`, bridges and answers alike."""
    return [link["object"] for link in chain if says(prompt, link["object"])]


def says(text: str, name: str) -> bool:
    """Whether `name` stands in `text` as whole words, up to case, white space, punctuation and Unicode form."""
    plain = folded(name)
    return bool(plain) and f" {plain} " in f" {folded(text)} "


def quoted(text: str, quote: str) -> bool:
    """Whether `text` holds `quote` by one of the five tiers of Context-1's data generation, strictest first."""
    tiers = (str.lower, _spaced, lambda t: _spaced(_LINK.sub(r"\1", t)), folded)
    if not quote.strip():
        return False
    if any((wanted := tier(quote)) and wanted in tier(text) for tier in tiers):
        return True
    words, rest = [word for word in folded(quote).split() if len(word) > 3][:5], iter(folded(text).split())
    return len(words) == 5 and all(word in rest for word in words)  # in their order, with others between


def _spaced(text: str) -> str:
    return " ".join(text.lower().split())


@lru_cache(maxsize=1 << 16)
def folded(text: str) -> str:
    """The words of a text alone, without case, punctuation and accents."""
    apart = unicodedata.normalize("NFKD", text).lower()
    return " ".join(re.findall(r"[^\W_]+", "".join(c for c in apart if not unicodedata.combining(c))))
