"""A BEIR folder becomes tasks; a broken one is refused in a sentence that names the place."""

from __future__ import annotations

import json

import pytest

from trivium.errors import InputError
from trivium.tasks import beir_tasks


@pytest.fixture
def folder(tmp_path):
    queries = [
        {"_id": "q1", "text": "Who?", "metadata": {"answer": "Ada", "hops": 2, "type": "bridge"}},
        {"_id": "q2", "text": "Is it so?"},
        {"_id": "q3", "text": "Not judged."},
    ]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    (tmp_path / "qrels").mkdir()
    judged = "query-id\tcorpus-id\tscore\nq2\td9\t1\nq1\td2\t1\nq1\td7\t0\nq1\td1\t2\n"
    (tmp_path / "qrels" / "test.tsv").write_text(judged)
    return tmp_path


def test_tasks_follow_the_judgements(folder):
    second, first = beir_tasks(folder, "test")
    assert (first.id, first.prompt) == ("q1", "Who?")
    assert first.truth == {"gold": ["d2", "d1"], "answer": "Ada", "hops": 2}
    assert second.truth == {"gold": ["d9"], "answer": "", "hops": 1}


def test_a_missing_split_is_named_with_those_there_are(folder):
    with pytest.raises(InputError, match="train.tsv; splits here: test"):
        beir_tasks(folder, "train")
    with pytest.raises(InputError, match="a BEIR folder has"):
        beir_tasks(folder / "qrels", "train")


@pytest.mark.parametrize("line", ["q1\td1\n", "q1\td1\tmany\n", "q1 d1 1\n"])
def test_a_broken_judgement_is_named_by_line(folder, line):
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + line)
    with pytest.raises(InputError, match="test.tsv line 2"):
        beir_tasks(folder, "test")


@pytest.mark.parametrize("line", ["{", "[1]", '{"_id": "q1"}', '{"text": "?"}'])
def test_a_broken_query_is_named_by_line(folder, line):
    (folder / "queries.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="queries.jsonl line 1"):
        beir_tasks(folder, "test")


def test_a_judged_question_that_does_not_exist_is_named(folder):
    (folder / "qrels" / "test.tsv").write_text("q8\td1\t1\n")
    with pytest.raises(InputError, match="'q8'"):
        beir_tasks(folder, "test")
