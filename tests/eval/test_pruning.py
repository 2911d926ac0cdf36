"""Pruning measured on scripted episodes, beside chance from the same states."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

from tests.laws.walks import TASK, keep, pruning, script, search, search_corpus
from trivium.agents.search.comparison import effort
from trivium.agents.search.harness import refusing
from trivium.agents.search.pruning import prune_measures, prune_report
from trivium.harness import Harness, Window, prune_chunks
from trivium.policy.scripted import call, say
from trivium.trace import Episode

WIDE = Window(4000)


def lived(renderer, *said, window: Window = WIDE, bare: bool = False) -> Episode:
    harness = Harness([search_corpus, prune_chunks], window, "Search.", specs=False)
    return asyncio.run((refusing(harness) if bare else harness).run(TASK, script(renderer, said)))


def test_errors_and_chance_of_two_prunes(renderer):
    """8 chunks in view, doc0 to doc7, of which doc1 (#2) and doc4 (#5) are gold and kept; then, in the turn of a search,
    #2 of the two is kept: 7 dropped, one of them gold. At random 6 of 8 would be 6 * 2/8, and 1 of 2 would be 1."""
    episode, _ = asyncio.run(pruning(renderer))
    found = prune_measures(episode, WIDE)
    assert (found["prune_dropped"], found["prune_wrong"]) == (7.0, 1.0)
    assert found["prune_random"] == 6 * 2 / 8 + 1 * 2 / 2
    assert (found["prune_rate"], found["prunes"], found["prune_streak"]) == (1.0, 2.0, 1.0)


def test_a_streak_is_of_prunes_with_nothing_between(renderer):
    said = [call(search()), call(keep("#1", "#2", "#3")), call(keep("#1", "#2")), call(search()), call(keep("#1")), say("#1")]
    found = prune_measures(lived(renderer, *said), WIDE)
    assert (found["prunes"], found["prune_streak"]) == (3.0, 2.0)
    assert prune_measures(lived(renderer, *said, bare=True), WIDE)["prune_streak"] == 0.0
    kept = [call(search()), call(keep("#1", "#2", "#3", "#4")), say("#1")]
    assert prune_measures(lived(renderer, *kept), WIDE)["prune_streak"] == 0.0


def test_chance_is_the_mean_over_every_choice(renderer):
    episode = lived(renderer, call(search()), call(keep("#1", "#3")), say("#1"))
    gold, view = {"#2"}, ["#1", "#2", "#3", "#4"]  # doc1 is gold
    choices = list(itertools.combinations(view, 2))
    expected = sum(len(gold & set(choice)) for choice in choices) / len(choices)
    assert prune_measures(episode, WIDE)["prune_random"] == pytest.approx(expected)


def test_without_a_prune_nothing_is_dropped(renderer):
    found = prune_measures(lived(renderer, call(search()), say("#2")), WIDE)
    assert [found[name] for name in ("prune_rate", "prune_dropped", "prune_wrong", "prune_random")] == [0.0] * 4
    assert (found["pruned_fitting"], found["past_soft"]) == (0.0, 0.0)


SAID = [call(search()), call(search()), call(keep("#2", "#5")), call(search()), say("#2 #5")]


def test_pruning_where_all_would_fit_is_told(renderer):
    found = prune_measures(lived(renderer, *SAID), WIDE)
    assert found["pruned_fitting"] == 1.0


@pytest.mark.parametrize(
    "window", [Window(1000, soft=0.4, hard=0.85), Window(1100, soft=0.4, hard=0.72)], ids=["too long", "refused"]
)
def test_pruning_that_was_needed_is_told(renderer, window):
    """Unpruned the last search would stand at 829 tokens and the end at 1,063: beyond the window, or the hard threshold."""
    episode = lived(renderer, *SAID, window=window)
    assert episode.agent.stop.reason == "finished" and not any(c.error for c in episode.agent.calls), episode.agent
    found = prune_measures(episode, window)
    assert found["past_soft"] == 1.0 and math.isnan(found["pruned_fitting"])


def test_past_soft_is_what_was_in_view_when_the_policy_spoke(renderer):
    episode = lived(renderer, call(search()), say("#2"))
    spoke = episode.agent.segments[0].sampled()[-1].start
    assert prune_measures(episode, Window(4000, soft=(spoke - 1) / 4000))["past_soft"] == 1.0
    assert prune_measures(episode, Window(4000, soft=spoke / 4000))["past_soft"] == 0.0


def test_a_report_of_many_episodes():
    episodes = {
        "prune_rate": [1, 1, 0], "prune_dropped": [4, 6, 0], "prune_wrong": [0, 1, 0], "prune_random": [1, 1.5, 0],
        "past_soft": [1, 1, 0], "pruned_fitting": [1, math.nan, 0], "prunes": [1, 4, 0], "prune_streak": [1, 4, 0],
    }  # fmt: skip
    found = prune_report(episodes)
    assert (found["error"].mean, found["random_error"].mean) == (0.1, 0.25)
    assert found["ratio"].mean == pytest.approx(0.4) and found["prune_rate"].mean == pytest.approx(2 / 3)
    assert (found["past_soft"].mean, found["pruned_fitting"].mean) == (pytest.approx(2 / 3), 0.5)
    assert (found["each"].mean, found["streak"].mean) == (2.0, 2.5)


def test_disabled_pruning_is_refused_and_changes_nothing_else(renderer):
    said = [call(search()), call(keep("#2")), say("#2")]
    bare, free = lived(renderer, *said, bare=True), lived(renderer, *said)
    assert [c.error for c in bare.agent.calls] == ["", "pruning is disabled"] and not bare.ops and free.ops
    assert bare.agent.segments[0].tokens[:50] == free.agent.segments[0].tokens[:50]
    quiet = [call(search()), call(search()), say("#2")]
    assert lived(renderer, *quiet, bare=True).agent.segments[0].tokens == lived(renderer, *quiet).agent.segments[0].tokens


def test_tokens_spent_count_each_token_once(renderer):
    episode, _ = asyncio.run(pruning(renderer))
    segments = episode.agent.segments
    assert effort(episode)["spent"] == len(segments[0].tokens) + sum(len(s.tokens) - s.carried for s in segments[1:])
    assert effort(episode)["spent"] < sum(len(segment.tokens) for segment in segments)
