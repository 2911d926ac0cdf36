"""A world's facts are where it says, its tasks are proven, and retrieval in it is neither trivial nor hopeless."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from house import Index
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import InputError
from trivium.tasks import World, mentions, prove, query_for
from trivium.tasks.names import split_of
from trivium.tasks.relations import BY_KEY, FORMER, RELATIONS
from trivium.tasks.world import _cast

WORLDS = st.builds(
    World.make, st.integers(0, 10**6), st.integers(150, 900), st.sampled_from(("train", "heldout"))
)  # fmt: skip


def name_words(world: World) -> set[str]:
    ends = {end for fact in world.facts for end in (fact.subject, fact.object)}
    return {word for end in ends for word in end.split() if not word.isdigit()} - {"College", "Prize"}


@settings(max_examples=25, deadline=None)
@given(WORLDS, st.integers(0, 100))
def test_every_task_is_proven(world, seed):
    tasks = world.tasks(16, hops=(1, 2, 3, 4), seed=seed, wide=0.2)
    assert [fault for task in tasks for fault in prove(task, world.documents)] == []
    assert len({task.prompt for task in tasks}) == 16


def test_hundreds_of_tasks_are_proven_and_different():
    world = World.make(1)
    tasks = world.tasks(400, hops=(1, 2, 3))
    assert len({task.prompt for task in tasks}) == len({task.id for task in tasks}) == 400
    assert Counter(task.truth["hops"] for task in tasks) == {1: 134, 2: 133, 3: 133}
    assert [fault for task in tasks for fault in prove(task, world.documents)] == []
    assert all(len(task.truth["gold"]) == task.truth["hops"] for task in tasks)
    assert len({link["relation"] for task in tasks for link in task.truth["chain"]}) == len(RELATIONS)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(150, 900))
def test_splits_share_no_word_and_size_is_kept(seed, size):
    train, heldout = World.make(seed, size), World.make(seed, size, "heldout")
    assert {split_of(word) for word in name_words(train)} == {"train"}
    assert {split_of(word) for word in name_words(heldout)} == {"heldout"}
    assert 0.8 * size <= len(train.documents) <= 1.2 * size


def test_equal_arguments_make_equal_worlds_and_others_do_not():
    assert World.make(3) == World.make(3)
    assert World.make(3).tasks(50, seed=2) == World.make(3).tasks(50, seed=2)
    assert World.make(3).tasks(50, seed=2) != World.make(3).tasks(50, seed=5)
    assert not {d.text for d in World.make(3).documents} & {d.text for d in World.make(4).documents}


def test_each_document_states_its_fact_in_one_short_sentence():
    world = World.make(0)
    documents = {document.id: document for document in world.documents}
    assert len(documents) == len(world.documents) == len(world.facts)
    for fact in world.facts:
        document = documents[fact.doc]
        assert mentions(document.text, fact.subject) and mentions(document.text, fact.object)
        assert document.title in (fact.subject, f"{fact.subject} 10-K")
        assert 4 <= len(document.text.split()) <= 14, document.text


def test_pages_hold_the_same_text():
    world = World.make(0)
    pages = {page.id: page for page in world.pages()}
    assert sum(len(page.text.split("\n\n")) for page in pages.values()) == len(world.documents)
    assert all(document.text in pages[document.id.rpartition(".")[0]].text for document in world.documents)
    assert len(pages) < len(world.documents) / 3


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.key)
def test_keywords_stand_between_documents_and_questions(relation):
    assert all(mentions(text, relation.keyword) for text in relation.statements)
    assert not any(mentions(text, relation.keyword) for text in relation.loose + relation.questions + relation.phrases)
    assert all(text.count("{s}") == text.count("{o}") == 1 for text in relation.statements + relation.loose)
    assert all(text.count("{x}") == 1 for text in relation.questions + relation.phrases)
    assert all(text.endswith("?") for text in relation.questions) and len(relation.questions) > 1
    assert relation.phrases or relation.object == "year"


def test_former_facts_use_the_keyword_and_answer_nothing():
    for key, text in FORMER.items():
        assert set(BY_KEY[key].keyword.split()) <= set(re.findall(r"\w+", text))
    world = World.make(0)
    former = {fact.doc for fact in world.facts if fact.former}
    assert len(former) > 20
    assert not former & {id for task in world.tasks(300) for id in task.truth["gold"]}


def test_no_wording_says_the_article_twice():
    prompts = [task.prompt for task in World.make(0).tasks(300, hops=(2, 3, 4), wide=0.1)]
    assert not [prompt for prompt in prompts if re.search(r"\bthe (the|whoever)\b|\{|\.", prompt)]
    assert all(prompt[0].isupper() and prompt.count("?") == 1 and prompt.endswith("?") for prompt in prompts)


def test_a_wide_task_asks_two_things_that_do_not_meet():
    tasks = World.make(0).tasks(50, wide=1.0)
    for task in tasks:
        assert [link["after"] for link in task.truth["chain"]] == [-1, -1] and task.truth["hops"] == 1
        assert all(mentions(task.prompt, link["subject"]) for link in task.truth["chain"])


def test_no_name_is_a_word_of_another(monkeypatch):
    drawn = iter("Varholm,Varholm,Mira Varholm,Mira Tolen,Mira,Tolen,Mira Holt,Osk".split(","))
    monkeypatch.setattr("trivium.tasks.world._new_name", lambda *_: next(drawn))
    monkeypatch.setattr("trivium.tasks.world.SHARES", {"city": 1.0})
    assert _cast(random.Random(0), 4, "train") == {"city": ["Varholm", "Mira Tolen", "Mira Holt", "Osk"]}


def test_what_cannot_be_made_is_said():
    with pytest.raises(InputError, match="150 or more"):
        World.make(0, size=10)
    with pytest.raises(InputError, match="train or heldout, not 'test'"):
        World.make(0, split="test")
    with pytest.raises(InputError, match="make it larger"):
        World.make(0, size=150).tasks(500, hops=(1,))
    with pytest.raises(InputError, match="between 1 and 4"):
        World.make(0).tasks(5, hops=(0, 2))


def realism(worlds: list[World]) -> dict[str, float]:
    """Shares: gold at rank 1 and in the top 4 of a well-formed query; all gold of 2 hops found by the bare question."""
    first, top, whole = [], [], []
    for world in worlds:
        index = Index(world)
        for task in world.tasks(90):
            for link in task.truth["chain"]:
                found = index.search(query_for(link))
                first.append(found[:1] == [link["doc"]])
                top.append(link["doc"] in found)
            if task.truth["hops"] == 2:
                whole.append(set(task.truth["gold"]) <= set(index.search(task.prompt)))
    counted = {"rank 1": first, "top 4": top, "whole question": whole}
    return {name: sum(hits) / len(hits) for name, hits in counted.items()}


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_good_queries_mostly_work_and_bare_questions_do_not(split):
    shares = realism([World.make(seed, split=split) for seed in range(3)])
    print(split, {name: round(share, 3) for name, share in shares.items()})  # shown by pytest -s
    assert 0.75 <= shares["rank 1"] <= 0.92 and shares["top 4"] >= 0.95 and shares["whole question"] < 0.25
