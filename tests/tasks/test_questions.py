"""A folder of documents and a log of questions become a data set; what cannot be used is counted, what is broken is named."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trivium.corpus import Document, read_documents
from trivium.errors import InputError
from trivium.tasks import beir_tasks, prove
from trivium.tasks.gold import Holders, Names
from trivium.tasks.log import read_log
from trivium.tasks.questions import Questions, join, write_beir

DATA = Path(__file__).parents[3] / "shared" / "data"
PAGES = {
    "install.md": "# Install Larkspur\n\nUse version 3.2 of the installer. It needs forty gigabytes of disk.\n",
    "guide/keys.md": "# Keys\n\nA key is renewed every ninety days. The flag is called --rotate.\n",
    "guide/index.md": "# Guide\n\nThe guide has two pages, and is kept for ninety days.\n",
    "guide/limits.txt": "At most seven projects. An error E42 says that there are more, and E42 is mailed to the owner.\n",
    "café menu.md": "# Menu\n\nSoup costs four crowns.\n",
    "api/keys.md": "# API keys\n\nAn address ends in /v2.\n",
    "empty.md": "",
    "later/install.md": "# Install Larkspur\n\nUse version 3.2 of the installer. It needs forty gigabytes of disk.\n",
}


@pytest.fixture
def docs(tmp_path) -> Path:
    for name, text in PAGES.items():
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "docs"


def of_csv(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "log.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def of_json(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def gold(questions: Questions) -> dict[str, tuple[str, ...]]:
    return {each.text: each.gold for each in questions.questions}


def said(questions: Questions) -> dict[str, tuple[str, int, str]]:
    return {each.what: (each.use, each.count, each.example) for each in questions.findings}


# --- what the log calls the documents


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("guide/keys.md", "guide/keys.md"),
        ("guide/keys", "guide/keys.md"),
        ("./docs/guide/keys.md#rotate", "guide/keys.md"),
        ("Keys", "guide/keys.md"),
        ("https://docs.example.org/en/guide/keys.html?from=mail", "guide/keys.md"),
        ("https://docs.example.org/api/keys/", "api/keys.md"),
        ("limits", "guide/limits.txt"),
        ("LIMITS.TXT", "guide/limits.txt"),
        ("guide", "guide/index.md"),
        ("https://docs.example.org/guide/", "guide/index.md"),
        ("install larkspur!", "install.md"),
        ("https://docs.example.org/caf%C3%A9%20menu", "café menu.md"),
        ("cafe-menu", "café menu.md"),
        ("later/install.md", "install.md"),
        ("C:\\docs\\guide\\keys.md", "guide/keys.md"),
    ],
)
def test_a_document_is_known_by_whatever_people_call_it(docs, tmp_path, name, id):
    questions = join(read_log(of_json(tmp_path, {"question": "How?", "gold": name})), read_documents(docs))
    assert gold(questions) == {"How?": (id,)}


def test_a_title_goes_before_a_file_name_and_letters_before_their_normal_form():
    names = Names([Document("a", "b", "x"), Document("b", "A", "x"), Document("c/a.md", "C", "x")])
    assert [names.find(name) for name in ("a", "b", "A", "c/a", "C", "z")] == [["a"], ["b"], ["b"], ["c/a.md"], ["c/a.md"], []]


@pytest.mark.parametrize(
    "cell",
    [
        "install.md; guide/keys.md",
        "install.md|guide/keys.md",
        "install.md, guide/keys.md",
        "Install Larkspur\nKeys",
        '["install.md", "guide/keys.md"]',
        "['install.md', 'guide/keys.md']",
        ["install.md", "guide/keys.md"],
        [["Install Larkspur", 0], ["Keys", 2], ["Keys", 3]],
        [{"title": "Install Larkspur"}, {"page_content": "x", "metadata": {"source": "/srv/docs/guide/keys.md"}}],
        {"title": ["Install Larkspur", "Keys"], "sent_id": [0, 2]},
    ],
    ids=str,
)
def test_several_documents_in_one_cell(docs, tmp_path, cell):
    questions = join(read_log(of_json(tmp_path, {"question": "How?", "documents": cell})), read_documents(docs))
    assert gold(questions) == {"How?": ("install.md", "guide/keys.md")}


def test_a_name_with_a_comma_is_one_name_if_there_is_such_a_document():
    names = Names([Document("1", "Salt, Pepper", "x"), Document("2", "Salt", "x"), Document("3", "Pepper", "x")])
    assert names.find_all("Salt, Pepper") == [("Salt, Pepper", ["1"])]
    assert names.find_all("Pepper, Salt") == [("Pepper", ["3"]), ("Salt", ["2"])]
    assert names.find_all("Cumin, Salt") == [("Cumin, Salt", [])]
    assert names.find_all("Cumin; Salt") == [("Cumin", []), ("Salt", ["2"])]
    assert names.find_all("Cumin, Mint") == [("Cumin, Mint", [])]


def test_a_name_that_several_have_means_the_one_that_states_the_answer(docs, tmp_path):
    rows = [
        {"question": "How often?", "gold": "keys.md", "answer": "every ninety days"},
        {"question": "Who?", "gold": "keys.md"},
    ]
    questions = join(read_log(of_json(tmp_path, *rows)), read_documents(docs))
    assert gold(questions) == {"How often?": ("guide/keys.md",)}
    why = "questions whose documents are named by what several are called"
    assert said(questions)[why] == ("left out", 1, "line 2: Who? (keys.md)")


def test_a_name_that_nobody_has_is_told_and_the_others_count(docs, tmp_path):
    rows = [
        {"question": "How?", "gold": ["install.md", "lost.md"]},
        {"question": "Where?", "gold": "lost.md"},
        {"question": "How many?", "gold": "slack", "answer": "seven projects"},
    ]
    questions = join(read_log(of_json(tmp_path, *rows)), read_documents(docs))
    assert gold(questions) == {"How?": ("install.md",), "How many?": ("guide/limits.txt",)}
    told = said(questions)
    assert told["questions that also name what the folder does not have"] == ("in part", 2, "line 1: How? (lost.md)")
    assert told["questions that name no document of the folder"] == ("left out", 1, "line 2: Where? (lost.md)")


# --- an answer and no documents


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("forty gigabytes", ("install.md",)),
        ("ninety days", ("guide/keys.md",)),  # two documents say so, and the question speaks of keys
        ("eight projects", "whose answer stands in none word for word"),
        ("Yes.", "whose answer is a yes or a no"),
        ("", "with neither documents nor an answer"),
    ],
)
def test_an_answer_finds_its_document_or_the_reason_is_told(docs, tmp_path, answer, told):
    questions = join(
        read_log(of_json(tmp_path, {"question": "How often is a key renewed?", "answer": answer})), read_documents(docs)
    )
    if isinstance(told, tuple):
        assert gold(questions) == {"How often is a key renewed?": told}
        assert questions.questions[0].answer == answer
    else:
        assert not questions.questions and any(told in what for what in said(questions))


def test_an_answer_that_stands_everywhere_finds_nothing(tmp_path):
    def joined(copies: int, question: str) -> Questions:
        documents = [Document(f"d{n}", f"T{n}", f"In place {n} it is blue.") for n in range(copies)]
        return join(read_log(of_json(tmp_path, {"question": question, "answer": "blue"})), documents)

    assert gold(joined(4, "What is in place 3?")) == {"What is in place 3?": ("d3",)}
    assert "questions without documents, whose answer stands in more than 4" in said(joined(5, "What is in place 3?"))
    why = "questions without documents, whose answer stands in several that the question does not find"
    assert why in said(joined(4, "Which colour?"))


def test_an_answer_that_no_passage_states_is_left_out_and_the_documents_decide(docs, tmp_path):
    long = "needs " + "very " * 11 + "much"
    rows = [
        {"question": "How?", "gold": "install.md", "answer": "run the installer"},
        {"question": "How much?", "gold": "install.md", "answer": long},
        {"question": "How much, then?", "gold": "install.md", "answer": " ".join(PAGES["install.md"].split()[3:15])},
        {"question": "Is it?", "gold": "install.md", "answer": "no"},
        {"question": "Which?", "gold": "install.md", "answer": "version 3.2"},
    ]
    questions = join(read_log(of_json(tmp_path, *rows)), read_documents(docs))
    assert [each.answer for each in questions.questions] == ["", "", rows[2]["answer"], "no", "version 3.2"]
    told = said(questions)
    assert (
        told["questions judged by documents alone, since the answer does not stand there"][2]
        == "line 1: How? (run the installer)"
    )
    assert told["questions judged by documents alone, since the answer has more than 12 words"][1] == 1


# --- what is written


def test_the_whole_way_to_what_training_reads(docs, tmp_path):
    rows = ["Nr.;Question;Expected answer;Sources"]
    rows += [f"{n};How is thing {n} installed?;version 3.2;install.md" for n in range(7)]
    rows += ['90;"Which flag; and where?";--rotate;"Keys;Guide"', "91;Which menu?;;café menu", "92;;;", "93;Which MENU?;;"]
    questions = join(read_log(of_csv(tmp_path, *rows)), read_documents(docs))
    write_beir(questions, tmp_path / "data")
    assert read_documents(tmp_path / "data") == [each for each in read_documents(docs) if each.id in gold_ids(questions)]
    train, test = (beir_tasks(tmp_path / "data", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (6, 3)
    by_prompt = {task.prompt: task for task in [*train, *test]}
    two = by_prompt["Which flag; and where?"]
    assert two.truth == {"gold": ["guide/keys.md", "guide/index.md"], "answer": "--rotate", "hops": 2}
    assert not [fault for task in [*train, *test] for fault in prove(task, questions.documents)]
    told = said(questions)
    assert told["lines without a question"] == ("left out", 1, "line 11")
    assert told["questions asked before, whose documents count for the first"] == ("left out", 1, "line 12: Which MENU?")
    assert told["documents without text"] == ("left out", 1, "empty.md")
    assert told["documents that are copies of another"] == ("left out", 1, "later/install.md = install.md")


def gold_ids(questions: Questions) -> set[str]:
    return {each.id for each in questions.documents}


def test_the_split_is_drawn_by_the_seed_or_is_the_logs_own(docs, tmp_path):
    rows = [{"id": n, "question": f"Question {n}?", "gold": "install.md"} for n in range(30)]
    log, documents = read_log(of_json(tmp_path, *rows)), read_documents(docs)
    splits = [[each.split for each in join(log, documents, seed).questions] for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2] and splits[0].count("test") == 10
    split = [{**row, "split": "Validation" if row["id"] < 3 else "train"} for row in rows]
    questions = join(read_log(of_json(tmp_path, *split)), documents)
    assert [each.id for each in questions.of("test")] == ["0", "1", "2"]
    with pytest.raises(InputError, match=r"log.jsonl:2 has the split 'later'"):
        read_log(of_json(tmp_path, rows[0] | {"split": "test"}, rows[1] | {"split": "later"}))


def test_lines_that_name_one_document_each_are_one_question(docs, tmp_path):
    rows = [{"qid": "a", "question": "Which?", "doc_id": id} for id in ("install.md", "guide/keys.md", "install.md")]
    rows[1]["answer"] = "ninety days"
    questions = join(
        read_log(of_json(tmp_path, *rows, {"qid": "b", "question": "Why?", "doc_id": "limits"})), read_documents(docs)
    )
    assert gold(questions) == {"Which?": ("install.md", "guide/keys.md"), "Why?": ("guide/limits.txt",)}
    assert questions.questions[0].answer == "ninety days"


def test_half_a_character_is_refused_in_a_document_and_replaced_in_a_question(tmp_path):
    documents = [Document("a", "A", "text", {"note": "half \ud800"}), Document("b", "B", "whole")]
    log = read_log(of_json(tmp_path, *({"question": f"{id} \udc00?", "gold": id} for id in "ab")))
    write_beir(join(log, documents), tmp_path / "data")
    assert read_documents(tmp_path / "data")[0].metadata == {"note": "half \ud800"}
    assert [task.prompt for task in beir_tasks(tmp_path / "data", "train")] in (["a ??"], ["b ??"])
    with pytest.raises(InputError, match="document 'c' holds half a character"):
        join(log, [Document("c", "C", "half \ud800 here")])


def test_nothing_is_written_where_a_split_is_empty_or_the_folder_is_not(docs, tmp_path):
    one = join(read_log(of_json(tmp_path, {"question": "How?", "gold": "install.md"})), read_documents(docs))
    with pytest.raises(InputError, match="no question is left to be measured on"):
        write_beir(one, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    none = join(read_log(of_json(tmp_path, {"question": "How?", "gold": "x"})), read_documents(docs))
    with pytest.raises(InputError, match="no question is left to learn from"):
        write_beir(none, tmp_path / "data")
    two = join(read_log(of_json(tmp_path, *({"question": f"{n}?", "gold": "limits"} for n in "ab"))), read_documents(docs))
    with pytest.raises(InputError, match="is not empty"):
        write_beir(two, docs)
    write_beir(two, tmp_path / "data")
    assert [len(two.of(split)) for split in ("train", "test")] == [1, 1]


# --- logs that cannot be read


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("log.csv", b"", "holds no question"),
        ("log.csv", b"question,answer\n", "holds no question"),
        ("log.csv", b"\n \n", "holds no question"),
        ("log.jsonl", b"\n\n", "holds no question"),
        ("log.csv", b"number,reply\n1,yes\n", r"no column for the question \(it has number, reply\): name it with --question"),
        ("log.jsonl", b'{"ask": "How?"}\n', r"no column for the question \(it has ask\)"),
        ("log.csv", b"id,question\n1,How?\n2,Who?\n1,Why?\n", r"log.csv:4 has the id '1', as another question in .*log.csv:2"),
        ("log.csv", b"question\nHow\x00?\n", "holds a NUL byte"),
        ("log.csv", "question\nWie heißt es?\n".encode("latin-1"), r"is no UTF-8 text \(byte 16\)"),
        ("log.csv", "question\nHow?\n".encode("utf-16"), "is no UTF-8 text"),
        ("log.csv", b"question,answer\nHow, then?,so\n", r"log.csv:2 has 3 fields and the header 2"),
        ("log.csv", b'question,answer\n"How?,so\n', "is no CSV that can be read"),
        ("log.csv", b"question\n" + b"x" * 200_000 + b"\n", "is no CSV that can be read"),
        ("log.jsonl", b'{"question": "How?"\n', "log.jsonl:1 is no JSON that can be read"),
        ("log.jsonl", b"[" * 100_000, "log.jsonl:1 is no JSON that can be read"),
        ("log.jsonl", b'\n["How?"]\n', "log.jsonl:2 is no JSON object"),
        ("log.xlsx", b"PK", "is no log that can be read: it must be a .csv"),
    ],
)
def test_a_log_that_is_none_is_one_clear_sentence(docs, tmp_path, name, data, why):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=why):
        join(read_log(tmp_path / name), read_documents(docs))


def test_a_log_that_is_not_there_or_a_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no.csv does not exist"):
        read_log(tmp_path / "no.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"folder.csv cannot be read \(Is a directory\)"):
        read_log(tmp_path / "folder.csv")


def test_a_spreadsheets_marks_and_separators_are_understood(tmp_path):
    (tmp_path / "log.csv").write_bytes("\ufeffQuestion;Doc ID\r\n\"How, and\r\nwhy?\";'a'\r\n".encode())
    log = read_log(tmp_path / "log.csv")
    entry = log.entries[0]
    assert log.columns == {"question": "Question", "gold": "Doc ID"}
    assert (entry.question, entry.gold, entry.line) == ("How, and why?", ("'a'",), "2")
    (tmp_path / "log.tsv").write_text("query\tsource\nWho, me?\tb\n")
    assert read_log(tmp_path / "log.tsv").entries[0].question == "Who, me?"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("['Salt, Pepper', 'b']", ("Salt, Pepper", "b")),
        ('["a"]', ("a",)),
        ("[a", ("[a",)),
        ([["Salt", 0], ["Pepper", 3]], ("Salt", "Pepper")),
        ([7, None, " b "], ("7", "b")),
        ({"page_content": "x", "metadata": {"source": "a.md"}}, ("a.md",)),
        ({"score": 1}, ()),
        (None, ()),
    ],
    ids=str,
)
def test_names_in_a_cell(tmp_path, value, names):
    path = of_json(tmp_path, {"Question": "How?", "question": "no", "gold": value})
    assert read_log(path).entries[0].gold == names and read_log(path).entries[0].question == "How?"


def test_columns_of_other_names_can_be_named(tmp_path):
    path = of_json(tmp_path, {"question": "no", "Ask": " How\n?", "reply": ["so", "thus"], "answer": "x"})
    log = read_log(path, {"question": "Ask", "answer": "reply"})
    assert (log.entries[0].question, log.entries[0].answer) == ("How ?", "so")
    assert log.columns == {"question": "Ask", "answer": "reply"}
    with pytest.raises(InputError, match="has no column 'Sources': it has question, Ask, reply, answer"):
        read_log(path, {"gold": "Sources"})


def test_documents_without_any_text_or_with_a_tab_for_a_name(tmp_path):
    log = read_log(of_json(tmp_path, {"question": "How?", "gold": "a"}))
    with pytest.raises(InputError, match="none of the documents has any text"):
        join(log, [Document("a", "A", " ")])
    with pytest.raises(InputError, match="has a tab or a line's end in its name"):
        join(log, [Document("a\tb", "A", "text")])


# --- real questions


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not beside the repository")
@pytest.mark.parametrize(("name", "least"), [("hotpotqa", 190), ("musique", 105)])
def test_documents_of_real_questions_are_found_by_their_answers_nine_times_in_ten(tmp_path, name, least):
    """`pytest tests/tasks/test_questions.py -s` prints the numbers of docs/tasks.md."""
    tasks = [task for split in ("train", "test") for task in beir_tasks(DATA / name, split)]
    with (tmp_path / "log.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "question", "answer"])
        writer.writerows([task.id, task.prompt, task.truth["answer"]] for task in tasks)
    questions = join(read_log(tmp_path / "log.csv"), read_documents(DATA / name)).questions
    truth = {task.id: task.truth["gold"] for task in tasks}
    right = sum(each.gold[0] in truth[each.id] for each in questions)
    print(f"{name}: {len(questions)} of {len(tasks)} found, {right} of them right")
    assert len(questions) >= least and right / len(questions) > 0.9


def test_holders_are_all_that_state_an_answer():
    documents = [Document("a", "Salt", "It is white."), Document("b", "Pepper", "Beside Salt."), Document("c", "C", "Salty.")]
    assert Holders(documents).find("salt") == ["a", "b"]
    assert Holders(documents).likeliest("what is beside pepper", ["a", "b"]) == "b"
    assert Holders(documents).likeliest("what is beside pepper", ["a", "c"]) == ""
    assert Holders(documents).likeliest("which salt is beside pepper", ["a", "c"]) == "a"
