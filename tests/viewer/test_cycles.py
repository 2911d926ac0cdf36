"""The turns of a live loop on the page, and as text."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from trivium.errors import InputError
from trivium.loops.cycles import Cycle
from trivium.recipe.live import Options, told
from trivium.serve.options import Options as Serving
from trivium.viewer.page import cycles

HEARD = {"everybody": {"episodes": 60.0, "reward": 0.25, "propensity": 0.7}}
TURN = Cycle(
    3, 90, 180, base=1, version=2, incumbent=1, stage="done", outcome="rolled_back", learned={"served/a": 0.5},
    fates={"learned": 1, "heldout": 2, "old": 0}, served=HEARD, alarms=["idle calls: 9 of 10 episodes"],
    decision={"verdict": "promote", "reason": "better on <heldout>"},
    canary={"after": 90, "verdict": "reject", "reason": "less content"}, seconds={"learn": 12.3},
)  # fmt: skip


def test_the_page_says_of_each_turn_what_it_learned_from_and_what_became_of_it():
    page = cycles([asdict(TURN), asdict(replace(TURN, number=4, outcome="", stage="canary", canary={"after": 90}))])
    for words in ("1 episodes (2 heldout, 1 learned)", "everybody +0.250 (60)", "promote: better on &lt;heldout&gt;",
                  "reject: less content", "rolled back", "idle calls: 9 of 10 episodes", "learn 12", "under way: canary",
                  "1 → 2", "what people made of it"):  # fmt: skip
        assert words in page
    assert cycles([]) == ""


def test_a_turn_as_text():
    assert told(TURN).splitlines() == [
        "cycle 3: version 2, on version 1: learned from 1 episodes (2 heldout, 1 learned)",
        "  people: everybody +0.250 (60)",
        "  alarm: idle calls: 9 of 10 episodes",
        "  gate: promote: better on <heldout>",
        "  canary: reject: less content",
        "  rolled back; learn 12 s",
    ]
    assert "from elsewhere" in told(replace(TURN, origin="elsewhere"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cycles": 0}, "--cycles must be"),
        ({"share": 1.0}, "--share"),
        ({"patience": float("nan")}, "--patience"),
        ({"least": 100, "most": 50}, "--most 50 is less than --least 100"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        Options(**options)
    with pytest.raises(InputError, match="--temperature"):
        Serving(temperature=-1.0)
