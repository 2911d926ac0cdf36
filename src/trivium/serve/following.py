"""Weights that change while requests go on: the newest version under a URL, taken over between two steps of the engine."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from trivium.errors import TriviumError
from trivium.serve.metrics import Metrics

EVERY = 1.0
"""Seconds between two looks."""

logger = logging.getLogger("trivium.serve")


async def follow(url: str, policy: Any, metrics: Metrics) -> None:
    """Look for new versions until cancelled. One that is torn or not what was published is refused, and the last good one
    speaks on (law 10)."""
    from trivium.weights import Subscriber

    subscriber = Subscriber(url)
    refused = ""
    while True:
        try:
            gap = await asyncio.to_thread(subscriber.deliver, policy)
        except (TriviumError, RuntimeError, MemoryError) as error:
            if str(error) != refused:
                metrics.swaps.labels("refused").inc()
                logger.warning("weights refused", extra={"line": {"error": str(error)}})
            refused = str(error)
        else:
            refused = ""
            if gap is not None:
                metrics.swaps.labels("taken").inc()
                metrics.version.labels(policy.name).set(policy.version)
                logger.info("weights taken", extra={"line": {"version": policy.version, "gap": gap}})
        await asyncio.sleep(EVERY)
