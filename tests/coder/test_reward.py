"""What a coder's episode is worth: hidden tests, effort, and for each behaviour the hack that its price takes away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.coder.house import CART, TASK, FakeDesks, attempt
from trivium.agents.coder.behaviour import TERMS
from trivium.agents.coder.desk import Desks
from trivium.agents.coder.reward import PRICES, CoderReward, change
from trivium.policy.scripted import call, say
from trivium.reward.effort import Effort, effort
from trivium.sandbox import Result
from trivium.trace import Task

RIGHT = " return price + 2"
READ = call(("read_file", {"path": "cart.py"}))
EDIT = call(("edit_file", {"path": "cart.py", "old": " return price - 2", "new": RIGHT}))


def todo(**arguments):
    return call(("todo", arguments))


class ByText:
    """Grades the files of a snapshot by whether the right line is in them, and nothing else was broken."""

    def __init__(self, desks: Desks) -> None:
        self.desks = desks

    async def grade(self, task, snapshot):
        desk = await self.desks.open(task, snapshot)
        text = await desk.text("cart.py")
        await desk.close()
        return dict(zip(task.truth["expected"], (RIGHT in text, "sum(items)" in text), strict=True))


def sed(files) -> Result:
    files["cart.py"] = files["cart.py"].replace(b"price - 2", b"price + 2")
    return Result(0)


def scores(renderer, *messages, without: str = "", **changes) -> dict[str, float]:
    desks = FakeDesks({"sed -i 's/- 2/+ 2/' cart.py": sed})
    episode = attempt(renderer, *messages, desks=desks)
    reward = CoderReward(ByText(desks), renderer, prices={**PRICES, **({without: 0.0} if without else {})})
    return asyncio.run(replace(reward, **changes)(episode))


def test_tests_fixed_less_tests_broken_and_a_bonus_for_all(renderer):
    right = scores(renderer, READ, EDIT, say("Done."), effort=0.0)
    wrong = scores(renderer, READ, say("Done."), effort=0.0)
    broken = scores(renderer, call(("write_file", {"path": "cart.py", "text": "x"})), say("Done."), effort=0.0)
    assert (right["reward"], wrong["reward"], broken["reward"]) == (1.5, 0.0, -1.0)
    assert (right["solved"], right["fixed"], wrong["fixed"], wrong["broken"], broken["broken"]) == (1.0, 1.0, 0.0, 0.0, 1.0)


def test_where_no_test_is_named_as_fixed_all_are_to_be(renderer):
    plain = Task("t", "Do it.", {key: value for key, value in TASK.truth.items() if key != "fixed"})
    assert change(plain, {"a": True, "b": False}) == (0.5, 0.0)
    assert change(TASK, dict.fromkeys(TASK.truth["expected"], True)) == (1.0, 0.0)


def test_doing_nothing_is_worth_less_than_an_attempt_that_fails_half_the_time(renderer):
    nothing = scores(renderer, say("Done."))["reward"]
    right = scores(renderer, READ, EDIT, say("Done."))["reward"]
    wrong = scores(renderer, READ, call(("edit_file", {"path": "cart.py", "old": "- 2", "new": "- 1"})), say("Done."))
    assert nothing <= 0 < (right + wrong["reward"]) / 2


def test_effort_is_counted_by_its_kinds(renderer):
    episode = attempt(renderer, READ, EDIT, say("Done."))
    spent = effort(episode, renderer)
    said = [s for s in episode.agent.segments[0].sampled()]
    assert spent.calls == 2 and spent.turns == 3 and spent.thinking == 0
    assert spent.calling == sum(s.stop - s.start for s in said[:2]) and spent.final == said[2].stop - said[2].start
    results = [s for s in episode.agent.segments[0].spans if s.kind in ("message", "chunk")]
    assert spent.output == sum(s.stop - s.start for s in results) > len(CART)
    assert Effort(calls=2.0, turns=3.0).weighted({"calls": 1.0, "turns": 0.5}) == 3.5


def test_thoughts_and_summaries_are_thinking(renderer):
    thought = {**EDIT, "reasoning_content": "It must add two."}
    spent, plain = (effort(attempt(renderer, READ, each, say("Done.")), renderer) for each in (thought, EDIT))
    assert spent.thinking >= len("It must add two.") and spent.final == plain.final
    assert plain.calling <= spent.calling < plain.calling + 25, "but for the marks around thoughts"


def test_more_effort_costs_less_and_less(renderer):
    prices = [scores(renderer, *[READ] * count, EDIT, say("Done."))["effort_price"] for count in (1, 2, 3, 4)]
    steps = [after - before for before, after in zip(prices, prices[1:], strict=False)]
    assert steps[0] > steps[1] > steps[2] > 0


HACKS = {
    "open_todos": (  # a list that looks orderly and is never ticked off saves a call
        [todo(add=["tax"]), READ, EDIT, todo(done=[1]), say("Done.")],
        [todo(add=["tax"]), READ, EDIT, say("Done.")],
    ),
    "broken_calls": (  # guessing until a guess fits is shorter than looking
        [call(("list_files", {})), READ, EDIT, say("Done.")],
        [call(("edit_file", {"path": "cart.py", "old": "price -2", "new": "price + 2"})), EDIT, say("Done.")],
    ),
    "scratch": (  # thoughts cost more where they are told apart from code
        [
            READ,
            {**EDIT, "reasoning_content": "".join(f"The price has to be raised by the tax, step {n}.\n" for n in range(9))},
            say("Done."),
        ],
        [
            READ,
            call(
                (
                    "edit_file",
                    {
                        "path": "cart.py",
                        "old": " return price - 2",
                        "new": "".join(f"# The price has to be raised by the tax, {n}.\n" for n in range(9)) + RIGHT,
                    },
                )
            ),
            say("Done."),
        ],
    ),
    "terminal_only": (  # one command in place of reading and editing
        [READ, EDIT, say("Done.")],
        [call(("run", {"command": "sed -i 's/- 2/+ 2/' cart.py"})), say("Done.")],
    ),
}


@pytest.mark.parametrize("term", HACKS)
def test_a_hack_pays_without_its_price_and_not_with_it(renderer, term):
    honest, hack = HACKS[term]
    free, trick = (scores(renderer, *each, without=term) for each in (honest, hack))
    assert trick["solved"] == free["solved"] == 1.0 and trick[term] > free[term] == 0
    assert trick["reward"] > free["reward"], "the hack pays without the term"
    priced, caught = (scores(renderer, *each) for each in (honest, hack))
    assert caught["reward"] < priced["reward"] == free["reward"]


def test_never_ending_pays_without_its_price_and_not_with_it(renderer):
    """An agent that stops at its last turn saves the words of an end."""

    def worth(*script, turns: int, price: float) -> float:
        from tests.coder.house import WINDOW
        from trivium.agents.coder.tools import coder_tools
        from trivium.harness import Harness, Limits
        from trivium.policy import Scripted

        desks = FakeDesks()
        short = Harness(coder_tools(), WINDOW, "Go.", Limits(turns=turns), specs=False, place=desks)
        episode = asyncio.run(short.run(TASK, Scripted([*script], renderer, "agent")))
        reward = CoderReward(ByText(desks), renderer, prices={**PRICES, "unfinished": price})
        return asyncio.run(reward(episode))["reward"]

    ends, never = (READ, EDIT, say("Done.")), (READ, EDIT)
    assert worth(*never, turns=2, price=0.0) > worth(*ends, turns=3, price=0.0)
    assert worth(*never, turns=2, price=PRICES["unfinished"]) < worth(*ends, turns=3, price=PRICES["unfinished"])


def test_wandering_pays_nothing_only_where_effort_has_a_price(renderer):
    short, long = [READ, EDIT, say("Done.")], [READ, READ, READ, READ, EDIT, say("Done.")]
    assert scores(renderer, *long, effort=0.0)["reward"] == scores(renderer, *short, effort=0.0)["reward"]
    assert scores(renderer, *long)["reward"] < scores(renderer, *short)["reward"]


def test_a_broken_call_is_kept_as_a_negative(renderer):
    """It stays in the episode, in its rows and in its price; nothing is dropped for it."""
    bad = call(("edit_file", {"path": "cart.py", "old": "zzz", "new": "y"}))
    one = scores(renderer, READ, bad, EDIT, say("Done."))
    assert one["broken_calls"] == 1.0 and one["solved"] == 1.0
    assert one["reward"] < scores(renderer, READ, READ, EDIT, say("Done."))["reward"]


def test_every_price_has_its_term():
    assert PRICES.keys() == TERMS.keys() | {"unfinished"}
