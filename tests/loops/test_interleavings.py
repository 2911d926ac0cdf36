"""The same loop on a simulated clock: a slow episode, updates in mid-turn, an engine that dies, a slow learner (law 11)."""

from __future__ import annotations

import asyncio

import pytest

from tests.loops.house import House
from trivium.errors import InputError, LawError, PolicyError, TriviumError
from trivium.loops.simulated import SimulatedEngine, SimulatedHarness, SimulatedLearner, log_normal, logprob, publishing
from trivium.loops.staleness import fresh
from trivium.trace import Episode, Segment, Task, Thread, rows
from trivium.train import Group


def runs(batch):
    return {run.version for episode in batch for run in episode.agent.segments[0].versions}


def test_at_lag_0_nothing_overlaps_and_every_token_is_of_the_learners_version():
    house = House()
    house.run()
    assert house.clock.now() == pytest.approx(6 * (4 + 1 + 0.1))
    assert [runs(batch) for batch in house.batches] == [{step} for step in range(6)]
    house.account(6 * 4)


def test_at_lag_1_rollouts_and_learning_overlap_and_the_budget_holds():
    house = House(engine=SimulatedEngine(log_normal(1, 5)), learner=SimulatedLearner(lambda version: 2.0))
    house.run(max_lag=1, steps=30, groups=4, size=4)
    slow = House(engine=SimulatedEngine(log_normal(1, 5)), learner=SimulatedLearner(lambda version: 2.0))
    slow.run(max_lag=0, steps=30, groups=4, size=4)
    assert house.clock.now() < slow.clock.now()
    assert max(house.learner.staleness) == 1 and max(slow.learner.staleness) == 0
    assert house.total("episodes_overtaken") > 0 and house.total("episodes_dropped") == 0
    house.account(30 * 16)
    slow.account(30 * 16)


def of_version(version: int) -> Episode:
    segment = Segment()
    segment.append([1], "prompt")
    segment.speak([2], [-0.5], [version], [1.0])
    return Episode(f"t/{version}", Task("t", "?"), threads=[Thread("0", "agent", segments=[segment])])


@pytest.mark.parametrize(
    "made, stay", [((4, 4, 5), (4, 4, 5)), ((3, 4, 5), (4, 5)), ((4, 5, 6), (4, 5)), ((3, 5), ()), ((5,), (5,))]
)
def test_what_is_too_old_or_of_no_version_here_goes_and_a_single_one_left_too(made, stay):
    group = Group("t", [of_version(version) for version in made], [float(n) for n in range(len(made))])
    kept, dropped = fresh([group], 5, 1, {"agent"})
    left = [episode.agent.segments[0].versions[0].version for each in kept for episode in each.episodes]
    assert tuple(left) == stay and dropped == len(made) - len(stay)


@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_the_same_seed_gives_the_same_run_at_every_lag(max_lag):
    def run(seed):
        house = House(engine=SimulatedEngine(log_normal(1, 5), slots=5))
        house.run(max_lag=max_lag, steps=12, groups=3, size=3, seed=seed)
        return [event.metrics for event in house.events], house.batches, house.learner.learned

    assert run(0) == run(0) and run(0)[0] != run(1)[0]


def test_an_update_in_mid_turn_is_stamped_token_by_token():
    """Two turns of 4 s; the update after step 0 falls into the second step's episodes, which go on under it."""
    house = House(harness=SimulatedHarness(lambda task, sample: 1 + sample), learner=SimulatedLearner(lambda version: 2.0))
    house.run(max_lag=1, steps=5)
    mixed = [episode for batch in house.batches for episode in batch if len(runs([episode])) > 1]
    assert mixed
    for episode in mixed:
        (row,) = rows(episode, {"agent"})
        versions = row.versions[row.mask].tolist()
        assert versions == sorted(versions)
        assert row.logprobs[row.mask].tolist() == pytest.approx([logprob(version) for version in versions])
    house.account(5 * 4)


def test_a_slow_episode_is_waited_for_at_lag_0_and_overtaken_beyond():
    """Beyond lag 0 only when as many whole steps as the budget allows stand behind it."""

    def house():
        return House(engine=SimulatedEngine(lambda stream: 500.0 if stream[:3] == (1, "t2", 1) else 4.0))

    waited, passed = house(), house()
    waited.run()
    passed.run(max_lag=1)
    assert waited.total("episodes_overtaken") == 0 and waited.clock.now() > 500
    assert [event.metrics["episodes_overtaken"] for event in passed.events] == [0, 1, 0, 0, 0, 0]
    assert passed.clock.now() < 60
    for made in (waited, passed):
        made.account(6 * 4)


def test_a_learner_slower_than_rollouts_bounds_what_is_under_way():
    """Backpressure: no more than max_lag steps are ever ahead of the learner."""
    begun = []
    harness = SimulatedHarness(lambda task, sample: begun.append((house.learner.version, task.id)) or 1)
    house = House(harness=harness, learner=SimulatedLearner(lambda version: 100.0))
    house.run(max_lag=2, steps=8)
    ahead = [number // 4 - version for number, (version, _) in enumerate(begun)]
    assert max(ahead) == 2 and len(begun) == 8 * 4
    assert max(house.learner.staleness) == 2
    assert house.clock.now() == pytest.approx(8 * 100.1 + 4)


def test_no_more_episodes_than_slots_are_under_way_and_a_free_slot_is_refilled_at_once():
    house = House(engine=SimulatedEngine(log_normal(1, 5), slots=1000))
    most = []

    async def watch(house):
        while True:
            most.append(len(house.engine._running))
            await asyncio.sleep(0.05)

    house.run(watch, max_lag=4, steps=20, groups=4, size=4, slots=10)
    assert max(most) == 10
    house.account(20 * 16)


def test_an_engine_that_dies_and_returns_costs_time_and_nothing_else():
    house = House()

    async def kill(house):
        await asyncio.sleep(6)
        house.engine.die()
        await asyncio.sleep(30)
        house.engine.rise()

    house.run(kill, max_lag=1)
    assert house.total("episodes_rerun") > 0 and house.total("episodes_lost") == 0
    house.account(6 * 4)


def test_an_engine_that_returns_with_old_weights_is_not_believed():
    """Its tokens say how old they are: dropped and counted until the next publication reaches it."""
    house = House()

    async def kill(house):
        await asyncio.sleep(3 * 5.1 + 1)
        house.engine.die()
        await asyncio.sleep(0.5)
        house.engine.rise(version=0)

    house.run(kill)
    assert [event.metrics["episodes_dropped"] for event in house.events] == [0, 0, 0, 4, 0, 0]
    assert max(house.learner.staleness) == 0
    house.account(6 * 4)


def test_an_engine_that_is_ahead_of_its_learner_is_first_given_its_weights():
    """A server that outlived a killed run: its versions are that run's."""
    house = House(engine=SimulatedEngine(lambda stream: 4.0, version=7))
    house.run()
    assert [event.metrics["episodes_dropped"] for event in house.events] == [0, 0, 0, 0, 0, 0]
    assert min(house.learner.staleness) == 0
    house.account(6 * 4)


def test_a_policy_that_is_lost_with_a_publication_says_both():
    async def publish(network, version, engine, probe):
        engine.die()
        raise ConnectionError("no such bucket")

    house = House(publish=publish)
    with pytest.raises(PolicyError, match="dead.*the last publication did not arrive: no such bucket"):
        house.run()


def test_an_engine_that_stays_dead_ends_the_loop_with_its_own_words():
    async def kill(house):
        await asyncio.sleep(6)
        house.engine.die()

    house = House(publish=publishing(0.0))
    with pytest.raises(PolicyError, match="the engine is dead"):
        house.run(kill, max_lag=1)
    assert house.clock.now() < 200


def test_a_step_in_which_none_can_speak_to_its_end_ends_the_loop():
    class Short(SimulatedEngine):
        async def speak(self, view, sampling):
            if len(view.tokens) > 4:
                raise PolicyError("it does not fit the context")
            return await super().speak(view, sampling)

    house = House(engine=Short(lambda stream: 1.0), harness=SimulatedHarness(lambda task, sample: 3))
    with pytest.raises(PolicyError, match="does not fit the context"):
        house.run()
    assert not house.events


def test_a_step_that_is_overtaken_as_a_whole_is_counted():
    house = House(engine=SimulatedEngine(lambda stream: 50.0 if stream[0] == 2 else 4.0))
    house.run(max_lag=1, slots=8)
    assert [event.metrics["episodes_overtaken"] for event in house.events] == [0, 0, 4, 0, 0, 0]
    house.account(6 * 4)


def test_a_hung_attempt_is_lost_and_not_the_run_by_the_defaults():
    house = House(engine=SimulatedEngine(lambda stream: 1e6 if stream[:3] == (1, "t2", 1) else 4.0))
    house.run()
    assert house.total("episodes_lost") == 1 and len(house.events) == 6


def test_a_receiver_that_is_dead_when_weights_come_is_counted():
    async def publish(network, version, engine, probe):
        if version == 2:
            raise PolicyError("the server does not answer")
        engine.load(None, version)
        return 0.0

    house = House(publish=publish)
    house.run()
    assert house.total("publish_failed") == 1 and len(house.events) == 6


def test_an_episode_that_its_policy_cannot_finish_is_left_out_of_its_group_and_counted():
    class Refuses(SimulatedEngine):
        async def speak(self, view, sampling):
            if view.stream[:3] == (1, "t2", 1):
                raise PolicyError("this one does not fit")
            return await super().speak(view, sampling)

    house = House(engine=Refuses(lambda stream: 4.0))
    house.run()
    assert house.total("episodes_lost") == 1 and house.total("episodes_rerun") == 3
    house.account(6 * 4)


def test_an_attempt_that_hangs_before_its_first_word_is_begun_anew_and_then_lost():
    house = House(engine=SimulatedEngine(lambda stream: 1e6 if stream[:3] == (1, "t2", 1) else 4.0))
    house.run(seconds=100)
    assert (house.total("episodes_lost"), house.total("episodes_rerun"), house.total("episodes_timed_out")) == (1, 3, 0)
    assert house.clock.now() == pytest.approx(4 * 100 + 71 + 5 * 4 + 6 * 1.1)


def test_an_attempt_that_used_up_its_time_is_scored_as_far_as_it_came_and_learned_from():
    """Law 12: no signal must not pay better than a bad one. It is neither begun anew nor left out."""
    slow = (1, "t2", 1)
    engine = SimulatedEngine(lambda stream: 1e6 if stream[:3] == slow and stream[-1] == 2 else 4.0)
    house = House(engine=engine, harness=SimulatedHarness(lambda task, sample: 4))
    house.run(seconds=100)
    assert [event.metrics["episodes_timed_out"] for event in house.events] == [0, 1, 0, 0, 0, 0]
    assert house.total("episodes_rerun") == house.total("episodes_lost") == 0
    (late,) = [episode for episode in house.batches[1] if episode.agent.stop.reason == "timeout"]
    assert late.id == "rl/1/t2/1" and late.agent.turns == 2 and late.agent.stop.detail == "its 100 s were used up"
    assert late.id in house.learner.learned[1]
    assert house.clock.now() == pytest.approx(5 * 4 * 4 + 100 + 6 * 1.1)
    house.account(6 * 4)


@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_publication_that_times_out_is_made_up_for_by_the_next(max_lag):
    """The engine keeps its old weights and its tokens say so: beyond the budget they are dropped and counted."""
    tries = []

    async def publish(network, version, engine, probe):
        tries.append(version)
        await asyncio.sleep(1e6 if version in (2, 3) else 0.1)
        engine.load(None, version)
        return 0.0

    house = House(publish=publish)
    house.run(max_lag=max_lag, steps=8, publish_seconds=20)
    assert tries == list(range(1, 9))
    assert house.total("publish_failed") == 2
    assert house.total("episodes_dropped") == 2 * 4
    assert max(house.learner.staleness) <= max_lag
    house.account(8 * 4)


def test_weights_that_never_arrive_end_the_loop():
    async def publish(network, version, engine, probe):
        raise ConnectionError("no such bucket")

    house = House(publish=publish)
    with pytest.raises(TriviumError, match="nothing fresh in 9 steps.*no such bucket"):
        house.run(max_lag=1, steps=100)


def test_wrong_weights_end_the_loop_at_once():
    def publish(network, version, engine, probe):
        raise LawError("the subscriber holds other weights")

    with pytest.raises(LawError, match="other weights"):
        House(publish=publish).run()


def test_a_learner_that_hangs_has_a_deadline():
    house = House(learner=SimulatedLearner(lambda version: 1e6 if version == 2 else 1.0))
    with pytest.raises(TriviumError, match="the learner's step 2 took longer than 50 s"):
        house.run(max_lag=1, deadline=50)
    assert len(house.events) == 2 and not house.engine._running


def test_who_leaves_the_loop_leaves_nothing_behind():
    house = House()

    async def main():
        from tests.loops.house import TASKS, judge
        from trivium.loops import Pace, Plan, rollouts

        source = rollouts(house.harness, TASKS, house.engine, lambda step: judge, Plan(2, 2, steps=9), pace=Pace(max_lag=4))
        async for _ in source:
            break
        assert house.engine._running
        await source.aclose()
        assert not house.engine._running and len(asyncio.all_tasks()) == 1

    house.clock.run(main())


def test_an_attempts_own_bug_is_raised_and_not_run_again():
    class Broken(SimulatedHarness):
        async def run(self, task, *args, **kwargs):
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        House(harness=Broken()).run(max_lag=1)


def test_a_negative_budget_is_an_error():
    with pytest.raises(InputError, match="max_lag"):
        House().run(max_lag=-1)
