"""The seams of reward: verdicts, comparisons and what is composed of both, with numbers worked out by hand."""

from __future__ import annotations

import asyncio
import math

import pytest

from trivium.clock import SimulatedClock
from trivium.errors import InputError
from trivium.policy import Scripted
from trivium.policy.scripted import say
from trivium.reward import Graded, GroupScorer, Judge, Parl, Toggle, compose, opinions, patience, score, verdicts
from trivium.trace import Branch, Episode, Point, Segment, Task, Thread

TASK = Task("t", "?")
EPISODES = [Episode(f"t/{number}", TASK, number) for number in range(3)]


class Ranking:
    """2, 1, 0: the first attempt is the best."""

    async def compare(self, episodes):
        return [{"reward": float(len(episodes) - 1 - place)} for place in range(len(episodes))]


async def brief(episode):
    if episode.sample == 2:
        raise ValueError("too long to tell")
    return {"reward": 0.5, "words": float(episode.sample)}


def test_one_that_fails_is_an_error_beside_the_others_scores():
    first, second, third = asyncio.run(verdicts(EPISODES, brief))
    assert (first, second) == ({"reward": 0.5, "words": 0.0}, {"reward": 0.5, "words": 1.0})
    assert isinstance(third, ValueError)
    with pytest.raises(ValueError, match="too long"):
        asyncio.run(score(EPISODES, brief))
    assert asyncio.run(verdicts([], brief)) == []


def test_a_reward_of_parts_is_their_weighted_sum():
    async def main():
        plain = compose(brief=(2.0, brief), again=(0.1, brief))
        mixed = compose(rank=(0.25, Ranking()), brief=(2.0, brief))
        return await verdicts(EPISODES[:2], plain), await verdicts(EPISODES, mixed), mixed

    (first, _), (one, two, three), mixed = asyncio.run(main())
    assert first["reward"] == pytest.approx(2 * 0.5 + 0.1 * 0.5) and first["again/words"] == 0.0
    assert isinstance(mixed, GroupScorer)
    assert one == {"reward": 0.25 * 2 + 2 * 0.5, "rank/reward": 2.0, "brief/reward": 0.5, "brief/words": 0.0}
    assert two["reward"] == 0.25 * 1 + 2 * 0.5
    assert isinstance(three, ValueError), "what one part leaves unscored is unscored"


def test_a_part_without_a_reward_is_named():
    async def judge(episode):
        return {"score": 1.0}

    (verdict,) = asyncio.run(verdicts(EPISODES[:1], compose(outcome=(1.0, judge))))
    assert str(verdict) == "the scorer judge gives no reward, only score"


@pytest.mark.parametrize("parts", [{}, {"a": 1.0}, {"a": (1.0,)}, {"a": (1.0, "judge")}], ids=str)
def test_parts_are_weights_and_scorers(parts):
    with pytest.raises(InputError, match="each a weight and a scorer"):
        compose(**parts)


@pytest.mark.parametrize("answer", [None, {}, "12", [{"reward": 1.0}], [{"reward": 1.0}] * 4], ids=str)
def test_a_comparison_gives_scores_of_each(answer):
    class Odd:
        async def compare(self, episodes):
            return answer

    found = asyncio.run(verdicts(EPISODES, Odd()))
    assert len(found) == 3 and all("compares 3 episodes and gives" in str(each) for each in found)


def test_a_comparison_may_leave_one_out():
    class Picky:
        async def compare(self, episodes):
            return [{"reward": 1.0}, ValueError("blank"), {"grade": 2.0}]

    one, two, three = asyncio.run(verdicts(EPISODES, Picky(), need="reward"))
    assert one == {"reward": 1.0} and str(two) == "blank" and "no reward, only grade" in str(three)


def test_patience_has_its_limits():
    for seconds, retries in ((0, 0), (-1, 0), (math.nan, 0), (1, -1)):
        with pytest.raises(InputError, match="more than 0 seconds and at least 0 retries"):
            patience(seconds, retries)
    assert patience(0.5, 0)(Ranking()).seconds == 0.5


def test_a_group_scorers_own_patience_holds():
    class Slow:
        seconds, retries = 0.01, 0

        async def compare(self, episodes):
            await asyncio.sleep(10)

    found = asyncio.run(verdicts(EPISODES, Slow()))
    assert [str(each) for each in found] == ["the scorer Slow took longer than 0.01 s"] * 3


@pytest.mark.parametrize(
    "around",
    [
        lambda scorer, judge: compose(part=(1.0, scorer)),
        lambda scorer, judge: Parl(scorer, lambda episode: []),
        lambda scorer, judge: Graded(scorer, judge),
        lambda scorer, judge: Toggle(scorer, {}, step=0),
    ],
    ids=["compose", "Parl", "Graded", "Toggle"],
)
def test_a_scorer_inside_of_another_keeps_its_patience(renderer, around):
    """It fails once, hangs once, and then takes longer than a scorer may that says nothing of itself."""
    seconds = iter((0, 1e9, 700))

    @patience(seconds=800, retries=2)
    async def slow(episode):
        if not (wait := next(seconds)):
            raise OSError("no answer")
        await asyncio.sleep(wait)
        return {"reward": 1.0}

    episode, clock = Episode("t/0", TASK, threads=[Thread("0", "agent", [Segment()])]), SimulatedClock()
    whole = around(slow, Judge(Scripted(lambda view: say("Grade: 5"), renderer, "judge")))
    (verdict,) = clock.run(verdicts([episode], whole))
    assert verdict["reward"] >= 1 and clock.now() == pytest.approx(1 + 800 + 10 + 700)


def test_a_scorers_own_time_out_is_no_deadline_of_ours():
    async def judge(episode):
        raise TimeoutError("its server's")

    (verdict,) = asyncio.run(verdicts(EPISODES[:1], judge))
    assert isinstance(verdict, TimeoutError) and str(verdict) == "its server's"


def test_the_store_keeps_no_opinion_of_the_unscored():
    found = opinions(EPISODES[:2], [{"reward": 1.0}, {}], brief)
    assert [(each.episode, each.name, each.scorer) for each in found] == [("t/0", "reward", "brief")]


def test_what_is_compared_are_the_attempts_at_one_task_and_the_branches_of_one_attempt():
    rows = []

    class Noting(Ranking):
        async def compare(self, episodes):
            rows.append([episode.id for episode in episodes])
            return await super().compare(episodes)

    branch = Branch(author="harness", parent="t/0", snapshot="t/0@1", turn=1, at=Point("0", 0, 0))
    branches = [Episode(f"t/0+1.{n}", TASK, n, ops=[branch]) for n in (3, 4)]
    other = Episode("u/0", Task("u", "?"), 0)
    found = asyncio.run(verdicts([EPISODES[0], other, branches[0], EPISODES[1], branches[1]], Noting()))
    assert rows == [["t/0", "t/1"], ["u/0"], ["t/0+1.3", "t/0+1.4"]]
    assert [each["reward"] for each in found] == [1.0, 0.0, 1.0, 0.0, 0.0], "in the order in which they were given"
