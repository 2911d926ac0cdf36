"""Joins a folder of documents and a log of questions to a data set in the BEIR layout, which `train --corpus` takes.

    questions = join(read_log("support.csv"), read_documents("docs/"))
    for finding in questions.findings:
        print(finding.use, finding.count, finding.what, finding.example)
    write_beir(questions, "data/support")

It counts what cannot be used, with the reason and the first example.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from trivium.corpus import Document
from trivium.corpus.chunks import check_unicode
from trivium.errors import InputError
from trivium.files import new_folder, write
from trivium.tasks.gold import MOST_HOLDERS, Holders, Names
from trivium.tasks.log import Entry, Log
from trivium.tasks.proof import OPINIONS, mentions, normal_form

Use = Literal["used", "in part", "left out"]
TEST_SHARE = 1 / 3
LONGEST_ANSWER = 12
"""The most words of an answer. The reward asks whether one passage states the answer, and a longer one would be cut in two."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question that can be learned from or measured on. `answer` is "" where documents alone decide."""

    id: str
    text: str
    gold: tuple[str, ...]
    answer: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to report about `count` questions or documents; `example` is the first of them."""

    use: Use
    what: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Questions:
    """The documents and the questions of a data set, and what became of all documents and lines that it was made of."""

    documents: list[Document]
    questions: list[Question]
    findings: list[Finding]

    def of(self, split: str) -> list[Question]:
        """The questions of one split, train or test."""
        return [question for question in self.questions if question.split == split]


def join(log: Log, documents: Sequence[Document], seed: int = 0) -> Questions:
    """Find the documents of each question, and draw a split (a third for the test) where the log has none.

    A question's gold is the documents that the log names, if the folder has them. Else it is the document in which the answer
    stands, as words; of two to four such documents it is the one that a search with the question ranks first. A question
    that is asked twice is one question, with the gold of both lines. Raises InputError for two questions with one id, and for
    documents that cannot be searched (none with text, half a character, a tab in a name).
    """
    tally = _Tally()
    originals, same = _without_copies(documents, tally)
    entries = _without_repeats(_with_ids(log.entries), tally)
    finder = _Finder(originals, Names([document for document in documents if document.id in same], same), tally)
    questions = [question for entry in entries if (question := finder.question(entry))]
    if "split" not in log.columns:
        questions = _with_splits(questions, seed)
    return Questions(originals, questions, tally.findings())


class _Tally:
    """Counts findings, and keeps the first example of each."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Use, str], int] = {}
        self._examples: dict[tuple[Use, str], str] = {}

    def add(self, use: Use, what: str, example: str) -> None:
        self._counts[use, what] = self._counts.get((use, what), 0) + 1
        self._examples.setdefault((use, what), example)

    def findings(self) -> list[Finding]:
        """What was used first, what was left out last."""
        pairs = sorted(self._counts, key=lambda pair: get_args(Use).index(pair[0]))
        return [Finding(use, what, self._counts[use, what], self._examples[use, what]) for use, what in pairs]


def _without_copies(documents: Iterable[Document], tally: _Tally) -> tuple[list[Document], dict[str, str]]:
    """The documents without empty ones and second copies; and the id of each that has text -> the id of its first copy."""
    first: dict[tuple[str, str], str] = {}
    originals, same = [], {}
    for document in documents:
        if not document.text.strip():
            tally.add("left out", "documents without text", document.id)
            continue
        check_unicode(document)
        if any(letter in document.id for letter in "\t\n\r"):
            raise InputError(f"the document {document.id!r} has a tab or a line's end in its name: rename it")
        key = (document.title, document.text)
        if key in first:
            tally.add("left out", "documents that are copies of another", f"{document.id} = {first[key]}")
        else:
            originals.append(document)
        same[document.id] = first.setdefault(key, document.id)
    if not originals:
        raise InputError("none of the documents has any text: there is nothing to search in")
    return originals, same


def _with_ids(entries: Iterable[Entry]) -> list[Entry]:
    """The entries, each with its own id, or else its place in the log as one."""
    by_id: dict[str, Entry] = {}
    numbered = [replace(entry, id=entry.id or f"q{number}") for number, entry in enumerate(entries, 1)]
    for entry in numbered:
        other = by_id.setdefault(entry.id, entry)
        if normal_form(other.question) != normal_form(entry.question):
            raise InputError(f"{entry.where} has the id {entry.id!r}, as another question in {other.where}: ids must differ")
    return numbered


def _without_repeats(entries: Iterable[Entry], tally: _Tally) -> list[Entry]:
    """The entries with a question, each question once: with the id and the split of its first line, and the gold of all."""
    firsts: dict[str, Entry] = {}
    for entry in entries:
        words = normal_form(entry.question)
        if not words:
            tally.add("left out", "lines without a question", f"line {entry.line}")
        elif first := firsts.get(words):
            tally.add("left out", "questions asked before, whose documents count for the first", _example(entry))
            firsts[words] = replace(first, gold=first.gold + entry.gold, answer=first.answer or entry.answer)
        else:
            firsts[words] = entry
    return list(firsts.values())


class _Finder:
    """Finds the gold of one question after the other, and counts how."""

    def __init__(self, documents: Sequence[Document], names: Names, tally: _Tally) -> None:
        self._texts = {document.id: f"{document.title}: {document.text}" for document in documents}
        self._names, self._holders, self._tally = names, Holders(documents), tally

    def question(self, entry: Entry) -> Question | None:
        """The question of an entry, with its gold; None where that is unknown."""
        gold, unknown, vague = self._by_name(entry)
        if vague:
            return self._leave_out("whose documents are named by what several are called", entry, vague)
        how = "whose documents the log names"
        if not gold:
            gold, why = self._by_answer(entry)
            how = "whose document was found by its answer"
            if not gold and unknown:
                return self._leave_out("that name no document of the folder", entry, unknown)
            if not gold:
                return self._leave_out(why, entry, entry.answer)
        self._tally.add("used", f"questions {how}", _example(entry, " ".join(gold)))
        if unknown:
            self._tally.add("in part", "questions that also name what the folder does not have", _example(entry, unknown))
        return Question(entry.id, entry.question, gold, self._answer(entry, gold), entry.split)

    def _leave_out(self, why: str, entry: Entry, detail: str) -> None:
        self._tally.add("left out", f"questions {why}", _example(entry, detail))

    def _by_name(self, entry: Entry) -> tuple[tuple[str, ...], str, str]:
        """The documents that the log names, each once; the first name of none, and the first name of several. Of several it
        is the one that states the answer, if only one does."""
        gold: dict[str, None] = {}
        unknown = vague = ""
        for name, ids in (pair for cell in entry.gold for pair in self._names.find_all(cell)):
            candidates = ids if len(ids) == 1 else [id for id in ids if mentions(self._texts[id], entry.answer)]
            if len(candidates) == 1:
                gold[candidates[0]] = None
            elif ids:
                vague = vague or name
            else:
                unknown = unknown or name
        return tuple(gold), unknown, vague

    def _by_answer(self, entry: Entry) -> tuple[tuple[str, ...], str]:
        """The document in which the answer stands, or why there is none."""
        if not entry.answer:
            return (), "with neither documents nor an answer"
        if normal_form(entry.answer) in OPINIONS:
            return (), "without documents, whose answer is a yes or a no"
        holders = self._holders.find(entry.answer)
        if not holders:
            return (), "without documents, whose answer stands in none word for word"
        if len(holders) > MOST_HOLDERS:
            return (), f"without documents, whose answer stands in more than {MOST_HOLDERS}"
        likeliest = holders[0] if len(holders) == 1 else self._holders.likeliest(entry.question, holders)
        if not likeliest:
            return (), "without documents, whose answer stands in several that the question does not find"
        return (likeliest,), ""

    def _answer(self, entry: Entry, gold: Sequence[str]) -> str:
        """The answer, if a reward can look for it: an opinion, or a few words that stand in the gold; else ""."""
        answer = entry.answer
        if not answer or normal_form(answer) in OPINIONS:
            return answer
        short = len(answer.split()) <= LONGEST_ANSWER
        if short and any(mentions(self._texts[id], answer) for id in gold):
            return answer
        why = "does not stand there" if short else f"has more than {LONGEST_ANSWER} words"
        self._tally.add("in part", f"questions judged by documents alone, since the answer {why}", _example(entry, answer))
        return ""


def _example(entry: Entry, detail: str = "") -> str:
    return f"line {entry.line}: {entry.question}" + (f" ({detail})" if detail else "")


def _with_splits(questions: Sequence[Question], seed: int) -> list[Question]:
    """The questions with splits drawn at random, a third of them for the test."""
    test = random.Random(f"split {seed}").sample(range(len(questions)), round(TEST_SHARE * len(questions)))
    return [replace(question, split="test" if n in test else "train") for n, question in enumerate(questions)]


def write_beir(questions: Questions, folder: str | Path) -> None:
    """Write a data set in the BEIR layout into `folder`, which must be new or empty.

    It then holds corpus.jsonl, queries.jsonl (with answer and hops as metadata), qrels/train.tsv and qrels/test.tsv, or
    nothing was written. Raises InputError where no question is left to learn from or none to be measured on, and where the
    folder holds something.
    """
    for split, purpose in (("train", "learn from"), ("test", "be measured on")):
        if not questions.of(split):
            raise InputError(f"no question is left to {purpose}: nothing was written")
    with new_folder(Path(folder)) as new:
        write(new / "corpus.jsonl", _lines(map(_document, questions.documents)))
        write(new / "queries.jsonl", _lines(map(_query, questions.questions)))
        (new / "qrels").mkdir()
        for split in ("train", "test"):
            rows = [f"{question.id}\t{id}\t1\n" for question in questions.of(split) for id in question.gold]
            write(new / "qrels" / f"{split}.tsv", "".join(["query-id\tcorpus-id\tscore\n", *rows]).encode())


def _document(document: Document) -> dict[str, Any]:
    return {"_id": document.id, "title": document.title, "text": document.text, "metadata": dict(document.metadata)}


def _query(question: Question) -> dict[str, Any]:
    return {"_id": question.id, "text": question.text, "metadata": {"answer": question.answer, "hops": len(question.gold)}}


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    """One object a line. Half a character in somebody's metadata is written by its number, as JSON allows."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(errors="backslashreplace")
