"""What a scorer may say: a measure that does not apply is NaN and stays so in the store; no reward is no step."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from tests.loops.house import attempts
from trivium.clock import SimulatedClock
from trivium.errors import InputError
from trivium.harness import Harness, Scene, Window, tool
from trivium.loops import Plan, rl, rollouts
from trivium.loops.reinforce import over_ranks
from trivium.loops.simulated import SimulatedEngine, SimulatedHarness, SimulatedLearner, publishing
from trivium.policy import Scripted
from trivium.policy.scripted import call
from trivium.reward import ScorerError, score
from trivium.trace import Sampling, Score, Store, Task

TASKS = [Task("a", "?"), Task("b", "?")]


def run(scores, store=None, tasks=TASKS, **options):
    async def judge(episode):
        return scores(episode)

    async def main():
        engine, asked = SimulatedEngine(lambda stream: 1.0), {"groups": 1, "size": 2, "steps": 2, "store": store, **options}
        source = attempts(SimulatedHarness(), tasks, engine, lambda step: judge, **asked)
        return [event.metrics async for event in rl(source, SimulatedLearner(), engine, (), publish=publishing(0.1))]

    return SimulatedClock().run(main())


def test_a_measure_that_does_not_apply_is_left_out_also_when_it_comes_from_the_store(tmp_path):
    def scores(episode):
        return {"reward": float(episode.sample), "accuracy": float("nan") if episode.sample else 0.5, "never": float("nan")}

    first = run(scores, Store(tmp_path / "episodes.db"))
    again = run(scores, Store(tmp_path / "episodes.db"))
    for metrics in (*first, *again):
        assert metrics["accuracy"] == 0.5 and metrics["reward"] == 0.5 and "never" not in metrics


def test_a_reward_that_is_no_number_is_none():
    with pytest.raises(ScorerError, match="the reward nan, which is no finite number"):
        run(lambda episode: {"reward": float("nan")})
    with pytest.raises(ScorerError, match="no reward, only score"):
        run(lambda episode: {"score": 1.0})


def test_a_moment_is_a_seed_too(tmp_path):
    for _ in range(2):
        assert run(lambda episode: {"reward": 1.0}, Store(tmp_path / "episodes.db"), seed=20261122150000)


def test_what_comes_from_the_store_is_counted_and_steps_made_another_way_are_refused(tmp_path):
    store = Store(tmp_path / "episodes.db")
    first = run(lambda episode: {"reward": float(episode.sample)}, store)
    again = run(lambda episode: {"reward": 100.0}, store)
    assert [m["episodes_stored"] for m in (*first, *again)] == [0.0, 0.0, 2.0, 2.0]
    for other in ({"size": 3}, {"sampling": Sampling(top_k=5)}, {"groups": 2}):
        with pytest.raises(InputError, match=f"steps of a run with other {next(iter(other))}"):
            run(lambda episode: {"reward": 1.0}, store, **other)


def test_a_score_with_the_name_of_a_steps_own_number_is_refused():
    for name in (
        "episodes_lost",
        "groups",
        "episodes_dropped",
        "publish_gap",
        "calls_failed",
        "cpu_seconds",
        "episodes_stored",
    ):
        with pytest.raises(InputError, match=f"a scorer gives '{name}'"):
            run(lambda episode, name=name: {"reward": float(episode.sample), name: 7.0})


def test_a_scorer_whose_own_work_was_cancelled_is_no_attempt_that_was_overtaken():
    def scores(episode):
        raise asyncio.CancelledError

    with pytest.raises(ScorerError, match="first, rl/0/a/0: what the scorer judge waited for was cancelled"):
        run(scores)


def test_calls_that_failed_are_counted(renderer):
    @tool
    def broken(scene: Scene) -> str:
        """Fails."""
        raise NameError("notes")

    async def judge(episode):
        return {"reward": float(episode.sample)}

    async def numbers():
        def speak(view):
            return call(("broken", {})) if len(view.messages) < 3 else {"role": "assistant", "content": "so"}

        policy = Scripted(speak, renderer)
        source = rollouts(Harness([broken], Window(900)), TASKS, policy, lambda step: judge, Plan(groups=1, size=2, steps=1))
        return [scores async for _, scores in source]

    (scores,) = asyncio.run(numbers())
    assert scores["calls"] == scores["calls_failed"] == 1


def test_a_scorers_own_error_names_the_episode_and_the_line():
    with pytest.raises(ScorerError, match=r"no episode of step 0 .* rl/0/a/0: ZeroDivisionError: .*test_scores.py, line \d+\)"):
        run(lambda episode: {"reward": 1 / 0})


def test_too_few_tasks_are_counted():
    with pytest.raises(InputError, match="3 groups a step need as many tasks .* there are 2"):
        run(lambda episode: {"reward": 1.0}, groups=3)


def test_no_tasks_are_named():
    with pytest.raises(InputError, match="no tasks"):
        run(lambda episode: {"reward": 1.0}, tasks=[])


@pytest.mark.parametrize("said", [None, {3: 1.0}, {"reward": None}, {"reward": "1"}, {"reward": 1.0, "f1": None}, 1.0], ids=str)
def test_scores_are_numbers_by_name(said, recwarn):
    with pytest.raises(ScorerError, match="the scorer judge gives"):
        run(lambda episode: said)
    assert not recwarn.list


def test_of_many_that_fail_alike_one_error_is_raised_and_none_is_left_behind(caplog):
    with pytest.raises(ScorerError, match="no reward, only score"):
        run(lambda episode: {"score": 1.0})
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_store_of_another_run_is_refused_and_a_tuple_in_a_task_is_no_other_task(tmp_path):
    spoken = []

    def scores(episode):
        spoken.append(episode.id)
        return {"reward": float(episode.sample)}

    tasks = [Task(id, "?", {"gold": ("a", "b")}) for id in "ab"]
    run(scores, Store(tmp_path / "episodes.db"), tasks)
    assert len(spoken) == 4
    run(scores, Store(tmp_path / "episodes.db"), tasks)
    assert len(spoken) == 4, "kept, and learned from again"
    with pytest.raises(InputError, match="of another run"):
        run(scores, Store(tmp_path / "episodes.db"), tasks, seed=1)
    with pytest.raises(InputError, match="of another run"):
        run(scores, Store(tmp_path / "episodes.db"), TASKS)


def test_a_resumed_run_learns_from_the_scores_of_then(tmp_path):
    store = Store(tmp_path / "episodes.db")
    first = run(lambda episode: {"reward": float(episode.sample)}, store)
    store.score(
        [Score("rl/0/a/0", "reward", 99.0, "somebody else"), Score("rl/0/a/1", "reward", -5.0, "of a thread", thread="0")]
    )
    again = run(lambda episode: {"reward": float(episode.sample)}, store)
    assert [metrics["reward"] for metrics in again] == [metrics["reward"] for metrics in first] == [0.5, 0.5]


def test_a_step_that_was_overtaken_whole_is_not_attempted_again_where_the_next_is_kept(tmp_path):
    store = Store(tmp_path / "episodes.db")

    def learned(slow, version=0):
        engine, batches = SimulatedEngine(lambda stream: 100.0 if slow and stream[1] == "b" else 1.0, version=version), []

        async def judge(episode):
            return {"reward": float(episode.sample)}

        async def main():
            options = {"groups": 1, "size": 2, "steps": 3, "store": store, "max_lag": 1, "slots": 8}
            async for groups, _ in attempts(
                SimulatedHarness(), [*TASKS, Task("c", "?")], engine, lambda step: judge, **options
            ):
                batches.append([(e.id, e.agent.segments[0].versions) for group in groups for e in group.episodes])

        SimulatedClock().run(main())
        return batches

    first = learned(slow=True)
    assert [len(batch) for batch in first] == [2, 0, 2]
    assert learned(slow=False, version=50) == first


def test_a_rank_counts_as_many_times_as_it_has_episodes():
    class Two:
        size = 2

        def gather(self, mine):
            return [mine, ({"f1": 0.0, "episodes_lost": 1, "episodes_stored": 7}, 16)]

    assert over_ranks(Two(), {"f1": 1.0, "late": 2.0, "episodes_lost": 1}, 8) == {
        "f1": pytest.approx(1 / 3), "late": 2.0, "episodes_lost": 2.0, "episodes_rerun": 0.0, "episodes_overtaken": 0.0,
        "episodes_dropped": 0.0, "episodes_stored": 7.0, "episodes_unscored": 0.0, "episodes_timed_out": 0.0,
        "publish_failed": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("none", ["groups", "size", "slots"])
def test_a_step_has_something_in_it(none):
    with pytest.raises(InputError, match="at least 1"):
        run(lambda episode: {"reward": 1.0}, **{none: 0})


def test_a_scorer_is_async_and_rollouts_want_a_function_of_the_step():
    def plain(episode):
        return {"reward": 1.0}

    async def sound(episode):
        return {"reward": 1.0}

    with pytest.raises(InputError, match="the scorer plain is no async function"):
        asyncio.run(score([None], plain))
    for wrong in (plain, sound):
        source = rollouts(
            SimulatedHarness(), TASKS, SimulatedEngine(lambda stream: 1.0), wrong, Plan(groups=1, size=2, steps=1)
        )
        with pytest.raises(InputError, match="lambda step: scorer"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a coroutine was never awaited
            SimulatedClock().run(anext(source))
