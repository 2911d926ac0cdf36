"""What feedback is worth: each signal, their sum, and that silence never pays better than a bad sign."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import InputError, TriviumError
from trivium.policy import Scripted
from trivium.policy.scripted import say
from trivium.reward import (
    Distiller,
    Heard,
    Judge,
    acceptance,
    distilled,
    distiller,
    follow_up,
    judged_follow_up,
    keep_rate,
    outcome,
    score,
    should_show,
    vote,
)
from trivium.trace import Episode, Feedback, Store, Task, Thread

ANSWER = "first line\n  second line\nthird line\n"


def episode(answer: str = ANSWER, prompt: str = "write three lines about mills") -> Episode:
    return Episode("e", Task("t", prompt), threads=[Thread("0", "agent", answer=answer)])


def fact(kind, value=0.0, text="", time=1.0, **more) -> Feedback:
    return Feedback(more.pop("id", f"{kind}{time}"), "e", kind, value, text, time, **more)


def says(signal: Distiller, *facts: Feedback, of: Episode | None = None):
    return asyncio.run(signal(of or episode(), facts))


@pytest.mark.parametrize(
    ("answer", "edited", "kept"),
    [
        (ANSWER, ANSWER, 1.0),
        (ANSWER, "third line\nmine\nsecond line", 2 / 3),
        (ANSWER, "", 0.0),
        ("a\na\nb\n", "a\nc", 1 / 3),  # a line that stood there twice is kept once
        ("#1 #2 #3 #4", "#4 #1 #9", 0.5),
        ("", "all mine", 0.0),
    ],
)
def test_keep_rate_is_the_share_that_survives(answer, edited, kept):
    assert says(keep_rate, fact("edit", text=edited), of=episode(answer)) == pytest.approx(kept)
    assert says(keep_rate, fact("edit", text=edited, original=answer), of=episode("something else")) == pytest.approx(kept)


def test_the_last_edit_counts_by_when_it_happened():
    early, late = fact("edit", text="mine", time=1.0), fact("edit", text=ANSWER, time=2.0)
    assert says(keep_rate, late, early) == says(keep_rate, early, late, early) == 1.0


@pytest.mark.parametrize(
    ("facts", "worth"),
    [
        ([("show", 1), ("accept", 1)], 0.75),
        ([("show", 1), ("accept", 0)], -0.25),
        ([("show", 1)], -0.25),  # passed over
        ([("show", 0)], 0.0),
        ([("accept", 1)], 0.75),
        ([], None),
    ],
)
def test_acceptance_is_worth_what_tab_gives_it(facts, worth):
    assert says(acceptance, *(fact(kind, value) for kind, value in facts)) == worth


def test_it_pays_to_show_from_a_quarter_on():
    assert [should_show(chance) for chance in (0.0, 0.24, 0.25, 1.0)] == [False, False, True, True]
    reward = distilled({acceptance: 1.0})
    taken, refused, held = (
        asyncio.run(reward(episode(), [fact(*each)]))["reward"] for each in (("accept", 1.0), ("accept", 0.0), ("show", 0.0))
    )
    assert 0.25 * taken + 0.75 * refused == pytest.approx(held)  # in the whole reward's scale, too


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("thanks, now do the same for the other file", 1.0),
        ("no problem, that's right. What about Tuesday?", 1.0),
        ("Traceback (most recent call last):\n  File ...", 0.0),
        ("TypeError: unsupported operand", 0.0),
        ("That's wrong.", 0.0),
        ("it still fails", 0.0),
        ("No, I asked for three", 0.0),
        ("write about mills, three lines", 0.0),
        ("please revert this", 0.0),
    ],
)
def test_a_follow_up_moves_on_or_complains(text, content):
    assert says(follow_up, fact("follow_up", text=text)) == content
    assert says(follow_up, fact("follow_up", text=text), fact("follow_up", text="Wrong again", time=9.0)) == content


def test_a_judge_may_read_the_follow_up(renderer):
    asked = []

    def script(view):
        asked.append(view.messages[-1]["content"])
        return say("They move on.\nGrade: 8" if "now the other" in asked[-1] else "Hm.")

    signal = judged_follow_up(Judge(Scripted(script, renderer)))
    assert says(signal, fact("follow_up", text="now the other")) == 0.8 and "third line" in asked[0]
    assert says(signal) is None and len(asked) == 1
    with pytest.raises(TriviumError, match="gave no grade that can be read of e"):
        says(signal, fact("follow_up", text="hm"))


def test_an_outcome_is_read_by_its_name_and_within_its_bounds():
    facts = [fact("outcome", 5.0, name="merged"), fact("outcome", 0.2, name="tests", time=2.0)]
    assert says(outcome("merged"), *facts) == 1.0 and says(outcome("tests"), *facts) == 0.2
    assert says(outcome("reverted"), *facts) is None
    assert says(vote, *facts, fact("vote", -0.5), fact("vote", 1.0, time=0.5)) == -0.5


REWARD = distilled({keep_rate: 1.0, follow_up: 0.5, acceptance: 2.0, vote: 0.25, outcome("tests"): 1.0})
SIGNALS = st.fixed_dictionaries(
    {},
    optional={
        "edit": st.sampled_from(["", "first line", ANSWER]).map(lambda text: fact("edit", text=text)),
        "follow_up": st.sampled_from(["thanks", "that is wrong"]).map(lambda text: fact("follow_up", text=text)),
        "accept": st.sampled_from([0.0, 1.0]).map(lambda value: fact("accept", value)),
        "vote": st.floats(-1, 1).map(lambda value: fact("vote", value)),
        "outcome": st.floats(-2, 2).map(lambda value: fact("outcome", value, name="tests")),
    },
)


@settings(max_examples=30, deadline=None)
@given(SIGNALS, st.data())
def test_no_signal_never_pays_better_than_a_bad_one(signals, data):
    """Whatever a policy brings about, it gains nothing by making a signal go away."""
    left = data.draw(st.sets(st.sampled_from(sorted(signals)))) if signals else set()
    whole, part = (
        asyncio.run(REWARD(episode(), list(each.values())))["reward"]
        for each in (signals, {name: each for name, each in signals.items() if name in left})
    )
    assert -1 - 1e-9 <= part <= whole + 1e-9 <= 1 + 2e-9
    assert asyncio.run(REWARD(episode(), []))["reward"] == -1.0


@settings(max_examples=30, deadline=None)
@given(SIGNALS, SIGNALS, st.data())
def test_late_twice_and_out_of_order_is_the_same_reward(early, late, data):
    facts = [*early.values(), *(replace(each, id=f"{each.id}late", time=5.0) for each in late.values())]
    shuffled = data.draw(st.permutations(facts + (data.draw(st.lists(st.sampled_from(facts), max_size=4)) if facts else [])))
    assert asyncio.run(REWARD(episode(), facts)) == asyncio.run(REWARD(episode(), shuffled))


def test_a_reward_is_a_scorer_of_what_a_store_heard(tmp_path):
    store = Store(tmp_path / "store.db")
    one, other = episode(), replace(episode(), id="silent")
    store.write([one, other])
    store.listen([fact("edit", text="first line"), fact("vote", 1.0)])
    scorer = Heard(store.feedback, distilled({keep_rate: 3.0, vote: 1.0}))
    heard, silent = asyncio.run(score([one, other], scorer))
    assert heard == pytest.approx({"reward": (3 * (2 / 3 - 1) + 1) / 4, "keep_rate": 1 / 3, "vote": 1.0, "signals": 2.0})
    assert silent == {"reward": -1.0, "signals": 0.0} and scorer.version == "keep_rate=3 vote=1"
    store.listen([fact("vote", -1.0, time=2.0)])  # late: scored again, from facts alone
    assert asyncio.run(score([one], scorer))[0]["vote"] == -1.0


def test_what_is_no_reward_is_said():
    with pytest.raises(InputError, match="weights above 0"):
        distilled({})
    with pytest.raises(InputError, match="weights above 0"):
        distilled({vote: 0.0})
    with pytest.raises(InputError, match="two signals have one name"):
        distilled({outcome("a"): 1.0, outcome("a", worst=-1.0): 1.0})
    with pytest.raises(InputError, match="from its worst to its best"):
        outcome("a", worst=1.0, best=1.0)
    with pytest.raises(InputError, match=r"loud says 7 of e; it goes from 0 to 1"):
        says(distiller("loud", 0.0, 1.0)(lambda episode, feedback: 7.0))
