"""Conditions by which episodes are chosen."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.laws import walks
from trivium.errors import InputError
from trivium.viewer import Condition, facts

KNOWN = {"f1": 0.6666666, "hops": 3, "stop": "finished", "torn": float("nan"), "answer": "Mira Tolen"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("f1<0.7", True),
        ("f1<0.6666666", False),
        ("f1<=0.6666666", True),
        ("f1 >= .6666666", True),
        ("f1>0.7", False),
        ("f1=0.667", True),
        ("f1==0.667", True),
        ("f1!=0.667", False),
        ("f1=0.66", False),
        ("hops=3", True),
        ("hops!=2", True),
        ("stop=Finished", True),
        ("stop!=turns", True),
        ("stop=turns", False),
        ("answer=mira tolen", True),
        ("torn<1", False),
        ("torn!=1", False),
        ("nobody=1", False),
        ("nobody!=1", False),
    ],
)
def test_a_condition_holds_of_what_is_known(text, holds):
    assert Condition.of(text).holds(KNOWN) == holds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("f1", "'f1' is no condition: write one such as f1<0.5"),
        ("<0.5", "is no condition"),
        ("f1<x", "f1 is a number, and 'x' is none"),
        ("f1=nan", "f1 is a number, and 'nan' is none"),
        ("stop<x", "stop is a word, such as 'finished': compare it with = or !="),
    ],
)
def test_what_is_no_condition_is_said(text, why):
    with pytest.raises(InputError, match=why):
        Condition.of(text).holds(KNOWN)


def test_a_name_that_nothing_has_is_said_with_those_there_are():
    Condition.of("f1<1").check(["f1", "hops"])
    with pytest.raises(InputError, match=r"--where recal<1: no episode has a recal; there are f1, hops"):
        Condition.of("recal<1").check(["hops", "f1"])


def test_facts_are_scores_labels_and_plain_truths(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    known = facts(replace(episode, sample=2, deployment="blue"), {"reward": 0.5, "turns": 9.0})
    assert known["answer"] == "fact number 4" and "gold" not in known
    assert (known["task"], known["sample"], known["policy"], known["stop"]) == ("walk", 2, "agent", "finished")
    assert (known["turns"], known["calls"], known["errors"], known["reward"]) == (9.0, 5, 0, 0.5)
    assert known["deployment"] == "blue" and "session" not in known
