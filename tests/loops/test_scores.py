"""What a scorer may say: a measure that does not apply is NaN and stays so in the store; no reward is no step."""

from __future__ import annotations

import pytest

from trivium.clock import SimulatedClock
from trivium.errors import InputError
from trivium.loops import rl, rollouts
from trivium.loops.simulated import SimulatedEngine, SimulatedHarness, SimulatedLearner, publishing
from trivium.trace import Store, Task

TASKS = [Task("a", "?"), Task("b", "?")]


def run(scores, store=None, tasks=TASKS):
    async def judge(episode):
        return scores(episode)

    async def main():
        engine = SimulatedEngine(lambda stream: 1.0)
        source = rollouts(SimulatedHarness(), tasks, engine, lambda step: judge, groups=1, size=2, steps=2, store=store)
        return [event.metrics async for event in rl(source, SimulatedLearner(), engine, (), publish=publishing(0.1))]

    return SimulatedClock().run(main())


def test_a_measure_that_does_not_apply_is_left_out_also_when_it_comes_from_the_store(tmp_path):
    def scores(episode):
        return {"reward": float(episode.sample), "accuracy": float("nan") if episode.sample else 0.5, "never": float("nan")}

    first = run(scores, Store(tmp_path / "episodes.db"))
    again = run(scores, Store(tmp_path / "episodes.db"))
    for metrics in (*first, *again):
        assert metrics["accuracy"] == 0.5 and metrics["reward"] == 0.5 and "never" not in metrics


def test_a_reward_that_is_no_number_is_refused_before_anything_is_kept(tmp_path):
    for _ in range(2):
        with pytest.raises(InputError, match="reward"):
            run(lambda episode: {"reward": float("nan")}, Store(tmp_path / "episodes.db"))
    with pytest.raises(InputError, match="no reward, only score"):
        run(lambda episode: {"score": 1.0})


def test_no_tasks_are_named():
    with pytest.raises(InputError, match="no tasks"):
        run(lambda episode: {"reward": 1.0}, tasks=[])
