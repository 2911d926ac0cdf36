"""A BEIR folder becomes tasks; a broken one is refused in a sentence that names the place."""

from __future__ import annotations

import json

import pytest

from trivium.errors import InputError
from trivium.tasks import beir_tasks

QUERIES = [
    {"_id": "q1", "text": "Who?", "metadata": {"answer": "Ada", "hops": 2, "type": "bridge"}},
    {"_id": "q2", "text": "Is it so?"},
    {"_id": "q3", "text": "Not judged."},
]


def write(folder, queries=QUERIES, judgements="q2\td9\t1\nq1\td2\t1\nq1\td7\t0\nq1\td1\t2\n"):
    documents = [{"_id": id, "title": "", "text": "Ada."} for id in ("d1", "d2", "d7", "d9")]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements)
    return folder


def test_tasks_follow_the_judgements(tmp_path):
    first, second = beir_tasks(write(tmp_path), "test")
    assert (first.id, first.prompt) == ("q1", "Who?")
    assert first.truth == {"gold": ["d2", "d1"], "answer": "Ada", "hops": 2}
    assert second.truth == {"gold": ["d9"], "answer": "", "hops": 1}


def test_a_missing_split_or_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="train.tsv"):
        beir_tasks(write(tmp_path), "train")
    with pytest.raises(InputError, match="nowhere"):
        beir_tasks(tmp_path / "nowhere", "test")


@pytest.mark.parametrize("judgement", ["q1\td1", "q1\td1\tmany", "q8\td1\t1", "q1\td8\t1"])
def test_a_broken_judgement_is_named_by_line(tmp_path, judgement):
    with pytest.raises(InputError, match="test.tsv:2"):
        beir_tasks(write(tmp_path, judgements=judgement + "\n"), "test")


@pytest.mark.parametrize("query", [[1], {"_id": "q1"}, {"text": "?"}])
def test_a_broken_query_is_named_by_line(tmp_path, query):
    with pytest.raises(InputError, match="queries.jsonl:1"):
        beir_tasks(write(tmp_path, queries=[query]), "test")


@pytest.mark.parametrize("metadata", [{"answer": 3}, {"hops": "two"}, {"hops": 0}])
def test_metadata_that_is_no_truth_is_refused(tmp_path, metadata):
    queries = [{"_id": "q1", "text": "?", "metadata": metadata}]
    with pytest.raises(InputError, match="query 'q1'"):
        beir_tasks(write(tmp_path, queries, "q1\td1\t1\n"), "test")
