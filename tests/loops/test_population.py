"""The simulated population: its taste, and the people who are held out."""

from __future__ import annotations

import pytest

from benchmarks.live import HOLDOUT, QUESTIONS, panelists
from benchmarks.population import Population, satisfaction, world
from trivium.loops.traffic import held_out
from trivium.trace import Task

TWO_HOPS = Task("t", "?", {"gold": ["first", "last"], "chain": [{"doc": "first"}, {"doc": "last"}]})


@pytest.mark.parametrize(
    ("documents", "worth"),
    [
        (["first", "last"], 1.0),
        (["last"], 1.0),
        (["first"], 0.0),
        ([], 0.0),
        (["last", "other"], 2 / 3),
        (["last", "a", "b", ""], 0.0),  # "" was never shown
    ],
)
def test_people_want_the_document_that_states_the_answer_and_few_beside_it(documents, worth):
    assert satisfaction(TWO_HOPS, documents) == pytest.approx(worth)


def test_a_passage_is_known_by_its_text_and_a_title_stands_before_it():
    land = world()
    people = Population("http://nowhere", (), land.documents)
    assert people._document(f"{land.documents[5].title}: {land.documents[5].text}") == land.documents[5].id
    assert people._document("Somebody: else") == ""


def test_who_is_measured_is_held_out_and_asks_what_nobody_else_asks():
    names = panelists(64)
    assert len(set(names)) == 64 and all(held_out(f"local/{name}", HOLDOUT) for name in names)
    tasks = world().tasks(QUESTIONS + 64, (1, 2), 0)
    assert not {task.prompt for task in tasks[:QUESTIONS]} & {task.prompt for task in tasks[QUESTIONS:]}
