"""Generated projects and a made history in real sandboxes, with pytest: what says true elsewhere is true there."""

from __future__ import annotations

import asyncio

import pytest

from trivium.errors import InputError, TriviumError
from trivium.sandbox import Fake, LocalUnsafe, Ns
from trivium.tasks import projects
from trivium.tasks.commits.boxes import Boxes
from trivium.tasks.commits.prove import BARE, prove
from trivium.tasks.projects import GRADES


async def proof_of(boxes: Boxes, task):
    before, tests = task.truth["files"], task.truth["tests"]
    return await prove(boxes, before, before | task.truth["change"] | tests, list(tests), [BARE])


def test_a_generated_project_is_proven_in_a_sandbox():
    async def run():
        provider = LocalUnsafe(i_know_that_nothing_is_isolated=True)
        try:
            (task,) = projects(1, (0,), seed=2)
            proof = await proof_of(Boxes(provider), task)
            assert set(proof.expected) == set(task.truth["expected"]) and proof.fixed
        finally:
            await provider.close()

    asyncio.run(run())


def test_a_sandbox_that_cannot_run_pytest_is_an_error_at_start():
    async def run():
        provider = Fake()
        with pytest.raises(InputError, match="cannot run pytest"):
            await Boxes(provider).check()

    asyncio.run(run())


@pytest.mark.slow
def test_projects_of_every_grade_are_proven_behind_walls():
    try:
        provider = Ns()
    except TriviumError as error:
        pytest.skip(str(error))

    async def run():
        try:
            boxes = Boxes(provider)
            for grade in GRADES:
                for task in projects(4 if grade < 4 else 1, (grade,), seed=11):
                    proof = await proof_of(boxes, task)
                    assert set(proof.expected) == set(task.truth["expected"]) and proof.fixed
        finally:
            await provider.close()

    asyncio.run(run())
