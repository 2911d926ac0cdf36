"""Toggle, by numbers worked out by hand: when a budget binds, whom it costs its reward, and how budgets are made."""

from __future__ import annotations

import asyncio
import math

import pytest

from trivium.errors import InputError
from trivium.reward import GroupScorer, Toggle, budgets, sampled_tokens, score, verdicts
from trivium.trace import Episode, Sampling, Segment, Task, Thread

TASK = Task("t", "?")


def attempt(sample: int, *lengths: int, carried: int = 0, task: Task = TASK) -> Episode:
    """An attempt that read three tokens before each of its replies, which are so long."""
    segment = Segment(sampling=Sampling(), carried=carried)
    for length in lengths:
        segment.append([0, 0, 0], "message")
        segment.speak([1] * length, [-1.0] * length, [0] * length)
    return Episode(f"{task.id}/{sample}", task, sample, threads=[Thread("0", "agent", [segment])])


def scorer(*rewards: float):
    async def reward(episode):
        return {"reward": rewards[episode.sample]}

    return reward


SHORT_AND_LONG = [attempt(0, 5), attempt(1, 5, 6), attempt(2, 2, 2), attempt(3, 20)]


def rewards(step: int, *given: float, **options) -> list[float]:
    toggle = Toggle(scorer(*given), {"t": 10.0}, step, **options)
    return [scores["reward"] for scores in asyncio.run(score(SHORT_AND_LONG, toggle))]


def test_over_budget_is_worth_nothing_where_the_group_is_good_enough():
    assert rewards(0, 1, 1, 1, 0) == [1, 0, 1, 0], "11 tokens are over the budget of 10"
    assert rewards(0, 1, 1, 0, 0) == [1, 1, 0, 0], "half are right: three quarters are needed"
    assert rewards(0, 1, 1, 0, 0, accuracy=0.5) == [1, 0, 0, 0]


def test_phases_take_turns():
    phases = [rewards(step, 1, 1, 1, 1, every=3) == [1, 1, 1, 1] for step in range(9)]
    assert phases == [False] * 3 + [True] * 3 + [False] * 3


def test_what_it_did_is_said_beside_the_scores():
    toggle = Toggle(scorer(1, 1, 1, 1), {"t": 10.0}, 0)
    one, two, *_ = asyncio.run(score(SHORT_AND_LONG, toggle))
    assert one == {"reward": 1, "reward_unbound": 1, "tokens_sampled": 5, "over_budget": 0}
    assert two == {"reward": 0, "reward_unbound": 1, "tokens_sampled": 11, "over_budget": 1}
    assert isinstance(toggle, GroupScorer) and toggle.version == "1 bound accuracy=0.75"
    assert Toggle(scorer(1), {}, 2).version == "1 free accuracy=0.75"


def test_a_task_without_a_budget_is_never_bound():
    other = [attempt(n, 50, task=Task("new", "?")) for n in range(2)]
    first, _ = asyncio.run(score(other, Toggle(scorer(1, 1), {"t": 10.0}, 0)))
    assert first["reward"] == 1 and math.isnan(first["over_budget"])


def test_what_could_not_be_scored_stays_so_and_is_in_no_mean():
    async def broken(episode):
        if episode.sample == 3:
            raise ValueError("no judge")
        return {"reward": 1.0}

    *first, last = asyncio.run(verdicts(SHORT_AND_LONG, Toggle(broken, {"t": 10.0}, 0, accuracy=1.0)))
    assert [scores["reward"] for scores in first] == [1, 0, 1] and isinstance(last, ValueError)


def test_a_budget_is_a_percentile_of_what_right_attempts_took():
    scored = [(each, {"reward": float(each.sample != 3)}) for each in SHORT_AND_LONG]  # 5, 11, 4 tokens are right
    assert budgets(scored, 50) == {"t": 5.0} and budgets(scored, 100) == {"t": 11.0} and budgets(scored, 25) == {"t": 4.5}
    assert budgets([*scored, (attempt(0, 9, task=Task("hard", "?")), {"reward": 0.0})], 50).keys() == {"t"}
    assert budgets([(SHORT_AND_LONG[0], {"reward": 0.5}), (SHORT_AND_LONG[3], {})], 50, right=0.5) == {"t": 5.0}


def test_a_branch_has_the_tokens_that_it_was_handed():
    assert sampled_tokens(attempt(0, 5, 6, carried=8)) == 11


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Toggle(scorer(1), {}, 0, every=0), "at least one step"),
        (lambda: budgets([(SHORT_AND_LONG[0], {"reward": 0.0})], 50), "nothing says how many tokens"),
        (lambda: budgets([], 101), "between 0 and 100"),
    ],
)
def test_what_cannot_be_meant(make, why):
    with pytest.raises(InputError, match=why):
        make()
