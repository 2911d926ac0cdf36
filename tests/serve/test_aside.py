"""An engine in a thread of its own says what it says elsewhere, is stopped from here, and its errors arrive."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tests.serve.house import PATIENCE
from trivium.engine import Engine
from trivium.errors import PolicyError
from trivium.policy import View
from trivium.serve.aside import Aside
from trivium.trace import Sampling


@pytest.fixture
def view(renderer):
    return View(renderer.opening([{"role": "user", "content": "hi"}]), [], (), (1, "t", 0, 0))


async def whole(policy, view, sampling) -> tuple[list[int], list[float]]:
    parts = [part async for part in policy.stream(view, sampling)]
    return [token for part in parts for token in part.tokens], [each for part in parts for each in part.logprobs]


def test_it_says_the_same_whole_and_in_parts(tiny_model, view):
    sampling = Sampling(max_tokens=30)
    engines = [Engine(tiny_model, slots=2, context=512) for _ in range(4)]  # equal ones compute alike from their beginning
    plain = asyncio.run(engines[0].speak(view, sampling))
    assert asyncio.run(Aside(engines[1]).speak(view, sampling)) == plain
    assert asyncio.run(whole(Aside(engines[2]), view, sampling)) == (plain.tokens, plain.logprobs)
    assert asyncio.run(whole(engines[3], view, sampling)) == (plain.tokens, plain.logprobs)


@pytest.mark.parametrize("aside", [True, False])
def test_who_stops_listening_stops_it(tiny_model, view, aside):
    engine = Engine(tiny_model, slots=1, context=2048)
    engine.renderer.stop_tokens = ()  # so that it goes on
    policy = Aside(engine) if aside else engine

    async def listen() -> None:
        async with aclosing(policy.stream(view, Sampling(max_tokens=1900))) as parts:
            async for _ in parts:
                break
        async with asyncio.timeout(PATIENCE):
            while engine._running or engine._waiting:
                await asyncio.sleep(0.01)

    asyncio.run(listen())


def test_what_it_cannot_say_is_an_error_here(tiny_model, view):
    aside = Aside(Engine(tiny_model, slots=2, context=64))
    for ask in (aside.speak(view, Sampling(max_tokens=100)), whole(aside, view, Sampling(max_tokens=100))):
        with pytest.raises(PolicyError, match="do not fit"):
            asyncio.run(ask)
