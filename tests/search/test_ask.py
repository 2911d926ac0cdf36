"""What `trivium ask` says beside the agent's words: whether it learned of such things, what it dropped, what a search finds."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.laws import walks
from trivium.agents.search import ask
from trivium.agents.search.recipe import Search
from trivium.corpus import Corpus, Document
from trivium.harness import Harness, Window, prune_chunks
from trivium.loops.run import Run, write_json
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Episode, Task

CORPUS = Corpus.build(
    [
        Document(
            "keys.md", "Keys", "A key is renewed every ninety days, which the owner is told of by mail a week before. " * 3
        ),
        Document("soup.md", "Soup", "A soup costs four crowns and a key costs nothing."),
        Document("doc1", "Doc 1", "Fact number one is about no key."),
    ]
)
QUESTION = "When is a key renewed?"


def printed(parts, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), markup=False, highlight=False, force_terminal=True, color_system=None)
    for part in parts:
        console.print(part)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def lived(renderer, *script: dict) -> Episode:
    harness = Harness([walks.search_corpus, prune_chunks], Window(4000), "Search.", specs=False)
    return asyncio.run(harness.run(Task("ask", QUESTION), Scripted(list(script), renderer, "agent")))


def test_what_the_agent_returned_stands_beside_a_plain_search(renderer):
    lines = printed(ask._results([lived(renderer, call(walks.search()), say("#2 #1"))], CORPUS, QUESTION))
    (head,) = [line for line in lines if "the agent returned" in line]
    first, second, third = [line for line in lines if line[:2] in ("1.", "2.", "3.")]
    at = head.index("plain search finds")
    assert (first[:at].split()[1:], first[at:]) == (["doc1"], "keys.md")
    assert (second[:at].split()[1:], second[at:]) == (["doc0"], "doc1")
    assert (third[:at].split()[1:], third[at:]) == ([], "soup.md")
    assert "“Doc 1: fact number 1 about thing" in "".join(lines) and max(map(len, lines)) <= 80


def test_as_many_documents_of_a_plain_search_as_the_agent_returned(renderer):
    many = Corpus.build([Document(f"d{n}", f"Key {n}", "A key is renewed.") for n in range(9)])
    episode = lived(renderer, call(walks.search()), call(walks.search()), say("#1 #2 #3 #4 #5"))
    lines = printed(ask._results([episode], many, QUESTION))
    assert [line.split()[-1] for line in lines if line[:1].isdigit() and line[1:2] == "."] == ["d0", "d1", "d2", "d3", "d4"]


def test_no_document_is_said_and_plain_search_is_shown_all_the_same(renderer):
    lines = printed(ask._results([lived(renderer, call(walks.search()), say("I do not know"))], CORPUS, QUESTION))
    (line,) = [line for line in lines if "no document was returned" in line]
    assert line.startswith("1.") and line.endswith("keys.md")


def test_what_was_pruned_and_then_cited_is_marked(renderer):
    episode = lived(renderer, call(walks.search()), call(walks.keep("#2")), say("#2 #3"))
    marked = {doc: each.pruned for doc, each in ask._citations([episode]).items()}
    assert marked == {"doc1": False, "doc2": True}
    text = " ".join(printed(ask._results([episode], CORPUS, QUESTION), 160))
    assert text.count("(pruned, then cited)") == 1 and "doc2 (pruned, then cited)" in text


def test_a_call_and_what_it_found_are_lines_that_fit(renderer):
    episode = lived(renderer, call(walks.search()), call(walks.keep("#2")), call(("search_corpus", {"q": 1})), say("#2"))
    first, prune, wrong = episode.agent.calls
    first.pieces[0] = replace(first.pieces[0], text="long " * 100 + "#1\n")
    assert printed(ask._lines(first, "2 "), 40)[:2] == ["2 → search_corpus thing", "    #1 " + ("long " * 100)[:32] + "…"]
    assert printed(ask._lines(prune, ""))[0] == "→ prune_chunks keep=[#2]"
    assert printed(ask._lines(wrong, ""))[1].startswith("    error: ")


@pytest.mark.parametrize(
    ("corpus", "known", "says"),
    [
        ("", {}, "learned about generated worlds, not from documents such as these"),
        ("mine", {"documents": CORPUS.digest}, ""),
        ("mine", {"documents": "others"}, "learned from other documents (mine): trust it less here than there"),
    ],
)
def test_a_run_says_in_one_line_that_it_was_not_made_for_such_questions(tmp_path, corpus, known, says):
    run = Run(tmp_path)
    write_json(tmp_path / "inputs.json", known)
    text = ask._strange(run, Search(corpus=corpus), CORPUS)
    assert says in text and bool(text) == bool(says) and "\n" not in text
