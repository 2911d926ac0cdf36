"""The warm-up filter keeps what Context-1's report says it keeps, whatever the episodes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.agents.search.curriculum import two_phases
from trivium.agents.search.filter import Record, keep, rate
from trivium.errors import InputError
from trivium.tasks import World
from trivium.trace import Task

RECALLS = st.tuples(st.sampled_from((0, 0.2, 0.25, 0.4, 0.5, 0.6, 2 / 3, 1)), st.floats(0, 1), st.booleans())
EPISODES = st.lists(st.tuples(st.integers(0, 8), RECALLS), max_size=60).map(
    lambda made: [
        Record(f"e{n}", f"q{query}", trajectory, trajectory * share if share > 0.1 else 0.0, malformed)
        for n, (query, (trajectory, share, malformed)) in enumerate(made)
    ]
)


def good(episode: Record) -> bool:
    return episode.trajectory_recall > 0.5 and episode.output_recall > 0.4 and not episode.malformed


@given(EPISODES, st.integers())
def test_one_good_episode_per_query_is_kept_and_it_is_the_best(episodes, seed):
    kept = [e for e in keep(episodes, seed) if good(e)]
    assert Counter(e.query for e in kept) == {query: 1 for query in {e.query for e in episodes if good(e)}}
    for best in kept:
        assert best.output_recall == max(e.output_recall for e in episodes if good(e) and e.query == best.query)


@given(EPISODES, st.integers())
def test_malformed_far_and_zero_recall(episodes, seed):
    kept = keep(episodes, seed)
    zero = [e for e in kept if e.output_recall == 0]
    assert len(zero) <= 0.05 * len(kept) and len({e.query for e in zero}) == len(zero)
    assert not any(e.malformed or e.trajectory_recall - e.output_recall >= 0.6 for e in kept)


@given(EPISODES, st.integers(), st.randoms())
def test_the_order_of_arrival_chooses_nothing(episodes, seed, rng: random.Random):
    shuffled = rng.sample(episodes, len(episodes))
    assert {e.id for e in keep(shuffled, seed)} == {e.id for e in keep(episodes, seed)}


def test_zero_recall_fills_its_share_and_weak_ones_diminish():
    strong = [Record(f"s{n}", f"s{n}", 1, 1) for n in range(950)]
    assert len(keep(strong + [Record(f"z{n}", f"z{n}", 0, 0) for n in range(500)])) == 1000
    assert len(keep(strong + [Record(f"z{n}", "the same", 0, 0) for n in range(500)])) == 951
    for recall, share in ((0.1, 0.25), (0.2, 0.5), (0.3, 0.75)):
        weak = keep([Record(f"w{n}", f"w{n}", 0.6, recall) for n in range(2000)])
        assert len(weak) / 2000 == pytest.approx(share, abs=0.04)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_recall_is_never_less_likely_kept(a, b, c, d):
    assert rate(Record("", "", min(a, b), min(c, d))) <= rate(Record("", "", max(a, b), max(c, d))) <= 1


def test_two_phases_hold_every_task_once_and_skew():
    tasks = World.make(0).tasks(80, hops=(1, 3))
    first, second = two_phases(tasks, skew=0.75)
    assert sorted(t.id for t in first + second) == sorted(t.id for t in tasks)
    assert Counter(t.truth["hops"] for t in first) == {1: 30, 3: 10}
    assert Counter(t.truth["hops"] for t in second) == {1: 10, 3: 30}
    with pytest.raises(InputError, match="0.5 to 1"):
        two_phases(tasks, skew=0.2)
    with pytest.raises(InputError, match=r"task q does not say how many hops"):
        two_phases([Task("q", "?")])
