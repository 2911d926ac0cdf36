"""`trivium tasks log`: a folder of documents and a log of questions, made ready for `trivium train AGENT --corpus`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, get_args

import tyro
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from trivium.corpus import read_documents
from trivium.corpus.documents import passed_over
from trivium.recipe.base import Recipe
from trivium.tasks.cloze import WORDS, sentences
from trivium.tasks.log import Log, read_log
from trivium.tasks.questions import Finding, Questions, Use, join, write_beir
from trivium.viewer import screen
from trivium.viewer.episodes import clean, short

QuestionsFile = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="QUESTIONS")]


def log(
    questions: QuestionsFile,
    documents: str,
    out: str,
    question: str = "",
    answer: str = "",
    gold: str = "",
    id: str = "",
    split: str = "",
    seed: int = 0,
) -> None:
    """Make documents and a log of questions ready for training, and say what could not be used.

    Where the log names no documents, the answer tells: the document in which it stands, word for word.

    Args:
        questions: a .csv with a header, or a .jsonl: a question a line, with its answer and its documents if known
        documents: a folder of text and Markdown, a JSONL file, or a folder in the BEIR layout
        out: where to write, in the BEIR layout; new or empty
        question: the column of the question; default: question, query, prompt, ...
        answer: the column of the answer; default: answer, expected answer, ...
        gold: the column that names the documents: ids, file names, titles, addresses; default: gold, documents, sources, ...
        id: the column of the id; default: id, or the line's place
        split: the column that says train or test; default: split, or a third is drawn for the test
        seed: of that draw
    """
    columns = {"question": question, "answer": answer, "gold": gold, "id": id, "split": split}
    entries = read_log(questions, columns)
    result = join(entries, read_documents(documents), seed)
    console = screen()
    for part in _account(entries, result, documents):
        console.print(part)
    write_beir(result, out)
    console.print(f"{out} holds them. Next: trivium train search --corpus {out} --dry-run", soft_wrap=True)


def _account(log: Log, questions: Questions, documents: str) -> Iterator[RenderableType]:
    """What was read from where, what became of it, and what a training can do with it."""
    yield Text(", ".join(f"{key} from the column {clean(name)}" for key, name in log.columns.items()), "dim")
    skipped = passed_over(documents)
    others = [Finding("left out", "files that are neither text nor Markdown", len(skipped), skipped[0].name)] if skipped else []
    findings = [*questions.findings, *others]
    for use in get_args(Use):
        if of_use := [finding for finding in findings if finding.use == use]:
            yield Text(f"\n{use}", "bold")
            yield _rows(of_use)
    train, test = len(questions.of("train")), len(questions.of("test"))
    yield Text(f"\n{train} questions to learn from, {test} to be measured on, {len(questions.documents)} documents", "bold")
    yield from map(Text, _advice(questions, train, test))


def _rows(findings: list[Finding]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", min_width=5)
    grid.add_column(ratio=1)
    for each in findings:
        grid.add_row(str(each.count), each.what)
        grid.add_row("", Text(short(each.example), "dim"))
    return grid


def _advice(questions: Questions, train: int, test: int) -> Iterator[str]:
    """What a training needs, where this has less."""
    if min(train, test) < Recipe.workers:
        yield f"Each of the {Recipe.workers} workers of a training needs a question to learn from and one to be measured on."
    if train < Recipe.groups:
        yield (
            f"A step of RL attempts {Recipe.groups} questions; here it attempts all {train} and soon knows them by heart. "
            "A hundred or more teach what holds for others."
        )
    if not sentences(questions.documents):
        yield (
            f"No document has a title and a sentence of {WORDS[0]} to {WORDS[1]} words, of which the warm-up makes questions: "
            "training cannot start with these."
        )
