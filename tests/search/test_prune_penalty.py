"""benchmarks/prune_penalty.py: its teacher prunes one chunk at a time or all at once, and one price divides its arms."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.prune_penalty import WINDOW, Books, habits, judge, prune_chunks, summary
from trivium.agents.search.recipe import NANO
from trivium.harness import Keep, ToolError
from trivium.policy import Renderer, Scripted
from trivium.tasks.world import World
from trivium.trace import Episode, Prune


@pytest.fixture(scope="module")
def books() -> Books:
    return Books([World.make(0, 450)])


@pytest.fixture(scope="module")
def episodes(books) -> list[Episode]:
    tasks = books.tasks(24, seed=0)
    teacher = Scripted(habits(tasks, 0), Renderer.load(str(NANO)), name="teacher")

    async def all_of_them() -> list[Episode]:
        return [await books.harness.run(task, teacher) for task in tasks]

    return asyncio.run(all_of_them())


def dropped(episode: Episode) -> list[int]:
    return [len(op.chunks) for op in episode.ops if isinstance(op, Prune)]


def test_the_teacher_has_two_habits_and_keeps_each_for_an_episode(episodes):
    singly = [dropped(episode) for episode in episodes if len(dropped(episode)) > 3]
    at_once = [dropped(episode) for episode in episodes if dropped(episode) and max(dropped(episode)) > 1]
    assert len(singly) > 2 and len(at_once) > 2
    assert all(set(each) == {1} for each in singly) and all(len(each) < 3 for each in at_once)


def test_the_gold_of_a_question_states_its_facts(books):
    for task in books.tasks(24, seed=0):
        texts = [books.corpus(task).read(book)[0].text for book in task.truth["gold"]]
        for link in task.truth["chain"]:
            assert any(link["subject"] in text and link["object"] in text for text in texts)


def test_a_search_fills_the_window_and_who_has_pruned_searches_again(episodes):
    pruned = [episode for episode in episodes if dropped(episode)]
    assert pruned and all(len(episode.agent.segments[0].tokens) > WINDOW.hard * WINDOW.budget for episode in pruned)
    for episode in pruned:
        names = [call.name for call in episode.agent.calls if not call.error]
        assert "search_corpus" in names[len(names) - names[::-1].index("prune_chunks") :]


def test_a_streak_costs_in_one_arm_only(episodes):
    streak = next(episode for episode in episodes if len(dropped(episode)) > 3)
    with_it, without = (asyncio.run(judge(pruning)(streak)) for pruning in (1.0, 0.0))
    assert with_it["prune_penalty"] == without["prune_penalty"] > 0
    assert without["reward"] == pytest.approx(with_it["reward"] + with_it["prune_penalty"])


def test_what_is_named_is_dropped_and_never_all():
    class scene:
        handles = {"#1": "a:0", "#2": "b:0"}

    assert prune_chunks.function(scene, [" #2", "#9"]) == Keep(("#1",), "Pruned 1.")
    for named in (["#9"], ["#1", "#2"]):
        with pytest.raises(ToolError, match="in view are #1 #2"):
            prune_chunks.function(scene, named)


def test_arms_are_compared_question_by_question(episodes):
    found = [asyncio.run(judge(1.0)(episode)) for episode in episodes]
    tasks, names = [episode.task.id for episode in episodes], sorted(found[0])
    scores = {name: [one[name] for one in found] for name in names}
    more = scores | {"prunes": [value + 1 for value in scores["prunes"]]}
    one, other = ({"policy": "", "tasks": tasks, "scores": told, "sampling": {}} for told in (scores, more))
    told = summary([{"with": {"before": one, "after": one}, "without": {"before": one, "after": other}}])
    assert told["difference"]["prunes"] == [1.0, 1.0, 1.0] and told["difference"]["reward"] == [0.0, 0.0, 0.0]
    assert told["warm-up"] == told["with"] == told["with, seed 0"] != told["without"]
