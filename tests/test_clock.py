"""The simulated clock: hours in milliseconds, always in the same order."""

from __future__ import annotations

import asyncio

from trivium.clock import SimulatedClock


def test_sleepers_wake_in_order_of_their_time_and_then_of_their_asking():
    clock, woke = SimulatedClock(), []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woke.append((name, clock.now()))

    async def main() -> None:
        running = [asyncio.create_task(sleeper(*s)) for s in (("a", 10, 5), ("b", 10), ("c", 3600), ("d", 1, 1))]
        await clock.advance(20)
        assert woke == [("d", 1), ("d", 2), ("a", 10), ("b", 10), ("a", 15)] and clock.now() == 20
        await clock.advance(7200)
        assert woke[-1] == ("c", 3600)
        await asyncio.gather(*running)

    asyncio.run(main())
