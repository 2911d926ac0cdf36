"""Weights that change while requests go on: the newest version under a URL, taken over between two steps of the engine; or
whatever a deployment record says, an engine for each deployment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trivium.errors import TriviumError
from trivium.serve.metrics import Metrics
from trivium.serve.routing import Lane, Record, Route

if TYPE_CHECKING:
    from trivium.weights import Subscriber

EVERY = 1.0
"""Seconds between two looks."""
_REFUSED = (TriviumError, RuntimeError, MemoryError, OSError)
"""What a look may come to where weights or a record cannot be had: who serves serves on, and the next look may find them."""

logger = logging.getLogger("trivium.serve")


async def follow(subscriber: Subscriber, policy: Any, metrics: Metrics) -> None:
    """Look for new versions until cancelled. One that is torn or not what was published is refused, and the last good one
    speaks on (law 10)."""
    refused = ""
    while True:
        try:
            gap = await asyncio.to_thread(subscriber.deliver, policy)
        except _REFUSED as error:
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


class Deployed:
    """The `route` of a model as its record says. Made, it has loaded the incumbent; raises what keeps it from that."""

    def __init__(self, record: Record) -> None:
        self._record, wanted = record, record.wanted()
        self.route = Route(Lane(wanted.incumbent, record.load(wanted.incumbent)))

    def look(self) -> list[str]:
        """Make `route` what the record says by now, as far as it can be had. Returns why the rest cannot: who served before
        serves on in an incumbent's place, and nobody in a canary's."""
        wanted, faults = self._record.wanted(), []
        incumbent = self._lane(wanted.incumbent, faults) or self.route.incumbent
        canary = self._lane(wanted.canary, faults) if wanted.canary not in ("", incumbent.deployment) else None
        self.route = Route(incumbent, canary, wanted.share if canary else 0.0)
        return faults

    def _lane(self, deployment: str, faults: list[str]) -> Lane | None:
        """The one that is there, or a new one. A canary that is promoted has spoken before, and is loaded no second time."""
        for lane in self.route.lanes:
            if lane.deployment == deployment:
                return lane
        try:
            return Lane(deployment, self._record.load(deployment))
        except _REFUSED as error:
            faults.append(f"{deployment}: {error}")
            return None


async def keep_deployed(deployed: Deployed, put: Callable[[Route], None], metrics: Metrics) -> None:
    """Look at a record until cancelled, and `put` the route that it leads to where that changed. What is under way goes on with
    whom it began with."""
    told: list[str] = []
    while True:
        before = deployed.route
        try:
            faults = await asyncio.to_thread(deployed.look)
        except _REFUSED as error:
            faults = [str(error)]
        if deployed.route != before:
            put(deployed.route)
            incumbent, canary = deployed.route.incumbent, deployed.route.canary
            metrics.swaps.labels("taken").inc()
            metrics.version.labels(incumbent.policy.name).set(incumbent.policy.version)
            line = {"incumbent": incumbent.deployment, "canary": canary and canary.deployment, "share": deployed.route.share}
            logger.info("deployment changed", extra={"line": line})
        if faults and faults != told:
            metrics.swaps.labels("refused").inc()
            logger.warning("deployment refused", extra={"line": {"errors": faults}})
        told = faults
        await asyncio.sleep(EVERY)
