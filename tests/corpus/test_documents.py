"""Documents in: what is read, and one clear error for each thing that cannot be."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from trivium.corpus import Corpus, Document, document_of, read_beir, read_documents, split
from trivium.corpus.documents import passed_over
from trivium.errors import InputError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def beir(folder: Path, corpus: str = "", queries: str = "", qrels: str = "") -> Path:
    write(folder / "corpus.jsonl", corpus or '{"_id": "d1", "title": "One", "text": "first", "metadata": {"page": 3}}\n')
    write(folder / "queries.jsonl", queries or '{"_id": "q1", "text": "what"}\n{"_id": "q2", "text": "unjudged"}\n')
    write(folder / "qrels" / "test.tsv", qrels or "query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    return folder


def test_what_a_folder_holds_besides_is_passed_over(tmp_path):
    for name in ("a.md", "b.PDF", "deep/c.docx", ".git/d.pdf", "deep/e.TXT"):
        write(tmp_path / "docs" / name, "text")
    assert passed_over(tmp_path / "docs") == [tmp_path / "docs" / "b.PDF", tmp_path / "docs" / "deep" / "c.docx"]
    assert passed_over(tmp_path / "docs" / "a.md") == [] == passed_over(beir(tmp_path / "beir"))
    with pytest.raises(InputError, match="does not exist"):
        passed_over(tmp_path / "nowhere")


def test_a_folder_is_read_recursively_with_titles(tmp_path):
    write(tmp_path / "b.md", "intro\n\n## The *Oster* valley ##\ntext")
    write(tmp_path / "c.md", "\n# Said once\n\nSome text.\n\n# Another\nmore")
    write(tmp_path / "d.md", "# Only a heading\n")
    write(tmp_path / "code.md", "---\n# a comment\n---\n```\n# rm everything\n```\n#\n\n# In C# \nmore\n~~~\n# open to the end")
    write(tmp_path / "deep" / "a.txt", "# no heading in plain text")
    write(tmp_path / "no-heading.md", b"\xef\xbb\xbfjust text")
    write(tmp_path / ".git" / "x.md", "hidden")
    write(tmp_path / "deep" / ".cache" / "x.md", "hidden")
    write(tmp_path / "folder.md" / "picture.png", b"\x89PNG")
    assert read_documents(tmp_path) == [
        Document("b.md", "The *Oster* valley", "intro\n\n## The *Oster* valley ##\ntext"),
        Document("c.md", "Said once", "Some text.\n\n# Another\nmore"),
        Document("code.md", "In C#", (tmp_path / "code.md").read_text()),
        Document("d.md", "Only a heading", "# Only a heading\n"),
        Document("deep/a.txt", "a", "# no heading in plain text"),
        Document("no-heading.md", "no-heading", "just text"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "---\n\n# Real\n\ntext\n\n---\n\n## Second",
        "---\n\n# Real\n\ntext\n\n---\n",
        "```npm install``` is how one begins.\n\n# Real",
        "````markdown\n```\n# not\n```\n````\n\n# Real",
        "---\n# not\n...\n\n# Real",
        "---\n# not\n--- \n# Real",
        "   ```bash\n# not\n   ```\n# Real",
        "```\n```python\n# not\n```\n# Real",
        "~~~~\n~~~\n# not\n~~~~\n# Real",
        "```\n```\n# Real",
    ],
)
def test_a_title_is_no_comment_and_a_rule_no_front_matter(tmp_path, text):
    (document,) = read_documents(write(tmp_path / "page.md", text))
    assert document.title == "Real"


@pytest.mark.parametrize(
    "line, title",
    [
        ("# Title", "Title"),
        ("###### Title ######", "Title"),
        ("#\tTitle \t# ", "Title"),
        ("# C#", "C#"),
        ("# Windows XX", "Windows XX"),
        ("# C # D", "C # D"),
        ("# \u00a0Title", "Title"),
        ("####### Title", "c"),
        ("#Title", "c"),
        ("#  ", "c"),
        ("# #", "c"),
        ("##  ##", "c"),
    ],
)
def test_the_title_is_what_a_heading_says(tmp_path, line, title):
    """CommonMark 4.2; where no heading says anything, the file's name."""
    write(tmp_path / "c.md", f"{line}\n\nBody.\n")
    (document,) = read_documents(tmp_path)
    assert document.title == title and document.text == ("Body.\n" if title != "c" else f"{line}\n\nBody.\n")


def test_code_before_a_heading_is_text_before_it(tmp_path):
    text = "  ```\n# a comment\n```\n# Title\nBody."
    write(tmp_path / "c.md", text)
    assert read_documents(tmp_path) == [Document("c.md", "Title", text)]


def test_a_title_or_a_text_is_enough(tmp_path):
    path = write(tmp_path / "c.jsonl", '{"_id": 7, "title": "T", "text": " "}\n{"id": "b", "text": "x"}')
    assert read_documents(path) == [Document("7", "T", " "), Document("b", "", "x")]


def test_only_the_first_line_of_judgements_is_a_header(tmp_path):
    qrels = "query-id\tcorpus-id\tscore\nquery-id\td1\t2\n"
    folder = beir(tmp_path, queries='{"_id": "query-id", "text": "what"}', qrels=qrels)
    assert read_beir(folder).qrels == {"query-id": {"d1": 2}}


def test_an_empty_heading_is_passed_over_for_one_that_says_something(tmp_path):
    write(tmp_path / "c.md", "#  \n\nA word before.\n\n## Title ##\nBody.")
    (document,) = read_documents(tmp_path)
    assert document.title == "Title" and document.text.startswith("#  \n")


def test_a_title_of_blanks_is_none():
    (chunk,) = split(Document("d", "  ", "Body of it."))
    assert chunk.line == "Body of it." == chunk.searched
    corpus = Corpus.build([Document("d", "  ", "Body of it.")])
    assert corpus.grep("^Body") and corpus.search("body")[0].chunk.line == "Body of it."


def test_long_blanks_in_a_heading_take_no_time(tmp_path):
    write(tmp_path / "c.md", "# a" + " " * 200_000 + "b\n# " + " " * 200_000 + "\n")
    began = time.thread_time()
    assert len(read_documents(tmp_path)[0].title) == 200_002 and time.thread_time() - began < 2


def test_ids_and_texts_may_hold_any_line_separator_of_unicode(tmp_path):
    """Only a newline ends a line of a data set."""
    ids = [f"a{separator}b" for separator in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"]
    write(tmp_path / "corpus.jsonl", "\n".join(json.dumps({"_id": i, "text": i}, ensure_ascii=False) for i in ids))
    write(tmp_path / "queries.jsonl", "\n".join(json.dumps({"_id": f"q{i}", "text": i}, ensure_ascii=False) for i in ids))
    write(tmp_path / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\t{i}\t1\n" for i in ids))
    data = read_beir(tmp_path)
    assert data.qrels == {f"q{i}": {i: 1} for i in ids} and [document.id for document in data.documents] == ids


def test_one_file_is_a_corpus_of_one(tmp_path):
    assert [d.id for d in read_documents(write(tmp_path / "a.md", "# T\nx"))] == ["a.md"]


def test_jsonl_takes_both_names_of_the_id(tmp_path):
    path = write(tmp_path / "c.jsonl", '{"_id": "a", "title": "T", "text": "x"}\n\n{"id": 7, "text": "line\u2028sep"}\n')
    assert read_documents(path) == [Document("a", "T", "x"), Document("7", "", "line\u2028sep")]


def test_beir_keeps_the_judged_queries_of_its_split(tmp_path):
    data = read_beir(beir(tmp_path, qrels="query-id\tcorpus-id\tscore\nq1\td1\t2\n"))
    assert data.documents == [Document("d1", "One", "first", {"page": 3})] == read_documents(tmp_path)
    assert [query.text for query in data.queries] == ["what"]
    assert data.qrels == {"q1": {"d1": 2}}


BAD_LINES = {
    "{nope}": ":2 is no JSON",
    "[1]": ":2 is no JSON object",
    "[" * 100_000: ":2 is no JSON",
    '{"_id": ' + "7" * 5000 + "}": ":2 is no JSON",
    '{"text": "x"}': ':2: the field "_id"',
    '{"_id": "", "text": "x"}': ':2: the field "_id"',
    '{"_id": "b", "title": "T"}': ':2: the field "text" is missing',
    '{"_id": "b", "text": 5}': ':2: the field "text" is no string',
    '{"_id": "b", "text": "x", "metadata": [1]}': ':2: the field "metadata" is no object',
    '{"_id": "b", "title": " ", "text": ""}': ":2: the document has neither",
    '{"_id": "a", "text": "again"}': "the id 'a' stands twice",
    '{"_id": true, "text": "x"}': ':2: the field "_id"',
}


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_is_named(tmp_path, line):
    path = write(tmp_path / "c.jsonl", f'{{"_id": "a", "text": "x"}}\n{line}\n')
    with pytest.raises(InputError) as caught:
        read_documents(path)
    assert str(path) in str(caught.value) and BAD_LINES[line] in str(caught.value)


def test_a_folder_of_notes_is_no_data_set(tmp_path):
    with pytest.raises(InputError, match="notes is no folder in the BEIR layout: it needs corpus.jsonl, "):
        read_beir(write(tmp_path / "notes" / "a.md", "# A").parent)


def test_what_is_missing_empty_or_no_text_is_named(tmp_path):
    cases = {
        tmp_path / "gone": "does not exist",
        write(tmp_path / "empty.jsonl", "\n\n"): "holds no document",
        write(tmp_path / "none" / "x.pdf", b"%PDF").parent: "holds no document",
        write(tmp_path / "latin" / "l.txt", b"caf\xe9").parent: "l.txt is no UTF-8 text (byte 3)",
        write(tmp_path / "binary" / "b.md", b"a\0b").parent: "b.md is no text",
        write(tmp_path / "bytes.jsonl", b'{"_id": "\xff"}'): "bytes.jsonl is no UTF-8",
        write(tmp_path / "paper.pdf", b"%PDF"): "paper.pdf is none of .md, .markdown, .txt and .jsonl",
    }
    for path, message in cases.items():
        with pytest.raises(InputError) as caught:
            read_documents(path)
        assert message in str(caught.value)


BAD_QRELS = {
    "q1\td1\n": "test.tsv:1 is no judgement",
    "query-id\tcorpus-id\tscore\nq1\td1\tgood\n": "test.tsv:2 is no judgement",
    "q1\td1\t1\nq9\td1\t1\n": "test.tsv:2 judges the unknown query 'q9'",
    "q1\td9\t1\n": "test.tsv:1 judges the unknown document 'd9'",
    "q1\td1\t0\n": "holds no judgement above 0",
}


@pytest.mark.parametrize("qrels", BAD_QRELS)
def test_bad_judgements_are_named(tmp_path, qrels):
    with pytest.raises(InputError) as caught:
        read_beir(beir(tmp_path, qrels=qrels))
    assert BAD_QRELS[qrels] in str(caught.value)


def test_a_question_that_stands_twice_is_named(tmp_path):
    folder = beir(tmp_path)
    questions = (tmp_path / "queries.jsonl").read_text()
    (tmp_path / "queries.jsonl").write_text(questions + questions)
    with pytest.raises(InputError, match="queries.jsonl has the id .* twice"):
        read_beir(folder)


def test_the_document_of_a_source():
    assert [document_of(source) for source in ("a:0", "a:b:12", "monday", "https://x.org/y", "")] == [
        "a", "a:b", "monday", "https://x.org/y", ""
    ]  # fmt: skip
    for no_order in (":0", "a:007", "a:\u0663", "a:-1", "a:1 ", "a:\u00b2", f"a:{'9' * 5000}"):
        assert document_of(no_order) == no_order


def test_a_data_set_without_its_parts_is_named(tmp_path):
    with pytest.raises(InputError, match="dev.tsv does not exist"):
        read_beir(beir(tmp_path), "dev")
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q1"}))
    with pytest.raises(InputError, match='queries.jsonl:1: the field "text" is missing'):
        read_beir(tmp_path)
