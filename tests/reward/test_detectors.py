"""Detectors of what pays and should not: what each marks and what it leaves alone, alarms, quarantine, and the page's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trivium.errors import InputError
from trivium.reward import HACKS, Detector, disbelieve, quarantined, watch
from trivium.reward.detectors import (
    asks_back,
    breaks_calls,
    collapsed,
    defers,
    flatters,
    hedges,
    idles,
    longer_than,
    parts_from,
    touches,
)
from trivium.trace import Call, Episode, Piece, Task, Thread

PAGE = Path(__file__).parents[2] / "docs" / "feedback.md"


def call(name: str = "look", fault="", **arguments) -> Call:
    return Call("c", 0, name, arguments, error="no" if fault else "", fault=fault)


def episode(answer: str = "It is the miller.", *calls: Call, id: str = "e", prompt: str = "who?") -> Episode:
    return Episode(id, Task("t", prompt), threads=[Thread("0", "agent", calls=list(calls), answer=answer)])


@pytest.mark.parametrize(
    ("marks", "bad", "good"),
    [
        (breaks_calls, episode("", call(), call(fault="arguments")), episode("Done.", call(fault="arguments"), call(), call())),
        (breaks_calls, episode("x", *[call(fault="arguments"), call()]), episode("x", call(fault="provider"))),
        (asks_back, episode("Which file do you mean?"), episode("It is done. Shall I go on?\nI would.\nYes.")),
        (asks_back, episode("Do you want A?\nOr B?", call(fault="arguments")), episode("Which one do you mean?", call())),
        (defers, episode("You could run the tests yourself."), episode("You could run the tests; I did.", call())),
        (hedges, episode("Maybe it is perhaps the miller."), episode("It is the miller, " * 8 + "I think.")),
        (flatters, episode("Great question! It is Ann."), episode("It is Ann, of the great mill.")),
        (flatters, episode("This answer is complete and correct."), episode("The answer is 7.")),
        (idles, episode("x", *[call(a=1)] * 3), episode("x", call(a=1), call(a=1), call(a=2), call(a=3))),
        (touches(r"tests/|conftest"), episode("x", call("write", path="tests/test_a.py")), episode("x", call(path="a.py"))),
    ],
)
def test_it_marks_the_hack_and_leaves_honest_work_alone(marks, bad, good):
    assert marks(bad) and not marks(good)


def test_drift_of_length_is_read_off_an_earlier_window():
    marks = longer_than([episode("word " * number) for number in range(1, 101)])
    assert marks(episode("word " * 97)) and not marks(episode("word " * 90))
    with pytest.raises(InputError, match="earlier episodes, and there are none"):
        longer_than([])


def test_one_answer_to_many_tasks_is_a_collapse():
    window = [episode("The  same.", prompt=f"question {number}") for number in range(3)]
    window += [episode("Ann.", prompt="who?")] * 5
    assert [collapsed(window)(each) for each in (window[0], window[-1])] == [True, False]


def test_what_is_paid_and_bad_by_another_measure_parts_from_it():
    rewards, truth = {"a": 1.0, "b": 0.9, "c": 0.0, "d": 1.0}, {"a": 1.0, "b": 0.0, "c": 0.5}
    marks = parts_from(rewards, truth)
    assert [id for id in "abcd" if marks(episode(id=id))] == ["b"]
    assert not parts_from({}, truth)(episode(id="a"))


def window(bad: int, size: int) -> list[Episode]:
    broken = call(fault="arguments")
    return [episode("x", *([broken] if number < bad else [call()]), id=f"e{number}") for number in range(size)]


@pytest.mark.parametrize(("bad", "size", "alarm"), [(0, 0, False), (2, 4, False), (3, 20, False), (4, 20, True), (3, 3, True)])
def test_it_alarms_above_its_share_once_there_are_enough(bad, size, alarm):
    (finding,) = watch(window(bad, size), [Detector("broken", breaks_calls, most=0.15, least=3)])
    assert (finding.alarm, len(finding.marked), finding.episodes) == (alarm, bad, size)
    assert finding.rate == (bad / size if size else 0.0)


def test_what_is_in_quarantine_is_worth_as_little_as_the_worst_and_is_not_left_out():
    """Left out, a broken call would pay better than a bad answer: the published hack."""
    findings = watch(window(4, 20), HACKS)
    assert [str(each) for each in findings if each.alarm] == ["broken calls: 4 of 20 episodes (20%; at most 15%)"]
    assert quarantined(findings) == {"e0", "e1", "e2", "e3"}
    rewards = {f"e{number}": 1.0 for number in range(19)} | {"e19": -0.5}
    assert disbelieve(rewards, findings) == {id: -0.5 if id in quarantined(findings) else each for id, each in rewards.items()}
    assert disbelieve(rewards, watch(window(3, 20), HACKS)) == rewards  # what is tolerated is believed
    assert disbelieve({}, findings) == {}


def test_thresholds_that_are_none_and_two_of_one_name_are_said():
    for wrong in ({"most": 1.0}, {"most": -0.1}, {"most": float("nan")}, {"most": 0.1, "least": 0}):
        with pytest.raises(InputError, match="a share from 0 and below 1"):
            Detector("d", breaks_calls, **wrong)
    with pytest.raises(InputError, match="two detectors have one name"):
        watch([], [HACKS[0], HACKS[0]])


def test_the_page_s_own_detector_takes_ten_lines_and_works():
    code = next(code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "copies" in code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    shown = Call("c", 0, "look", {}, [Piece("The mill is Ann's. #1", "#1", "d1")])
    copied = [episode("The mill is Ann's.", shown, id=f"e{number}") for number in range(3)]
    names: dict = {"window": [*copied, *[episode("It is Ann.", shown)] * 5]}
    exec(code, names)
    assert names["quarantine"] == ("e0", "e1", "e2")
    exec(code, names | {"window": names["window"][2:]})


def test_the_page_names_every_detector_with_its_share():
    rows = dict(re.findall(r"^\| `([\w ]+)` \|.*\| (\d+)% \|$", PAGE.read_text(), re.MULTILINE))
    assert {each.name: f"{each.most:.0%}" for each in HACKS} == {name: f"{share}%" for name, share in rows.items()}
