from __future__ import annotations

import io
import re
from dataclasses import dataclass

import pytest
from rich.console import Console

from trivium.errors import InputError
from trivium.viewer import Live


@dataclass
class Hand:
    """A clock that a test moves by hand."""

    time: float = 0.0

    def now(self) -> float:
        return self.time


def run(live: Live, clock: Hand) -> None:
    with live:
        live.stage("rl", 4)
        clock.time += 10
        live.advance(reward=0.5)
        live.stage("evaluations", 1)
        clock.time += 100
        live.advance(recall=0.7125)
        live.stage("rl", 4)
        clock.time += 10
        live.advance(reward=0.83)
        live.note("version [1] is out")
        clock.time += 40
        live.advance()


def test_a_log_gets_a_plain_line_now_and_then():
    file, clock = io.StringIO(), Hand()
    run(Live(Console(file=file, width=30), clock.now), clock)
    assert file.getvalue().splitlines() == [
        "rl 0/4  0:00:00 elapsed",
        "evaluations 0/1  0:00:00 elapsed",
        "evaluations 1/1  0:01:40 elapsed  recall 0.713",
        "version [1] is out",
        "rl 3/4  0:01:00 elapsed, 0:00:20 left  reward 0.83",
    ]


def test_a_terminal_shows_a_line_per_stage_whose_time_runs_only_while_it_is_current():
    file, clock = io.StringIO(), Hand()
    run(Live(Console(file=file, width=120, force_terminal=True, color_system=None), clock.now), clock)
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", file.getvalue())
    last = {line.split()[0]: line for line in text.splitlines() if "/" in line}
    assert "3/4" in last["rl"] and "0:01:00" in last["rl"] and "0:00:20 left" in last["rl"]
    assert last["rl"].rstrip().endswith("reward 0.83")
    assert "0:01:40" in last["evaluations"] and "done" in last["evaluations"] and "recall 0.713" in last["evaluations"]
    assert "version [1] is out" in file.getvalue()


def test_what_an_earlier_process_did_tells_no_pace():
    file, clock = io.StringIO(), Hand()
    with Live(Console(file=file, width=200), clock.now) as live:
        live.stage("sft", 60, done=50)
        clock.time += 30
        live.advance()
    assert "sft 51/60  0:00:30 elapsed, 0:04:30 left" in file.getvalue()


def test_an_advance_before_any_stage_is_told():
    with Live(Console(file=io.StringIO())) as live, pytest.raises(InputError, match="stage"):
        live.advance()


def test_an_error_leaves_the_display_stopped():
    console = Console(file=io.StringIO(), force_terminal=True)
    with pytest.raises(ZeroDivisionError), Live(console) as live:
        live.stage("rl", 1)
        raise ZeroDivisionError
    with Live(console) as again:  # rich refuses a second display while one is live
        again.stage("rl", 1)
