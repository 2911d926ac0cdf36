"""What a loop's steps cost: CPU seconds, so that ways to learn can be compared at equal cost on a machine of any load."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

from trivium.fleet import Rank
from trivium.loops.run import Event


async def timed(events: AsyncIterator[Event], rank: Rank = Rank()) -> AsyncIterator[Event]:
    """The same events, each with `cpu_seconds`: what all ranks' processes spent while it was waited for. What the caller
    does between two events (a look at held-out tasks, a checkpoint) is not in it."""
    while True:
        began = time.process_time()
        event = await anext(events, None)
        if event is None:
            return
        spent = sum(rank.gather(time.process_time() - began))
        yield replace(event, metrics={**event.metrics, "cpu_seconds": spent})
