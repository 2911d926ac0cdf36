"""An answer ends where it repeats itself, whoever reads it."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.laws.walks import TASK, keep, script, search, search_corpus
from trivium.agents.search import reward
from trivium.agents.search.baselines import returned
from trivium.agents.search.citation import repetition
from trivium.agents.search.retrieval import f_beta, streak_penalty
from trivium.agents.search.reward import SearchReward, returned_documents
from trivium.errors import InputError
from trivium.harness import Harness, Window, prune_chunks
from trivium.policy.scripted import call, say
from trivium.reward import compose, effort_penalty, turn_penalty
from trivium.tasks.proof import mentions
from trivium.trace import Episode


def test_what_compose_takes():
    for parts in ({}, {"search": SearchReward()}, {"search": (1.0, 0.5)}):
        with pytest.raises(InputError, match="compose takes parts by name"):
            compose(**parts)


def test_a_summary_is_no_turn(renderer):
    """It is a second reply of its turn: not one more to be priced, and not one that went wrong."""
    harness = Harness([search_corpus], Window(4000, summarize=0.001), "Search.", specs=False)
    said = [call(search()), say("so far #1"), call(search()), say("so far #2"), say(" #2")]
    episode = asyncio.run(harness.run(TASK, script(renderer, said)))
    found = asyncio.run(SearchReward(turns=6)(episode))
    assert (found["turns"], found["format_valid"], found["turn_penalty"], found["finished"]) == (3, 1, 0, 1)
    assert found["calls_per_turn"] == pytest.approx(2 / 3)


def test_each_turn_costs_less_than_the_one_before(renderer):
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)

    def worth(turns: int, effort: float) -> float:
        said = script(renderer, [*[call(search())] * (turns - 1), say(" #2")])
        found = asyncio.run(SearchReward(effort=effort)(asyncio.run(harness.run(TASK, said))))
        return found["reward"] + 0.3 * (1 - found["trajectory_recall"])  # what further searches find is not asked here

    prices = [worth(turns, 0.0) - worth(turns, 0.1) for turns in (2, 3, 4, 5)]
    assert prices[:3] == pytest.approx([0.0, 0.1 / 1.5, 0.1])  # 0.1 x / (1 + x / 2) of the turns beyond two
    steps = [b - a for a, b in zip(prices, prices[1:], strict=False)]
    assert steps == sorted(steps, reverse=True) and steps[-1] > 0
    assert [effort_penalty(x, k=0.5, q=0.0) for x in (0, 1, 7)] == [0, 1, 7], "q = 0 is a line"


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (" #2 #5", ["#2", "#5"]),
        (" #2 #2 #2 #5", ["#2"]),
        (" #2 #3 #2 #5", ["#2", "#3"]),
        (" #12 #1 #2 #12 #5", ["#12", "#1", "#2"]),
        ("#2 says it, and #5 too. Not #3, unlike #5. #4", ["#2", "#5", "#3"]),
        (" none", []),
    ],
)
def test_what_stands_after_a_repetition_does_not_count(renderer, answer, read):
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    episode = asyncio.run(harness.run(TASK, script(renderer, [call(search()), call(search()), say(answer)])))
    assert reward.cited(episode.agent) == read
    assert len(returned_documents(episode)) == len([ref for ref in read if ref not in ("#12",)])


def test_a_loop_is_worth_what_it_began_with(renderer):
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False, ending=repetition)

    def worth(answer: str) -> dict[str, float]:
        said = script(renderer, [call(search()), call(search()), say(answer)])
        return asyncio.run(SearchReward()(asyncio.run(harness.run(TASK, said))))

    once, loop = worth("#2"), worth("#2 #2 #2 #5")
    assert {name for name in once if once[name] != loop[name]} <= {"tokens"}
    assert worth("#2 #5")["reward"] > once["reward"]


def test_a_guessed_handle_costs_what_a_wrong_document_costs(renderer):
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)

    def worth(answer: str) -> dict[str, float]:
        return asyncio.run(SearchReward()(asyncio.run(harness.run(TASK, script(renderer, [call(search()), say(answer)])))))

    right, guessed, wrong = worth("#2"), worth("#2 #77"), worth("#2 #3")
    assert guessed["f_beta"] == wrong["f_beta"] < right["f_beta"] and guessed["reward"] == wrong["reward"]
    assert (guessed["returned"], guessed["f1"]) == (1, right["f1"]), "who asked gets one document"


@pytest.mark.parametrize(
    "answer, text", [("Beyonce", "Beyonce\u0301 sang."), ("Beyonc\u00e9", "Beyonce sang."), ("A_b", "It is a b.")]
)
def test_an_answer_is_read_as_its_proof_reads_it(answer, text):
    task = dataclasses.replace(TASK, truth={**TASK.truth, "answer": answer})
    assert reward.states(text, task) and mentions(text, answer) and not reward.states("Nobody sang.", task)


@pytest.mark.parametrize("handle", ["#1", "#2"])
def test_a_handles_number_is_no_answer(renderer, handle):
    task = dataclasses.replace(TASK, truth={**TASK.truth, "answer": "2"})
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    episode = asyncio.run(harness.run(task, script(renderer, [call(search()), say(handle)])))
    (said,) = [piece for piece in episode.agent.calls[0].pieces if piece.ref == handle]
    assert not reward.shows(said, task) and [found.states for found in returned(episode)] == [False]
    assert asyncio.run(SearchReward()(episode))["answer_found"] == 0.0
    assert reward.shows(dataclasses.replace(said, text=f"There are 2 of them. {handle}\n"), task)


@pytest.mark.parametrize(
    "answer, valid", [("#2 #3", 1.0), ('#2 #3"]}}\n</tool_call>', 0.5), ("none", 0.5), ("#2 #77", 0.5), ("", 0.5)]
)
def test_an_answer_is_valid_where_it_cites_what_was_shown_and_ends_cleanly(renderer, answer, valid):
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    episode = asyncio.run(harness.run(TASK, script(renderer, [call(search()), say(answer)])))
    assert asyncio.run(SearchReward()(episode))["format_valid"] == valid


@pytest.mark.parametrize("turns, penalty", [(6, 0.0), (4, 0.25), (3, 0.5)])
def test_the_later_half_of_the_turns_costs(renderer, turns, penalty):
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    episode = asyncio.run(harness.run(TASK, script(renderer, [call(search()), call(search()), say("#2")])))
    priced, free = (asyncio.run(SearchReward(turns=t)(episode)) for t in (turns, 128))
    assert priced["turn_penalty"] == penalty and free["reward"] - priced["reward"] == pytest.approx(penalty)


# --- the numbers of Context-1's report, worked out by hand


@pytest.mark.parametrize(
    "flags, penalty",
    [
        ("", 0.0),
        ("ppp", 0.0),
        ("pppp", 0.1),
        ("pppppp", 0.3),
        ("pppspppp", 0.1),
        ("pppppsppppp", 0.4),
        ("p" * 8, 0.5),
        ("p" * 20, 0.5),
    ],
)
def test_a_tenth_for_each_prune_beyond_three_in_a_row_and_half_at_most(flags, penalty):
    assert streak_penalty(flag == "p" for flag in flags) == pytest.approx(penalty)


@pytest.mark.parametrize("turns, penalty", [(0, 0.0), (64, 0.0), (65, 1 / 128), (96, 0.25), (128, 0.5), (200, 0.5)])
def test_turns_cost_nothing_up_to_64_and_half_a_point_at_128(turns, penalty):
    assert turn_penalty(turns) == pytest.approx(penalty)


def test_f_beta_weighs_recall_sixteen_times_and_then_four():
    """P 1/2, R 1: 17 * .5 / (16 * .5 + 1) and 5 * .5 / (4 * .5 + 1); P 1, R 1/2: 17 * .5 / (16 + .5) and 5 * .5 / (4 + .5)."""
    assert f_beta(["a", "x"], ["a"], 4.0) == pytest.approx(8.5 / 9) and f_beta(["a", "x"], ["a"], 2.0) == pytest.approx(2.5 / 3)
    assert f_beta(["a"], ["a", "b"], 4.0) == pytest.approx(8.5 / 16.5)
    assert f_beta(["a"], ["a", "b"], 2.0) == pytest.approx(2.5 / 4.5)
    assert (f_beta([], ["a"]), f_beta(["x"], ["a"]), SearchReward().beta) == (0.0, 0.0, 4.0)


def searched(renderer, reply: str, turns: int = 1, **truth) -> Episode:
    """An episode of `turns` searches on a task with this truth."""
    harness = Harness([search_corpus], Window(4000), "Search.", specs=False)
    task = dataclasses.replace(TASK, truth={**TASK.truth, **truth})
    return asyncio.run(harness.run(task, script(renderer, [*[call(search())] * turns, say(reply)])))


def test_a_perfect_episode_is_worth_two(renderer):
    """.7 F + .3 trajectory + 1.0 answer (D: at most 2.0)."""
    episode = searched(renderer, " #1")
    source = {piece.ref: piece for piece in episode.agent.passages}["#1"]
    perfect = searched(renderer, " #1", gold=[source.source.partition(":")[0]], answer=source.shown.split()[-1].strip("."))
    scores = asyncio.run(SearchReward()(perfect))
    assert (scores["f_beta"], scores["trajectory_recall"], scores["answer_found"]) == (1.0, 1.0, 1.0)
    assert scores["reward"] == pytest.approx(2.0)


def test_each_terms_weight_is_the_reports(renderer):
    """Of two gold documents one is returned and both were seen; the answer stands in none: 17 * .5 / 16.5 of .7, and .3."""
    shown = [piece.source.partition(":")[0] for piece in searched(renderer, " #1").agent.passages]
    scores = asyncio.run(SearchReward()(searched(renderer, " #1", gold=shown[:2], answer="no such words")))
    assert scores["answer_found"] == 0.0 and scores["reward"] == pytest.approx(0.7 * 8.5 / 16.5 + 0.3)
    bare = asyncio.run(SearchReward(trajectory=0.0)(searched(renderer, " #1", gold=shown[:2], answer="no such words")))
    assert bare["reward"] == pytest.approx(0.7 * 8.5 / 16.5)


def test_a_worthless_answer_is_worth_more_than_none_and_penalties_never_pay(renderer):
    """ε is .01 and no episode that finished falls below it; one that did not finish is worth 0."""
    nothing = searched(renderer, " none", gold=["nowhere"], answer="no such words")
    assert asyncio.run(SearchReward()(nothing))["reward"] == pytest.approx(0.01)
    priced = searched(renderer, " none", turns=3, gold=["nowhere"], answer="no such words")
    assert asyncio.run(SearchReward(turns=2)(priced))["reward"] == pytest.approx(0.01)
    nothing.agent.stop = dataclasses.replace(nothing.agent.stop, reason="turns")
    assert asyncio.run(SearchReward()(nothing))["reward"] == 0.0


def test_two_prunes_too_many_cost_a_fifth_of_a_point(renderer):
    harness = Harness([search_corpus, prune_chunks], Window(4000), "Search.", specs=False)
    prunes = [call(keep("#1", "#2", "#3", "#4"))] * 5
    episode = asyncio.run(harness.run(TASK, script(renderer, [call(search()), *prunes, say(" #2")])))
    priced, free = (asyncio.run(SearchReward(pruning=weight)(episode)) for weight in (1.0, 0.0))
    assert free["reward"] - priced["reward"] == pytest.approx(0.2) and SearchReward().pruning == 1.0
