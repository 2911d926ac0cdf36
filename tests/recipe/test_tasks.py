"""`trivium tasks log`, as a person meets it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from trivium.agents.search.recipe import Search
from trivium.recipe.parts import Parts
from trivium.tasks import beir_tasks

LINE = "An administrator renews the {0} every {1} days, before the owner of the project has to ask for it."


@pytest.fixture
def docs(tmp_path) -> Path:
    """Twenty pages of a handbook, and what nobody can read."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for n in range(20):
        (folder / f"page-{n}.md").write_text(f"# Part {n}\n\n{LINE.format(f'part {n}', 10 + n)}\n")
    (folder / "scan.pdf").write_bytes(b"%PDF")
    return folder


@pytest.fixture
def questions(tmp_path) -> Path:
    """Twenty questions: half of them name their page, half have an answer alone; and one that has neither."""
    rows = [
        "Question,Answer,Page",
        *(f"How often is part {n} renewed?,every {10 + n} days,{'' if n % 2 else f'page-{n}'}" for n in range(20)),
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join([*rows, "Who wrote this?,,"]) + "\n")
    return path


@pytest.fixture
def told(trivium):
    """`trivium tasks` in this process: status, output, error."""
    return partial(trivium, "tasks")


def test_twenty_pages_and_twenty_questions_become_what_training_takes(told, docs, questions, tmp_path):
    code, out, err = told("log", questions, "--documents", docs, "--out", tmp_path / "data")
    assert code == 0, err
    assert "question from the column Question, answer from the column Answer, gold from the column Page" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "10 questions whose documents the log names" in lines
    assert "10 questions whose document was found by its answer" in lines
    assert "1 questions with neither documents nor an answer" in lines and "line 22: Who wrote this?" in lines
    assert "1 files that are neither text nor Markdown" in lines and "scan.pdf" in lines
    assert "13 questions to learn from, 7 to be measured on, 20 documents" in lines
    assert "here it attempts all 13" in out and f"Next: trivium train search --corpus {tmp_path / 'data'} --dry-run" in out
    parts = Parts(Search(corpus=str(tmp_path / "data"), warmup=40, steps=2))
    parts.check()
    assert parts.recipe.tasks_per_step == 13


def test_the_columns_the_seed_and_a_split_can_be_told(told, docs, questions, tmp_path):
    def test_ids(name: str, *more: str) -> list[str]:
        code, _, err = told("log", questions, "--documents", docs, "--out", tmp_path / name, *more)
        assert code == 0, err
        return [task.id for task in beir_tasks(tmp_path / name, "test")]

    assert test_ids("a") == test_ids("b") != test_ids("c", "--seed", "1")
    code, _, err = told("log", questions, "--documents", docs, "--out", tmp_path / "d", "--gold", "Source")
    assert code == 2 and "has no column 'Source': it has Question, Answer, Page" in err


def test_a_split_with_too_few_questions_says_what_training_needs(told, docs, tmp_path):
    log = tmp_path / "few.csv"
    log.write_text("question,gold\nA?,Part 1\nB?,Part 2\n")
    code, out, _ = told("log", log, "--documents", docs, "--out", tmp_path / "data")
    assert code == 0 and "Each of the 2 workers of a training needs a question to learn from" in out
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.md").write_text("# Part 1\n\nShort.\n")
    (tmp_path / "words" / "b.md").write_text("# Part 2\n\nToo.\n")
    code, out, _ = told("log", log, "--documents", tmp_path / "words", "--out", tmp_path / "more")
    assert code == 0 and "No document has a title and a sentence of 8 to 28 words" in out


def test_what_cannot_be_done_is_one_line_and_writes_nothing(told, docs, questions, tmp_path):
    def refused(why: str, *words: str | Path) -> None:
        code, _, err = told(*words)
        assert code == 2 and why in err and err.startswith("trivium: ") and err.count("\n") == 1, err

    refused("makes them of a log of questions")
    refused("makes them of a log of questions", "get", ".")
    refused("no.csv does not exist", "log", "no.csv", "--documents", docs, "--out", tmp_path / "data")
    refused("nowhere does not exist", "log", questions, "--documents", "nowhere", "--out", tmp_path / "data")
    refused("is not empty", "log", questions, "--documents", docs, "--out", docs)
    lone = tmp_path / "lone.jsonl"
    lone.write_text('{"question": "How often?", "answer": "never"}\n')
    refused(
        "no question is left to learn from: nothing was written", "log", lone, "--documents", docs, "--out", tmp_path / "data"
    )
    odd = tmp_path / "odd.csv"
    odd.write_text('question,documents\nWho?,"[{[1]: 2}]"\n')
    refused("nothing was written", "log", odd, "--documents", docs, "--out", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_help_teaches(told):
    for words in (["--help"], ["log", "--help"]):
        code, out, _ = told(*words)
        assert code == 0 and "QUESTIONS" in out and "the column that names the documents" in out
