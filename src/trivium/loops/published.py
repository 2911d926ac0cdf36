"""Weights that go by way of a folder or a bucket: the loop's publication made of a Publisher and a Subscriber."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence

from trivium.nn import Network
from trivium.weights import Publisher, Receiver, Subscriber


def through(publisher: Publisher, subscriber: Subscriber, seconds: float = 60.0):
    """A `Publish` for `rl`: the version is published, read back, and handed to the receiver, which is checked.

    Publishing and reading run in a thread, on a copy of the weights, so that episodes go on; handing over happens between
    two decode steps. Raises Unreachable, which the loop counts, when the version does not appear within `seconds`; give
    `rl` a longer `publish_seconds`, since a thread cannot be stopped. The version after one that did not come through is sent
    in full: a delta would stand on what may be torn.
    """
    behind = False

    async def publish(network: Network, version: int, receiver: Receiver, probe: Sequence[int]) -> float:
        nonlocal behind
        full, behind = behind, True
        await asyncio.to_thread(publisher.publish, copy.deepcopy(network), version, probe, full)
        weights = await asyncio.to_thread(subscriber.wait, version, seconds)
        gap = subscriber.deliver(receiver, weights)
        behind = False
        return gap or 0.0

    return publish
