"""benchmarks/prune_penalty.py: its teacher prunes one chunk at a time or all at once, and one price divides its arms."""

from __future__ import annotations

import asyncio
import random

import pytest

from benchmarks.prune_penalty import HELDOUT, RESULTS, WINDOW, Pages, habits, judge, prune_chunks, summary
from trivium.agents.search.recipe import NANO
from trivium.corpus import Document
from trivium.harness import Keep, ToolError
from trivium.policy import Renderer, Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Episode, Prune


@pytest.fixture(scope="module")
def pages() -> Pages:
    """Of 120 long pages of made-up words, each of which names another."""
    dice = random.Random(0)
    words = lambda count: ["".join(dice.choice("bdfgklmnprstv") + dice.choice("aeiou") for _ in "abc") for _ in range(count)]  # noqa: E731
    titles = [" ".join(words(2)).title() for _ in range(120)]
    documents = []
    for number, title in enumerate(titles):
        own, link = words(12), titles[(number * 7 + 3) % 120]
        rest = " ".join(f"The {dice.choice(own)} {dice.choice(own)} of {dice.choice(own)}." for _ in range(5))
        documents.append(Document(f"p{number}", title, f"It was {' '.join(own[:8])} that led to {link} in the end. {rest}"))
    return Pages(documents)


@pytest.fixture(scope="module")
def episodes(pages) -> list[Episode]:
    teacher = Scripted(habits(pages.learned, 0), Renderer.load(str(NANO)), name="teacher")

    async def all_of_them() -> list[Episode]:
        return [await pages.harness.run(task, teacher) for task in pages.learned[:24]]

    return asyncio.run(all_of_them())


def dropped(episode: Episode) -> list[int]:
    return [len(op.chunks) for op in episode.ops if isinstance(op, Prune)]


def test_the_teacher_has_two_habits_and_keeps_each_for_an_episode(episodes):
    singly = [dropped(episode) for episode in episodes if len(dropped(episode)) > 3]
    at_once = [dropped(episode) for episode in episodes if dropped(episode) and max(dropped(episode)) > 1]
    assert len(singly) > len(at_once) > 2
    assert all(set(each) == {1} for each in singly) and all(len(each) < 3 for each in at_once)


def test_a_question_takes_two_searches_and_no_reading(pages):
    assert len(pages.heldout) == HELDOUT
    assert not {tuple(task.truth["gold"]) for task in pages.heldout} & {tuple(task.truth["gold"]) for task in pages.learned}
    rest = [f" #{number}" for number in range(2, RESULTS + 1)]
    said = [call(("search_corpus", {"query": " #0"})), call(("prune_chunks", {"chunk_ids": rest})),
            call(("search_corpus", {"query": " #0 #1"})), say(f" #1 #{RESULTS + 1}")]  # fmt: skip

    def scores(task, said) -> dict[str, float]:
        script = Scripted(said, Renderer.load(str(NANO)), name="script")
        return asyncio.run(judge(1.0)(asyncio.run(pages.harness.run(task, script))))

    both = [scores(task, said) for task in pages.heldout]
    first = [scores(task, [said[0], say(" #1")]) for task in pages.heldout]
    assert sum(one["f1"] == 1.0 and one["reward"] == pytest.approx(2.0) for one in both) >= 0.9 * HELDOUT
    assert all(one["f1"] > 0.6 and not one["answer_found"] for one in first)


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
    tasks, names = [episode.task.id for episode in episodes], sorted(set.intersection(*map(set, found)))
    scores = {name: [one[name] for one in found] for name in names}
    run = lambda prunes: {"policy": "", "tasks": tasks, "scores": scores | {"prunes": prunes}, "sampling": {}}  # noqa: E731
    one, more, most = (run([value + extra for value in scores["prunes"]]) for extra in (0, 1, 3))
    seeds = [{"with": {"before": one, "after": one}, "without": {"before": one, "after": other}} for other in (more, most)]
    told = summary(seeds)  # of two seeds and the same questions
    assert told["difference"]["prunes"] == [2.0, 2.0, 2.0] and told["difference"]["reward"] == [0.0, 0.0, 0.0]
    assert told["warm-up"] == told["with"] == told["with, seed 1"] != told["without, seed 0"] != told["without"]
