"""Where queries may quote: what a handle stands for, what it must not, and which results come first."""

from __future__ import annotations

import asyncio
import re

import pytest

from trivium.agents.search.ask import _citations
from trivium.agents.search.harness import harness_on
from trivium.agents.search.recipe import Search
from trivium.agents.search.reward import returned_documents, shown_documents
from trivium.agents.search.tools import BRIEF, BRIEF_UNPRUNED, QUOTES, search_tools
from trivium.corpus import Corpus, Document
from trivium.harness import Harness, Passage, Window, tool
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.recipe.parts import Parts
from trivium.trace import Episode, Task

DOCUMENTS = [
    Document("firm", "Brennix Holt", "Brennix Holt was founded by Mira Tolen.\n\nBrennix Holt was sold in May."),
    Document("person", "Mira Tolen", "Mira Tolen was born in Varnholm."),
    Document("noise", "Oster", "The Oster is a river, founded on sand."),
]
ASKED = Task("t", "By whom was Brennix Holt founded?", {"gold": ["firm", "person"], "answer": "Mira Tolen"})


def lived(renderer, *queries: str, results: int = 1, quoting: bool = True, chunk_words: int = 8) -> Episode:
    corpus = Corpus.build(DOCUMENTS, chunk_words=chunk_words)
    harness = Harness(search_tools(corpus, results, quoting=quoting), Window(4000), BRIEF + QUOTES, specs=False)
    said = [call(("search_corpus", {"query": f" {query}"})) for query in queries]
    return asyncio.run(harness.run(ASKED, Scripted([*said, say("#1")], renderer)))


def shown(episode: Episode) -> list[list[str]]:
    return [[piece.source for piece in made.pieces if piece.ref] for made in episode.agent.calls]


def test_0_is_the_question_and_a_handle_its_passage(renderer):
    said = lived(renderer, "#0", "#1")
    assert shown(said) == [["firm:0"], ["person:0"]], "only the first passage names Mira Tolen"
    words = lived(renderer, ASKED.prompt, "Brennix Holt: Brennix Holt was founded by Mira Tolen.")
    assert shown(words) == shown(said)
    assert said.agent.calls[1].arguments == {"query": " #1"}, "the trace keeps what was said"


def test_handles_and_words_mix(renderer):
    assert shown(lived(renderer, "sold in May #0", "river", "#1 #2 Varnholm")) == [["firm:1"], ["noise:0"], ["person:0"]]


@pytest.mark.parametrize("query", ["#1", "#0 #2", "born #17"])
def test_a_handle_that_is_not_in_view_is_told(renderer, query):
    (made,) = lived(renderer, query).agent.calls
    assert made.error == f"{query.split()[-1]} is not in view; in view are no passages"


def test_after_a_prune_a_handle_is_not_in_view(renderer):
    harness = Harness(search_tools(Corpus.build(DOCUMENTS), 2, quoting=True), Window(4000), BRIEF, specs=False)
    asked = [("search_corpus", {"query": " #0"}), ("prune_chunks", {"keep": [" #2"]}), ("search_corpus", {"query": " #0 #1"})]
    life = asyncio.run(harness.run(ASKED, Scripted([*(call(each) for each in asked), say("#2")], renderer)))
    assert life.agent.calls[2].error == "#1 is not in view; in view are #2"


@pytest.mark.parametrize("query", ["C#1 river", "#1, river", "river#0"])
def test_only_whole_words_are_handles(renderer, query):
    assert shown(lived(renderer, query)) == [["noise:0"]]


def test_new_documents_come_first_and_nothing_is_lost(renderer):
    assert shown(lived(renderer, "Brennix Holt founded", results=2)) == [["firm:0", "noise:0"]]
    assert shown(lived(renderer, "Brennix Holt founded", results=9)) == [["firm:0", "noise:0", "firm:1"]]
    later = lived(renderer, "Brennix Holt", "Brennix Holt founded", results=1)
    assert shown(later) == [["firm:1"], ["noise:0"]] or shown(later) == [["firm:0"], ["noise:0"]]


def test_without_quoting_a_handle_is_words_like_any(renderer):
    assert shown(lived(renderer, "#7 river", quoting=False)) == [["noise:0"]]
    assert [made.error for made in lived(renderer, "#0", quoting=False).agent.calls] == [""]


def test_the_prompt_and_the_description_say_it():
    corpus = Corpus.build(DOCUMENTS)
    small, large = (harness_on(corpus, Window(budget), 6, quoting=True) for budget in (2048, 32768))
    assert small.prompt.endswith(QUOTES) and large.prompt.endswith(QUOTES)
    assert large.specs[0]["function"]["description"].endswith(QUOTES)


def test_generated_worlds_do_not_quote():
    made = Parts(Search(warmup=64, steps=4, groups=8, eval_tasks=24)).harness
    assert made.prompt == BRIEF and QUOTES not in made.tools["search_corpus"].description


def test_reading_goes_on_from_a_passage_and_grep_shows_what_is_not_in_view(renderer):
    long = Document("long", "Oster", "\n\n".join(f"The Oster passes the mill number {n} there." for n in range(8)))
    tools = search_tools(Corpus.build([long], chunk_words=8), 1)
    asked = [
        ("grep_corpus", {"pattern": "number 3"}),
        ("grep_corpus", {"pattern": "number [2-4]"}),
        ("read_document", {"doc_id": "#1"}),
    ]
    harness = Harness(tools, Window(4000), BRIEF, specs=False)
    life = asyncio.run(harness.run(ASKED, Scripted([*(call(each) for each in asked), say("#1")], renderer)))
    assert shown(life) == [["long:3"], ["long:2", "long:4"], ["long:5", "long:6", "long:7"]]


@pytest.mark.parametrize("pruning", [True, False])
def test_the_brief_prompt_names_the_tools_that_there_are(pruning):
    brief = BRIEF if pruning else BRIEF_UNPRUNED
    tools = search_tools(Corpus.build(DOCUMENTS), pruning=pruning)
    arguments = {each.name: ", ".join(each.arguments.__struct_fields__) for each in tools}
    assert re.findall(r"(\w+)\((\w+)\)", brief) == list(arguments.items())


def test_what_finds_no_room_is_told_apart_from_what_finds_nothing(renderer):
    long = Document("long", "Long", " ".join(["word"] * 240))
    harness = Harness(search_tools(Corpus.build([long], chunk_words=300)), Window(220, reply=40), "Go.", specs=False)
    (made,) = asyncio.run(
        harness.run(ASKED, Scripted([call(("search_corpus", {"query": " word"})), say("#1")], renderer))
    ).agent.calls
    assert [piece.text for piece in made.pieces][0] == "No room for results.\n"


def test_ask_names_each_document_once_with_the_passage_that_was_cited_first(renderer):
    corpus = Corpus.build(DOCUMENTS, chunk_words=8)
    harness = Harness(search_tools(corpus, 4), Window(4000), "Go.", specs=False)
    said = [call(("search_corpus", {"query": " Brennix Holt sold river"})), say("#2 #1 #3")]
    life = asyncio.run(harness.run(ASKED, Scripted(said, renderer)))
    (made,) = life.agent.calls
    cited = [made.pieces[place].source.split(":")[0] for place in (1, 0, 2)]
    assert cited[:2] == ["firm", "firm"]
    citations = _citations([life])
    assert list(citations) == ["firm", cited[2]]
    assert citations["firm"].passage == made.pieces[1].shown != made.pieces[0].shown


def test_the_tools_live_beside_others_that_show_passages(renderer):
    @tool
    def notes(scene, word: str) -> list[Passage]:
        """Look in notes."""
        return [Passage(f"monday.md:{line}", f"Monday: it rained {line} times.") for line in (3, 4, 5)]

    harness = Harness([notes, *search_tools(Corpus.build(DOCUMENTS), 1)], Window(4000), "Go.", specs=False)
    asked = [("notes", {"word": "rain"}), ("search_corpus", {"query": " Mira Tolen"}), ("grep_corpus", {"pattern": "Oster"})]
    said = [*(call(each) for each in asked), call(("read_document", {"doc_id": "#1"})), say("#1 #4 #2 #3")]
    life = asyncio.run(harness.run(ASKED, Scripted(said, renderer)))
    assert [made.error for made in life.agent.calls] == ["", "", "", "#1 is no passage of this corpus, but of another tool"]
    assert [sources[0].split(":")[0] for sources in shown(life)[:3]] == ["monday.md", "person", "noise"]
    assert returned_documents(life) == ["monday.md", "person"]
    life.task.truth["gold"] = ["monday.md:3", "person"]  # lines of files are names of their own, wrong ones too
    assert returned_documents(life) == ["monday.md:3", "person", "monday.md:4", "monday.md:5"]
    assert "monday.md:3" in shown_documents(life)
