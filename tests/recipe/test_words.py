"""benchmarks/words.py asks what it says: its log is right or wrong as often as told, in any words, with or without a blank."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trivium.recipe.find import find

FILE = Path(__file__).parents[2] / "benchmarks" / "words.py"


def lessons(**fields) -> list[tuple[str, dict[str, float]]]:
    """What the log answers to each question, and its scores."""
    recipe = find(str(FILE))(people=12, **fields)
    harness, log, right = recipe.harness(), recipe.lessons(), recipe.scorer(0)

    async def live():
        episodes = [await harness.run(task, log) for task in recipe.tasks("train")]
        return [(episode.agent.answer, await right(episode)) for episode in episodes]

    return asyncio.run(live())


@pytest.mark.parametrize("kind", ["names", "codes", "numbers"])
@pytest.mark.parametrize("space", [0, 1])
def test_a_log_that_is_always_right_is_always_right(kind, space):
    answers = lessons(kind=kind, space=space, wrong=0.0)
    assert len(answers) == 12
    assert all(scores == {"reward": 1.0, "looked_up": 1.0} for _, scores in answers)


def test_a_log_that_is_never_right_looks_up_and_takes_the_other_city():
    assert all(scores == {"reward": 0.0, "looked_up": 1.0} for _, scores in lessons(wrong=1.0))


def test_held_out_people_are_not_learned_from():
    recipe = find(str(FILE))(people=12, kind="codes")
    trained, held_out = ({task.id for task in recipe.tasks(split)} for split in ("train", "heldout"))
    assert len(trained) == 12 and len(held_out) == 64 and not trained & held_out
