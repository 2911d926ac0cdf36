"""Law 12: a scorer that fails leaves an episode unscored: counted, kept, in no group; it ends no run and loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.loops.house import attempts
from trivium.clock import SimulatedClock
from trivium.loops import rl
from trivium.loops.simulated import SimulatedEngine, SimulatedHarness, SimulatedLearner, publishing
from trivium.reward import ScorerError, patience
from trivium.trace import Store, Task

TASKS = [Task(id, "?") for id in "abcd"]
ATTEMPTS = 2 * 2 * 3  # groups, size, steps


def run(scorer, store=None, engine=None, clock=None, **options):
    """The events of a run, and what its learner was given."""
    learner, engine = SimulatedLearner(), engine or SimulatedEngine(lambda stream: 1.0)

    async def main():
        plan = {"groups": 2, "size": 2, "steps": 3, "store": store} | options
        source = attempts(SimulatedHarness(), TASKS, engine, lambda step: scorer, **plan)
        return [event.metrics async for event in rl(source, learner, engine, (), publish=publishing(0.0))]

    return (clock or SimulatedClock()).run(main()), learner.learned


def test_one_error_of_a_scorer_leaves_its_episode_out_and_goes_on(tmp_path):
    async def judge(episode):
        if episode.id == "rl/1/c/0":
            raise ConnectionError("the judge is busy")
        return {"reward": float(episode.sample)}

    store = Store(tmp_path / "episodes.db")
    events, learned = run(judge, store)
    assert [metrics["episodes_unscored"] for metrics in events] == [0, 1, 0]
    assert [len(ids) for ids in learned] == [4, 3, 4] and "rl/1/c/0" not in learned[1]
    assert sum(map(len, learned)) + sum(metrics["episodes_unscored"] for metrics in events) == ATTEMPTS
    assert len(list(store.select("rl/1/"))) == 4 and not store.own_scores("rl/1/c/0"), "kept, without an opinion"
    assert events[1]["reward"] == pytest.approx(2 / 3), "of the three that were scored"
    again, repeated = run(judge, store)
    assert repeated == learned, "a resumed run leaves out what was unscored then"
    assert [metrics["episodes_unscored"] for metrics in again] == [0, 1, 0]


def test_a_scorer_that_hangs_has_a_deadline_and_what_it_says_late_counts_for_nothing():
    async def judge(episode):
        await asyncio.sleep(1e9 if episode.id == "rl/0/a/1" else 0)
        return {"reward": 1.0}

    clock = SimulatedClock()
    events, _ = run(judge, clock=clock, steps=1)
    assert events[0]["episodes_unscored"] == 1
    assert clock.now() == pytest.approx(1 + 600 + 1), "an episode, ten minutes unless a scorer says otherwise, a step"
    clock = SimulatedClock()
    events, _ = run(patience(seconds=30)(judge), clock=clock, steps=1)
    assert events[0]["episodes_unscored"] == 1 and clock.now() == pytest.approx(1 + 30 + 1)


def test_a_scorer_that_failed_is_called_again_as_often_as_it_says():
    calls = []

    @patience(seconds=5, retries=4)
    async def judge(episode):
        calls.append(asyncio.get_running_loop().time())
        if len(calls) < 5:
            raise ConnectionError("busy")
        return {"reward": 1.0}

    clock = SimulatedClock()
    events, learned = run(judge, clock=clock, steps=1, groups=1, size=1)
    assert events[0]["episodes_unscored"] == 0 and len(learned[0]) == 1
    assert [later - call for call, later in zip(calls, calls[1:], strict=False)] == [1.0, 10.0, 60.0, 60.0]


def test_a_step_of_which_nothing_could_be_scored_ends_the_run_keeps_it_and_goes_on_with_a_better_scorer(tmp_path):
    scored, store = [], Store(tmp_path / "episodes.db")

    async def broken(episode):
        if episode.id.startswith("rl/1/"):
            raise KeyError("gold")
        return {"reward": float(episode.sample)}

    async def mended(episode):
        scored.append(episode.id)
        return {"reward": 1.0 + episode.sample}

    class Mute(SimulatedEngine):
        async def speak(self, view, sampling):
            assert view.stream[0] == 2, "steps 0 and 1 are not attempted again"
            return await super().speak(view, sampling)

    with pytest.raises(ScorerError, match=r"no episode of step 1 could be scored; the first, rl/1/c/0: KeyError: 'gold'") as no:
        run(broken, store)
    assert [episode.id for episode in no.value.episodes] == ["rl/1/c/0", "rl/1/c/1", "rl/1/d/0", "rl/1/d/1"]
    assert len(list(store.select("rl/1/"))) == 4
    events, learned = run(mended, store, Mute(lambda stream: 1.0))
    assert [metrics["reward"] for metrics in events] == [0.5, 1.5, 1.5], "step 0 keeps the scores of then"
    assert learned[1] == ["rl/1/c/0", "rl/1/c/1", "rl/1/d/0", "rl/1/d/1"]
    assert scored[:4] == learned[1] and len(scored) == 8
    assert store.own_scores("rl/1/d/1") == {"reward": 2.0}, "and are kept for the next time"


class Ranking:
    """1 for the best of a task's attempts down to 0: a judge that compares. `rows` are what it was given."""

    def __init__(self, fail=""):
        self.rows, self.fail = [], fail

    async def compare(self, episodes):
        self.rows.append([episode.id for episode in episodes])
        if episodes[0].task.id == self.fail:
            raise ValueError("cannot compare these")
        last = max(1, len(episodes) - 1)
        return [{"reward": 1.0 - place / last, "place": float(place)} for place in range(len(episodes))]


def test_a_group_scorer_compares_all_attempts_at_a_task():
    judge, batches = Ranking(), []

    class Seeing(SimulatedLearner):
        async def step(self, batch):
            batches.extend((group.task_id, [e.id for e in group.episodes], group.rewards) for group in batch.groups)
            return await super().step(batch)

    engine = SimulatedEngine(lambda stream: 1.0)

    async def main():
        plan = {"groups": 2, "size": 3, "steps": 2}
        source = attempts(SimulatedHarness(lambda task, sample: 3 - sample), TASKS, engine, lambda step: judge, **plan)
        return [event async for event in rl(source, Seeing(), engine, (), publish=publishing(0.0))]

    events = SimulatedClock().run(main())
    assert sorted(judge.rows) == [
        [f"rl/{step}/{task}/{n}" for n in range(3)] for step, task in ((0, "a"), (0, "b"), (1, "c"), (1, "d"))
    ]
    assert [rewards for *_, rewards in batches] == [[1.0, 0.5, 0.0]] * 4, "in the order of attempts, whoever ended first"
    assert events[0].metrics["place"] == 1.0 and events[0].metrics["episodes_unscored"] == 0


def test_a_comparison_that_fails_leaves_its_task_out_alone():
    events, learned = run(Ranking(fail="c"))
    assert [metrics["episodes_unscored"] for metrics in events] == [0, 2, 0]
    assert [len(ids) for ids in learned] == [4, 2, 4]


def test_who_was_overtaken_is_compared_with_nobody():
    judge = Ranking()
    engine = SimulatedEngine(lambda stream: 1000.0 if stream[:3] == (1, "c", 1) else 1.0)
    events, learned = run(judge, engine=engine, max_lag=1, slots=16, steps=4)
    assert [metrics["episodes_overtaken"] for metrics in events] == [0, 1, 0, 0]
    assert ["rl/1/c/0"] in judge.rows and learned[1] == ["rl/1/c/0", "rl/1/d/0", "rl/1/d/1"]
