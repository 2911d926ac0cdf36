"""From a folder of documents and a log of questions to a data set in the BEIR layout, which `train --corpus` takes.

    questions = join(read_log("support.csv"), read_documents("docs/"))
    for finding in questions.findings:
        print(finding.use, finding.count, finding.what, finding.example)
    write_beir(questions, "data/support")

What cannot be used is counted, with the reason and the first example.
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
from trivium.tasks.proof import OPINIONS, folded, says

Use = Literal["used", "in part", "left out"]
TEST_SHARE = 1 / 3
LONGEST_ANSWER = 12
"""Words. The reward asks whether one passage states the answer, and passages are short: a longer answer would be cut in two."""


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
    """So many questions or documents of which one thing is to be said; `example` is the first of them."""

    use: Use
    what: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Questions:
    """The documents and the questions of a data set, and what became of everything that it was made of."""

    documents: list[Document]
    questions: list[Question]
    findings: list[Finding]

    def of(self, split: str) -> list[Question]:
        """The questions of one split, train or test."""
        return [each for each in self.questions if each.split == split]


def join(log: Log, documents: Sequence[Document], seed: int = 0) -> Questions:
    """Find the documents of each question, and draw a split (a third for the test) where the log has none.

    A question's gold is what the log names, if the folder has it; else the document in which the answer stands, as words: the
    one that a search with the question ranks first, where there are two to four. A question that is asked twice is one
    question, with the gold of both lines. Raises InputError for two questions with one id, and for documents that cannot be
    searched (none with text, half a character, a tab in a name).
    """
    tally = _Tally()
    originals, same = _without_copies(documents, tally)
    entries = _without_repeats(_with_ids(log.entries), tally)
    finder = _Finder(originals, Names([each for each in documents if each.id in same], same), tally)
    questions = [question for entry in entries if (question := finder.question(entry))]
    if "split" not in log.columns:
        questions = _drawn(questions, seed)
    return Questions(originals, questions, tally.findings())


class _Tally:
    """Counts what is to be said; the first of each is its example."""

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
    for each in documents:
        if not each.text.strip():
            tally.add("left out", "documents without text", each.id)
            continue
        check_unicode(each)
        if any(letter in each.id for letter in "\t\n\r"):
            raise InputError(f"the document {each.id!r} has a tab or a line's end in its name: rename it")
        key = (each.title, each.text)
        if key in first:
            tally.add("left out", "documents that are copies of another", f"{each.id} = {first[key]}")
        else:
            originals.append(each)
        same[each.id] = first.setdefault(key, each.id)
    if not originals:
        raise InputError("none of the documents has any text: there is nothing to search in")
    return originals, same


def _with_ids(entries: Iterable[Entry]) -> list[Entry]:
    """The entries, each with its own id, or with its place in the log for one."""
    known: dict[str, Entry] = {}
    numbered = [replace(entry, id=entry.id or f"q{number}") for number, entry in enumerate(entries, 1)]
    for entry in numbered:
        other = known.setdefault(entry.id, entry)
        if folded(other.question) != folded(entry.question):
            raise InputError(f"{entry.where} has the id {entry.id!r}, as another question in {other.where}: ids must differ")
    return numbered


def _without_repeats(entries: Iterable[Entry], tally: _Tally) -> list[Entry]:
    """The entries that ask something, each question once: with the id and the split of its first line, and the gold of all."""
    firsts: dict[str, Entry] = {}
    for entry in entries:
        words = folded(entry.question)
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
        self._texts = {each.id: f"{each.title}: {each.text}" for each in documents}
        self._names, self._holders, self._tally = names, Holders(documents), tally

    def question(self, entry: Entry) -> Question | None:
        """What an entry asks, with its gold; None where nobody knows that."""
        gold, unknown, vague = self._named(entry)
        if vague:
            return self._left_out("whose documents are named by what several are called", entry, vague)
        how = "whose documents the log names"
        if not gold:
            gold, why = self._answering(entry)
            how = "whose document was found by its answer"
            if not gold and unknown:
                return self._left_out("that name no document of the folder", entry, unknown)
            if not gold:
                return self._left_out(why, entry, entry.answer)
        self._tally.add("used", f"questions {how}", _example(entry, " ".join(gold)))
        if unknown:
            self._tally.add("in part", "questions that also name what the folder does not have", _example(entry, unknown))
        return Question(entry.id, entry.question, gold, self._answer(entry, gold), entry.split)

    def _left_out(self, why: str, entry: Entry, detail: str) -> None:
        self._tally.add("left out", f"questions {why}", _example(entry, detail))

    def _named(self, entry: Entry) -> tuple[tuple[str, ...], str, str]:
        """The documents that the log names, each once; the first name that is none, and the first that is one of several.
        Where one of those states the answer, it is meant."""
        gold: dict[str, None] = {}
        unknown = vague = ""
        for name, ids in (pair for cell in entry.gold for pair in self._names.find_all(cell)):
            meant = ids if len(ids) == 1 else [id for id in ids if says(self._texts[id], entry.answer)]
            if len(meant) == 1:
                gold[meant[0]] = None
            elif ids:
                vague = vague or name
            else:
                unknown = unknown or name
        return tuple(gold), unknown, vague

    def _answering(self, entry: Entry) -> tuple[tuple[str, ...], str]:
        """The document in which the answer stands, or why nobody knows one."""
        if not entry.answer:
            return (), "with neither documents nor an answer"
        if folded(entry.answer) in OPINIONS:
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
        """The answer, if a reward can look for it: an opinion, or a few words that stand in the gold."""
        answer = entry.answer
        if not answer or folded(answer) in OPINIONS:
            return answer
        short = len(answer.split()) <= LONGEST_ANSWER
        if short and any(says(self._texts[id], answer) for id in gold):
            return answer
        why = "does not stand there" if short else f"has more than {LONGEST_ANSWER} words"
        self._tally.add("in part", f"questions judged by documents alone, since the answer {why}", _example(entry, answer))
        return ""


def _example(entry: Entry, detail: str = "") -> str:
    return f"line {entry.line}: {entry.question}" + (f" ({detail})" if detail else "")


def _drawn(questions: Sequence[Question], seed: int) -> list[Question]:
    """The questions, a third of them for the test."""
    test = random.Random(f"split {seed}").sample(range(len(questions)), round(TEST_SHARE * len(questions)))
    return [replace(each, split="test" if n in test else "train") for n, each in enumerate(questions)]


def write_beir(questions: Questions, folder: str | Path) -> None:
    """Write a data set in the BEIR layout into `folder`, which must be new or empty.

    There are corpus.jsonl, queries.jsonl (with answer and hops as metadata), qrels/train.tsv and qrels/test.tsv in the end, or
    nothing. Raises InputError where no question is left to learn from or none to be measured on, and where the folder holds
    something.
    """
    for split, purpose in (("train", "learn from"), ("test", "be measured on")):
        if not questions.of(split):
            raise InputError(f"no question is left to {purpose}: nothing was written")
    with new_folder(Path(folder)) as new:
        write(new / "corpus.jsonl", _lines(_document(each) for each in questions.documents))
        write(new / "queries.jsonl", _lines(_query(each) for each in questions.questions))
        (new / "qrels").mkdir()
        for split in ("train", "test"):
            rows = [f"{each.id}\t{id}\t1\n" for each in questions.of(split) for id in each.gold]
            write(new / "qrels" / f"{split}.tsv", "".join(["query-id\tcorpus-id\tscore\n", *rows]).encode())


def _document(each: Document) -> dict[str, Any]:
    return {"_id": each.id, "title": each.title, "text": each.text, "metadata": dict(each.metadata)}


def _query(each: Question) -> dict[str, Any]:
    return {"_id": each.id, "text": each.text, "metadata": {"answer": each.answer, "hops": len(each.gold)}}


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    """One object a line; half a character in somebody's metadata stands there by its number, as JSON allows."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(errors="backslashreplace")
