"""What needs no training: the searches are what they say, and rankings are judged as answers are."""

from __future__ import annotations

import asyncio

import pytest

from tests.laws.walks import TASK, script, search, search_corpus
from trivium.agents.search.baselines import SEARCHES, Ranked, judged, plain_rankings, returned
from trivium.agents.search.reward import SearchReward
from trivium.corpus import Corpus, Document, HashEmbedder
from trivium.harness import Harness, Window
from trivium.policy.scripted import call, say
from trivium.trace import Task

DOCUMENTS = [
    Document("firm", "Brennix Holt", "Brennix Holt was founded by Mira Tolen."),
    Document("person", "Mira Tolen", "Mira Tolen was born in Varnholm."),
    Document("noise", "Oster", "The Oster is a river that was founded on sand."),
    *(Document(f"d{n}", f"Page {n}", f"Nothing to see on page {n}.") for n in range(6)),
]
ASKED = Task("t", "Where was the founder of Brennix Holt born?", {"gold": ["firm", "person"], "answer": "Varnholm"})


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.build(DOCUMENTS, embedder=HashEmbedder())


def test_each_search_is_what_it_says(corpus):
    found = plain_rankings(corpus, ASKED)
    assert tuple(found) == SEARCHES
    docs = {name: [each.doc for each in ranking] for name, ranking in found.items()}
    assert docs["bm25"] == [hit.chunk.doc_id for hit in Corpus.build(DOCUMENTS).search(ASKED.prompt, 50)]
    assert docs["hybrid"] == [hit.chunk.doc_id for hit in corpus.search(ASKED.prompt, 50)]
    assert len(docs["dense"]) == len(DOCUMENTS), "a dense search ranks everything"
    assert "person" in docs["two_bm25"] and docs["two_bm25"][0] == "firm"
    first = corpus.chunk(f"{docs['hybrid'][0]}:0")
    quoting = corpus.search(f"{ASKED.prompt} {first.title}: {first.text}", 50)
    assert docs["quoting"] == [hit.chunk.doc_id for hit in quoting] != docs["hybrid"]


def test_a_passage_states_the_answer_or_not(corpus):
    stated = {found.doc: found.states for found in plain_rankings(corpus, ASKED)["dense"]}
    assert stated["person"] and not stated["firm"]


def test_a_question_that_shares_no_word_finds_nothing_by_words(corpus):
    assert plain_rankings(corpus, Task("t", "zzz?", {"gold": ["firm"], "answer": "x"}))["two_bm25"] == []


def test_a_document_of_two_passages_counts_once():
    long = Document("long", "Long", "\n\n".join(f"Paragraph {n} speaks of Varnholm and of other things." for n in range(8)))
    ranking = plain_rankings(Corpus.build([long, *DOCUMENTS], embedder=HashEmbedder(), chunk_words=12), ASKED)["dense"]
    assert [found.doc for found in ranking].count("long") == 1


@pytest.mark.parametrize("answer", ["#2 #5", "#5", "#3 #2 #99", "none", "#5 #5 #2"])
def test_an_answer_is_judged_as_its_episode_is(renderer, answer):
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    episode = asyncio.run(harness.run(TASK, script(renderer, [call(search()), call(search()), say(answer)])))
    scores = asyncio.run(SearchReward()(episode))
    assert judged(TASK, returned(episode)) == {name: scores[name] for name in judged(TASK, [])}


def test_yes_and_no_are_found_where_all_gold_is():
    task = Task("t", "Same?", {"gold": ["a", "b"], "answer": "yes"})
    assert judged(task, [Ranked("a"), Ranked("b")])["answer_found"] == 1.0
    assert judged(task, [Ranked("a", True)])["answer_found"] == 0.0
