"""Several rollouts, one answer."""

from __future__ import annotations

import asyncio

import pytest

from tests.laws.walks import TASK, search, search_corpus
from trivium.agents.search.baselines import Ranked, fused, returned
from trivium.agents.search.fuse import attempt_fused, fuse, mean_length
from trivium.errors import InputError, PolicyError
from trivium.harness import Harness, Window
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Sampling


def test_what_more_rankings_name_comes_first():
    assert fuse([["a", "b"], ["b", "c"], ["d", "b"]]) == ["b", "a", "d", "c"]


def test_ranks_count_from_one_and_k_is_sixty():
    """Rank 1 in one ranking, 1/61, against rank 62 in two, 2/122: equal, so the first that appeared leads; at 63 it falls."""
    tail = [f"x{n}" for n in range(60)]
    late = [["a"], ["y", *tail, "b"], ["z", *[f"v{n}" for n in range(60)], "b"]]
    assert fuse(late).index("a") < fuse(late).index("b")
    near = [["a"], ["y", *tail[1:], "b"], ["z", *tail[1:], "b"]]
    assert fuse(near).index("b") < fuse(near).index("a")


def test_one_ranking_stays_as_it_is_and_a_thing_counts_where_it_stands_first():
    assert fuse([["c", "a", "c", "b"]]) == ["c", "a", "b"]
    assert fuse([]) == [] and fuse([[], []]) == []


@pytest.mark.parametrize("lengths, expected", [([2, 2], 2), ([1, 2], 2), ([0, 0], 0), ([1, 0, 0, 0], 1), ([3, 2, 2], 2)])
def test_the_length_to_cut_to(lengths, expected):
    assert mean_length([list(range(length)) for length in lengths]) == expected


def test_a_document_states_what_it_stated_in_any_rollout():
    rankings = [[Ranked("a"), Ranked("b", True)], [Ranked("b"), Ranked("c")]]
    assert fused(rankings) == [Ranked("b", True), Ranked("a"), Ranked("c")]


def test_rollouts_of_a_harness_are_fused_and_cut(renderer):
    """Three scripts that return #1 #5, #5 and #5 #2: #5 in all three comes first, and 5 / 3 documents are two."""
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    answers = {0: "#1 #4", 1: "#4", 2: "#4 #2"}
    policy = Scripted(lambda view: say(answers[view.stream[2]]) if len(view.messages) > 3 else call(search()), renderer)
    made = asyncio.run(attempt_fused(harness, TASK, policy, lambda e: [f.doc for f in returned(e)], count=3))
    assert [episode.sample for episode in made.episodes] == [0, 1, 2]
    assert made.ranking == ["doc3", "doc0"]


def test_a_rollout_that_could_not_speak_cuts_no_other(renderer):
    def speak(view):
        if view.stream[2] == 1 and len(view.messages) > 3:
            raise PolicyError("the server is gone")
        return say("#1 #4 #2") if len(view.messages) > 3 else call(search())

    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    policy = Scripted(speak, renderer)
    made = asyncio.run(attempt_fused(harness, TASK, policy, lambda e: [f.doc for f in returned(e)], count=2))
    assert [episode.agent.stop.reason for episode in made.episodes] == ["finished", "policy"] and len(made.ranking) == 3


def test_greedy_rollouts_are_refused(renderer):
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    policy = Scripted(lambda view: say("#1"), renderer)
    with pytest.raises(InputError, match="4 greedy rollouts"):
        asyncio.run(attempt_fused(harness, TASK, policy, lambda e: [], sampling=Sampling(temperature=0.0)))
    with pytest.raises(InputError, match="at least 1"):
        asyncio.run(attempt_fused(harness, TASK, policy, lambda e: [], count=0))


def test_silence_is_an_error(renderer):
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    with pytest.raises(PolicyError):
        asyncio.run(attempt_fused(harness, TASK, Scripted([], renderer), lambda e: [], count=2))
