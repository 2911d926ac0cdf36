"""A task that is broken in any one way is refuted, and the reason names what is wrong."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus import Document
from trivium.tasks import World, contains_quote, mentions, prove
from trivium.trace.episode import Task

WORLD = World.make(0)
TASK = next(task for task in WORLD.tasks(20) if task.truth["hops"] == 2)


def broken(**truth) -> Task:
    return Task(TASK.id, TASK.prompt, copy.deepcopy(TASK.truth) | truth)


def test_a_sound_task_passes_and_each_break_is_named():
    gold, bridge = TASK.truth["gold"], TASK.truth["chain"][0]["object"]
    assert prove(TASK, WORLD.documents) == []
    assert "does not exist" in prove(TASK, [d for d in WORLD.documents if d.id != gold[1]])[0]
    assert "each once" in prove(broken(gold=[gold[0], gold[0]]), WORLD.documents)[0]
    assert "each once" in prove(broken(gold=[]), WORLD.documents)[0]
    assert "hold no answer 'Nowhere'" in prove(broken(answer="Nowhere"), WORLD.documents)[0]
    assert "not the gold documents in hop order" in prove(broken(gold=gold[::-1], answer=bridge), WORLD.documents)[0]


@pytest.mark.parametrize("hop", [0, 1])
def test_a_document_that_states_the_same_pair_is_found(hop):
    link = TASK.truth["chain"][hop]
    twin = Document("twin.0", link["subject"], f"Everybody in town knows {link['object'].upper()}.")
    assert [f for f in prove(TASK, [*WORLD.documents, twin]) if "twin.0" in f and "meet" in f]


@pytest.mark.parametrize("hop", [0, 1])
def test_a_leak_is_found(hop):
    name = TASK.truth["chain"][hop]["object"]
    leaky = Task(TASK.id, f"{TASK.prompt} Is it {name}?", TASK.truth)
    assert prove(leaky, WORLD.documents) == [f"{TASK.id}: the question says {name!r}"]


def test_a_chain_that_does_not_hang_together_is_found():
    chain = copy.deepcopy(TASK.truth["chain"])
    chain[1]["after"] = -1
    assert "does not name" in prove(broken(chain=chain), WORLD.documents)[0]
    chain = copy.deepcopy(TASK.truth["chain"])
    chain[0]["after"] = 1
    assert "no link leads to" in prove(broken(chain=chain), WORLD.documents)[0]


def test_without_a_chain_the_answer_may_stand_in_any_gold_document():
    documents = [Document("a", "Oak", "A tree of Zürich."), Document("b", "Elm", "A tree.")]
    assert prove(Task("t", "Where?", {"gold": ["a", "b"], "answer": "zurich", "hops": 2}), documents) == []
    assert prove(Task("t", "Same?", {"gold": ["a", "b"], "answer": "Yes", "hops": 2}), documents) == []
    assert prove(Task("t", "Where?", {"gold": ["b"], "answer": "Zürich", "hops": 1}), documents) != []


def test_names_are_whole_words():
    assert mentions("the Tolberg-Prize, of 1950", "tolberg prize")
    assert not mentions("Varholmton is far", "Varholm")
    assert not mentions("anything", "")


@pytest.mark.parametrize(
    "quote",
    ["Led by MIRA", "led   by\nMira", "the firm is [led](http://x.y) by Mira", "the firm, is led “by” Mira!",
     "... firm acquired several rival businesses during"],
)  # fmt: skip
def test_each_tier_matches_a_quote(quote):
    text = "The firm is led by Mira. The firm quietly acquired several smaller rival businesses during 1990."
    assert contains_quote(text, quote)
    assert not contains_quote("Another text, on led lamps by many makers.", quote)


@given(st.text(), st.text(), st.text())
def test_a_text_always_holds_its_parts_and_never_an_empty_quote(before, quote, after):
    assert contains_quote(before + quote + after, quote) == bool(quote.strip())
