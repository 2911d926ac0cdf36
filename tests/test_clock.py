"""The simulated clock: hours in milliseconds, always in the same order, and a hang is an error."""

from __future__ import annotations

import asyncio

import pytest

from trivium.clock import SimulatedClock
from trivium.errors import LawError


def test_sleepers_wake_in_order_of_their_time():
    clock, woke = SimulatedClock(), []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await asyncio.sleep(nap)
            woke.append((name, clock.now()))

    async def main() -> None:
        running = [asyncio.create_task(sleeper(*s)) for s in (("a", 10, 5), ("b", 11), ("c", 3600), ("d", 1, 1))]
        await asyncio.sleep(20)
        assert woke == [("d", 1), ("d", 2), ("a", 10), ("b", 11), ("a", 15)] and clock.now() == 20
        await asyncio.gather(*running)

    clock.run(main())
    assert woke[-1] == ("c", 3600) and clock.now() == 3600


def test_timeouts_and_the_loops_own_time_are_simulated_too():
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7200):
                await asyncio.sleep(10_000)
        return asyncio.get_running_loop().time()

    clock = SimulatedClock()
    assert clock.run(main()) == clock.now() == 7200


def test_who_waits_for_ever_is_told():
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(LawError, match="nobody will ever wake"):
        SimulatedClock().run(main())
