"""A suite attempts, scores and returns both; what a scorer fails on is counted and lost to no one (law 12)."""

from __future__ import annotations

import asyncio
import math

import pytest

from trivium.errors import InputError
from trivium.eval import Result, evaluate
from trivium.loops.simulated import SimulatedEngine, SimulatedHarness
from trivium.reward import ScorerError
from trivium.trace import Sampling, Task

TASKS = [Task(id, "?") for id in "abc"]


def attempt(scorer, harness=None, **options):
    engine = SimulatedEngine(lambda stream: 0.0)
    return asyncio.run(evaluate(harness or SimulatedHarness(), TASKS, engine, scorer, samples=2, **options))


def test_every_attempt_comes_back_with_the_scores_that_the_result_has():
    calls = []

    async def judge(episode):
        calls.append(episode.id)
        return {"reward": len(calls) / 10}  # another number each time: whoever asks twice stores another than was reported

    result, attempts = attempt(judge)
    assert [episode.id for episode, _ in attempts] == [f"eval/{task}/{n}" for task in "abc" for n in range(2)]
    assert len(calls) == 6 and [scores["reward"] for _, scores in attempts] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert result.scores["reward"] == pytest.approx([0.15, 0.35, 0.55]) and result.episodes_unscored == 0


def test_an_attempt_that_the_scorer_fails_on_is_counted_and_in_no_mean():
    async def judge(episode):
        if episode.id in ("eval/a/0", "eval/c/0", "eval/c/1"):
            raise ConnectionError("busy")
        return {"reward": 1.0 + episode.sample}

    result, attempts = attempt(judge)
    assert result.episodes_unscored == 3 and [bool(scores) for _, scores in attempts] == [False, True, True, True, False, False]
    assert result.scores["reward"][:2] == [2.0, 1.5] and math.isnan(result.scores["reward"][2])
    assert result.means()["reward"] == 1.75
    assert Result.merge([result, Result("p", ["d"], {}, episodes_unscored=2)]).episodes_unscored == 5


@pytest.mark.parametrize("asynchronous", [True, False])
def test_where_none_could_be_scored_the_error_holds_the_episodes(asynchronous):
    async def judge(episode):
        raise ConnectionError("no route to the judge")

    def plain(episode):
        return {"reward": 1.0}

    words = "ConnectionError: no route to the judge" if asynchronous else "plain is no async function"
    with pytest.raises(ScorerError, match=f"no episode of the suite could be scored; the first, eval/a/0: .*{words}") as no:
        attempt(judge if asynchronous else plain)
    assert [episode.id for episode in no.value.episodes] == [f"eval/{task}/{n}" for task in "abc" for n in range(2)]


def test_a_group_scorer_compares_the_attempts_at_one_task():
    class Ranking:
        async def compare(self, episodes):
            assert len({episode.task.id for episode in episodes}) == 1
            if episodes[0].task.id == "b":
                raise ValueError("alike")
            return [{"reward": float(place)} for place in range(len(episodes))]

    result, attempts = attempt(Ranking())
    assert [scores.get("reward") for _, scores in attempts] == [0.0, 1.0, None, None, 0.0, 1.0]
    assert result.scores["reward"][0] == 0.5 and result.episodes_unscored == 2


def test_where_an_attempt_breaks_none_goes_on_behind_its_back():
    ended = []

    class Breaking(SimulatedHarness):
        async def run(self, task, *args, **kwargs):
            if task.id == "a":
                raise InputError("too long a question")
            await asyncio.sleep(0.01)
            ended.append(task.id)

    async def main():
        with pytest.raises(InputError, match="too long"):
            await evaluate(Breaking(), TASKS, SimulatedEngine(lambda stream: 0.0), None)
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert not ended


async def right(episode):
    return {"reward": 1.0}


def test_what_is_asked_for_is_what_is_attempted_and_heard_of():
    heard, result = [], None
    engine = SimulatedEngine(lambda stream: 0.0, slots=1)
    options = {"samples": 1, "at_once": 1, "progress": heard.append, "sampling": Sampling(temperature=0.5)}
    result, attempts = asyncio.run(evaluate(SimulatedHarness(), TASKS, engine, right, **options))
    assert heard == [1, 1, 1] and len(attempts) == 3
    assert result.sampling["temperature"] == 0.5 and result.sampling["max_tokens"] == 256
    assert Result("p", [], {}).episodes_unscored == 0


@pytest.mark.parametrize("wrong", [{"tasks": []}, {"samples": 0}, {"at_once": 0}], ids=str)
def test_nothing_is_no_suite(wrong):
    tasks = wrong.pop("tasks", TASKS)
    with pytest.raises(InputError, match="nothing to evaluate"):
        asyncio.run(evaluate(SimulatedHarness(), tasks, SimulatedEngine(lambda stream: 0.0), right, **wrong))


def test_two_tasks_of_one_id_are_refused_by_the_first_of_them():
    twins = [Task(id, "?") for id in "abcbc"]
    with pytest.raises(InputError, match="2 tasks share their id with another, b first"):
        asyncio.run(evaluate(SimulatedHarness(), twins, SimulatedEngine(lambda stream: 0.0), right))
    parts = [Result("p", ["a", "b", "c"], {}, {"temperature": 1.0}), Result("p", ["b", "c"], {})]
    with pytest.raises(InputError, match="task b is in two parts"):
        Result.merge(parts)
    assert Result.merge([parts[0], Result("p", ["d"], {})]).sampling == {"temperature": 1.0}


def test_at_most_so_many_live_at_once():
    living, most = [0], []

    class Counting(SimulatedHarness):
        async def run(self, task, policy, **options):
            living[0] += 1
            most.append(living[0])
            await asyncio.sleep(0)
            living[0] -= 1
            return await super().run(task, policy, **options)

    tasks = [Task(str(number), "?") for number in range(70)]
    for options, number in (({"at_once": 2}, 2), ({}, 64)):
        most.clear()
        asyncio.run(evaluate(Counting(), tasks, SimulatedEngine(lambda stream: 0.0), right, **options))
        assert max(most) == number
